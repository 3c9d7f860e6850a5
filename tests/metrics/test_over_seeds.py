"""Means over seeds and paired differences."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from data_lt.errors import UserError
from pilot_tal.metrics import Difference, Spread, paired_difference, spread

values = st.lists(st.floats(0, 1), min_size=2, max_size=8)


def test_by_hand():
    assert spread([1.0, 2.0, 3.0]) == Spread(2.0, 1.0, 3)
    found = paired_difference({1: 0.5, 2: 0.7, 3: 0.9}, {1: 0.4, 2: 0.5, 3: 0.6})
    half = 4.302652729911275 * 0.1 / 3**0.5  # t(0.975, 2) from a printed table, s = 0.1
    assert found.mean == pytest.approx(0.2) and found.n == 3
    assert (found.low, found.high) == (pytest.approx(0.2 - half), pytest.approx(0.2 + half))


def test_equal_values_have_no_deviation():
    value = 0.1 + 0.2
    assert np.std([value] * 3 + [0.3], ddof=1) > 0, "differs in the last bits"
    assert spread([value] * 3 + [0.3]).std == 0.0


def test_one_seed_has_no_deviation_and_no_interval():
    assert spread([0.5]) == Spread(0.5, None, 1)
    assert paired_difference({7: 0.75, 8: 0.1}, {7: 0.5, 9: 0.2}) == Difference(0.25, None, None, 1)


def test_only_shared_seeds_count():
    assert paired_difference({1: 0.5}, {2: 0.5}) is None
    some = paired_difference({1: 0.5, 2: 0.6, 3: 0.0}, {1: 0.4, 2: 0.4, 4: 1.0})
    assert some == paired_difference({2: 0.6, 1: 0.5}, {1: 0.4, 2: 0.4})


def test_no_seed_at_all_is_refused():
    with pytest.raises(UserError, match="at least one seed"):
        spread([])


@given(values, st.integers(0, 99))
def test_same_interval_as_scipys_paired_t_test(ours, seed):
    base = np.random.default_rng(seed).random(len(ours))
    found = paired_difference(dict(enumerate(ours)), dict(enumerate(base)))
    expected = stats.ttest_rel(ours, base).confidence_interval(0.95)
    assert found.low == pytest.approx(expected.low, abs=1e-9)
    assert found.high == pytest.approx(expected.high, abs=1e-9)

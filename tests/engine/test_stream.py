"""Class order and task split, against LAMDA-PILOT's."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pilot_tal.errors import PilotTalError
from pilot_tal.stream import class_order, equal_tasks, incremental_tasks, make_tasks


def test_class_order_is_the_one_lamda_pilot_draws():
    order = class_order(200, 1993)
    assert order[:12] == [168, 136, 51, 9, 183, 101, 171, 99, 42, 159, 191, 70]
    assert order.index(0) == 27
    order = class_order(100, 1993)
    assert order[:12] == [68, 56, 78, 8, 23, 84, 90, 65, 74, 76, 40, 89]
    assert order.index(0) == 69


def test_equal_tasks():
    assert equal_tasks(101, 5) == [21, 20, 20, 20, 20]
    assert equal_tasks(200, 10) == [20] * 10
    assert equal_tasks(7, 7) == [1] * 7


@given(st.integers(1, 300), st.data())
def test_equal_tasks_differ_by_one_at_most_and_never_grow(classes, data):
    sizes = equal_tasks(classes, data.draw(st.integers(1, classes)))
    assert sum(sizes) == classes and max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_incremental_tasks_are_those_of_lamda_pilot():
    assert incremental_tasks(200, 20, 20) == [20] * 10
    assert incremental_tasks(100, 50, 20) == [50, 20, 20, 10]
    assert incremental_tasks(101, 20, 20) == [20, 20, 20, 20, 20, 1]
    assert incremental_tasks(10, 10, 5) == [10]


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        (lambda: equal_tasks(5, 6), "tasks must be 1 to 5"),
        (lambda: equal_tasks(5, 0), "tasks must be 1 to 5"),
        (lambda: incremental_tasks(5, 6, 1), "init_cls must be 1 to 5"),
        (lambda: incremental_tasks(5, 2, 0), "increment must be at least 1"),
    ],
)
def test_impossible_splits_are_refused(split, sentence):
    with pytest.raises(PilotTalError, match=sentence):
        split()


def test_tasks_own_consecutive_labels():
    tasks = make_tasks([2, 1], [9, 8, 7])
    assert [(t.first, t.stop, t.counts) for t in tasks] == [(0, 2, (9, 8)), (2, 3, (7,))]

"""α, x*, the kernel form of Q and the theorem on back-loading."""

import math
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from data_lt.errors import UserError
from pilot_tal.losses.tal_math import (
    alignment_factor,
    balance,
    exponential_kernel,
    max_strength,
    negative_weight,
    steady_state,
    supervision_strength,
)

CLASSES = st.integers(2, 100_000)
EXPONENTS = st.floats(0.05, 20.0)


@pytest.mark.parametrize("classes", [2, 3, 5, 20, 101, 200, 100_000])
def test_alpha_has_the_papers_closed_forms(classes):
    assert alignment_factor(classes, 1) == pytest.approx(2 * classes - 1, rel=1e-12)
    root = math.sqrt(classes**2 + 4 * classes - 4)
    assert alignment_factor(classes, 2) == pytest.approx(((classes + root) / 2) ** 2, rel=1e-12)
    assert alignment_factor(classes, 1, "normalized") == pytest.approx(classes + 1, rel=1e-12)


@given(CLASSES, EXPONENTS, st.sampled_from(["paper", "normalized"]))
def test_steady_state_solves_the_calibration_equation(classes, r, update):
    x = steady_state(classes, r, update)
    p = 1 / classes
    negatives = (1 - p) * x**r / (1 if update == "paper" else classes - 1)
    assert 0 < x < 1
    assert negatives + x == pytest.approx(p, rel=1e-9)  # relative: an absolute test would pass for x = 0
    assert alignment_factor(classes, r, update) * x**r == pytest.approx(1, rel=1e-12)


@given(CLASSES, st.sampled_from([1.0, 2.0]), st.sampled_from(["paper", "normalized"]))
def test_bracketed_root_equals_closed_forms(classes, r, update):
    near = steady_state(classes, r + 1e-9, update)
    assert near == pytest.approx(steady_state(classes, r, update), rel=1e-6)


def test_steady_state_agrees_with_exact_bisection():
    for classes, r in ((7, 3), (50, 5), (1000, 7)):
        p, low, high = Fraction(1, classes), Fraction(0), Fraction(1)
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if (1 - p) * middle**r + middle - p < 0 else (low, middle)
        assert steady_state(classes, r) == pytest.approx(float(low), rel=1e-12)


def test_numpy_numbers_are_whole_numbers():
    assert alignment_factor(np.int64(5)) == pytest.approx(9)


@pytest.mark.parametrize("classes", [1, 0, -3, 2.5, True, "ten"])
def test_num_classes_below_two_is_refused(classes):
    with pytest.raises(UserError, match=r"num_classes must be .* at least 2, got"):
        steady_state(classes)


def test_defaults_are_the_papers_with_r_1():
    assert steady_state(20) == steady_state(20, 1.0, "paper") == pytest.approx(1 / 39)
    assert alignment_factor(20) == alignment_factor(20, 1.0, "paper") == pytest.approx(39)
    assert balance(20) == balance(20, 1.0, "paper")


def test_fixed_point_of_the_mean_update_is_the_steady_state():
    classes, lam, r = 12, 0.97, 1.7
    strength = torch.full((1,), steady_state(classes, r) * max_strength(lam), dtype=torch.float64)
    weight = negative_weight(strength, max_strength(lam), r)
    after = lam * (strength + 1 / classes - (1 - 1 / classes) * weight)
    torch.testing.assert_close(after, strength, rtol=1e-12, atol=0)


@given(st.lists(st.sampled_from([-1.0, 1.0]), min_size=1, max_size=40), st.floats(0.05, 0.99))
def test_kernel_form_equals_the_recursion(signs, lam):
    polarity = torch.tensor(signs, dtype=torch.float64)
    by_kernel = supervision_strength(polarity, exponential_kernel(lam, len(signs)))
    strength = 0.0
    for step, sign in enumerate(signs):
        strength = lam * (strength + sign)  # Eq. markov
        assert float(by_kernel[step + 1]) == pytest.approx(strength, abs=1e-12)
    assert by_kernel[0] == 0


@st.composite
def back_loaded_pair(draw):
    """Two streams with as many positives, A's never later than B's, and a decreasing kernel."""
    length = draw(st.integers(2, 40))
    a = draw(st.lists(st.booleans(), min_size=length, max_size=length))
    b = list(a)
    for _ in range(draw(st.integers(0, 10))):  # move positives of B to later steps
        positives = [i for i, positive in enumerate(b) if positive]
        gaps = [i for i, positive in enumerate(b) if not positive]
        if not positives or not gaps:
            break
        source, target = draw(st.sampled_from(positives)), draw(st.sampled_from(gaps))
        if target > source:
            b[source], b[target] = False, True
    drops = draw(st.lists(st.floats(0, 1), min_size=length, max_size=length))
    kernel = torch.tensor(drops, dtype=torch.float64).flip(0).cumsum(0).flip(0)
    return a, b, kernel, all(drop > 1e-6 for drop in drops)


@given(back_loaded_pair())
def test_later_positives_mean_a_larger_strength(pair):
    """Theorem thm:backloading."""
    a, b, kernel, strictly_decreasing = pair
    signs = torch.tensor([a, b], dtype=torch.float64).T * 2 - 1
    strength_a, strength_b = supervision_strength(signs, kernel)[-1]
    assert strength_a <= strength_b + 1e-9
    if strictly_decreasing and a != b:
        assert strength_a < strength_b


def test_kernel_that_grows_or_is_short_is_refused():
    signs = torch.ones(3)
    for kernel in (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, -1.0, -2.0]), torch.ones(2)):
        with pytest.raises(UserError, match="kernel must be"):
            supervision_strength(signs, kernel)

"""What TAL refuses, and what it warns of."""

import copy
import warnings

import pytest
import torch

from data_lt.errors import UserError
from pilot_tal import TAL

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num_classes": 1}, "num_classes must be a whole number of at least 2, got 1"),
        ({"lam": 1.0}, "lam must be a number above 0 and below 1, or auto, got 1.0"),
        ({"lam": 0}, "lam must be .* got 0"),
        ({"lam": float("nan")}, "lam must be .* got NaN"),
        ({"lam": "automatic"}, "lam must be .* or auto, got 'automatic'"),
        ({"r": 0.0}, "r must be a number above 0 and up to 1000, got 0.0"),
        ({"r": -1}, "r must be .* got -1"),
        ({"update": "papr"}, "update must be one of paper, normalized, got 'papr'"),
        ({"start": "warm"}, "start must be one of zero, steady, got 'warm'"),
        ({"reduction": "avg"}, "unknown reduction 'avg'"),
        ({"scope": "all"}, "scope must be one of task, seen, got 'all'"),
        ({"eps": 0.0}, "eps must be a number above 0 and below 1, got 0.0"),
        ({"accumulate": -1}, "accumulate must be .* got -1"),
        ({"dtype": torch.float16}, "dtype .* got torch.float16"),
        ({"r": 1000}, "r=1000 is too large for 5 classes"),
        ({"r": 0.0001}, "r=0.0001 is too small for 5 classes"),
    ],
)
def test_bad_settings_get_a_sentence(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        TAL(**{"num_classes": 5, **settings})


@pytest.mark.parametrize(
    ("logits", "targets", "sentence"),
    [
        (torch.zeros(2, 4), torch.tensor([0, 1]), "logits must have 5 columns, one per class, got 4"),
        (torch.zeros(5), torch.tensor([0]), r"logits must be .* got float32 of shape \[5\]"),
        (torch.zeros(2, 5, dtype=torch.long), torch.tensor([0, 1]), "logits must be a floating point"),
        (torch.zeros(2, 5), torch.tensor([0, 1, 2]), "targets must be 2 class indices"),
        (
            torch.zeros(2, 5),
            torch.tensor([0.0, 1.0]),
            "targets must be 2 class indices of type int64, got float32",
        ),
        (torch.zeros(2, 5), torch.tensor([0, 5]), r"targets must lie in 0 … 4 .* got 5"),
        (torch.zeros(2, 5), torch.tensor([0, 10**15]), r"targets must lie in 0 … 4 .* got 1000000000000000"),
        (torch.zeros(2, 5), torch.tensor([2**63 - 1, 0]), r"targets must lie in 0 … 4 .* got 9223372036854775807"),
        (torch.zeros(2, 5), torch.tensor([-3, 1]), r"targets must lie in 0 … 4 .* got -3"),
        (torch.zeros(2, 5), torch.tensor([-100, 9]), r"targets must lie in 0 … 4 .* got 9"),
        (
            torch.tensor([[0, NAN, 0, 0, 0]]),
            torch.tensor([0]),
            "logits must be finite, got nan in row 0, column 1",
        ),
        (torch.tensor([[0, NAN, 0, 0, 0]]).half(), torch.tensor([0]), "logits must be finite, got nan"),
        (torch.tensor([[0, INF, 0, 0, 0]]), torch.tensor([0]), "logits must be finite, got inf"),
        (torch.tensor([[0, -INF, 0, 0, 0]]), torch.tensor([0]), "got -inf .* slice their columns away"),
    ],
)
@pytest.mark.parametrize("validate", [None, True])
def test_bad_input_raises_user_error_and_moves_nothing(logits, targets, sentence, validate):
    tal = TAL(5, validate=validate)
    tal(torch.randn(2, 5), torch.tensor([0, 1]))
    before = copy.deepcopy(tal.state_dict())
    with pytest.raises(UserError, match=sentence):
        tal(logits, targets)
    after = tal.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    tal(torch.randn(2, 5), torch.tensor([0, 1]))
    assert tal.updates == 2


def test_without_validation_only_the_targets_are_looked_at():
    tal = TAL(5, validate=False)
    assert tal(torch.full((1, 5), NAN), torch.tensor([0])).isnan()
    with pytest.raises(UserError, match="targets must lie in 0 … 4"):
        tal(torch.zeros(1, 5), torch.tensor([5]))


def test_large_finite_logits_are_not_mistaken_for_infinite_ones():
    tal = TAL(5, start="steady")
    assert tal(torch.full((4, 5), 3e38), torch.arange(4)).isfinite()


def test_floor_above_the_calibrated_weight_warns():
    with pytest.warns(UserWarning, match="eps=1e-08 lies above the calibrated weight"):
        TAL(1000, r=4.0)


def test_floor_warns_only_above_the_calibrated_weight(recwarn):
    TAL(10, eps=0.99 / 19)  # α = 2C − 1
    assert not recwarn
    TAL(10, eps=1.01 / 19)
    assert len(recwarn) == 1


def test_steady_state_too_small_for_float32_warns():
    with pytest.warns(UserWarning, match=r"float32 cannot hold Q\*=2.1e-44 of 200 classes with r=0.05"):
        TAL(200, r=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steady = TAL(200, r=0.05, start="steady", dtype=torch.float64)
    torch.testing.assert_close(steady.negative_weights(), torch.ones(200, dtype=torch.float64))

"""A memory in epochs: λ from the steps of an epoch, anew in every task."""

import copy

import pytest
import torch
from tal_oracle import stream

from data_lt.errors import UserError
from pilot_tal import TAL
from pilot_tal.losses import build_loss
from pilot_tal.stream.task import TaskInfo


def task(steps, first=0, stop=5):
    return TaskInfo(0, 1, first, stop, (1,) * (stop - first), epoch_steps=steps)


@pytest.mark.parametrize("options", [{}, {"memory_epochs": 3.5}])
def test_lam_is_set_by_every_task(options):
    tal, epochs = build_loss("tal", lam="auto", **options), options.get("memory_epochs", 2)
    for steps in (5, 80, 1):
        tal.begin_task(task(steps))
        assert tal.lam == pytest.approx(1 - 1 / (epochs * steps), rel=1e-12)
        assert tal.max_strength == pytest.approx(epochs * steps - 1)  # all that is remembered but the last step


def test_tal_auto_is_tal_with_an_automatic_memory_and_a_steady_start():
    one, other = build_loss("tal_auto", memory_epochs=0.7), TAL(lam="auto", memory_epochs=0.7, start="steady")
    for loss in (one, other):
        loss.begin_task(task(12))
    for logits, targets in stream(5, 8, 20, dtype=torch.float32, tailed=True):
        assert torch.equal(one(logits, targets), other(logits, targets))
    assert isinstance(one, TAL) and one.is_calibrated() == other.is_calibrated()


@pytest.mark.parametrize("epochs", [1, 3])
def test_state_after_equal_epochs_does_not_depend_on_steps(epochs):
    ends = []
    for steps in (10, 100):
        tal = TAL(lam="auto", dtype=torch.float64)
        tal.begin_task(task(steps))
        for _ in range(epochs * steps):
            tal(torch.zeros(5, 5), torch.arange(5))
        ends.append(tal.calibration())
    assert ends[0] == pytest.approx(ends[1], rel=0.05)
    fixed = [TAL(5, lam=0.995) for _ in range(2)]
    for loss, steps in zip(fixed, (10, 100), strict=True):
        for _ in range(epochs * steps):
            loss(torch.zeros(5, 5), torch.arange(5))
    assert abs(fixed[0].calibration() - fixed[1].calibration()) > 0.1


def test_growing_keeps_the_weights_under_another_memory():
    tal = build_loss("tal_auto")
    tal.begin_task(task(10))
    for logits, targets in stream(5, 8, 20, dtype=torch.float32, tailed=True):
        tal(logits, targets)
    share = tal.Q / tal.max_strength
    tal.grow(7, epoch_steps=40)
    assert tal.lam == pytest.approx(1 - 1 / 80)
    torch.testing.assert_close(tal.Q[:5] / tal.max_strength, share)
    torch.testing.assert_close(tal.negative_weights()[5:], torch.ones(2))
    with pytest.raises(UserError, match="lam=auto needs the optimizer steps of an epoch"):
        tal.grow(9)


def test_saved_state_contains_the_memory():
    tal, restored = build_loss("tal_auto"), build_loss("tal_auto")
    empty = copy.deepcopy(tal.state_dict())
    tal.begin_task(task(10))
    for logits, targets in stream(5, 8, 5, dtype=torch.float32):
        tal(logits, targets)
    restored.load_state_dict(tal.state_dict())
    assert restored.lam == tal.lam
    for logits, targets in stream(5, 8, 5, seed=3, dtype=torch.float32):
        assert torch.equal(restored(logits, targets), tal(logits, targets))
    restored.load_state_dict(empty)
    with pytest.raises(UserError, match="begin_task"):
        restored(logits, targets)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lam": "auto", "memory_epochs": 0}, "memory_epochs must be a number above 0 .* got 0"),
        ({"lam": "auto", "memory_epochs": -1}, "memory_epochs must be a number above 0 .* got -1"),
        ({"memory_epochs": 2}, "memory_epochs=2 needs lam=auto, got lam=0.995"),
        ({"lam": 0.9, "memory_epochs": 3}, "memory_epochs=3 needs lam=auto, got lam=0.9"),
        ({"lam": "auto", "num_classes": 5}, "lam=auto needs the optimizer steps of an epoch"),
    ],
)
def test_contradictory_options_raise_user_error(options, sentence):
    with pytest.raises(UserError, match=sentence):
        TAL(**options)


def test_missing_or_too_few_epoch_steps_raise_and_change_nothing():
    tal = build_loss("tal", lam="auto", memory_epochs=0.5)
    tal.begin_task(task(10))
    before = repr(tal)
    with pytest.raises(UserError, match=r"lam=auto needs the optimizer steps of an epoch: .* epoch_steps"):
        tal.begin_task(task(None))
    with pytest.raises(UserError, match=r"memory_epochs=0.5 must cover more than one step, but an epoch .* has 2"):
        tal.begin_task(task(2))
    assert repr(tal) == before

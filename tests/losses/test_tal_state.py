"""TAL's state: growing, saving, starting anew, and what a change of Q between two calls does."""

import copy

import numpy as np
import pytest
import torch
from tal_oracle import stream

from data_lt.errors import UserError
from pilot_tal import TAL
from pilot_tal.schema import settings_of
from pilot_tal.stream.task import TaskInfo

BATCH = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 5


def test_growing_keeps_the_strength_and_recalibrates():
    tal = TAL(4)
    for logits, targets in stream(4, 8, 10, dtype=torch.float32):
        tal(logits, targets)
    before = tal.Q.clone()
    tal.grow(10)
    assert torch.equal(tal.Q[:4], before) and (tal.Q[4:] == 0).all()
    assert tal.alpha == pytest.approx(19) and tal.updates == 10
    for logits, targets in stream(10, 8, 3, dtype=torch.float32):
        tal(logits, targets)
    assert tal.updates == 13
    with pytest.raises(UserError, match="at least 10, got 6"):
        tal.grow(6)


def test_steady_start_grows_with_steady_classes():
    tal = TAL(3, start="steady")
    tal.grow(6)
    assert tal.negative_weights()[3:].mean() == pytest.approx(1)


@pytest.mark.parametrize("made_for", [2, 7, 30])
def test_state_dict_restores_strength_alpha_and_count_of_any_size(made_for):
    tal = TAL(7, r=1.5)
    for logits, targets in stream(7, 8, 10, dtype=torch.float32):
        tal(logits, targets)
    restored = TAL(made_for, r=1.5)
    restored.load_state_dict(copy.deepcopy(tal.state_dict()))
    assert torch.equal(restored.Q, tal.Q) and restored.alpha == tal.alpha and restored.updates == 10
    for logits, targets in stream(7, 8, 5, seed=4, dtype=torch.float32):
        assert torch.equal(restored(logits, targets), tal(logits, targets))
    assert torch.equal(restored.Q, tal.Q) and restored.updates == tal.updates == 15


def test_state_dict_keeps_the_calibration_of_all_seen_classes():
    tal = TAL(2, scope="seen", update="normalized")
    tal.begin_task(TaskInfo(1, 2, 5, 8, (1, 1, 1)))
    assert tal.alpha == pytest.approx(9)
    restored = TAL(2, scope="seen", update="normalized")
    restored.load_state_dict(tal.state_dict())
    assert restored.alpha == tal.alpha
    for logits, targets in stream(3, 8, 3, dtype=torch.float32):
        assert torch.equal(restored(logits, targets), tal(logits, targets))


def test_state_of_other_settings_or_an_incomplete_one_is_refused():
    tal = TAL(5, r=2.0)
    before = repr(tal), tal.calibration_classes
    with pytest.raises(RuntimeError, match="alpha is 13 in the saved state"):
        tal.load_state_dict(TAL(7).state_dict())
    with pytest.raises(RuntimeError, match=r"lam is 0\.9 in the saved state, but 0\.995 here"):
        tal.load_state_dict(TAL(7, r=2.0, lam=0.9).state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        tal.load_state_dict({"Q": torch.zeros(5)})
    assert (repr(tal), tal.calibration_classes) == before
    with pytest.raises(RuntimeError, match=r"Unexpected key.*bogus"):
        tal.load_state_dict({**tal.state_dict(), "bogus": torch.zeros(1)})


def test_begin_task_resets_the_state():
    tal = TAL(5)
    tal(torch.randn(4, 5), torch.arange(4))
    tal.begin_task(TaskInfo(1, 3, 5, 12, (1,) * 7))
    assert tal.num_classes == 7 and (tal.Q == 0).all() and tal.updates == 0
    assert tal.alpha == pytest.approx(13)


RESTARTS = {
    "reset": lambda tal: tal.reset(5),
    "begin_task": lambda tal: tal.begin_task(TaskInfo(0, 1, 0, 5, (1,) * 5)),
    "load": lambda tal: tal.load_state_dict(TAL(5, accumulate=3).state_dict()),
}


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reset_clears_counts_and_partial_accumulation(restart, dtype):
    logits, targets = BATCH[0].to(dtype), BATCH[1]
    tal, fresh = TAL(5, accumulate=3), TAL(5, accumulate=3)
    for _ in range(5):  # one update, and two calls of the next
        tal(logits, targets)
    assert tal.updates == 1
    RESTARTS[restart](tal)
    assert tal.updates == 0 and (tal.Q == 0).all()
    for _ in range(3):
        assert tal.updates == 0
        assert torch.equal(tal(logits, targets), fresh(logits, targets))
    assert tal.updates == 1 and torch.equal(tal.Q, fresh.Q)


def test_growing_forgets_half_an_accumulation():
    tal = TAL(4, accumulate=2)
    tal(BATCH[0][:, :4], BATCH[1] % 4)
    tal.grow(5)
    tal(*BATCH)
    assert tal.updates == 0
    tal(*BATCH)
    assert tal.updates == 1


@pytest.mark.parametrize("accumulate", [1, 2])
def test_fewer_micro_batches_from_now_on_leave_no_count_behind(accumulate):
    tal, whole = TAL(5, accumulate=4), TAL(5, accumulate=3)
    calls = [BATCH, BATCH, (BATCH[0], torch.zeros_like(BATCH[1]))]
    for number, batch in enumerate(calls):
        if number == 2:
            tal.accumulate = accumulate
        tal(*batch), whole(*batch)
    assert tal.updates == 1 and torch.equal(tal.Q, whole.Q)


@pytest.mark.parametrize(
    "replace",
    [
        lambda tal: tal.share_memory(),
        lambda tal: setattr(tal.Q, "data", tal.Q.data.clone()),
        lambda tal: setattr(tal, "Q", tal.Q.clone()),
        lambda tal: tal.double(),
    ],
    ids=["share_memory", "data", "buffer", "double"],
)
def test_q_moves_on_in_the_memory_it_was_given_since_the_last_call(replace):
    tal, other = TAL(5), TAL(5)
    for _ in range(3):
        tal(*BATCH), other(*BATCH)
        replace(tal)
        torch.testing.assert_close(tal.Q, other.Q, check_dtype=False)
        assert float(tal.Q.sum()) > 0 and tal.updates == other.updates


def test_call_with_wrong_device_leaves_state_unchanged():
    tal, other = TAL(5), TAL(5)
    tal(*BATCH), other(*BATCH)
    strength = tal.Q
    tal.Q = strength.to("meta")
    for _ in range(2):
        with pytest.raises(UserError, match="on one device, got cpu, cpu, meta"):
            tal(*BATCH)
    with pytest.raises(UserError, match="on one device, got cpu, meta, cpu"):
        other(BATCH[0], BATCH[1].to("meta"))
    tal.Q = strength
    assert torch.equal(tal(*BATCH), other(*BATCH)) and torch.equal(tal.Q, other.Q)


def test_calibration_is_reached_within_the_tolerance():
    tal = TAL(5, start="steady")
    tal.Q.mul_(0.8)
    assert tal.calibration() == pytest.approx(0.8)
    assert tal.is_calibrated(0.21) and not tal.is_calibrated(0.19) and not tal.is_calibrated()


@pytest.mark.parametrize("classes", [0, -3, 2.5, True])
def test_resetting_to_no_class_is_refused_and_changes_nothing(classes):
    tal = TAL(5)
    for arguments in ((classes,), (7, classes)):
        with pytest.raises(UserError, match="classes must be a whole number of at least 1, got"):
            tal.reset(*arguments)
    assert tal.alpha == pytest.approx(9) and tal.num_classes == tal.calibration_classes == 5


SETTINGS = ("lam", "r", "update", "start", "scope", "eps", "memory_epochs")


def test_every_setting_of_tal_is_read_only():
    assert set(SETTINGS) == set(settings_of(TAL))
    tal = TAL(5)
    before = repr(tal), tal.eps, tal.scope, tal.memory_epochs
    for name in SETTINGS:
        with pytest.raises(UserError, match=f"{name} of a loss cannot be changed; make a new one with {name}=2"):
            setattr(tal, name, 2)
    for name in ("alpha", "num_classes", "calibration_classes", "max_strength", "updates"):
        with pytest.raises(AttributeError):
            setattr(tal, name, 2)
    assert (repr(tal), tal.eps, tal.scope, tal.memory_epochs) == before
    assert torch.equal(tal(*BATCH), TAL(5)(*BATCH))


def change(tal):
    """Into another Q."""
    tal.Q.mul_(3)


CHANGES = {
    "written into": change,
    "another tensor": lambda tal: setattr(tal, "Q", 3 * tal.Q),
    "loaded": lambda tal: tal.load_state_dict({**tal.state_dict(), "Q": 3 * tal.Q}),
    "reset": lambda tal: (tal.reset(5), tal.Q.fill_(1.0)),
    "double": lambda tal: (tal.double(), change(tal)),
    "copied": lambda tal: change(tal),
}


@pytest.mark.parametrize("name", CHANGES)
def test_weights_follow_q(name):
    tal = TAL(5, start="steady", accumulate=0)
    tal(*BATCH)
    tal(*BATCH)
    if name == "copied":
        tal = copy.deepcopy(tal)
    CHANGES[name](tal)
    fresh = TAL(5, start="steady", accumulate=0, dtype=tal.Q.dtype)
    fresh.Q.copy_(tal.Q)
    assert torch.equal(tal.negative_weights(), fresh.negative_weights())
    assert torch.equal(tal(*BATCH), fresh(*BATCH))


def test_without_a_number_of_classes_they_come_with_the_task():
    tal = TAL()
    assert tal.num_classes == 0 and tal.state_dict()["Q"].numel() == 0
    with pytest.raises(UserError, match=r"TAL: begin_task\(\) must come before the first loss"):
        tal(*BATCH)
    tal.begin_task(TaskInfo(0, 1, 0, 5, (1,) * 5))
    assert torch.equal(tal(*BATCH), TAL(5)(*BATCH))


def test_its_state_is_there_to_be_logged():
    tal = TAL(5)
    tal(*BATCH)
    state = tal.state_to_log()
    assert torch.equal(state["Q"], tal.Q) and torch.equal(state["weights"], tal.negative_weights())
    tal(*BATCH)
    assert not torch.equal(state["Q"], tal.Q)


def test_numbers_of_numpy_are_numbers():
    tal = TAL(np.int64(5), lam=np.float64(0.9), r=np.float32(1.5))
    assert (tal.lam, tal.r, tal.num_classes) == (0.9, 1.5, 5) and type(tal.lam) is float


def test_in_inference_mode_it_works_as_elsewhere():
    expected = TAL(5, start="steady")(*BATCH)
    with torch.inference_mode():
        assert torch.equal(TAL(5, start="steady")(*BATCH), expected)
    tal, other = TAL(5), TAL(5)
    with torch.inference_mode():
        tal.eval()(*BATCH)
    logits = BATCH[0].clone().requires_grad_()
    for loss in (tal.train(), other):
        for _ in range(2):
            loss(logits, BATCH[1]).backward()
    assert torch.equal(tal.Q, other.Q)

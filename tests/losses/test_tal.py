"""TAL against Algorithm 1, and its properties."""

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from tal_oracle import Oracle, stream

from pilot_tal import TAL
from pilot_tal.stream.task import TaskInfo

torch.manual_seed(0)


def blind(*_):
    """As on a device, where nobody looks whether a row is to be ignored."""
    return False


@pytest.fixture(params=["looking", "blind"])
def path(request, monkeypatch):
    """On the CPU, where the targets may be looked at, and as on a device."""
    if request.param == "blind":
        monkeypatch.setattr(TAL, "_check", blind)


@settings(max_examples=25)
@given(
    classes=st.integers(2, 9),
    batch=st.integers(1, 6),
    lam=st.floats(0.3, 0.999),
    r=st.sampled_from([0.2, 0.5, 1.0, 1.5, 2.0, 4.0]),
    update=st.sampled_from(["paper", "normalized"]),
    seed=st.integers(0, 99),
    looking=st.booleans(),
)
def test_equals_algorithm_1_step_by_step(classes, batch, lam, r, update, seed, looking):
    tal = TAL(classes, lam=lam, r=r, update=update, dtype=torch.float64)
    tal._check = tal._check if looking else blind
    oracle = Oracle(classes, lam, r, tal.alpha, update=update)
    for logits, targets in stream(classes, batch, 20, seed, tailed=True):
        loss = tal(logits, targets)
        loss.backward()
        expected, gradient = oracle.step(logits.tolist(), targets.tolist())
        assert loss.item() == pytest.approx(expected, abs=1e-10)
        torch.testing.assert_close(logits.grad, torch.tensor(gradient, dtype=torch.float64), atol=1e-10, rtol=0)
        torch.testing.assert_close(tal.Q, torch.tensor(oracle.Q, dtype=torch.float64), atol=1e-10, rtol=0)
    assert tal.updates == 20


@given(
    labels=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=60),
    lam=st.floats(0.01, 0.999),
    r=st.floats(0.05, 20.0),
)
@pytest.mark.filterwarnings("ignore:eps")
def test_strength_stays_within_its_bounds(labels, lam, r):
    tal = TAL(4, lam=lam, r=r, dtype=torch.float64)
    for targets in labels:
        tal(torch.zeros(len(targets), 4), torch.tensor(targets))
        assert (tal.Q >= 0).all()
        assert (tal.max_strength * (1 + 1e-12) > tal.Q).all()


def test_all_negative_and_all_positive_streams_reach_the_stated_bounds(path):
    lam, steps = 0.9, 30
    tal = TAL(3, lam=lam, dtype=torch.float64)
    for _ in range(steps):
        tal(torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))
    assert tal.Q[1] == 0 and tal.Q[2] == 0
    assert tal.Q[0].item() == pytest.approx(tal.max_strength * (1 - lam**steps), rel=1e-12)


@pytest.mark.parametrize(("update", "r"), [("paper", 1.0), ("paper", 2.0), ("normalized", 1.0)])
def test_on_a_balanced_shuffled_stream_tal_tends_to_cross_entropy(update, r, path):
    classes = 5
    tal = TAL(classes, lam=0.998, r=r, update=update, dtype=torch.float64)
    for logits, targets in stream(classes, 200, 3000, dtype=torch.float64):
        last = tal(logits, targets)
    torch.testing.assert_close(tal.negative_weights(), torch.ones(classes).double(), atol=0.03, rtol=0)
    assert last.item() == pytest.approx(F.cross_entropy(logits, targets).item(), abs=0.02)
    assert tal.is_calibrated()


def test_steady_start_is_cross_entropy_and_a_zero_start_is_not_calibrated(path):
    logits, targets = next(stream(7, 16, 1))
    steady = TAL(7, start="steady", r=1.3, dtype=torch.float64)
    assert steady(logits, targets).item() == pytest.approx(F.cross_entropy(logits, targets).item(), abs=1e-12)
    zero = TAL(7)
    assert steady.is_calibrated() and not zero.is_calibrated()
    assert zero.calibration() < 1e-6


def test_permuting_the_classes_permutes_everything(path):
    order = torch.randperm(6, generator=torch.Generator().manual_seed(3))
    place = order.argsort()
    one, other = TAL(6, dtype=torch.float64), TAL(6, dtype=torch.float64)
    for logits, targets in stream(6, 8, 30, tailed=True):
        permuted = logits.detach()[:, order].requires_grad_()
        loss, twin = one(logits, targets), other(permuted, place[targets])
        loss.backward()
        twin.backward()
        torch.testing.assert_close(loss, twin, atol=1e-12, rtol=0)
        torch.testing.assert_close(logits.grad[:, order], permuted.grad, atol=1e-12, rtol=0)
        torch.testing.assert_close(one.Q[order], other.Q, atol=1e-12, rtol=0)


def test_looking_at_the_targets_changes_no_result_in_float32():
    one, other = TAL(9, r=1.5), TAL(9, r=1.5)
    other._check = blind
    for logits, targets in stream(9, 8, 200, dtype=torch.float32, tailed=True):
        torch.testing.assert_close(one(logits, targets), other(logits, targets))
        torch.testing.assert_close(one.Q, other.Q)


def test_one_batch_shape_may_follow_another_before_the_backward_pass():
    tal = TAL(4, dtype=torch.float64)
    oracle = Oracle(4, 0.995, 1.0, tal.alpha)
    batches = [*stream(4, 6, 2, 1), *stream(4, 3, 2, 2), *stream(4, 6, 2, 3)]
    losses = [tal(*batch) for batch in batches]
    for loss, (logits, targets) in zip(losses, batches, strict=True):
        loss.backward()
        expected, gradient = oracle.step(logits.tolist(), targets.tolist())
        assert loss.item() == pytest.approx(expected, abs=1e-12)
        torch.testing.assert_close(logits.grad, torch.tensor(gradient, dtype=torch.float64))


@pytest.mark.parametrize("layout", ["transposed", "columns of a wider head", "every second row"])
def test_logits_may_lie_in_memory_in_any_way_and_stay_as_they_are(layout):
    rows, classes = 6, 4
    logits, targets = next(stream(classes, rows, 1))
    plain, odd = TAL(classes, start="steady"), TAL(classes, start="steady")
    with torch.no_grad():
        strided = {
            "transposed": logits.t().contiguous().t(),
            "columns of a wider head": torch.cat([logits, logits], 1)[:, classes:],
            "every second row": logits.repeat_interleave(2, 0)[::2],
        }[layout]
    before = strided.clone()
    strided.requires_grad_()
    for _ in range(2):  # the second time with weights apart from 1
        expected = torch.autograd.grad(plain(logits, targets), logits)[0]
        torch.testing.assert_close(torch.autograd.grad(odd(strided, targets), strided)[0], expected, rtol=0, atol=1e-12)
        targets = targets.clamp(max=1)
    assert torch.equal(strided, before) and torch.equal(plain.Q, odd.Q)


def test_second_derivatives_pass_through():
    logits, targets = next(stream(4, 6, 1))
    loss = TAL(4, start="steady", dtype=torch.float64)
    assert torch.autograd.gradgradcheck(lambda z: loss.eval()(z, targets), logits)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reductions(reduction, path):
    logits, targets = next(stream(5, 6, 1))
    tal = TAL(5, start="steady", reduction=reduction, dtype=torch.float64)
    expected = F.cross_entropy(logits, targets, reduction=reduction)
    torch.testing.assert_close(tal(logits, targets), expected)


@pytest.mark.parametrize("ignored", [-100, -1, 3, 255])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ignored_rows_give_no_loss_and_do_not_count(ignored, reduction):
    logits, targets = next(stream(5, 8, 1))
    targets[targets == 3] = 4
    keep = torch.tensor([True, False, True, True, False, True, True, True])
    with_ignored = torch.where(keep, targets, ignored)
    one = TAL(5, start="steady", reduction=reduction, ignore_index=ignored, dtype=torch.float64)
    other = TAL(5, start="steady", reduction=reduction, dtype=torch.float64)
    loss, expected = one(logits, with_ignored), other(logits[keep], targets[keep])
    if reduction == "none":
        assert (loss[~keep] == 0).all()
        loss = loss[keep]
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(one.Q, other.Q)


@pytest.mark.parametrize("rows", [0, 3])
def test_empty_batch_returns_zero_and_leaves_state_unchanged(rows, path):
    tal = TAL(4, start="steady")
    before = tal.Q.clone()
    logits = torch.randn(rows, 4, requires_grad=True)
    loss = tal(logits, torch.full((rows,), -100))
    loss.backward()
    assert loss == 0 and (logits.grad == 0).all()
    assert torch.equal(tal.Q, before) and tal.updates == 0


def test_evaluation_moves_nothing(path):
    tal = TAL(4, start="steady").eval()
    before = tal.Q.clone()
    loss = tal(torch.randn(5, 4), torch.arange(5) % 4)
    assert loss > 0 and torch.equal(tal.Q, before) and tal.updates == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_and_autocast_keep_the_state_in_float32(dtype, path):
    exact, tal = TAL(20, lam=0.9), TAL(20, lam=0.9)
    tal.to(dtype)
    assert tal.Q.dtype == torch.float32
    for logits, targets in stream(20, 16, 60, dtype=torch.float32):
        with torch.autocast("cpu", dtype):
            loss = tal(logits.to(dtype), targets)
        expected = exact(logits.to(dtype).float(), targets)
        torch.testing.assert_close(loss, expected, check_dtype=False, rtol=1e-5, atol=1e-5)
    assert torch.equal(tal.Q, exact.Q)


def test_under_torch_compile():
    eager, compiled = TAL(6), TAL(6)
    step = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    for logits, targets in stream(6, 8, 12, dtype=torch.float32):
        loss, expected = step(logits, targets), eager(logits, targets)
        loss.backward()
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(compiled.Q, eager.Q)
    assert compiled.updates == 12


def test_under_torch_compile_any_number_of_micro_batches_costs_no_new_graph():
    eager, compiled = TAL(6, accumulate=20), TAL(6, accumulate=0)
    step = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    for logits, targets in stream(6, 4, 20, dtype=torch.float32):
        step(logits, targets)
        eager(logits, targets)
    compiled.apply_update()
    torch.testing.assert_close(compiled.Q, eager.Q)
    assert compiled.updates == eager.updates == 1


def test_micro_batches_of_unequal_size_equal_one_batch(path):
    whole, pieces, by_hand = TAL(5), TAL(5, accumulate=3), TAL(5, accumulate=0)
    for logits, targets in stream(5, 12, 20, dtype=torch.float32, tailed=True):
        expected = whole(logits, targets)
        for tal in (pieces, by_hand):
            parts = [tal(a, b) * len(b) for a, b in zip(logits.split([7, 4, 1]), targets.split([7, 4, 1]), strict=True)]
            torch.testing.assert_close(sum(parts) / 12, expected)
        by_hand.apply_update()
        torch.testing.assert_close(pieces.Q, whole.Q)
        torch.testing.assert_close(by_hand.Q, whole.Q)
    assert pieces.updates == by_hand.updates == whole.updates == 20


def test_task_of_one_class_has_loss_zero(path):
    tal = TAL(2)
    tal.begin_task(TaskInfo(0, 1, 0, 1, (3,)))
    for _ in range(3):
        assert tal(torch.randn(4, 1), torch.zeros(4, dtype=torch.long)).item() == pytest.approx(0, abs=1e-6)


def test_repr_is_readable():
    assert repr(TAL(20)) == ("TAL(num_classes=20, lam=0.995, r=1.0, update='paper', start='zero', alpha=39, updates=0)")

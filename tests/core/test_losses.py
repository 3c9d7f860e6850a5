"""Each rival loss against a plain loop, and the contract they share."""

import math

import pytest
import torch
import torch.nn.functional as F

from pilot_tal.errors import PilotTalError
from pilot_tal.losses import LOSSES, build_loss, loss_options
from pilot_tal.task import TaskInfo

COUNTS = (60, 31, 12, 5, 2, 1)
TASK = TaskInfo(index=1, num_tasks=3, first=4, stop=10, counts=COUNTS)


def log_softmax(z):
    top = max(z)
    total = math.log(sum(math.exp(v - top) for v in z)) + top
    return [v - total for v in z]


def plain_loop(name, Z, y, options):
    """The mean loss, written out from each paper's formula."""
    total, n = 0.0, COUNTS
    for z, label in zip(Z, y, strict=True):
        if name == "ce":
            total += -log_softmax(z)[label]
        elif name == "balanced_softmax":
            total += -math.log(n[label] * math.exp(z[label]) / sum(n[k] * math.exp(z[k]) for k in range(len(z))))
        elif name == "logit_adjustment":
            shifted = [z[k] + options["tau"] * math.log(n[k] / sum(n)) for k in range(len(z))]
            total += -log_softmax(shifted)[label]
        elif name == "focal":
            log_p = log_softmax(z)[label]
            total += -((1 - math.exp(log_p)) ** options["gamma"]) * log_p
        elif name == "class_balanced":
            beta = options["beta"]
            weights = [(1 - beta) / (1 - beta**k) for k in n]
            mean = sum(weights) / len(weights)
            total += -weights[label] / mean * log_softmax(z)[label]
        elif name == "ldam":
            largest = max(k**-0.25 for k in n)
            margin = options["margin"] * n[label] ** -0.25 / largest
            given_up = [options["scale"] * (v - margin * (k == label)) for k, v in enumerate(z)]
            total += -log_softmax(given_up)[label]
    return total / len(Z)


CASES = [
    ("ce", {}),
    ("balanced_softmax", {}),
    ("logit_adjustment", {"tau": 1.0}),
    ("logit_adjustment", {"tau": 0.3}),
    ("focal", {"gamma": 2.0}),
    ("focal", {"gamma": 0.5}),
    ("class_balanced", {"beta": 0.9999}),
    ("class_balanced", {"beta": 0.5}),
    ("ldam", {"margin": 0.5, "scale": 1.0}),
    ("ldam", {"margin": 0.3, "scale": 30.0}),
]


def test_every_loss_has_a_plain_loop():
    assert {name for name, _ in CASES} | {"tal"} == set(LOSSES)  # TAL's is Algorithm 1, in test_tal.py


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_equals_a_plain_loop(name, options, dtype):
    generator = torch.Generator().manual_seed(5)
    logits = 2 * torch.randn(9, 6, generator=generator, dtype=torch.float64)
    logits = logits.to(dtype).requires_grad_()
    targets = torch.tensor([0, 1, 2, 3, 4, 5, 5, 0, 3])
    loss = build_loss(name, **options)
    loss.begin_task(TASK)
    value = loss(logits, targets)
    expected = plain_loop(name, logits.detach().double().tolist(), targets.tolist(), options)
    assert value.item() == pytest.approx(expected, rel=1e-10 if dtype == torch.float64 else 1e-5)
    value.backward()
    assert logits.grad.isfinite().all()


def test_neutral_settings_are_cross_entropy():
    logits, targets = torch.randn(8, 6), torch.arange(8) % 6
    expected = F.cross_entropy(logits, targets)
    for name, options in (
        ("logit_adjustment", {"tau": 0}),
        ("focal", {"gamma": 0}),
        ("class_balanced", {"beta": 0}),
    ):
        loss = build_loss(name, **options)
        loss.begin_task(TASK)
        torch.testing.assert_close(loss(logits, targets), expected)
    tal = build_loss("tal", start="steady")
    tal.begin_task(TASK)
    torch.testing.assert_close(tal(logits, targets), expected)


def test_cross_entropy_on_the_slice_equals_masked_cross_entropy():
    logits, targets = torch.randn(8, 10, requires_grad=True), torch.arange(8) % 6
    masked = logits.masked_fill(torch.arange(10) < 4, -torch.inf)
    expected = F.cross_entropy(masked, targets + 4)
    loss = build_loss("ce")
    loss.begin_task(TASK)
    value = loss(logits[:, 4:], targets)
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)
    (gradient,) = torch.autograd.grad(value, logits)
    (wanted,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-7)
    assert (gradient[:, :4] == 0).all()


def test_a_perfectly_classified_sample_has_a_finite_focal_gradient():
    loss = build_loss("focal", gamma=0.5)
    loss.begin_task(TaskInfo(0, 1, 0, 2, (1, 1)))
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    loss(logits, torch.tensor([0])).backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_keeps_the_contract(name):
    loss = build_loss(name)
    for first, stop in ((0, 3), (3, 4), (4, 9)):  # unequal tasks, one of a single class
        task = TaskInfo(0, 1, first, stop, tuple(range(1, stop - first + 1)))
        loss.begin_task(task)
        logits = torch.randn(5, stop - first, requires_grad=True)
        value = loss(logits, torch.zeros(5, dtype=torch.long))
        value.backward()
        assert value.ndim == 0 and value.isfinite() and logits.grad.isfinite().all()
        with pytest.raises(PilotTalError, match="logits must"):
            loss(torch.randn(5, stop - first + 1), torch.zeros(5, dtype=torch.long))


def test_unknown_names_and_options_are_refused_with_the_nearest():
    with pytest.raises(PilotTalError, match="unknown loss 'tall': did you mean 'tal'"):
        build_loss("tall")
    with pytest.raises(PilotTalError, match="unknown option of loss 'tal' 'lamb': did you mean 'lam'"):
        build_loss("tal", lamb=0.9)
    with pytest.raises(PilotTalError, match="loss 'ce' has no options, got 'tau'"):
        build_loss("ce", tau=1)
    with pytest.raises(PilotTalError, match="tau must be between 0 and 100, got -1"):
        build_loss("logit_adjustment", tau=-1)
    with pytest.raises(PilotTalError, match=r"focal.gamma must be a number, got 'two'"):
        build_loss("focal", gamma="two")
    assert loss_options("focal") == {"gamma": 2.0}


def test_a_loss_without_a_task_and_an_empty_class_are_refused():
    loss = build_loss("ldam")
    with pytest.raises(PilotTalError, match="begin_task"):
        loss(torch.zeros(1, 2), torch.tensor([0]))
    with pytest.raises(PilotTalError, match="at least one training image"):
        loss.begin_task(TaskInfo(0, 1, 0, 2, (3, 0)))

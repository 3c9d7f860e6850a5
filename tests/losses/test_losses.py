"""Each loss against a plain loop, and the contract they share; a new loss is tested by being in the registry."""

import copy

import pytest
import torch
import torch.nn.functional as F
from plain_loops import EPOCH_STEPS, EPOCHS, LAST, PLAIN_LOOPS

from data_lt.errors import UserError
from pilot_tal.losses import LOSSES, build_loss
from pilot_tal.schema import defaults_of, settings_of
from pilot_tal.stream.task import TaskInfo

COUNTS = (60, 31, 12, 5, 2, 1)
TASK = TaskInfo(index=1, num_tasks=3, first=4, stop=10, counts=COUNTS, epoch_steps=EPOCH_STEPS)

# Besides the defaults.
OPTIONS = [
    ("logit_adjustment", {"tau": 0.3}),
    ("focal", {"gamma": 0.5}),
    ("class_balanced", {"beta": 0.5}),
    ("ldam", {"margin": 0.3, "scale": 30.0}),
    ("tal", {"lam": 0.9, "r": 1.5, "start": "steady"}),
    ("tal", {"lam": 0.8, "update": "normalized", "eps": 1e-3}),
    ("tal", {"lam": "auto"}),
    ("tal", {"lam": "auto", "memory_epochs": 0.5}),
    ("tal_auto", {"memory_epochs": 0.3, "r": 1.5}),
    ("seesaw", {"p": 2.0, "q": 0.5}),
    ("vs", {"gamma": 1.0, "tau": 0.3}),
    ("ldam_drw", {"share": 0.65, "beta": 0.9, "scale": 3.0}),
    ("ldam_drw", {"share": 1.0}),
]
# Settings under which a loss is cross-entropy, on the first batch of a task.
NEUTRAL = [
    ("ce", {}),
    ("tal", {"start": "steady"}),
    ("logit_adjustment", {"tau": 0}),
    ("focal", {"gamma": 0}),
    ("class_balanced", {"beta": 0}),
    ("ldam", {"margin": 0}),
    ("ldam_drw", {"margin": 0, "share": 0}),
    ("tal_auto", {}),
    ("seesaw", {"p": 0, "q": 0}),
    ("vs", {"gamma": 0, "tau": 0}),
    ("ace", {}),  # every class is in the batch
]


def begun(name, task=TASK, **options):
    loss = build_loss(name, **options)
    loss.begin_task(task)
    loss.begin_epoch(0, 10)
    return loss


def batches(steps=6, dtype=torch.float32, classes=6, seed=5):
    generator = torch.Generator().manual_seed(seed)
    share = torch.arange(classes, 0, -1.0)
    for _ in range(steps):
        logits = 2 * torch.randn(9, classes, generator=generator, dtype=torch.float64)
        targets = torch.multinomial(share, 9, replacement=True, generator=generator)
        yield logits.to(dtype).requires_grad_(), targets


def test_every_loss_has_a_plain_loop():
    assert set(PLAIN_LOOPS) == set(LOSSES)


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in LOSSES), *OPTIONS])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_equals_a_plain_loop(name, options, dtype):
    loss, seen, plain = begun(name, **options), [], []
    for epoch, (logits, targets) in zip(EPOCHS, batches(len(EPOCHS), dtype), strict=True):
        loss.begin_epoch(epoch, LAST)
        value = loss(logits, targets)
        value.backward()
        assert logits.grad.isfinite().all() and logits.grad.abs().sum() > 0
        seen.append(value.item())
        plain.append((logits.detach().double().tolist(), targets.tolist()))
    expected = PLAIN_LOOPS[name](plain, COUNTS, {**defaults_of(LOSSES[name]), **options})
    exact = dtype == torch.float64 and LOSSES[name].prior != "online"  # what is counted is float32
    assert seen == pytest.approx(expected, rel=1e-10 if exact else 1e-5, abs=0 if exact else 1e-7)


@pytest.mark.parametrize(("name", "options"), NEUTRAL)
def test_neutral_settings_are_cross_entropy(name, options):
    logits, targets = next(batches())[0], torch.arange(9) % 6
    expected = F.cross_entropy(logits, targets)
    value = begun(name, **options)(logits, targets)
    torch.testing.assert_close(value, expected)
    wanted, gradient = (torch.autograd.grad(loss, logits)[0] for loss in (expected, value))
    torch.testing.assert_close(gradient, wanted)


def test_cross_entropy_on_the_slice_equals_masked_cross_entropy():
    logits, targets = torch.randn(8, 10, requires_grad=True), torch.arange(8) % 6
    masked = logits.masked_fill(torch.arange(10) < 4, -torch.inf)
    expected = F.cross_entropy(masked, targets + 4)
    value = begun("ce")(logits[:, 4:], targets)
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)
    (gradient,) = torch.autograd.grad(value, logits)
    (wanted,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-7)
    assert (gradient[:, :4] == 0).all()


def test_perfectly_classified_sample_has_a_finite_focal_gradient():
    loss = begun("focal", TaskInfo(0, 1, 0, 2, (1, 1)), gamma=0.5)
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    loss(logits, torch.tensor([0])).backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_losses_accept_any_task_size_and_reject_wrong_shapes(name):
    loss = build_loss(name)
    with pytest.raises(UserError, match=r"begin_task\(\) must come before the first loss"):
        loss(torch.zeros(1, 2), torch.tensor([0]))
    for first, stop in ((0, 3), (3, 4), (4, 9)):  # unequal tasks, one of a single class
        classes = stop - first
        loss.begin_task(TaskInfo(0, 1, first, stop, tuple(range(1, classes + 1)), epoch_steps=3))
        logits, targets = torch.randn(5, classes, requires_grad=True), torch.zeros(5, dtype=torch.long)
        for _ in range(2):
            logits.grad = None
            value = loss(logits, targets)
            value.backward()
            assert value.ndim == 0 and value.isfinite() and logits.grad.isfinite().all()
        with pytest.raises(UserError, match=f"logits must have {classes} columns, one per class, got {classes + 1}"):
            loss(torch.randn(5, classes + 1), targets)
        with pytest.raises(UserError, match="logits must be a floating point tensor"):
            loss(torch.zeros(5, classes, dtype=torch.long), targets)
        with pytest.raises(UserError, match="targets must be 5 class indices of type int64, got int64 of shape"):
            loss(logits, targets[:4])
        with pytest.raises(UserError, match="targets must be 5 class indices of type int64, got float32"):
            loss(logits, targets.float())
        with pytest.raises(UserError, match="must be on one device, got cpu, meta"):
            loss(logits, targets.to("meta"))


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_logits_are_computed_with_in_float32(name):
    half, full = begun(name), begun(name)
    for logits, targets in batches(dtype=torch.bfloat16):
        value, expected = half(logits, targets), full(logits.detach().float(), targets)
        assert value.dtype == torch.float32 and torch.equal(value, expected)
        with torch.autocast("cpu", torch.bfloat16):
            assert copy.deepcopy(full)(logits, targets).dtype == torch.float32


@pytest.mark.parametrize("name", LOSSES)
def test_task_starts_without_state_of_the_previous_task(name):
    used, fresh = begun(name), begun(name)
    for logits, targets in batches(seed=1):
        used(logits, targets)
    for epoch in range(10):
        used.begin_epoch(epoch, 10)
    used.begin_task(TASK)
    for logits, targets in batches():
        assert torch.equal(used(logits, targets), fresh(logits, targets))


@pytest.mark.parametrize("name", LOSSES)
def test_evaluation_leaves_no_trace(name):
    looked_at, other = begun(name), begun(name)
    for logits, targets in batches():
        looked_at.eval()(logits, (targets + 1) % 6)
        assert torch.equal(looked_at.train()(logits, targets), other(logits, targets))


def test_weights_of_seesaw_pass_no_gradient():
    """With S as a constant the gradient is that of a weighted softmax: S_yj e^{z_j} / Σ, less 1 for the true class."""
    loss = begun("seesaw")
    for logits, targets in batches():
        value = loss(logits, targets)
        z, counts = logits.detach().double(), loss.seen.double().clamp(min=1)
        mitigation = (counts / counts[targets, None]).clamp(max=1) ** 0.8
        compensation = (z.softmax(1) / z.softmax(1).gather(1, targets[:, None])).clamp(min=1) ** 2
        terms = mitigation * compensation * z.exp()
        wanted = (terms / terms.sum(1, keepdim=True) - F.one_hot(targets, 6)) / len(z)
        torch.testing.assert_close(torch.autograd.grad(value, logits)[0].double(), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("share", "epochs", "first"), [(0.2, 200, 160), (0.9, 10, 1), (0.2, 3, 2), (0, 5, 5), (1, 5, 0)]
)
def test_deferred_weights_start_at_the_share_of_epochs(share, epochs, first):
    loss, ldam = begun("ldam_drw", share=share), begun("ldam")
    logits, targets = next(batches())
    for epoch in range(epochs):
        loss.begin_epoch(epoch, epochs)
        assert torch.equal(loss(logits, targets), ldam(logits, targets)) == (epoch < first)


@pytest.mark.parametrize("name", LOSSES)
def test_loss_uses_exactly_its_declared_prior(name):
    """The prior reaches the loss by `begin_task`, the counts so far by the batches before."""
    (logits, targets), *others = batches(30)
    other = TaskInfo(1, 3, 4, 10, COUNTS[::-1], epoch_steps=7)
    last_epoch = [begun(name), begun(name, other), begun(name)]
    for loss in last_epoch:
        loss.begin_epoch(9, 10)
    for batch in others:
        last_epoch[2](*batch)
    plain, by_prior, by_history = (loss(logits, targets) for loss in last_epoch)
    prior = LOSSES[name].prior
    assert prior in ("none", "online", "class counts")
    assert torch.equal(plain, by_prior) == (prior != "class counts")
    assert torch.equal(plain, by_history) == (prior != "online")


@pytest.mark.parametrize("name", LOSSES)
def test_every_option_reaches_the_loss(name):
    for option, setting in settings_of(LOSSES[name]).items():
        if setting.default is not None:
            others = [choice for choice in setting.rule.choices if choice != setting.default]
            value = others[0] if others else 0.9 * setting.default
            assert getattr(build_loss(name, **{option: value}), option) == pytest.approx(value), option


@pytest.mark.parametrize("name", LOSSES)
def test_options_are_read_only(name):
    loss = begun(name)
    for option in defaults_of(LOSSES[name]):
        with pytest.raises(UserError, match=f"{option} of a loss cannot be changed"):
            setattr(loss, option, 0.5)


def test_unknown_names_and_options_are_refused_with_the_nearest():
    with pytest.raises(UserError, match="unknown loss 'tall': did you mean 'tal'"):
        build_loss("tall")
    with pytest.raises(UserError, match="unknown setting of the loss tal 'lamb': did you mean 'lam'"):
        build_loss("tal", lamb=0.9)
    with pytest.raises(UserError, match="the loss ce has no settings, got 'tau'"):
        build_loss("ce", tau=1)
    with pytest.raises(UserError, match="tau must be a number from 0 to 100, got -1"):
        build_loss("logit_adjustment", tau=-1)
    with pytest.raises(UserError, match="gamma must be a number from 0 to 100, got 'two'"):
        build_loss("focal", gamma="two")


@pytest.mark.parametrize("name", [name for name in LOSSES if LOSSES[name].prior == "class counts"])
def test_class_without_images_is_refused_where_its_count_is_used(name):
    with pytest.raises(UserError, match="at least one training image"):
        build_loss(name).begin_task(TaskInfo(0, 1, 0, 2, (3, 0)))

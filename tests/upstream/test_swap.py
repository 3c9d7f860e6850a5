"""The swap itself: which calls are answered by whom, what the loss gets to see, and that all is put back."""

from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from data_lt.errors import UserError
from pilot_tal.losses import LOSSES, build_loss
from pilot_tal.upstream.checkout import LEARNERS, Site
from pilot_tal.upstream.swap import Patches, Supervision, swap

SOURCE = """
from torch.nn import functional as F
def train(z, y):
    return F.cross_entropy(z, y)
def align(z, y):
    return F.cross_entropy(
        z,
        y,
    )
def other(z, y):
    return F.cross_entropy(z, y), F.relu(z)
"""
Z, Y = torch.tensor([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]]), torch.tensor([0, 2])


@pytest.fixture
def module():
    made = ModuleType("standin")
    exec(compile(SOURCE, "standin.py", "exec"), made.__dict__)
    return made


SITES = (
    (range(4, 5), Site("Learner.train", "F.cross_entropy(z, y)", "swapped", "")),
    (range(6, 10), Site("Learner.align", "F.cross_entropy(z, y)", "stays", "")),
)


def test_swapped_and_kept_calls_are_distinguished_by_line(module):
    asked = []
    with Patches() as patches:
        swap(patches, module, SITES, lambda z, y: asked.append((z, y)) or "ours")
        assert module.train(Z, Y) == "ours"
        assert torch.equal(module.align(Z, Y), F.cross_entropy(Z, Y))
        with pytest.raises(UserError, match=r"in other, line 11 of standin\.py, which is none of the known"):
            module.other(Z, Y)
        assert torch.equal(module.F.relu(Z), F.relu(Z))  # all else is torch's own
    assert len(asked) == 1


def test_everything_is_put_back_even_after_an_error(module):
    learner = SimpleNamespace(topk=5)
    with pytest.raises(RuntimeError), Patches() as patches:
        swap(patches, module, SITES, lambda z, y: z)
        patches.set(learner, "topk", 3)
        patches.set(learner, "topk", 2)
        patches.set(learner, "extra", 1)
        raise RuntimeError
    assert module.F is F
    assert vars(learner) == {"topk": 5}
    assert torch.equal(module.train(Z, Y), F.cross_entropy(Z, Y))


class Loader(list):
    """Batches of the labels; only their number and the dataset behind them count."""

    def __init__(self, labels, batches: int):
        super().__init__(range(batches))
        self.dataset = SimpleNamespace(labels=np.asarray(labels))


def learner_at(task: int, known: int, total: int, labels, batches: int = 2) -> SimpleNamespace:
    loader = Loader(labels, batches)
    return SimpleNamespace(_cur_task=task, _known_classes=known, _total_classes=total, train_loader=loader)


COLUMNS = ("masked", "task")


def supervise(name, columns: str, learner, **options):
    steps = []
    criterion = build_loss(name, **options) if isinstance(name, str) else name
    made = Supervision(criterion, columns == "masked", lambda task: 5 + task, lambda *step: steps.append(step))
    made.learner, made.num_tasks = learner, 3
    return made, steps


def masked(logits: torch.Tensor, known: int) -> torch.Tensor:
    hidden = logits.clone()
    hidden[:, :known] = float("-inf")
    return hidden


@given(known=st.integers(0, 4), new=st.integers(1, 4), batch=st.integers(1, 6), seed=st.integers(0, 99))
def test_slicing_equals_masking(known, new, batch, seed):
    """For cross-entropy, value and gradient are those of LAMDA-PILOT's masked logits with global labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, known + new, generator=generator)
    targets = torch.randint(known, known + new, (batch,), generator=generator)
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    labels = np.arange(known, known + new)
    supervision, _ = supervise("ce", "masked", learner_at(0, known, known + new, labels))
    one, other = supervision(masked(ours, known), targets), F.cross_entropy(masked(theirs, known), targets)
    one.backward()
    other.backward()
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_terms_added_in_place_are_not_logged():
    supervision, steps = supervise("ce", "masked", learner_at(0, 0, 3, [0, 1, 2]))
    logits = Z.clone().requires_grad_()
    loss = supervision(logits, Y)
    loss += 100.0
    loss.backward()
    torch.testing.assert_close(steps[0][1], F.cross_entropy(Z, Y))


def test_tal_is_reset_in_every_task_without_replay():
    learner = learner_at(0, 0, 3, [0, 1, 2])
    supervision, steps = supervise("tal", "masked", learner)
    for _ in range(4):
        supervision(torch.randn(2, 3), torch.tensor([0, 1]))
    assert supervision.criterion.Q.max() > 0
    supervision.learner = learner_at(1, 3, 5, [3, 3, 4])
    supervision(masked(torch.randn(2, 5), 3), torch.tensor([3, 4]))
    assert supervision.criterion.num_classes == 2
    assert supervision.criterion.updates == 1
    assert supervision.task.counts == (2, 1)
    assert [epoch for epoch, _ in steps] == [0, 0, 1, 1, 0]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("columns", COLUMNS)
def test_every_loss_goes_through_two_tasks(columns, name):
    supervision, steps = supervise(name, columns, learner_at(0, 0, 3, [0, 1, 2]))
    for task, (known, total) in enumerate(((0, 3), (3, 5))):
        supervision.learner = learner_at(task, known, total, range(known, total))
        for _ in range(4):
            logits = torch.randn(4, total, requires_grad=True)
            labels = torch.randint(known, total, (4,))
            given = {"masked": (masked(logits, known), labels), "task": (logits[:, known:], labels - known)}
            supervision(*given[columns]).backward()
            assert logits.grad.isfinite().all()
    assert len(steps) == 8 and all(loss.isfinite() for _, loss in steps)


def test_memory_epochs_follow_the_steps_of_each_task():
    supervision, _ = supervise("tal", "task", learner_at(0, 0, 3, [0, 1, 2], batches=4), lam="auto")
    supervision(torch.randn(2, 3), torch.tensor([0, 1]))
    assert supervision.criterion.lam == pytest.approx(1 - 1 / (2 * 4))
    supervision.learner = learner_at(1, 3, 5, [3, 4], batches=9)
    supervision(torch.randn(2, 2), torch.tensor([0, 1]))
    assert supervision.criterion.lam == pytest.approx(1 - 1 / (2 * 9))


def test_prior_counts_the_training_images_of_the_task():
    supervision, _ = supervise("balanced_softmax", "task", learner_at(1, 2, 4, [2, 2, 2, 3]))
    logits, targets = torch.randn(3, 2), torch.tensor([0, 0, 1])
    prior = torch.tensor([3.0, 1.0]).log()
    torch.testing.assert_close(supervision(logits, targets), F.cross_entropy(logits + prior, targets))


@pytest.mark.parametrize("columns", COLUMNS)
def test_loss_gets_the_same_input_as_from_our_engine(columns):
    """Whatever the learner gives its cross-entropy, the loss gets the columns and labels of its own classes."""
    logits, targets = torch.randn(4, 5), torch.tensor([3, 4, 4, 3])
    given = {"masked": (masked(logits, 3), targets), "task": (logits[:, 3:], targets - 3)}
    spy = Spy()
    supervise(spy, columns, learner_at(1, 3, 5, [3, 4, 4, 3]))[0](*given[columns])
    assert all(torch.equal(one, other) for one, other in zip(spy.got, (logits[:, 3:], targets - 3), strict=True))
    assert (spy.task.first, spy.task.stop, spy.task.counts) == (3, 5, (2, 2))


class Spy(torch.nn.Module):
    """A loss that records its calls."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def begin_task(self, task):
        self.task = task

    def begin_epoch(self, epoch, epochs):
        self.epochs.append((self.task.index, epoch, epochs))

    def forward(self, logits, targets):
        self.got = logits, targets
        return logits.sum()


def test_loss_gets_epochs_and_steps():
    spy = Spy()
    supervision, steps = supervise(spy, "task", learner_at(0, 0, 2, [0, 1], batches=3))
    for _ in range(7):
        supervision(torch.randn(2, 2), torch.tensor([0, 1]))
    assert spy.task.epoch_steps == 3
    assert [epoch for epoch, _ in steps] == [0, 0, 0, 1, 1, 1, 2]
    supervision.learner = learner_at(1, 2, 4, [2, 3], batches=1)
    supervision(torch.randn(2, 2), torch.tensor([0, 1]))
    assert spy.task.epoch_steps == 1
    assert spy.epochs == [(0, 0, 5), (0, 1, 5), (0, 2, 5), (1, 0, 6)]


def test_every_learner_that_trains_names_its_epochs():
    assert all(bool(learner.epochs) == learner.trains for learner in LEARNERS.values())


def test_logits_and_targets_of_the_learner_are_checked():
    with pytest.raises(UserError, match="must give 2 logits in task 1, got 4"):
        supervise("ce", "task", learner_at(1, 2, 4, [2, 3]))[0](torch.randn(1, 4), torch.tensor([0]))
    with pytest.raises(UserError, match="no longer masks the logits of old classes"):
        supervise("ce", "masked", learner_at(1, 2, 4, [2, 3]))[0](torch.randn(1, 4), torch.tensor([2]))
    with pytest.raises(UserError, match="must give 4 logits in task 1"):
        supervise("ce", "masked", learner_at(1, 2, 4, [2, 3]))[0](torch.randn(1, 5), torch.tensor([2]))
    with pytest.raises(UserError, match=r"training labels must lie in 2 … 3 in task 1, got 1 … 3"):
        supervise("ce", "masked", learner_at(1, 2, 4, [1, 3]))[0](torch.randn(1, 4), torch.tensor([2]))

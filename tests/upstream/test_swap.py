"""The swap itself: which calls are answered by whom, what the loss gets to see, and that all is put back."""

from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from pilot_tal.errors import PilotTalError
from pilot_tal.losses import build_loss
from pilot_tal.upstream.seams import LocatedSite
from pilot_tal.upstream.sites import Site
from pilot_tal.upstream.supervision import Supervision
from pilot_tal.upstream.swap import Patches, swap

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


def located(function: str, swapped: bool, first: int, last: int) -> LocatedSite:
    return LocatedSite(Site(function, "F.cross_entropy", ("z", "y"), swapped, ""), first, last)


SITES = (located("Learner.train", True, 4, 4), located("Learner.align", False, 6, 9))


def test_swapped_and_kept_calls_are_told_by_their_lines(module):
    asked = []
    with Patches() as patches:
        swap(patches, module, SITES, lambda z, y: asked.append((z, y)) or "ours")
        assert module.train(Z, Y) == "ours"
        assert torch.equal(module.align(Z, Y), F.cross_entropy(Z, Y))
        with pytest.raises(PilotTalError, match=r"in other, line 11 of standin\.py, which is none of the known"):
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


def learner_at(task: int, known: int, total: int, labels) -> SimpleNamespace:
    dataset = SimpleNamespace(labels=np.asarray(labels))
    loader = SimpleNamespace(dataset=dataset)
    return SimpleNamespace(_cur_task=task, _known_classes=known, _total_classes=total, train_loader=loader)


def supervise(name: str, growing: bool, learner, **options):
    steps = []
    made = Supervision(build_loss(name, **options), growing, lambda task, loss: steps.append((task, loss)))
    made.learner, made.num_tasks = learner, 3
    return made, steps


def masked(logits: torch.Tensor, known: int) -> torch.Tensor:
    hidden = logits.clone()
    hidden[:, :known] = float("-inf")
    return hidden


@given(known=st.integers(0, 4), new=st.integers(1, 4), batch=st.integers(1, 6), seed=st.integers(0, 99))
def test_slicing_is_what_masking_was(known, new, batch, seed):
    """For cross-entropy, value and gradient are those of LAMDA-PILOT's masked logits with global labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, known + new, generator=generator)
    targets = torch.randint(known, known + new, (batch,), generator=generator)
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    labels = np.arange(known, known + new)
    supervision, _ = supervise("ce", False, learner_at(0, known, known + new, labels))
    one, other = supervision(masked(ours, known), targets), F.cross_entropy(masked(theirs, known), targets)
    one.backward()
    other.backward()
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_what_a_learner_adds_in_place_is_not_logged():
    supervision, steps = supervise("ce", False, learner_at(0, 0, 3, [0, 1, 2]))
    logits = Z.clone().requires_grad_()
    loss = supervision(logits, Y)
    loss += 100.0
    loss.backward()
    torch.testing.assert_close(steps[0][1], F.cross_entropy(Z, Y))


def test_tal_starts_anew_in_every_task_without_replay():
    learner = learner_at(0, 0, 3, [0, 1, 2])
    supervision, steps = supervise("tal", False, learner)
    for _ in range(4):
        supervision(torch.randn(2, 3), torch.tensor([0, 1]))
    assert supervision.criterion.Q.max() > 0
    supervision.learner = learner_at(1, 3, 5, [3, 3, 4])
    supervision(masked(torch.randn(2, 5), 3), torch.tensor([3, 4]))
    assert supervision.criterion.num_classes == 2
    assert supervision.criterion.updates == 1
    assert supervision.task.counts == (2, 1)
    assert [task.index for task, _ in steps] == [0] * 4 + [1]


def test_tal_lives_on_and_grows_with_replay():
    supervision, _ = supervise("tal", True, learner_at(0, 0, 3, [0, 1, 2]))
    for _ in range(4):
        supervision(torch.randn(2, 3), torch.tensor([0, 1]))
    before, alpha = supervision.criterion.Q.clone(), supervision.criterion.alpha
    supervision.learner = learner_at(1, 3, 5, [0, 1, 2, 3, 4])
    # One step later the old classes have lost what one step costs, and no more.
    supervision(torch.randn(2, 5), torch.tensor([3, 4]))
    tal = supervision.criterion
    assert tal.num_classes == 5 and tal.updates == 5
    assert tal.alpha > alpha  # calibrated for more classes
    old = tal.Q[:3]
    assert (old <= before).all() and torch.allclose(old, before, rtol=0.02)
    assert (tal.Q[3:] > 0).all()


def test_a_prior_counts_new_images_and_exemplars_together():
    supervision, _ = supervise("balanced_softmax", True, learner_at(1, 2, 4, [0, 1, 1, 2, 2, 2, 3]))
    logits, targets = torch.randn(3, 4), torch.tensor([0, 2, 3])
    prior = torch.tensor([1.0, 2.0, 3.0, 1.0]).log()
    torch.testing.assert_close(supervision(logits, targets), F.cross_entropy(logits + prior, targets))


def test_what_the_learner_gives_is_checked():
    with pytest.raises(PilotTalError, match="no longer masks the logits of old classes"):
        supervise("ce", False, learner_at(1, 2, 4, [2, 3]))[0](torch.randn(1, 4), torch.tensor([2]))
    with pytest.raises(PilotTalError, match="must give 4 logits in task 1"):
        supervise("ce", True, learner_at(1, 2, 4, [2, 3, 0, 1]))[0](torch.randn(1, 5), torch.tensor([2]))
    with pytest.raises(PilotTalError, match=r"training labels must lie in 2 … 3 in task 1, got 1 … 3"):
        supervise("ce", False, learner_at(1, 2, 4, [1, 3]))[0](torch.randn(1, 4), torch.tensor([2]))

"""EASE: completion of the prototypes and the weighing of subspaces, against loops."""

import math

import pytest
import torch
import torch.nn.functional as F
from learner_helpers import images, make, task_info, test_images, train, trained

from pilot_tal.learners.ease import complete_prototypes

SIZES = (2, 3, 1)
TASK_OF = [0, 0, 1, 1, 1, 2]
SUBSPACES = {"plain": {}, "with the ViT itself": {"use_init_ptm": True, "beta": 0.5}}


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(a @ b / a.norm() / b.norm())


def subspace_features(learner, subspace: int, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        tokens, task = learner.backbone.embed(x), subspace - learner.plain
        if task < 0:
            return learner.backbone.query(tokens)
        return learner.features(tokens, list(learner.adapters[task].parts))


def literal_completion(prototypes: list[list[torch.Tensor]], later: int, new: list[int]) -> None:
    """Fills one subspace class by class: a mixture of the new classes, as similar as they are in the own subspace."""
    for old, row in enumerate(prototypes):
        own = TASK_OF[old]
        if own >= later:
            continue
        strengths = [math.exp(cosine(row[own], prototypes[c][own])) for c in new]
        row[later] = sum(s / sum(strengths) * prototypes[c][later] for s, c in zip(strengths, new, strict=True))


@pytest.mark.parametrize("subspaces", SUBSPACES.values(), ids=SUBSPACES.keys())
@pytest.mark.parametrize("recalc", [True, False])
def test_prototypes_against_a_literal_loop(recalc, subspaces):
    """Every class has its own mean in its own and in earlier subspaces; later ones are completed, task after task."""
    learner = trained("ease", SIZES, recalc_sim=recalc, **subspaces)
    plain = learner.plain
    x, y = (torch.cat(part) for part in zip(*(images(task_info(SIZES, index)) for index in range(3)), strict=True))
    means = [[subspace_features(learner, s, x[y == c]).mean(dim=0) for s in range(plain + 3)] for c in range(6)]
    expected: list[list] = []
    for task in range(3):
        new = [c for c in range(6) if TASK_OF[c] == task]
        expected = [[*row, None] for row in expected] + [means[c][plain : plain + task + 1] for c in new]
        for later in range(1, task + 1) if recalc else [task]:
            literal_completion(expected, later, [c for c in range(len(expected)) if TASK_OF[c] >= later])
    for label, row in enumerate(expected):
        torch.testing.assert_close(learner.prototypes[label, plain:], torch.stack(row), rtol=1e-4, atol=1e-5)
        if plain:
            torch.testing.assert_close(learner.prototypes[label, 0], means[label][0], rtol=1e-4, atol=1e-5)


def test_known_prototypes_are_kept_and_similar_classes_get_similar_ones():
    torch.manual_seed(0)
    prototypes = torch.randn(4, 2, 8)
    prototypes[0, 0] = 100 * prototypes[2, 0]  # class 0 lies in the direction of class 2, not of class 3
    prototypes[2, 0] *= 5
    prototypes[3, 0] = -prototypes[2, 0]
    before = prototypes.clone()
    complete_prototypes(prototypes, [2, 4], range(1, 2))
    assert torch.equal(prototypes[:, 0], before[:, 0]) and torch.equal(prototypes[2:], before[2:])
    share = 1 / (1 + math.exp(-2))  # softmax of cosines 1 and -1
    torch.testing.assert_close(prototypes[0, 1], share * before[2, 1] + (1 - share) * before[3, 1])


@pytest.mark.parametrize("subspaces", SUBSPACES.values(), ids=SUBSPACES.keys())
def test_scores_against_a_loop(subspaces):
    learner = trained("ease", SIZES, alpha=0.3, **subspaces)
    x, _ = test_images(SIZES, per_class=1)
    features = [subspace_features(learner, s, x) for s in range(learner.plain + 3)]
    expected = torch.zeros(len(x), 6)
    for i in range(len(x)):
        for label in range(6):
            for s, f in enumerate(features):
                task = s - learner.plain
                weight = 0.5 if task < 0 else 1.0 if task == TASK_OF[label] else 0.3 / 2
                expected[i, label] += weight * cosine(f[i], learner.prototypes[label, s])
    torch.testing.assert_close(learner.scores(x), expected, rtol=1e-4, atol=1e-5)


def test_each_task_trains_its_own_adapters_from_new():
    sizes = (2, 3, 2)
    torch.manual_seed(0)
    learner = make("ease", sizes)
    for index in range(3):
        before = [[part.detach().clone() for part in adapters.parts] for adapters in learner.adapters]
        train(learner, sizes, index)
        for old, adapters in zip(before, learner.adapters, strict=False):
            assert all(map(torch.equal, old, adapters.parts))
        assert learner.adapters[index].parts[2].abs().sum() > 0  # up-projections start at zero
        trainable = {id(p) for group in learner.param_groups() for p in group["params"]}
        assert trainable == {id(p) for p in (*learner.adapters[index].parameters(), *learner.head.parameters())}


def test_training_logits_are_cosines_with_a_learned_scale():
    learner = make("ease", (3,), adapter_dropout=0.0)
    learner.begin_task(task_info((3,), 0))
    with torch.no_grad():
        learner.head.sigma.fill_(2.5)
    x, _ = images(learner.task)
    logits, aux = learner.observe(x)
    features = learner.backbone.query(learner.backbone.embed(x))  # new adapters add nothing
    expected = 2.5 * F.cosine_similarity(features[:, None], learner.head.weight[None], dim=-1)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    assert float(aux) == 0.0


def test_features_of_finished_adapters_are_computed_once(monkeypatch):
    torch.manual_seed(0)
    learner = make("ease", SIZES)
    run, passes = learner.backbone.run, []
    for index in range(3):
        x, _ = test_images(SIZES[: index + 1])
        ids = torch.arange(len(x))
        train(learner, SIZES, index, on_step=lambda info, x=x, ids=ids: learner.scores(x, ids))  # it still moves
        expected = learner.scores(x)
        monkeypatch.setattr(learner.backbone, "run", lambda t, *a, **k: passes.append(len(t)) or run(t, *a, **k))
        torch.testing.assert_close(learner.scores(x, ids), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(learner.scores(x, ids), expected, rtol=1e-4, atol=1e-5)
        monkeypatch.setattr(learner.backbone, "run", run)
        # Everything under earlier adapters was kept while the task trained; the newest adapter is new to all images.
        assert passes == [len(x)]
        passes.clear()

"""MOS: merging in both fidelities, statistics, alignment and retrieval, against formulas written out."""

import pytest
import torch
import torch.nn.functional as F
from learner_helpers import images, make, task_info, test_images, train, trained

from data_lt.errors import UserError
from pilot_tal.backbone import BlockExtras
from pilot_tal.learners.mos import JITTER, ROUNDS, class_statistics, self_refined

NO_DROP = {"adapter_dropout": 0.0}


def parts(adapters) -> list[torch.Tensor]:
    return [part.detach().clone() for part in adapters.parts]


def literal_forward(learner, x, current, mean):
    """LAMDA-PILOT's forward in task ≥ 1: before each block, all stored tensors move towards the mean."""
    keep = 1 - learner.config.adapter_momentum
    stored = [part.clone() for part in current]
    used = []
    for block in range(learner.backbone.depth):
        stored = [m + keep * (part - m) for part, m in zip(stored, mean, strict=True)]
        used.append([part[block].clone().requires_grad_() for part in stored])

    def adapter(tensors):
        down, down_bias, up, up_bias = tensors
        return lambda h: 0.1 * F.linear(F.relu(F.linear(h, down, down_bias)), up, up_bias)

    extras = {i: BlockExtras(mlp_adapter=adapter(tensors)) for i, tensors in enumerate(used)}
    return learner.backbone.run(learner.backbone.embed(x), extras)[:, 0], used, stored


def test_pilot_contracts_once_a_block_and_once_a_step():
    sizes = (2, 2)
    torch.manual_seed(0)
    learner = make("mos", sizes, "pilot", **NO_DROP)
    train(learner, sizes, 0)
    learner.begin_task(task_info(sizes, 1))
    with torch.no_grad():
        for part in learner.cur.parts:
            part.add_(0.1 * torch.randn_like(part))
    current, mean = parts(learner.cur), parts(learner.finished[0])
    x, _ = images(learner.task)
    features, used, stored = literal_forward(learner, x, current, mean)
    direction = torch.randn(2)
    logits, _ = learner.observe(x)
    expected = F.linear(features, learner.head.weight[2:4], learner.head.bias[2:4])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    for part, left in zip(learner.cur.parts, stored, strict=True):
        torch.testing.assert_close(part, left, rtol=1e-5, atol=1e-7)
    learner.zero_grad()
    (logits @ direction).sum().backward()
    (expected @ direction).sum().backward()
    for index, part in enumerate(learner.cur.parts):  # gradients are those at the values the blocks have seen
        literal = torch.stack([tensors[index].grad for tensors in used])
        torch.testing.assert_close(part.grad, literal, rtol=1e-3, atol=1e-5)
    learner.after_step()
    for part, left, m in zip(learner.cur.parts, stored, mean, strict=True):
        torch.testing.assert_close(part, m + 0.9 * (left - m), rtol=1e-5, atol=1e-7)


def test_fixed_merges_once_a_step_and_nowhere_else():
    sizes = (2, 2)
    torch.manual_seed(0)
    learner = make("mos", sizes, "fixed", **NO_DROP)
    train(learner, sizes, 0)
    learner.begin_task(task_info(sizes, 1))
    current, mean = parts(learner.cur), parts(learner.finished[0])
    learner.observe(images(learner.task)[0])
    assert all(map(torch.equal, learner.cur.parts, current))
    with torch.no_grad():
        for part in learner.cur.parts:
            part.add_(1.0)
    learner.after_step()
    for part, old, m in zip(learner.cur.parts, current, mean, strict=True):
        torch.testing.assert_close(part, 0.9 * (old + 1) + 0.1 * m)


@pytest.mark.parametrize("fidelity", ["pilot", "fixed"])
def test_adapter_of_each_task(fidelity):
    learner = trained("mos", (2, 2, 2), fidelity)
    snapshots = [parts(adapters) for adapters in learner.finished]
    assert all(map(torch.equal, learner.adapter_parts(0), snapshots[0]))
    for index in (1, 2):
        mean = [torch.stack(tensors).mean(dim=0) for tensors in zip(*snapshots[:index], strict=True)]
        for used, own, m in zip(learner.adapter_parts(index), snapshots[index], mean, strict=True):
            torch.testing.assert_close(used, m if fidelity == "pilot" else own)
    # The next task starts from the limit of the contraction, or from the task's own adapters.
    for part, used in zip(learner.cur.parts, learner.adapter_parts(2), strict=True):
        torch.testing.assert_close(part.detach(), used)
    assert all(not p.requires_grad for p in learner.finished.parameters())


def test_first_adapter_is_never_touched_again():
    sizes = (2, 2)
    torch.manual_seed(0)
    learner = make("mos", sizes)
    train(learner, sizes, 0)
    first = parts(learner.finished[0])
    train(learner, sizes, 1)
    learner.scores(test_images(sizes)[0])
    assert all(map(torch.equal, learner.finished[0].parts, first))


def test_weight_decay_reaches_every_row_of_the_head():
    sizes = (2, 2, 2)
    torch.manual_seed(0)
    learner = make("mos", sizes, weight_decay=0.1)
    train(learner, sizes, 0)
    before = learner.head.weight.detach().clone()
    train(learner, sizes, 1)
    future = learner.head.weight[4:].detach()
    torch.testing.assert_close(future / before[4:], (future / before[4:])[0, 0].expand(2, 16), rtol=1e-3, atol=0)
    assert (future.abs() < before[4:].abs()).all()


def looped_retrieval(first, task_of):
    """The search of the original, sample by sample."""
    ends = []
    for sample, adapter in enumerate(first.tolist()):
        for turn in range(ROUNDS):
            following = int(task_of[sample, adapter])
            if following == adapter or turn == ROUNDS - 1:
                break
            adapter = following
        ends.append(adapter)
    return torch.tensor(ends)


def test_retrieval_equals_the_loop():
    generator = torch.Generator().manual_seed(0)
    task_of = torch.randint(7, (500, 7), generator=generator)
    first = torch.randint(7, (500,), generator=generator)
    assert torch.equal(self_refined(first, task_of), looped_retrieval(first, task_of))


@pytest.mark.parametrize("ensemble", [True, False])
def test_scores_against_a_loop_over_samples(ensemble):
    sizes = (2, 1, 2)
    learner = trained("mos", sizes, "fixed", ensemble=ensemble)
    x, _ = test_images(sizes)
    task = [0, 0, 1, 2, 2]
    with torch.no_grad():
        tokens = learner.backbone.embed(x)
        features = [learner.features(tokens, learner.adapter_parts(i)) for i in range(3)]
        cosine = F.cosine_similarity(features[0][:, None], learner.prototypes[None], dim=-1)
        for sample in range(len(x)):
            adapter = task[int(cosine[sample].argmax())]
            for _ in range(4):
                z = learner.head(features[adapter][sample])
                following = task[int(z.argmax())]
                if following == adapter:
                    break
                adapter = following
            expected = z.softmax(0) + (3 * cosine[sample]).softmax(0) if ensemble else z
            torch.testing.assert_close(learner.scores(x)[sample], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fidelity", ["pilot", "fixed"])
def test_features_of_finished_adapters_are_computed_once(fidelity, monkeypatch):
    sizes = (2, 2, 2)
    torch.manual_seed(0)
    learner = make("mos", sizes, fidelity)
    passes = []
    run = learner.backbone.run
    for index in range(3):
        train(learner, sizes, index)
        x, _ = test_images(sizes[: index + 1])
        expected = learner.scores(x)
        monkeypatch.setattr(learner.backbone, "run", lambda t, *a, **k: passes.append(len(t)) or run(t, *a, **k))
        scores = learner.scores(x, torch.arange(len(x)))
        torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
        monkeypatch.setattr(learner.backbone, "run", run)
        # Old images need the new adapter only, new images all of them; in `pilot` the first two are one.
        adapters = [1, 2, 3] if fidelity == "fixed" else [1, 1, 2]
        assert sum(passes) == len(x) * adapters[index]


def test_statistics_equal_torch_cov():
    torch.manual_seed(0)
    for images_of_class in (2, 5, 30):
        features = torch.randn(images_of_class, 8) * torch.rand(8)
        covariance = torch.cov(features.t()) + JITTER * torch.eye(8)
        full = class_statistics(features)
        torch.testing.assert_close(full.covariance(), covariance, rtol=1e-4, atol=1e-6)
        assert len(full.factor) <= min(images_of_class, 8)
        torch.testing.assert_close(full.means[0], features.mean(dim=0))


def test_covariance_of_a_single_image_is_the_jitter():
    features = torch.randn(1, 8)
    known = class_statistics(features)
    drawn = known.draw(4000)
    torch.testing.assert_close(known.means, features)
    assert drawn.isfinite().all()
    torch.testing.assert_close(drawn.std(dim=0), torch.full((8,), JITTER**0.5), rtol=0.1, atol=0)


def test_draws_have_the_moments_they_should():
    torch.manual_seed(0)
    features = torch.randn(6, 4) @ torch.randn(4, 4)
    known = class_statistics(features)
    drawn = known.draw(200_000)
    torch.testing.assert_close(drawn.mean(dim=0), features.mean(dim=0), rtol=0, atol=0.03)
    torch.testing.assert_close(drawn.t().cov(), known.covariance(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("fidelity", ["pilot", "fixed"])
def test_alignment_batches(fidelity):
    sizes = (2, 3)
    learner = trained("mos", sizes, fidelity)
    found = list(learner.gaussian_batches(0))
    assert len(found) == 5  # as many as classes
    assert all(features.shape == (25, 16) and labels.shape == (25,) for features, labels in found)
    labels = torch.cat([labels for _, labels in found])
    assert torch.bincount(labels).tolist() == [25] * 5
    nearest = torch.cdist(
        torch.cat([features for features, _ in found]), torch.cat([learner.classes[c].means for c in range(5)])
    )
    assert (nearest.argmin(dim=1) == labels).float().mean() > 0.5  # a feature comes with the label of its class
    assert learner.scores(test_images(sizes)[0]).isfinite().all()


def test_training_cannot_continue_without_statistics():
    sizes = (2, 2, 2)
    learner = trained("mos", sizes[:2])
    other = make("mos", sizes)
    tensors = {n: t for n, t in learner.export_tensors().items() if "head" not in n}
    tensors |= {n: t for n, t in other.export_tensors().items() if "head" in n}
    other.import_tensors(tensors, task_sizes=(2, 2))
    with pytest.raises(UserError, match="statistics of the old classes are missing"):
        other.begin_task(task_info(sizes, 2))

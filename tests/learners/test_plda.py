"""PLDA against dense Gaussians in NumPy, its invariances, and what it keeps of the images."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.vit import tiny_vit
from learner_helpers import images, make, task_info, test_images, train, trained

from data_lt.errors import UserError
from pilot_tal.learners.moments import Moments
from pilot_tal.learners.plda import (
    DEFAULT,
    ENOUGH_HELD_OUT,
    FOLDS,
    Predictive,
    best_candidate,
    cross_validated,
    fold_numbers,
    predictive,
    within_class,
)
from pilot_tal.stream.task import TaskInfo

SIZES = (3, 2, 2)
DIM = 6


def long_tailed(seed=0, classes=5, dim=DIM):
    """Features of classes with 9, 7, 5, 3, 1, … images."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(torch.tensor([max(9 - 2 * c, 1) for c in range(classes)]))
    means = 2 * torch.randn(classes, dim, generator=generator)
    return means[labels] + torch.randn(len(labels), dim, generator=generator), labels


def moments_of(features, labels, scatter="class") -> Moments:
    moments = Moments(features.shape[1], scatter)
    moments.add(features, labels)
    return moments


def fitted(moments, shrinkage=0.7) -> Predictive:
    values, vectors = within_class(moments)
    return predictive(moments.means @ vectors, moments.counts, values, shrinkage)[0].turned(vectors)


def literal_log_densities(features, labels, test, shrinkage):
    """Log density of each test feature under each class, by conditioning dense Gaussians in the original space."""
    x, y, test = features.double().numpy(), labels.numpy(), test.double().numpy()
    classes, dim = y.max() + 1, x.shape[1]
    counts = np.array([(y == c).sum() for c in range(classes)])
    means = np.stack([x[y == c].mean(axis=0) for c in range(classes)])
    within = sum(np.outer(row - means[c], row - means[c]) for row, c in zip(x, y, strict=True)) / (len(x) - classes)
    within = (1 - shrinkage) * within + shrinkage * np.trace(within) / dim * np.eye(dim)
    centre = means.mean(axis=0)
    root = np.linalg.cholesky(within)
    whitened = np.linalg.solve(root, (means - centre).T).T
    between = sum(np.outer(row, row) for row in whitened) / classes - np.mean(1 / counts) * np.eye(dim)
    values, vectors = np.linalg.eigh(between)
    between = root @ (vectors * np.maximum(values, 0)) @ vectors.T @ root.T
    result = np.zeros((len(test), classes))
    for c in range(classes):
        gain = between @ np.linalg.inv(between + within / counts[c])
        mean = centre + gain @ (means[c] - centre)
        covariance = within + between - gain @ between
        for i, row in enumerate(test):
            distance = (row - mean) @ np.linalg.solve(covariance, row - mean)
            result[i, c] = -0.5 * (distance + np.linalg.slogdet(covariance)[1] + dim * np.log(2 * np.pi))
    return torch.from_numpy(result)


def centred(scores):
    return scores - scores.mean(dim=1, keepdim=True)


@pytest.mark.parametrize("shrinkage", [0.2, 0.7, 1.0])
@pytest.mark.parametrize(("classes", "dim"), [(5, 6), (9, 4)], ids=["fewer classes than dimensions", "more"])
def test_scores_equal_dense_gaussians(classes, dim, shrinkage):
    features, labels = long_tailed(classes=classes, dim=dim)
    test, _ = long_tailed(seed=1, classes=classes, dim=dim)
    expected = literal_log_densities(features, labels, test, shrinkage)
    found = fitted(moments_of(features, labels), shrinkage).scores(test.double())
    torch.testing.assert_close(centred(found), centred(expected), rtol=1e-8, atol=1e-8)


def test_scores_and_density_equal_dense_gaussians():
    learner = trained("plda", SIZES, shrinkage=0.6, layers=2)
    parts = [images(task_info(SIZES, index)) for index in range(len(SIZES))]
    features = torch.cat([learner.embedding(x) for x, _ in parts])
    x, _ = test_images(SIZES)
    test = learner.embedding(x)
    expected = literal_log_densities(features, torch.cat([y for _, y in parts]), test, 0.6)
    torch.testing.assert_close(centred(learner.scores(x)), centred(expected).float(), rtol=1e-3, atol=1e-3)
    density = (expected.logsumexp(dim=1) - np.log(7)).float()
    torch.testing.assert_close(learner.log_density(test), density, rtol=1e-4, atol=1e-2)


def test_embedding_is_the_normalised_cls_of_each_block():
    backbone = tiny_vit()
    x, _ = images(task_info(SIZES, 0))
    blocks = backbone.features(x, 3).reshape(len(x), 3, -1)
    expected = torch.cat([row / row.norm(dim=1, keepdim=True) for row in blocks.unbind(1)], dim=1)
    torch.testing.assert_close(make("plda", SIZES, backbone=backbone, layers=3).embedding(x), expected)
    one = make("plda", SIZES, backbone=backbone, layers=1)
    torch.testing.assert_close(one.embedding(x), expected[:, -backbone.dim :])


@pytest.mark.parametrize("seed", range(3))
def test_full_shrinkage_and_equal_counts_equal_nearest_class_mean(seed):
    """Where all classes are as sure, W is a multiple of I and B is as wide in all directions."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(DIM + 1).repeat(8)
    corners = torch.linalg.qr(torch.randn(DIM + 1, DIM + 1, generator=generator))[0]
    corners = corners @ torch.linalg.svd(torch.ones(1, DIM + 1), full_matrices=True)[2][1:].t()  # a simplex
    noise = 0.3 * torch.randn(4 * (DIM + 1), DIM, generator=generator)
    means = 3 * (corners - corners.mean(dim=0))
    means = means @ torch.linalg.inv(torch.linalg.cholesky(means.t() @ means)).t()  # B is a multiple of I
    features = means[labels] + torch.cat((noise, -noise))
    test = torch.randn(200, DIM, generator=generator)
    moments = moments_of(features, labels)
    nearest = torch.cdist(test, moments.means.float()).argmin(dim=1)
    assert torch.equal(fitted(moments, 1.0).scores(test.double()).argmax(dim=1), nearest)


@pytest.mark.parametrize("seed", range(3))
def test_rotated_features_give_the_same_scores(seed):
    features, labels = long_tailed(seed)
    test, _ = long_tailed(seed + 10)
    rotation = torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(seed)).double())[0]
    plain = fitted(moments_of(features, labels)).scores(test.double())
    turned = fitted(moments_of(features.double() @ rotation, labels)).scores(test.double() @ rotation)
    torch.testing.assert_close(centred(turned), centred(plain), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("scatter", ["class", "pooled"])
@pytest.mark.parametrize("seed", range(3))
def test_statistics_do_not_depend_on_order_or_on_the_calls(seed, scatter):
    features, labels = long_tailed(seed)
    at_once = moments_of(features, labels, scatter)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    in_parts = Moments(DIM, scatter)
    for part in order.split(4):
        in_parts.add(features[part], labels[part])
    assert torch.equal(in_parts.counts, at_once.counts)
    torch.testing.assert_close(in_parts.sums, at_once.sums)
    torch.testing.assert_close(in_parts.pooled(), at_once.pooled())
    test = long_tailed(seed + 5)[0].double()
    torch.testing.assert_close(centred(fitted(in_parts).scores(test)), centred(fitted(at_once).scores(test)))


def test_adding_every_image_twice_changes_only_the_counts():
    features, labels = long_tailed()
    once, twice = moments_of(features, labels), moments_of(features, labels)
    twice.add(features, labels)
    torch.testing.assert_close(twice.means, once.means)
    torch.testing.assert_close(twice.pooled(), 2 * once.pooled())
    assert torch.equal(twice.counts, 2 * once.counts)


def test_order_of_tasks_does_not_matter():
    learner = trained("plda", (2, 3), shrinkage=0.5)
    other = make("plda", (3, 2), shrinkage=0.5, backbone=learner.backbone)
    for index, source in enumerate((1, 0)):  # the second task first: its labels 2, 3, 4 become 0, 1, 2
        x, y = images(task_info((2, 3), source))
        other.begin_task(task_info((3, 2), index))
        other.end_task(lambda x=x, y=y, shift=(-2, 3)[index]: [(x, y + shift)])
    x, _ = test_images((2, 3))
    turned = other.scores(x)[:, [3, 4, 0, 1, 2]]
    torch.testing.assert_close(centred(turned), centred(learner.scores(x)), rtol=1e-4, atol=1e-4)


def test_removing_a_class_equals_never_having_seen_it():
    features, labels = long_tailed()
    kept = labels != 2
    learner, never = make("plda", (5,), shrinkage=0.5, layers=1), make("plda", (4,), shrinkage=0.5, layers=1)
    features = torch.cat((features, torch.zeros(len(features), learner.feature_dim - DIM)), dim=1)
    learner.begin_task(TaskInfo(0, 1, 0, 5, (1,) * 5))
    learner.add(features, labels)
    learner.remove(2)
    never.begin_task(TaskInfo(0, 1, 0, 4, (1,) * 4))
    never.add(features[kept], labels[kept] - (labels[kept] > 2).long())
    assert learner.seen == 4
    torch.testing.assert_close(
        centred(learner.classify(features)), centred(never.classify(features)), rtol=1e-4, atol=1e-4
    )
    with pytest.raises(UserError, match="there is no class 4 to remove"):
        learner.remove(4)


def test_removing_needs_a_scatter_per_class():
    learner = trained("plda", SIZES, removable=False)
    with pytest.raises(UserError, match="removable=true"):
        learner.remove(0)


def test_classes_beyond_those_announced_can_be_learned():
    announced, open_ended = trained("plda", SIZES, shrinkage=0.5), make("plda", (1,), shrinkage=0.5)
    for index in range(len(SIZES)):
        train(open_ended, SIZES, index)
    x, y = test_images(SIZES)
    assert torch.equal(open_ended.scores(x), announced.scores(x))
    open_ended.add(open_ended.embedding(x), y)  # more images of known classes
    assert open_ended.moments.counts.tolist() == [4 + 3] * 7


def test_pooled_and_per_class_scatter_give_the_same_scores():
    x, _ = test_images(SIZES)
    per_class, pooled = (trained("plda", SIZES, removable=value).scores(x) for value in (True, False))
    torch.testing.assert_close(centred(pooled), centred(per_class), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("scatter", "rows"), [("class", 8 + 6 + 4 + 2), ("pooled", DIM)])
def test_memory_equals_the_documented_figures(scatter, rows):
    state = moments_of(*long_tailed(), scatter).state()
    expected = rows if scatter == "pooled" else sum(min(n - 1, DIM) for n in (9, 7, 5, 3, 1))
    assert state["rows"].shape == (expected, DIM) and state["sums"].shape == (5, DIM)


@pytest.mark.parametrize(("classes", "dim"), [(3, 3), (5, 64), (40, 24)])
def test_classes_of_one_image_are_distinguished(classes, dim):
    features = F.normalize(torch.randn(classes, dim, generator=torch.Generator().manual_seed(0)), dim=1)
    near = F.normalize(features + 0.02 * torch.randn(classes, dim, generator=torch.Generator().manual_seed(1)), dim=1)
    found = fitted(moments_of(features, torch.arange(classes)))
    assert found.scores(near.double()).argmax(dim=1).tolist() == list(range(classes))


def test_one_class_of_one_image_has_finite_scores():
    assert (
        fitted(moments_of(torch.ones(1, 3), torch.zeros(1).long())).scores(torch.ones(2, 3).double()).isfinite().all()
    )


def test_folds_hold_out_every_image_once_and_split_each_class():
    labels = torch.arange(4).repeat_interleave(torch.tensor([1, 2, 5, 11]))
    folds = fold_numbers(labels)
    for label in range(4):
        own = folds[labels == label].bincount(minlength=FOLDS)
        assert int(own.max()) - int(own.min()) <= 1


def test_cross_validation_equals_fitting_each_fold():
    """Of the last 6 and of all 12 numbers of a feature: two layers of width 6."""
    old, old_labels = long_tailed(seed=3, classes=2, dim=2 * DIM)
    features, labels = long_tailed(seed=4, classes=4, dim=2 * DIM)
    labels = labels + 2
    candidates = [(1, 0.2), (1, 0.9), (2, 0.2), (2, 0.6)]
    found, densities = cross_validated(moments_of(old, old_labels), features, labels, candidates, DIM)
    folds, expected, held_out = fold_numbers(labels), torch.zeros(len(candidates)).double(), 0
    logged = [[] for _ in candidates]
    for fold in range(FOLDS):
        kept = folds != fold
        rows, classes = torch.cat((old, features[kept])), torch.cat((old_labels, labels[kept]))
        if len(classes.unique()) < 6 or bool(kept.all()):
            continue
        for place, (layers, shrinkage) in enumerate(candidates):
            own = slice(-layers * DIM, None)
            logs = literal_log_densities(rows[:, own], classes, features[~kept, own], shrinkage)
            logged[place] += (logs.logsumexp(dim=1) - np.log(6)).tolist()
            for guess, label in zip(logs.argmax(dim=1), labels[~kept], strict=True):
                expected[place] += float(guess == label) / int((labels == label).sum())
        held_out += int((folds == fold).sum())
    assert held_out == int(found[-1])
    torch.testing.assert_close(found[:-1], expected)
    torch.testing.assert_close(densities, torch.tensor(logged, dtype=torch.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("images", [1, 3, 12], ids=["two rows", "a few rows", "more rows than dimensions"])
def test_eigenbasis_of_few_rows_is_that_of_the_covariance(images):
    moments = moments_of(*(part[: 5 * images] for part in long_tailed(classes=5, dim=40)))
    values, vectors = within_class(moments)
    torch.testing.assert_close(vectors.t() @ vectors, torch.eye(40).double())
    torch.testing.assert_close((vectors * values) @ vectors.t(), moments.pooled() / max(moments.freedom, 1))
    assert float(values.min()) >= 0


def layered(informative: str, classes=6, images=20):
    """Features of a learner with `layers=auto` whose classes differ in the last layer alone, or in the others alone."""
    learner = make("plda", [classes])
    width, generator = learner.backbone.dim, torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(images)
    means = 3 * torch.randn(classes, learner.feature_dim, generator=generator)
    if informative == "last":
        means[:, :-width] = 0
    else:
        means[:, -width:] = 0
    learner.begin_task(task_info([classes], 0))
    return learner, means[labels] + torch.randn(len(labels), learner.feature_dim, generator=generator), labels


@pytest.mark.parametrize(("informative", "layers"), [("last", 1), ("others", 6)])
def test_auto_reads_the_layers_that_separate_the_classes(informative, layers):
    learner, features, labels = layered(informative)
    features[:, : -learner.backbone.dim] *= 1 if informative == "others" else 50  # noise that more layers would add
    learner.add(features, labels)
    assert int(learner.chosen[0]) == layers
    assert (learner.classify(features).argmax(dim=1) == labels).float().mean() > 0.9


def test_auto_considers_no_more_layers_than_long_features_allow(monkeypatch):
    backbone = tiny_vit()
    for longest, layers in ((9, [1, 6]), (4, [1, 4]), (0, [1])):
        monkeypatch.setattr("pilot_tal.learners.plda.LONGEST", longest * backbone.dim)
        learner = make("plda", SIZES, backbone=backbone)
        assert sorted({number for number, _ in learner.candidates}) == layers
        assert learner.feature_dim == layers[-1] * backbone.dim


def test_layers_that_were_not_chosen_do_not_matter():
    learner, features, labels = layered("last")
    features[:, : -learner.backbone.dim] *= 50
    learner.add(features, labels)
    assert int(learner.chosen[0]) == 1
    other, unused = features.clone(), slice(0, -learner.backbone.dim)
    other[:, unused] = torch.randn(other[:, unused].shape, generator=torch.Generator().manual_seed(1))
    assert torch.equal(learner.classify(other), learner.classify(features))
    assert torch.equal(learner.log_density(other), learner.log_density(features))
    shrinkage = round(float(learner.chosen[1]), 2)
    fixed = make("plda", [6], backbone=learner.backbone, layers=1, shrinkage=shrinkage)
    fixed.begin_task(task_info([6], 0))
    fixed.add(features[:, -learner.backbone.dim :], labels)
    alone = features[:, -learner.backbone.dim :]
    torch.testing.assert_close(
        centred(learner.classify(features)), centred(fixed.classify(alone)), rtol=1e-4, atol=1e-3
    )
    torch.testing.assert_close(learner.log_density(features), fixed.log_density(alone), rtol=1e-4, atol=1e-2)


def test_threshold_rejects_the_asked_share_of_held_out_training_images():
    learner = make("plda", [4])
    features, labels = long_tailed(seed=4, classes=4, dim=learner.feature_dim)
    learner.begin_task(task_info([4], 0))
    with pytest.raises(UserError, match="no threshold yet"):
        learner.reject_below(0.05)
    offsets = 1000 * torch.arange(len(learner.candidates)).unsqueeze(1)
    learner.densities = torch.arange(200.0).double() + offsets
    learner.moments.add(features, labels)
    learner.fit()
    of_choice = 1000 * learner.candidates.index(DEFAULT)
    assert learner.reject_below(0.05) == pytest.approx(of_choice + 0.05 * 199)
    state = learner.checkpoint_state()
    other = make("plda", [4])
    other.load_checkpoint_state(state)
    assert other.reject_below(0.2) == learner.reject_below(0.2) and torch.equal(other.densities, learner.densities)


def test_cross_validation_ends_when_enough_images_were_held_out():
    learner = make("plda", [4])
    features, labels = long_tailed(seed=4, classes=4, dim=learner.feature_dim)
    learner.begin_task(task_info([4], 0))
    assert learner.validate(features, labels)[-1] > 0
    learner.validated[-1] = ENOUGH_HELD_OUT
    assert not learner.validate(features, labels).any()


def test_cross_validations_weigh_as_the_images_known_by_then():
    learner = make("plda", [4, 4])
    for task in range(2):
        features, labels = long_tailed(seed=task, classes=4, dim=learner.feature_dim)
        learner.begin_task(task_info([4, 4], task))
        args = learner.moments.copy(), features, labels + 4 * task, learner.candidates, learner.backbone.dim
        plain, _ = cross_validated(*args)
        found = learner.validate(features, labels + 4 * task)
        torch.testing.assert_close(found[:-1], plain[:-1] * 24 * (task + 1))
        assert found[-1] == plain[-1]
        before = learner.validated.clone()
        learner.add(features, labels + 4 * task)
        torch.testing.assert_close(learner.validated, before + found)


def test_labels_beyond_the_tasks_begun_are_refused_and_change_nothing():
    learner = trained("plda", SIZES)
    counts, features = learner.moments.counts.clone(), torch.randn(2, learner.feature_dim)
    for wrong in (7, -1):
        with pytest.raises(UserError, match="labels must be from 0 to 6"):
            learner.add(features, torch.tensor([0, wrong]))
    assert torch.equal(learner.moments.counts, counts)


def test_best_candidate_wins_and_few_images_take_the_default():
    candidates = [(1, 0.5), (1, 0.7), (4, 0.7), (6, 0.9)]
    scores = torch.zeros(len(candidates) + 1, dtype=torch.float64)
    scores[-1] = 100
    assert best_candidate(scores, candidates) == DEFAULT
    scores[3] = 1
    assert best_candidate(scores, candidates) == (6, 0.9)
    scores[-1] = 49
    assert best_candidate(scores, candidates) == DEFAULT
    assert best_candidate(scores, [(4, 0.7), (2, 0.2), (2, 0.8)]) == (2, 0.8), "the nearest to the default"


def test_statistics_of_other_candidates_are_refused():
    learner = trained("plda", SIZES)
    with pytest.raises(UserError, match="chose among other values"):
        make("plda", SIZES, shrinkage=0.5).load_checkpoint_state(learner.checkpoint_state())


def test_adapter_trains_only_in_the_first_task():
    torch.manual_seed(0)
    learner = make("plda", SIZES, adapter=True)
    start = [part.clone() for part in learner.adapters.parts]
    train(learner, SIZES, 0)
    first = [part.clone() for part in learner.adapters.parts]
    assert not any(map(torch.equal, start, first))
    train(learner, SIZES, 1)
    assert all(map(torch.equal, learner.adapters.parts, first))
    assert not any(p.requires_grad for p in learner.parameters())
    assert any("adaptmlp" in name for name in learner.export_tensors())


def test_training_cannot_continue_without_the_statistics():
    learner = trained("plda", SIZES)
    other = make("plda", SIZES)
    other.import_tensors(learner.export_tensors(), task_sizes=SIZES)
    with pytest.raises(UserError, match="has no statistics of its first 7 classes"):
        other.add(torch.zeros(1, other.feature_dim), torch.tensor([7]))
    state = learner.checkpoint_state()
    del state["statistics.sums"]
    with pytest.raises(UserError, match="lacks the statistics of images so far; remove its folder and start over"):
        make("plda", SIZES).load_checkpoint_state(state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shrinkage": 0}, "shrinkage must be a number above 0 and up to 1, or auto"),
        ({"shrinkage": "best"}, "shrinkage must be"),
        ({"layers": 7}, "layers must be from 1 to 6"),
    ],
)
def test_wrong_settings_raise(settings, message):
    with pytest.raises(UserError, match=message):
        make("plda", SIZES, **settings)

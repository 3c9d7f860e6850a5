"""SimpleCIL against a nearest class mean written with loops."""

import math

import pytest
import torch
from learner_helpers import images, make, task_info, test_images, train, trained

from data_lt.errors import UserError


def literal_means(learner, sizes) -> list[list[float]]:
    """Mean feature of every class, image by image."""
    means = []
    for index in range(len(sizes)):
        x, y = images(task_info(sizes, index))
        for label in range(sum(sizes[:index]), sum(sizes[: index + 1])):
            features = [learner.backbone.query(learner.backbone.embed(row[None]))[0] for row in x[y == label]]
            means.append([sum(float(f[d]) for f in features) / len(features) for d in range(len(features[0]))])
    return means


@pytest.mark.parametrize("fidelity", ["pilot", "fixed"])
def test_equals_a_nearest_class_mean_written_with_loops(fidelity):
    sizes = (3, 2, 1)
    learner = trained("simplecil", sizes, fidelity)
    x, _ = test_images(sizes)
    means = literal_means(learner, sizes)
    expected = torch.zeros(len(x), len(means))
    for i, row in enumerate(x):
        feature = learner.backbone.query(learner.backbone.embed(row[None]))[0].tolist()
        for j, mean in enumerate(means):
            product = sum(a * b for a, b in zip(feature, mean, strict=True))
            expected[i, j] = product / math.hypot(*feature) / math.hypot(*mean)
    torch.testing.assert_close(learner.scores(x), expected, rtol=1e-4, atol=1e-5)


def test_tasks_do_not_matter():
    """The same classes in one task or in three: the same prototypes."""
    torch.manual_seed(0)
    split, (x, _) = trained("simplecil", (2, 2, 2)), test_images((2, 2, 2))
    joint = make("simplecil", (6,))
    joint.begin_task(task_info((6,), 0))
    joint.end_task(lambda: (images(task_info((2, 2, 2), index)) for index in range(3)))
    torch.testing.assert_close(joint.scores(x), split.scores(x), rtol=1e-4, atol=1e-5)


def test_old_prototypes_stay_and_nothing_is_drawn():
    learner = make("simplecil", (2, 2))
    train(learner, (2, 2), 0)
    first = learner.prototypes.clone()
    before = torch.random.get_rng_state()
    learner.begin_task(task_info((2, 2), 1))
    learner.end_task(lambda: [images(task_info((2, 2), 1))])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(learner.prototypes[:2], first)
    assert list(learner.parameters()) == list(learner.backbone.parameters())


def test_epochs_are_no_setting_of_it():
    assert make("simplecil", (2,)).config.tuned_epoch == 0
    with pytest.raises(UserError, match="unknown setting of simplecil 'init_lr'"):
        make("simplecil", (2,), init_lr=0.1)

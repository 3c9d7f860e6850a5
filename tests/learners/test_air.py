"""AIR: its regression against scikit-learn with sample weights, its choice of the ridge against refits."""

import pytest
import torch
import torch.nn.functional as F
from learner_helpers import images, make, task_info, test_images, trained
from sklearn.linear_model import Ridge

from pilot_tal.learners.air import RIDGES, leave_one_out
from pilot_tal.learners.moments import Moments

SIZES = (3, 2, 2)
COUNTS = (5, 1, 3, 2, 4)


def fitted_by_scikit(hidden, labels, classes, ridge) -> torch.Tensor:
    """Weights of a ridge regression in which an image weighs 1/n_c."""
    model = Ridge(alpha=ridge, fit_intercept=False, solver="svd")
    weights = 1 / labels.bincount(minlength=classes)[labels].double()
    targets = F.one_hot(labels, classes).double()
    model.fit(hidden.double().numpy(), targets.numpy(), sample_weight=weights.numpy())
    return torch.from_numpy(model.coef_)


@pytest.mark.parametrize("M", [40, 9], ids=["more features than images", "fewer"])
def test_equals_class_balanced_ridge_regression_on_all_images(M):
    learner = make("air", SIZES, M=M)
    kept = [(3, 2, 1), (2, 4), (1, 3)]  # images of the classes of each task
    rows, labels = [], []
    for index in range(len(SIZES)):
        task = task_info(SIZES, index)
        x, y = images(task)
        few = torch.cat([(y == task.first + c).nonzero().squeeze(1)[:n] for c, n in enumerate(kept[index])])
        learner.begin_task(task)
        learner.end_task(lambda x=x[few], y=y[few]: [(x, y)])
        rows.append(F.relu(learner.embedding(x[few]) @ learner.projection))
        labels.append(y[few])
    expected = fitted_by_scikit(torch.cat(rows), torch.cat(labels), 7, learner.ridge).float()
    torch.testing.assert_close(learner.weight, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    x, _ = test_images(SIZES)
    hidden = F.relu(learner.embedding(x) @ learner.projection)
    torch.testing.assert_close(learner.scores(x), hidden @ expected.t(), rtol=1e-3, atol=1e-3)


def long_tailed(dim, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(COUNTS)).repeat_interleave(torch.tensor(COUNTS))
    means = torch.randn(len(COUNTS), dim, generator=generator)
    return (means[labels] + torch.randn(len(labels), dim, generator=generator)).relu(), labels


def literal_errors(hidden, labels, predicted, classes) -> torch.Tensor:
    """Every image of `predicted` left out in turn, and the regression fitted again by scikit-learn."""
    errors = torch.zeros(len(RIDGES), dtype=torch.float64)
    sizes = labels.bincount(minlength=classes)
    for place, ridge in enumerate(RIDGES):
        for image in predicted:
            label, kept = labels[image], torch.arange(len(labels)) != image
            if sizes[label] == 1:
                continue
            weights = fitted_by_scikit(hidden[kept], labels[kept], classes, ridge)
            wrong = F.one_hot(label, classes) - weights @ hidden[image].double()
            errors[place] += wrong.square().sum() / int((labels[predicted] == label).sum())
    return errors


@pytest.mark.parametrize("dim", [30, 6], ids=["more features than images", "fewer"])
def test_leave_one_out_equals_fitting_again_without_each_image(dim):
    hidden, labels = long_tailed(dim)
    found = leave_one_out(Moments(dim), hidden, labels)
    expected = literal_errors(hidden, labels, torch.arange(len(labels)), len(COUNTS))
    torch.testing.assert_close(found[4:-1], expected[4:], rtol=1e-5, atol=1e-8)
    assert int(found[-1]) == sum(n for n in COUNTS if n > 1)


@pytest.mark.parametrize("dim", [30, 6], ids=["more features than images", "fewer"])
def test_leave_one_out_with_images_of_before_equals_fitting_again(dim):
    """Of new classes, of known classes, and of both; only the new images are predicted."""
    hidden, labels = long_tailed(dim)
    new = torch.tensor([1, 3, 4, 5, 6, 8, 9, 13, 14])
    old = torch.tensor([image for image in range(len(labels)) if image not in new])
    moments = Moments(dim)
    moments.add(hidden[old], labels[old])
    found = leave_one_out(moments, hidden[new], labels[new])
    torch.testing.assert_close(found[4:-1], literal_errors(hidden, labels, new, 5)[4:], rtol=1e-5, atol=1e-8)


def test_ridge_has_the_least_error_over_all_tasks():
    learner = trained("air", SIZES)
    total = learner.validated[:-1]
    assert learner.ridge == RIDGES[int(total.argmin())] and int(learner.validated[-1]) == 4 * 7


def test_removing_a_class_equals_never_having_seen_it():
    learner = trained("air", SIZES)
    parts = [images(task_info(SIZES, index)) for index in range(len(SIZES))]
    x, y = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    kept = y != 4
    learner.remove(4)
    hidden = learner.hidden(learner.embedding(x[kept]))
    expected = fitted_by_scikit(hidden, y[kept] - (y[kept] > 4).long(), 6, learner.ridge).float()
    torch.testing.assert_close(learner.weight, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))

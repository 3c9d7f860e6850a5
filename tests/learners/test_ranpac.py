"""RanPAC: its regression against scikit-learn, its choice of the ridge, and both ways to score."""

import pytest
import torch
import torch.nn.functional as F
from learner_helpers import images, make, task_info, test_images, train, trained
from sklearn.linear_model import Ridge

from data_lt.errors import UserError
from pilot_tal.learners.ranpac import RIDGES, compressed, held_out_losses, ridge_weights

SIZES = (3, 2, 2)


def hidden_features(learner, x) -> torch.Tensor:
    """Random features by their definition."""
    with torch.no_grad():
        features = learner.features(learner.backbone.embed(x), list(learner.adapters.parts))
        return (features @ learner.projection).clamp_min(0)


def everything(sizes) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [images(task_info(sizes, index)) for index in range(len(sizes))]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def fitted_by_scikit(hidden, targets, ridge) -> Ridge:
    return Ridge(alpha=ridge, fit_intercept=False, solver="svd").fit(hidden.double().numpy(), targets.double().numpy())


@pytest.mark.parametrize("fidelity", ["pilot", "fixed"])
@pytest.mark.parametrize("M", [40, 9], ids=["more features than images", "fewer"])
def test_equals_ridge_regression_on_all_images_so_far(M, fidelity):
    """scikit-learn, given the random features of all images at once, finds the same weights and says the same."""
    learner = trained("ranpac", SIZES, fidelity, M=M)
    x, y = everything(SIZES)
    expected = fitted_by_scikit(hidden_features(learner, x), F.one_hot(y, 7), learner.ridge)
    weight = torch.from_numpy(expected.coef_).float()
    torch.testing.assert_close(learner.weight, weight, rtol=1e-3, atol=1e-4 * float(weight.abs().max()))
    assert len(learner.moments.rows()) == (M if len(x) > M else len(x) - 7)  # of each class one row is its mean
    test_x, _ = test_images(SIZES)
    hidden = hidden_features(learner, test_x)
    scores = torch.from_numpy(expected.predict(hidden.double().numpy())).float()
    if fidelity == "pilot":
        scores = learner.sigma * scores / hidden.norm(dim=1, keepdim=True) / weight.norm(dim=1)
    torch.testing.assert_close(learner.scores(test_x), scores, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("ridge", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("shape", [(30, 8), (8, 30), (1, 5)])
def test_weights_solve_the_normal_equations(shape, ridge):
    torch.manual_seed(0)
    rows, targets = torch.randn(shape), torch.randn(shape[0], 3)
    weights = ridge_weights(rows, targets, ridge).double()
    left = weights @ (rows.t() @ rows + ridge * torch.eye(shape[1])).double()
    torch.testing.assert_close(left, (targets.t() @ rows).double(), rtol=1e-4, atol=1e-4)


def test_compression_preserves_the_regression():
    torch.manual_seed(0)
    rows, targets = torch.randn(50, 6), torch.randn(50, 4)
    few, turned = compressed(rows, targets)
    assert few.shape == (6, 6) and turned.shape == (6, 4)
    torch.testing.assert_close(few.t() @ few, rows.t() @ rows, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(few.t() @ turned, rows.t() @ targets, rtol=1e-4, atol=1e-4)
    assert torch.equal(compressed(rows[:6], targets[:6])[0], rows[:6])


def literal_losses(hidden, targets) -> list[float]:
    """Every ridge fitted on four fifths by scikit-learn and measured on the rest."""
    cut = int(0.8 * len(hidden))
    losses = []
    for ridge in RIDGES:
        model = fitted_by_scikit(hidden[:cut], targets[:cut], ridge)
        wrong = model.predict(hidden[cut:].double().numpy()) - targets[cut:].numpy()
        losses.append(float((wrong**2).mean()))
    return losses


@pytest.mark.parametrize("shape", [(30, 8), (12, 40), (5, 3)], ids=["more images", "more features", "few"])
def test_held_out_losses_against_scikit_learn(shape):
    torch.manual_seed(0)
    hidden = torch.randn(shape).clamp_min(0)
    targets = F.one_hot(torch.randint(3, (shape[0],)), 3).float()
    expected = torch.tensor(literal_losses(hidden, targets), dtype=torch.float64)
    torch.testing.assert_close(held_out_losses(hidden, targets), expected, rtol=1e-5, atol=1e-8)


def test_where_float32_can_it_agrees_with_the_normal_equations_of_the_original():
    torch.manual_seed(0)
    hidden = torch.randn(40, 12).clamp_min(0)
    targets = F.one_hot(torch.randint(3, (40,)), 3).float()
    seen, unseen, losses = hidden[:32], hidden[32:], held_out_losses(hidden, targets)
    for ridge, loss in zip(RIDGES, losses, strict=True):
        weights = torch.linalg.solve(seen.t() @ seen + ridge * torch.eye(12), seen.t() @ targets[:32])
        torch.testing.assert_close(F.mse_loss(unseen @ weights, targets[32:]).double(), loss, rtol=1e-3, atol=1e-5)


def test_ridge_is_the_best_on_the_held_out_images_of_the_task(monkeypatch):
    """For many orders of the images: their choices differ, so an order that is not used is seen."""
    torch.manual_seed(0)
    learner = make("ranpac", SIZES, M=12)
    for index in range(2):
        train(learner, SIZES, index)
    state = learner.checkpoint_state()
    x, y = images(task_info(SIZES, 2))
    chosen = set()
    for seed in range(12):
        learner.load_checkpoint_state(state)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        monkeypatch.setattr(learner, "shuffled", lambda number, order=order: order)
        learner.begin_task(task_info(SIZES, 2))
        learner.end_task(lambda: [(x, y)])
        losses = literal_losses(hidden_features(learner, x)[order], F.one_hot(y, 7)[order])
        assert learner.ridge == RIDGES[losses.index(min(losses))]
        chosen.add(learner.ridge)
    assert len(chosen) > 1


def test_every_image_may_be_held_out():
    """The images come sorted by class: unshuffled, the last classes would choose the ridge and never be fitted."""
    learner = make("ranpac", SIZES)
    orders = [learner.shuffled(10).tolist() for _ in range(40)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert {image for order in orders for image in order[8:]} == set(range(10))


def test_regression_without_a_solution_raises_user_error():
    rows = torch.ones(2, 3) * 1e8
    with pytest.raises(UserError, match="no solution with the ridge 1e-08"):
        ridge_weights(rows, torch.eye(2), 1e-8)


def test_adapter_trains_only_in_the_first_task():
    torch.manual_seed(0)
    learner = make("ranpac", SIZES)
    start = [part.clone() for part in learner.adapters.parts]
    train(learner, SIZES, 0)
    first = [part.clone() for part in learner.adapters.parts]
    assert not any(map(torch.equal, start, first))
    sigma = learner.sigma.clone()
    assert float(sigma) != 1.0
    train(learner, SIZES, 1)
    assert all(map(torch.equal, learner.adapters.parts, first))
    assert torch.equal(learner.sigma, sigma) and not any(p.requires_grad for p in learner.parameters())


@pytest.mark.parametrize("fidelity", ["pilot", "fixed"])
def test_without_the_adapter_equals_an_adapter_that_learns_nothing(fidelity):
    """A new adapter adds nothing, and with a learning rate of zero it stays new."""
    learners = {}
    for adapter in (True, False):
        torch.manual_seed(0)
        learner = learners[adapter] = make("ranpac", SIZES, fidelity, adapter=adapter, init_lr=0.0, weight_decay=0.0)
        generator = torch.Generator().manual_seed(1)
        learner.projection.copy_(torch.randn(learner.projection.shape, generator=generator))
        for index in range(len(SIZES)):
            train(learner, SIZES, index)
    x, _ = test_images(SIZES)
    with_adapter, without = (learners[adapter] for adapter in (True, False))
    torch.testing.assert_close(without.moments.means, with_adapter.moments.means)
    torch.testing.assert_close(without.moments.pooled(), with_adapter.moments.pooled())
    for learner in learners.values():
        learner.ridge = 10.0
        learner.fit()
    torch.testing.assert_close(without.scores(x), with_adapter.scores(x), rtol=1e-3, atol=1e-4)
    assert not any("adaptmlp" in name for name in without.export_tensors())


@pytest.mark.parametrize("adapter", [True, False])
def test_features_are_computed_once_but_never_before_they_are_settled(adapter, monkeypatch):
    torch.manual_seed(0)
    learner = make("ranpac", SIZES, adapter=adapter)
    x, _ = test_images(SIZES[:2])
    ids = torch.arange(len(x))
    train(learner, SIZES, 0, on_step=lambda info: learner.scores(x, ids))  # the adapter still moves
    train(learner, SIZES, 1)
    expected = learner.scores(x)
    blocks, passes = learner.backbone._blocks, []
    monkeypatch.setattr(learner.backbone, "_blocks", lambda t, *rest: passes.append(len(t)) or blocks(t, *rest))
    for _ in range(2):
        torch.testing.assert_close(learner.scores(x, ids), expected, rtol=1e-3, atol=1e-4)
    assert sum(passes) == len(x)


def test_training_cannot_continue_without_the_old_images():
    learner = trained("ranpac", SIZES)
    other = make("ranpac", SIZES)
    other.import_tensors({**learner.export_tensors(), "fc.weight": learner.weight[:5]}, task_sizes=SIZES[:2])
    with pytest.raises(UserError, match="has no statistics of its first 5 classes"):
        train(other, SIZES, 2)
    state = learner.checkpoint_state()
    del state["statistics.rows"]
    with pytest.raises(UserError, match="lacks the statistics of images so far; remove its folder and start over"):
        make("ranpac", SIZES).load_checkpoint_state(state)


def test_removing_a_class_equals_never_having_seen_it():
    learner = trained("ranpac", SIZES)
    x, y = everything(SIZES)
    kept = y != 4
    learner.remove(4)
    hidden, labels = hidden_features(learner, x[kept]), y[kept] - (y[kept] > 4).long()
    expected = torch.from_numpy(fitted_by_scikit(hidden, F.one_hot(labels, 6), learner.ridge).coef_).float()
    torch.testing.assert_close(learner.weight, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    with pytest.raises(UserError, match="raise M"):
        trained("ranpac", SIZES, M=9).remove(4)


def test_removing_a_class_of_a_restored_learner_solves_with_its_ridge():
    learner, restored = trained("ranpac", SIZES), make("ranpac", SIZES)
    restored.load_checkpoint_state(learner.checkpoint_state())
    for one in (learner, restored):
        one.remove(4)
    assert restored.ridge == learner.ridge > 0
    torch.testing.assert_close(restored.weight, learner.weight)


def test_one_more_image_keeps_the_ridge():
    learner = trained("ranpac", SIZES)
    ridge = learner.ridge
    learner.add(torch.randn(1, learner.backbone.dim), torch.tensor([2]))
    assert learner.ridge == ridge


def test_optimizer_adam_is_refused():
    with pytest.raises(UserError, match="optimizer must be one of adamw, sgd"):
        make("ranpac", SIZES, optimizer="adam")

"""APER and FeCAM against their definitions written with NumPy."""

import numpy as np
import pytest
import torch
from learner_helpers import images, make, task_info, test_images, train, trained

SIZES = (3, 2, 2)


def everything(sizes=SIZES) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [images(task_info(sizes, index)) for index in range(len(sizes))]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def adapted(learner, x) -> np.ndarray:
    with torch.no_grad():
        return learner.features(learner.backbone.embed(x), list(learner.adapters.parts)).double().numpy()


def plain(learner, x) -> np.ndarray:
    return learner.backbone.query(learner.backbone.embed(x)).double().numpy()


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.mark.parametrize("fidelity", ["pilot", "fixed"])
def test_aper_is_the_cosine_with_means_of_both_networks(fidelity):
    learner = trained("aper", SIZES, fidelity)
    x, y = everything()
    test, _ = test_images(SIZES)
    assert not np.allclose(adapted(learner, test), plain(learner, test))

    def both(images):
        return np.concatenate((plain(learner, images), adapted(learner, images)), axis=1)

    means = np.stack([both(x[y == label]).mean(axis=0) for label in range(7)])
    expected = unit(both(test)) @ unit(means).T
    torch.testing.assert_close(learner.scores(test), torch.from_numpy(expected).float(), rtol=1e-3, atol=1e-4)


def test_aper_without_its_adapter_is_simplecil():
    x, _ = test_images(SIZES)
    aper, simple = (
        trained(method, SIZES, **more) for method, more in (("aper", {"adapter": False}), ("simplecil", {}))
    )
    assert torch.equal(aper.scores(x), simple.scores(x))


def literal_distances(train_rows, labels, test_rows, fidelity) -> np.ndarray:
    """Squared Mahalanobis distances of FeCAM as LAMDA-PILOT computes them, or with a shared covariance."""
    if fidelity == "fixed":
        train_rows, test_rows = unit(train_rows), unit(test_rows)
    dim, classes = train_rows.shape[1], labels.max() + 1
    own = [train_rows[labels == label] for label in range(classes)]
    scatter = [(rows - rows.mean(axis=0)).T @ (rows - rows.mean(axis=0)) for rows in own]
    shared = sum(scatter) / (len(labels) - classes)
    result = np.zeros((len(test_rows), classes))
    for label, rows in enumerate(own):
        covariance = scatter[label] / max(len(rows) - 1, 1)
        if fidelity == "pilot":
            matrix = np.corrcoef(covariance + 100 * np.eye(dim))  # which takes the rows as observations
            mean, test = unit(rows.mean(axis=0)), unit(test_rows)
        else:
            covariance = (scatter[label] + dim * shared) / (len(rows) - 1 + dim) + np.trace(shared) / dim * np.eye(dim)
            deviations = np.sqrt(np.diag(covariance))
            matrix, mean, test = covariance / np.outer(deviations, deviations), rows.mean(axis=0), test_rows
        inverse = np.linalg.pinv(matrix, rcond=1e-5)
        for image, row in enumerate(test):
            result[image, label] = (row - mean) @ inverse @ (row - mean)
    return result


@pytest.mark.parametrize("fidelity", ["pilot", "fixed"])
@pytest.mark.parametrize("adapter", [True, False])
def test_fecam_is_a_mahalanobis_distance_per_class(adapter, fidelity):
    learner = trained("fecam", SIZES, fidelity, adapter=adapter)
    x, y = everything()
    test, _ = test_images(SIZES)
    features = adapted if adapter else plain
    expected = literal_distances(features(learner, x), y.numpy(), features(learner, test), fidelity)
    found = -learner.scores(test)
    torch.testing.assert_close(found, torch.from_numpy(expected).float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("fidelity", ["pilot", "fixed"])
def test_fecam_survives_classes_of_one_and_two_images(fidelity):
    learner = make("fecam", (3,), fidelity, adapter=False)
    x, y = everything((3,))
    few = torch.cat([(y == label).nonzero().squeeze(1)[:count] for label, count in enumerate((1, 2, 4))])
    learner.begin_task(task_info((3,), 0))
    learner.end_task(lambda: [(x[few], y[few])])
    scores = learner.scores(x)
    assert scores.isfinite().all()
    expected = literal_distances(plain(learner, x[few]), y[few].numpy(), plain(learner, x), fidelity)
    torch.testing.assert_close(-scores, torch.from_numpy(expected).float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["aper", "fecam"])
def test_adapter_trains_only_in_the_first_task(method):
    torch.manual_seed(0)
    learner = make(method, SIZES)
    start = [part.clone() for part in learner.adapters.parts]
    train(learner, SIZES, 0)
    first = [part.clone() for part in learner.adapters.parts]
    assert not any(map(torch.equal, start, first))
    assert (float(learner.sigma) == 1.0) == (method == "aper")  # which gets a new classifier
    train(learner, SIZES, 1)
    assert all(map(torch.equal, learner.adapters.parts, first))


@pytest.mark.parametrize("method", ["simplecil", "aper", "fecam"])
def test_removing_a_class_equals_never_having_seen_it(method):
    x, y = everything((5,))
    scores = []
    for known in (y, torch.where(y < 2, y, y - 1)):
        learner = make(
            method, (int(known.max()) + 1,), "fixed", **({} if method == "simplecil" else {"adapter": False})
        )
        learner.begin_task(task_info((learner.num_classes,), 0))
        features = learner.embedding(x)
        kept = torch.ones_like(y, dtype=torch.bool) if known is y else y != 2
        learner.add(features[kept], known[kept])
        if known is y:
            learner.remove(2)
        scores.append(learner.classify(features))
    torch.testing.assert_close(*scores)


def test_alpha_replaces_the_usual_shrinkage():
    x, _ = test_images(SIZES)
    usual, same, other = (trained("fecam", SIZES, alpha=alpha).scores(x) for alpha in (None, 100.0, 1.0))
    assert torch.equal(usual, same) and not torch.allclose(usual, other)

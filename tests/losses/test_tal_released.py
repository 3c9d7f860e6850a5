"""`update=normalized eps=1e-12` against the formula of the authors' released code, written out in plain Python."""

import math

import pytest
import torch
from tal_oracle import stream

from pilot_tal import TAL


class Released:
    """log max(α·w, 1e-12) on the negatives; Q ← λ(Q + N_p/N − N_n/N · w/(C−1)); α by bisection."""

    def __init__(self, classes, lam, r):
        self.classes, self.lam, self.r = classes, lam, r
        self.Q, self.Q_max = [0.0] * classes, lam / (1 - lam)
        low, high, kappa = 0.0, 1.0, (1 - 1 / classes) / (classes - 1)
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (low, middle) if kappa * middle**r + middle > 1 / classes else (middle, high)
        self.alpha = 1 / low**r

    def step(self, logits, targets):
        images = len(logits)
        w = [max(q / self.Q_max, 0.0) ** self.r for q in self.Q]
        loss = 0.0
        for z, y in zip(logits, targets, strict=True):
            terms = [math.exp(z[k]) * (1.0 if k == y else max(self.alpha * w[k], 1e-12)) for k in range(self.classes)]
            loss += (math.log(sum(terms)) - z[y]) / images
        for k in range(self.classes):
            positives = sum(y == k for y in targets)
            negatives = (images - positives) / images * w[k] / (self.classes - 1)
            self.Q[k] = self.lam * (self.Q[k] + positives / images - negatives)
        return loss


@pytest.mark.parametrize(("classes", "lam", "r"), [(5, 0.9, 1.0), (8, 0.99, 3.0), (20, 0.995, 1.0)])
def test_equals_the_released_formula(classes, lam, r):
    released = Released(classes, lam, r)
    ours, exact = (
        TAL(classes, lam=lam, r=r, update="normalized", eps=eps, dtype=torch.float64)
        for eps in (1e-12, 1e-12 / released.alpha)
    )
    assert ours.alpha == pytest.approx(released.alpha, rel=1e-9)
    for logits, targets in stream(classes, 16, 60, tailed=classes == 5):
        every_class_came = min(released.Q) > 0  # until then our floor of α·w is α·1e-12, theirs 1e-12
        expected = released.step(logits.tolist(), targets.tolist())
        assert exact(logits, targets).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
        tolerance = {"rel": 1e-9} if every_class_came else {"abs": 1e-4}
        assert ours(logits, targets).item() == pytest.approx(expected, **tolerance)
        torch.testing.assert_close(ours.Q, torch.tensor(released.Q, dtype=torch.float64))
    assert every_class_came


@pytest.mark.parametrize(
    ("options", "ends"),
    [({}, (0.32, 0.75, 0.98)), ({"update": "normalized", "eps": 1e-12}, (0.19, 0.52, 0.88))],
    ids=["paper", "released"],
)
def test_mean_weight_after_40_140_and_400_steps(options, ends):
    """20 classes, each in every batch, from a zero start."""
    tal, found = TAL(20, lam=0.995, **options), []
    for step in range(1, 401):
        tal(torch.zeros(20, 20), torch.arange(20))
        if step in (40, 140, 400):
            found.append(tal.calibration())
    assert found == pytest.approx(ends, abs=0.005)

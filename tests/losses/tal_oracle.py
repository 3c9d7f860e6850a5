"""Algorithm 1 of the paper in plain Python, one line after the other: slow, literal, float64. And streams for it."""

import math

import torch


class Oracle:
    def __init__(self, num_classes, lam, r, alpha, eps=1e-8, update="paper"):
        self.C, self.lam, self.r, self.alpha, self.eps, self.update = num_classes, lam, r, alpha, eps, update
        self.Q = [0.0] * num_classes
        self.Q_max = lam / (1 - lam)

    def step(self, Z, y):
        """Returns the loss and its gradient, and updates Q."""
        N, C = len(Z), self.C
        # Part A
        s = [(self.Q[k] / self.Q_max) ** self.r for k in range(C)]
        ell = [math.log(self.alpha * max(s[k], self.eps)) for k in range(C)]
        loss, grad = 0.0, [[0.0] * C for _ in range(N)]
        for i in range(N):
            z = [Z[i][k] + ell[k] for k in range(C)]
            z[y[i]] = Z[i][y[i]]
            top = max(z)
            denominator = sum(math.exp(v - top) for v in z)
            loss += (math.log(denominator) + top - Z[i][y[i]]) / N
            for k in range(C):
                grad[i][k] = (math.exp(z[k] - top) / denominator - (k == y[i])) / N
        # Part B
        for k in range(C):
            N_p = sum(1 for label in y if label == k)
            N_n = N - N_p
            negatives = N_n / N * s[k] / (C - 1 if self.update == "normalized" else 1)
            self.Q[k] = max(0.0, self.lam * (self.Q[k] + N_p / N - negatives))
        return loss, grad


def stream(classes, batch, steps, seed=0, dtype=torch.float64, tailed=False):
    """Random logits and labels; with `tailed`, low classes are common."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.arange(classes, 0, -1.0) ** 2 if tailed else torch.ones(classes)
    for _ in range(steps):
        logits = 3 * torch.randn(batch, classes, generator=generator, dtype=dtype)
        yield logits.requires_grad_(), torch.multinomial(share, batch, replacement=True, generator=generator)

"""The mathematics of the Temporal-Adjusted Loss (TAL) as pure functions, one for each equation of the paper.

Q_k   temporal positive supervision strength of class k        `supervision_strength`, `updated_strength`
w     weight of the negative supervision, (Q_k / Q_max)^r      `negative_weight`
α     frequency alignment: α·w = 1 on a balanced stream        `steady_state`, `alignment_factor`
loss  cross-entropy whose negatives weigh α·w                  `log_weights`, `tal_loss`

What works on one value a class (w, log w, the update of Q) takes NumPy arrays as well as tensors: on vectors this
short the cost is that of the call, and NumPy's is half of torch's.
"""

import math
from numbers import Real
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pilot_tal.errors import PilotTalError, unknown_name

UPDATES = ("paper", "normalized")

Array = TypeVar("Array", np.ndarray, Tensor)


def max_strength(lam: float) -> float:
    """Q_max = λ / (1 − λ), the bound that Q approaches under positives only (Eq. qmax)."""
    return lam / (1.0 - lam)


def negative_share(num_classes: int, update: str = "paper") -> float:
    """By what the negatives are multiplied in the update of Q: 1 (Algorithm 1), or 1/(C−1) if normalized."""
    if update not in UPDATES:
        raise unknown_name("update", update, UPDATES)
    return 1.0 if update == "paper" or num_classes < 2 else 1.0 / (num_classes - 1)


def steady_state(num_classes: int, r: float = 1.0, update: str = "paper") -> float:
    """x* = Q*/Q_max on a balanced, shuffled stream: the root of (1−1/C)·s·x^r + x − 1/C = 0 (Eq. steady-alpha).

    s is 1, or 1/(C−1) with `update="normalized"`. Closed form for r = 1 and r = 2; otherwise the root is
    bracketed in log x, where it keeps its relative accuracy however small it is (r = 0.05: x* = 1e-100).
    """
    check_num_classes(num_classes)
    check_r(r)
    p = 1.0 / num_classes
    a = (1.0 - p) * negative_share(num_classes, update)
    if r == 1:
        return p / (1.0 + a)
    if r == 2:  # the form without cancellation
        return 2.0 * p / (1.0 + math.sqrt(1.0 + 4.0 * a * p))
    from scipy.optimize import brentq

    # Both terms are at most p/2 at the lower end; one of them is p at the upper end. A little more on both sides,
    # lest rounding leave the root outside.
    low = min(math.log(p / 2.0), math.log(p / (2.0 * a)) / r) - 1e-6
    high = min(math.log(p), math.log(p / a) / r) + 1e-6
    root = math.exp(brentq(lambda u: a * math.exp(r * u) + math.exp(u) - p, low, high, xtol=1e-14, rtol=1e-15))
    if root == 0.0:
        raise PilotTalError(f"r={r:g} is too small for {num_classes} classes: x* is below any float; choose a larger r")
    return root


def alignment_factor(num_classes: int, r: float = 1.0, update: str = "paper") -> float:
    """α = 1 / (x*)^r (Eq. steady-alpha): 2C − 1 for r = 1, C + 1 if normalized."""
    try:
        return steady_state(num_classes, r, update) ** -r
    except OverflowError:
        raise PilotTalError(
            f"r={r:g} is too large for {num_classes} classes: α is above any float; choose a smaller r"
        ) from None


def negative_weight(strength: Array, max_strength: float, r: float = 1.0) -> Array:
    """w(Q) = (Q / Q_max)^r (Eq. tal_loss), without α and without floor."""
    share = strength / max_strength
    return share if r == 1 else share**r


def log_weights(weight: Array, log_alpha: float, eps: float = 1e-8, out: Array | None = None) -> Array:
    """log(α·max(w, ε)) (Algorithm 1, line 4), from log α: α itself can be too large for float32."""
    logarithm = _at_least(weight, eps, out)
    if isinstance(logarithm, np.ndarray):
        np.log(logarithm, logarithm)
    else:
        logarithm.log_()
    logarithm += log_alpha
    return logarithm


def tal_loss(logits: Tensor, targets: Tensor, log_weight: Tensor, reduction: str = "mean") -> Tensor:
    """−log( e^{z_y} / (e^{z_y} + Σ_{k≠y} α·w_k·e^{z_k}) ) (Eq. tal_loss), given log(α·w).

    It is cross-entropy on z_k + log(α·w_k) for every k but the true class, whose logit stays as it is. The
    weights are float32 or better, and so is the sum, whatever the type of the logits. Targets of −100 are ignored.
    """
    columns = targets.unsqueeze(1).clamp(min=0)  # rows to ignore need some valid column
    shift = log_weight.expand(logits.shape).scatter(1, columns, 0.0)
    return F.cross_entropy(logits + shift, targets, reduction=reduction, ignore_index=-100)


def updated_strength(
    strength: Array,
    weight: Array,
    rate: Array,
    lam: float,
    share: float = 1.0,
    floor: float = 0.0,
    out: Array | None = None,
) -> Array:
    """Q ← λ(Q + N_p/N − N_n/N · w) (Eq. markov-tal, Algorithm 1, part B), clamped at `floor`, which is 0.

    `rate` is N_p/N, and `share` (see `negative_share`) multiplies the negatives. The clamp acts only for r < 1
    or λ < 1/2, where the paper's proof of Q ≥ 0 does not hold.
    """
    negatives = weight if share == 1.0 else weight * share
    moved = negatives * rate  # N_p/N − N_n/N·w = w·N_p/N + N_p/N − w, as N_n = N − N_p
    moved += rate
    moved += strength
    moved -= negatives
    moved *= lam
    return _at_least(moved, floor, out)


def supervision_strength(polarity: Tensor, kernel: Tensor) -> Tensor:
    """Q[N] = Σ_n f[N−1−n]·a[n] for N = 0 … len(a) (Eq. Q-def), for any kernel f ≥ 0 that does not increase.

    Args:
        polarity: a, +1 for a positive and −1 for a negative step, shape [N] or [N, C].
        kernel: f[0], f[1], …; at least as long as `polarity`.

    Returns:
        The strength before the first step (0) and after each step, shape [N + 1] or [N + 1, C].
    """
    steps = polarity.shape[0]
    if kernel.ndim != 1 or kernel.numel() < steps:
        raise PilotTalError(
            f"kernel must be one-dimensional with at least {steps} values, got shape {tuple(kernel.shape)}"
        )
    if bool((kernel < 0).any()) or bool((kernel[1:] > kernel[:-1]).any()):
        raise PilotTalError("kernel must be non-negative and must not increase")
    lag = torch.arange(steps)[:, None] - torch.arange(steps)[None, :]
    weights = torch.where(lag >= 0, kernel[lag.clamp(min=0)], 0.0)  # [N, N]: step n seen from the end of step N
    strength = weights @ polarity.to(weights.dtype)
    return torch.cat([strength.new_zeros(1, *strength.shape[1:]), strength])


def exponential_kernel(lam: float, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """f[n] = λ^{n+1} (Eq. kernel)."""
    check_lam(lam)
    return lam ** torch.arange(1, length + 1, dtype=dtype)


def _at_least(values: Array, bound: float, out: Array | None) -> Array:
    if isinstance(values, np.ndarray):
        return np.maximum(values, bound, out=out)
    return torch.clamp_min(values, bound, out=out)


def check_lam(lam: float) -> None:
    """λ must lie strictly between 0 and 1."""
    if not (isinstance(lam, Real) and 0.0 < lam < 1.0):
        raise PilotTalError(f"lam (the memory λ) must be a number between 0 and 1, both excluded, got {lam!r}")


def check_r(r: float) -> None:
    """The exponent r must be positive and finite."""
    if not (isinstance(r, Real) and 0.0 < r < math.inf):
        raise PilotTalError(f"r (the exponent of w) must be a number above 0, got {r!r}")


def check_num_classes(num_classes: int) -> None:
    """TAL compares classes, so there must be at least two."""
    whole = hasattr(num_classes, "__index__") and not isinstance(num_classes, bool)  # NumPy's whole numbers too
    if not whole or num_classes < 2:
        raise PilotTalError(f"num_classes must be a whole number of at least 2, got {num_classes!r}")

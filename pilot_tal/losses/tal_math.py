"""The mathematics of the Temporal-Adjusted Loss (TAL) as pure functions, one for each equation of the paper.

Q_k   temporal positive supervision strength of class k        `supervision_strength`, `updated_strength`
w     weight of the negative supervision, (Q_k / Q_max)^r      `negative_weight`
α     frequency alignment: α·w = 1 on a balanced stream        `steady_state`, `alignment_factor`, `balance`
loss  cross-entropy whose negatives weigh α·w                  `log_weights`, `tal_loss`
λ     from a memory in epochs, in place of a number            `memory_lam`
"""

import math
from dataclasses import dataclass
from numbers import Real

import torch
import torch.nn.functional as F
from torch import Tensor

from data_lt.errors import UserError, unknown_name

UPDATES = ("paper", "normalized")


@dataclass(frozen=True)
class Balance:
    """A balanced, shuffled stream of C classes, by which TAL is calibrated.

    Attributes:
        classes: C.
        steady: x* = Q*/Q_max.
        alpha: α = 1/(x*)^r.
        share: By what the negatives are multiplied in the update of Q.
    """

    classes: int
    steady: float
    alpha: float
    share: float


def balance(num_classes: int, r: float = 1.0, update: str = "paper") -> Balance:
    """The balance of `num_classes`; one class alone has nothing to weigh (x* = α = 1)."""
    if num_classes == 1:
        return Balance(1, 1.0, 1.0, 1.0)
    steady = steady_state(num_classes, r, update)
    return Balance(num_classes, steady, alignment_factor(num_classes, r, update), negative_share(num_classes, update))


def max_strength(lam: float) -> float:
    """Q_max = λ / (1 − λ), the bound that Q approaches under positives only (Eq. qmax)."""
    return lam / (1.0 - lam)


def memory_lam(epochs: float, epoch_steps: int | None) -> float:
    """λ = 1 − 1/(k·S): Q remembers k epochs of S steps each."""
    if epoch_steps is None:
        raise UserError("lam=auto needs the optimizer steps of an epoch: give the task's TaskInfo its epoch_steps")
    if epochs * epoch_steps <= 1:
        raise UserError(
            f"memory_epochs={epochs:g} must cover more than one step, but an epoch of this task has {epoch_steps}; "
            "raise memory_epochs or lower the batch size"
        )
    return 1.0 - 1.0 / (epochs * epoch_steps)


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
    whole("num_classes", num_classes, 2)
    if not (isinstance(r, Real) and 0.0 < r < math.inf):
        raise UserError(f"r (the exponent of w) must be a number above 0, got {r!r}")
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
        raise UserError(f"r={r:g} is too small for {num_classes} classes: x* is below any float; choose a larger r")
    return root


def alignment_factor(num_classes: int, r: float = 1.0, update: str = "paper") -> float:
    """α = 1 / (x*)^r (Eq. steady-alpha): 2C − 1 for r = 1, C + 1 if normalized."""
    try:
        return steady_state(num_classes, r, update) ** -r
    except OverflowError:
        raise UserError(
            f"r={r:g} is too large for {num_classes} classes: α is above any float; choose a smaller r"
        ) from None


def negative_weight(strength: Tensor, max_strength: float, r: float = 1.0) -> Tensor:
    """w(Q) = (Q / Q_max)^r (Eq. tal_loss), without α and without floor."""
    share = strength / max_strength
    return share if r == 1 else share.pow_(r)


def log_weights(weight: Tensor, log_alpha: float, eps: float = 1e-8) -> Tensor:
    """log(α·max(w, ε)) (Algorithm 1, line 4), from log α: α itself can be too large for float32."""
    return weight.clamp_min(eps).log_().add_(log_alpha)


def positives(targets: Tensor, like: Tensor, ignore_index: int | None) -> tuple[Tensor, Tensor]:
    """N_p of each class, and the targets with some class in place of `ignore_index`.

    None says that nothing is to be ignored. Then the counts may be taken from a shape that depends on the targets,
    for which a device would have to be waited.
    """
    if ignore_index is None:
        return targets.bincount(minlength=len(like)).to(like.dtype), targets
    valid = targets != ignore_index
    columns = targets * valid
    return torch.zeros_like(like).scatter_add_(0, columns, valid.to(like.dtype)), columns


def tal_loss(
    logits: Tensor,
    targets: Tensor,
    log_weight: Tensor,
    reduction: str = "mean",
    ignore_index: int = -100,
    columns: Tensor | None = None,
) -> Tensor:
    """−log( e^{z_y} / (e^{z_y} + Σ_{k≠y} α·w_k·e^{z_k}) ) (Eq. tal_loss), given log(α·w).

    It is cross-entropy on z_k + log(α·w_k) for every k but the true class, whose logit stays as it is. The
    weights are float32 or better, and so is the sum, whatever the type of the logits. `columns` are the targets
    with some class in place of `ignore_index`, if there are such.
    """
    columns = targets if columns is None else columns
    shift = log_weight.expand_as(logits).scatter(1, columns.unsqueeze(1), 0.0)
    return F.cross_entropy(logits + shift, targets, reduction=reduction, ignore_index=ignore_index)


def updated_strength(
    strength: Tensor, weight: Tensor, rate: Tensor, lam: float, r: float = 1.0, share: float = 1.0
) -> Tensor:
    """Q ← λ(Q + N_p/N − N_n/N · w) (Eq. markov-tal, Algorithm 1, part B).

    `rate` is N_p/N, and `share` (see `negative_share`) multiplies the negatives. Q is clamped at 0 where the paper's
    proof of Q ≥ 0 does not hold (r < 1, λ < 1/2) or rounding could undo it; beyond λ = 2/3, w is at most half of Q.
    """
    negatives = weight if share == 1.0 else weight * share
    moved = torch.addcmul(strength, negatives, rate)  # N_p/N − N_n/N·w = w·N_p/N + N_p/N − w, as N_n = N − N_p
    moved.add_(rate).sub_(negatives).mul_(lam)
    return moved.clamp_min_(0.0) if r < 1 or lam < 2 / 3 else moved


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
        raise UserError(f"kernel must be one-dimensional with at least {steps} values, got shape {tuple(kernel.shape)}")
    if bool((kernel < 0).any()) or bool((kernel[1:] > kernel[:-1]).any()):
        raise UserError("kernel must be non-negative and must not increase")
    lag = torch.arange(steps)[:, None] - torch.arange(steps)[None, :]
    weights = torch.where(lag >= 0, kernel[lag.clamp(min=0)], 0.0)  # [N, N]: step n seen from the end of step N
    strength = weights @ polarity.to(weights.dtype)
    return torch.cat([strength.new_zeros(1, *strength.shape[1:]), strength])


def exponential_kernel(lam: float, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """f[n] = λ^{n+1} (Eq. kernel)."""
    if not (isinstance(lam, Real) and 0.0 < lam < 1.0):
        raise UserError(f"lam (the memory λ) must be a number between 0 and 1, both excluded, got {lam!r}")
    return lam ** torch.arange(1, length + 1, dtype=dtype)


def whole(name: str, value: int, least: int) -> int:
    """`value` as a whole number of at least `least`; NumPy's will do."""
    if not hasattr(value, "__index__") or isinstance(value, bool) or value < least:
        raise UserError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)

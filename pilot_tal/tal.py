"""`TAL`, the Temporal-Adjusted Loss: a drop-in for `torch.nn.CrossEntropyLoss` that keeps Q.

The mathematics is in `pilot_tal/tal_math.py`; this class holds the state and decides when it moves.
"""

import math
import warnings

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pilot_tal import tal_math
from pilot_tal.errors import PilotTalError, unknown_name
from pilot_tal.tal_eager import Eager
from pilot_tal.task import TaskInfo

STARTS = ("zero", "steady")
SCOPES = ("task", "seen")
REDUCTIONS = ("mean", "sum", "none")

_several_processes = dist.is_initialized if dist.is_available() else bool  # bool() is False


class TAL(nn.Module):
    """Cross-entropy that weakens the negative supervision of classes with little recent positive supervision.

        criterion = TAL(num_classes=20)
        loss = criterion(logits, targets)     # in train() mode this also moves Q

    Args:
        num_classes: columns of the logits.
        lam: memory λ of Q, between 0 and 1. It counts updates: Q remembers about 1/(1−λ) of them.
        r: exponent of the weight w = (Q/Q_max)^r.
        update: `"paper"` (Algorithm 1), or `"normalized"`, which divides the negatives by C−1.
        start: `"zero"` (the paper), or `"steady"`: the balanced steady state, where TAL equals cross-entropy.
        scope: which C calibrates α in `begin_task`: the `"task"`'s classes, or all `"seen"` so far.
        eps: floor of w inside the logarithm.
        reduction: `"mean"`, `"sum"` or `"none"`, over the rows that are not ignored.
        ignore_index: targets with this value give no loss and do not count.
        accumulate: gradient accumulation: Q moves once in so many calls, by their summed counts. 0 leaves
            it to the training loop, which then calls `apply_update()` after each optimizer step (also the
            choice for `torch.compile`, which would compile anew for every count of calls).
        validate: check the values of logits and targets. None checks on the CPU, where it is almost free;
            True checks on every device (on a GPU each check waits for it); False checks only what the CPU has
            to know anyway. Compiled calls check nothing.
        weight, label_smoothing: there for the signature of `CrossEntropyLoss`, refused if used.
        dtype: of Q and α, float32 or float64; the logits' type does not matter.

    With `torch.distributed` initialised the counts are summed over the ranks, so that all hold the same Q.
    Q moves in place: whoever keeps it takes `tal.Q.clone()`.
    """

    Q: Tensor
    alpha: float

    def __init__(
        self,
        num_classes: int,
        lam: float = 0.995,
        r: float = 1.0,
        update: str = "paper",
        start: str = "zero",
        scope: str = "task",
        eps: float = 1e-8,
        reduction: str = "mean",
        ignore_index: int = -100,
        accumulate: int = 1,
        validate: bool | None = None,
        weight: Tensor | None = None,
        label_smoothing: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        tal_math.check_num_classes(num_classes)
        _check_settings(lam, r, update, start, scope, eps, reduction, accumulate, dtype)
        if weight is not None:
            raise PilotTalError("weight must be None: TAL sets the weights of the classes itself")
        if label_smoothing:
            raise PilotTalError(f"label_smoothing must be 0: TAL has none, got {label_smoothing!r}")
        self.lam, self.r, self.eps = float(lam), float(r), eps
        self.update, self.start, self.scope = update, start, scope
        self.reduction, self.ignore_index = reduction, ignore_index
        self.accumulate, self.validate = accumulate, validate
        self.register_buffer("Q", torch.zeros(0, dtype=dtype))
        self.register_buffer("_updates", torch.zeros((), dtype=torch.int64), persistent=False)
        self.reset(num_classes)

    @property
    def num_classes(self) -> int:
        """Classes the loss sees: the columns of the logits."""
        return self.Q.numel()

    @property
    def max_strength(self) -> float:
        """Q_max = λ/(1−λ)."""
        return tal_math.max_strength(self.lam)

    @property
    def updates(self) -> int:
        """How often Q has moved since the start."""
        return int(self._updates) + self._eager.updates

    def begin_task(self, task: TaskInfo) -> None:
        """Starts anew for the classes of `task`; α is calibrated by `scope`."""
        self.reset(task.num_classes, task.stop if self.scope == "seen" else task.num_classes)

    def reset(self, num_classes: int, calibration_classes: int | None = None) -> None:
        """Forgets Q and starts with `num_classes`; α is calibrated for `calibration_classes` if given."""
        num_classes = _whole("num_classes", num_classes, 1)
        if calibration_classes is not None:
            calibration_classes = _whole("calibration_classes", calibration_classes, 1)
        self._calibrate(calibration_classes or num_classes)
        self.Q = self._new_strength(num_classes)
        self._updates.zero_()
        self._discard_pending()

    def grow(self, num_classes: int) -> None:
        """Adds classes, keeps Q of the old ones, calibrates α anew: for learners that replay old classes."""
        added = _whole("num_classes", num_classes, self.num_classes) - self.num_classes
        updates = self.updates
        self._calibrate(num_classes)
        self.Q = torch.cat([self.Q, self._new_strength(added)])
        self._updates.fill_(updates)
        self._discard_pending()

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss under the present Q; in `train()` mode Q moves afterwards. A failing call moves nothing."""
        if logits.is_cpu and not torch.compiler.is_compiling():
            return self._forward_on_cpu(logits, targets)
        self._check_shapes(logits, targets)
        if self.validate and not torch.compiler.is_compiling():
            return self._forward_checked(logits, targets)
        return self._forward_masked(logits, targets)

    @torch.no_grad()
    def apply_update(self) -> None:
        """Moves Q by the counts since the last update; without any, on any rank, it stays."""
        tally = self.Q.new_zeros(self.num_classes + 1) if self._pending is None else self._pending
        self._pending, self._calls = None, 0
        if _several_processes():
            dist.all_reduce(tally)
        positives, total = tally[:-1], tally[-1]
        weight = tal_math.negative_weight(self.Q, self.max_strength, self.r)
        moved = tal_math.updated_strength(self.Q, weight, positives / total.clamp(min=1), self.lam, self._share)
        self.Q.copy_(torch.where(total > 0, moved, self.Q))
        self._updates.add_(total > 0)

    def negative_weights(self) -> Tensor:
        """α·w for each class: what its logit weighs as a negative, against 1 in cross-entropy."""
        weight = tal_math.negative_weight(self.Q, self.max_strength, self.r)
        return tal_math.log_weights(weight, self._log_alpha, self.eps).exp_()

    def calibration(self) -> float:
        """Mean α·w over the classes: near 0 after a zero start, 1 once a balanced stream has settled."""
        return float(self.negative_weights().mean())

    def is_calibrated(self, tolerance: float = 0.1) -> bool:
        """Whether the calibrated regime has been reached: mean α·w at least 1 − `tolerance`.

        The mean says nothing of single classes: a stream of one class alone reaches it too (see `negative_weights`).
        """
        return self.calibration() >= 1.0 - tolerance

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        return (
            f"num_classes={self.num_classes}, lam={self.lam}, r={self.r}, update={self.update!r}, "
            f"start={self.start!r}, alpha={self.alpha:.6g}, updates={self.updates}"
        )

    def _calibrate(self, classes: int) -> None:
        """Sets α and Q* for `classes`; one class alone has nothing to weigh (α = 1)."""
        steady, alpha = 1.0, 1.0
        if classes > 1:
            steady = tal_math.steady_state(classes, self.r, self.update)
            alpha = tal_math.alignment_factor(classes, self.r, self.update)
        self.calibration_classes = classes
        self.alpha, self._log_alpha = alpha, -self.r * math.log(steady)
        self._steady = steady * self.max_strength
        self._share = tal_math.negative_share(classes, self.update)
        if self.eps * self.alpha > 1.0:
            warnings.warn(
                f"eps={self.eps:g} lies above the calibrated weight 1/α={1 / self.alpha:.2g} of {classes} classes "
                f"with r={self.r:g}, so every negative weighs more than in cross-entropy; lower eps or r",
                stacklevel=4,
            )
        if self._steady < torch.finfo(self.Q.dtype).tiny:
            warnings.warn(
                f"{str(self.Q.dtype).removeprefix('torch.')} cannot hold Q*={self._steady:.2g} of {classes} classes "
                f"with r={self.r:g}, so the calibrated regime is out of reach; use dtype=torch.float64 or a larger r",
                stacklevel=4,
            )

    def _new_strength(self, classes: int) -> Tensor:
        return self.Q.new_full((classes,), self._steady if self.start == "steady" else 0.0)

    def _discard_pending(self) -> None:
        self._pending: Tensor | None = None
        self._calls = 0
        self._eager = Eager()

    def _forward_on_cpu(self, logits: Tensor, targets: Tensor) -> Tensor:
        """As `_forward_masked`, eager and with NumPy: on vectors this short the calls are the cost."""
        eager, Q = self._eager, self._buffers["Q"]  # self.Q would go through nn.Module's slow search
        key = logits.shape, targets.shape, logits.dtype, targets.dtype, targets.is_cpu, self.lam, self.eps, Q.data_ptr()
        if key != eager.key:
            self._check_shapes(logits, targets)
            if logits.dtype not in (torch.float32, torch.float64):  # what NumPy computes with
                return self._forward_checked(logits, targets)
            eager.prepare(key, Q, self.lam, self.eps, self._log_alpha)
        strength, values, labels = eager.strength, logits.detach().numpy(), targets.numpy()
        # The sum of the squares is NumPy's quickest. It is finite unless a value is not, or it overflows.
        if self.validate is not False and not math.isfinite(np.vdot(values, values)):
            _check_finite(logits)
        true = eager.row_starts + labels
        try:
            own = values.take(true)
            rate = np.bincount(labels, eager.row_shares, strength.size)
        except (IndexError, ValueError):  # a label far too large, for which bincount would want room; a negative one
            return self._forward_checked(logits, targets)
        if rate.size != strength.size or not labels.size or self.ignore_index >= 0:
            return self._forward_checked(logits, targets)
        weight = tal_math.negative_weight(strength, eager.max_strength, self.r)
        tal_math.log_weights(weight, eager.log_alpha, eager.eps, eager.shift)
        shifted = logits + eager.shift_tensor
        # The true class's logit stays as it is. Autograd need not know: the gradient of the sum is 1 either way.
        shifted.detach().numpy().put(true, own)
        loss = F.cross_entropy(shifted, targets, reduction=self.reduction)
        if self.training:
            if self.accumulate == 1 and self._pending is None and not _several_processes():
                rate = rate.astype(strength.dtype)
                tal_math.updated_strength(strength, weight, rate, eager.lam, self._share, eager.zero, strength)
                eager.updates += 1
            else:
                self._tally(targets.bincount(minlength=strength.size), torch.tensor(labels.size))
        return loss

    def _forward_checked(self, logits: Tensor, targets: Tensor) -> Tensor:
        """As `_forward_masked`, after a look at every value."""
        if self.validate is not False:
            _check_finite(logits)
        self._check_range(targets)
        return self._forward_masked(logits, targets)

    def _forward_masked(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Any device, any mix of rows to ignore, and no look at a value that would wait for the device."""
        weight = tal_math.negative_weight(self.Q, self.max_strength, self.r)
        valid = targets != self.ignore_index
        total = valid.sum()
        loss = tal_math.tal_loss(
            logits,
            torch.where(valid, targets, -100),
            tal_math.log_weights(weight, self._log_alpha, self.eps),
            "none" if self.reduction == "none" else "sum",
        )
        if self.reduction == "mean":
            loss = loss / total.clamp(min=1)  # without any row 0, where cross-entropy has NaN
        if self.training:
            counts = self.Q.new_zeros(self.num_classes)
            counts.scatter_add_(0, targets.where(valid, 0), valid.to(counts.dtype))
            self._tally(counts, total)
        return loss

    def _tally(self, counts: Tensor, total: Tensor) -> None:
        """Notes the positives of this call; moves Q once all calls of an update are there."""
        tally = torch.cat([counts.to(self.Q.dtype), total.to(self.Q.dtype).view(1)])
        self._pending = tally if self._pending is None else self._pending + tally
        if self.accumulate:
            self._calls += 1
            if self._calls >= self.accumulate:
                self.apply_update()

    def _check_shapes(self, logits: Tensor, targets: Tensor) -> None:
        if not logits.device == targets.device == self.Q.device:
            raise PilotTalError(
                "logits, targets and TAL must be on one device, "
                f"got {logits.device}, {targets.device} and {self.Q.device}; move TAL as a module, tal.to(device)"
            )
        if logits.ndim != 2 or not logits.is_floating_point():
            raise PilotTalError(f"logits must be a floating point tensor [batch, classes], got {_kind(logits)}")
        if logits.shape[1] != self.num_classes:
            raise PilotTalError(
                f"logits must have {self.num_classes} columns, one a class, got {logits.shape[1]}; "
                "slice them to the classes of the task, or call grow() when classes are added"
            )
        if targets.ndim != 1 or targets.dtype != torch.int64 or targets.shape[0] != logits.shape[0]:
            raise PilotTalError(f"targets must be {logits.shape[0]} class indices of type int64, got {_kind(targets)}")

    def _check_range(self, targets: Tensor) -> None:
        wrong = targets[(targets != self.ignore_index) & ((targets < 0) | (targets >= self.num_classes))]
        if wrong.numel():
            raise PilotTalError(
                f"targets must lie in 0 … {self.num_classes - 1} (or be ignore_index={self.ignore_index}), "
                f"got {int(wrong[0])}; inside a task they count from the task's first class"
            )

    def _apply(self, fn, recurse: bool = True) -> "TAL":
        # .half() and .bfloat16() move Q but do not round it: the steady state would drift.
        before = self.Q
        super()._apply(fn, recurse)
        if self.Q.dtype.itemsize < torch.float32.itemsize:
            self.Q = before.to(self.Q.device)
        return self

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "updates"] = torch.tensor(self.updates)
        destination[prefix + "alpha"] = torch.tensor(self.alpha, dtype=torch.float64)
        destination[prefix + "calibration_classes"] = torch.tensor(self.calibration_classes)
        destination[prefix + "lam"] = torch.tensor(self.lam, dtype=torch.float64)

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        names = ("Q", "updates", "alpha", "calibration_classes", "lam")
        saved = {name: state_dict.get(prefix + name) for name in names}
        missing = [prefix + name for name in names if saved[name] is None]
        if strict:
            own = {prefix + name for name in names}
            unexpected_keys.extend(name for name in state_dict if name.startswith(prefix) and name not in own)
        if missing:
            missing_keys.extend(missing)
            return
        if not math.isclose(self.lam, float(saved["lam"])):
            error_msgs.append(
                f"lam is {float(saved['lam']):.6g} in the saved state, but {self.lam:g} here: Q would be out of scale; "
                "make TAL with the settings it was saved with"
            )
            return
        before = self.calibration_classes
        self._calibrate(int(saved["calibration_classes"]))
        if not math.isclose(self.alpha, float(saved["alpha"]), rel_tol=1e-6):
            self._calibrate(before)
            error_msgs.append(
                f"alpha is {float(saved['alpha']):.6g} in the saved state, but r={self.r:g} and "
                f"update={self.update!r} give another: make TAL with the settings it was saved with"
            )
            return
        self.Q = saved["Q"].to(self.Q, copy=True)  # never share memory with the source
        self._updates.fill_(int(saved["updates"]))
        self._discard_pending()


def _check_settings(lam, r, update, start, scope, eps, reduction, accumulate, dtype) -> None:
    tal_math.check_lam(lam)
    tal_math.check_r(r)
    for name, value, known in (
        ("update", update, tal_math.UPDATES),
        ("start", start, STARTS),
        ("scope", scope, SCOPES),
        ("reduction", reduction, REDUCTIONS),
    ):
        if value not in known:
            raise unknown_name(name, str(value), known)
    if not 0.0 < eps < 1.0:
        raise PilotTalError(f"eps must be between 0 and 1, both excluded, got {eps!r}")
    if not isinstance(accumulate, int) or accumulate < 0:
        raise PilotTalError(f"accumulate must be a whole number of at least 0, got {accumulate!r}")
    if dtype not in (torch.float32, torch.float64):
        raise PilotTalError(f"dtype (of Q) must be torch.float32 or torch.float64, got {dtype}")


def _whole(name: str, value: int, least: int) -> int:
    if not hasattr(value, "__index__") or isinstance(value, bool) or value < least:
        raise PilotTalError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def _check_finite(logits: Tensor) -> None:
    if bool(logits.isfinite().all()):
        return
    row, column = (~logits.isfinite()).nonzero()[0].tolist()
    value = logits[row, column].item()
    left_out = "to leave classes out, slice their columns away instead of setting them to -inf"
    raise PilotTalError(
        f"logits must be finite, got {value} in row {row}, column {column}; "
        + (left_out if value == -math.inf else "if training diverged, lower the learning rate")
    )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"

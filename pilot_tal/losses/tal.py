"""`TAL`, the Temporal-Adjusted Loss: a drop-in for `torch.nn.CrossEntropyLoss` that keeps Q.

The mathematics is in `tal_math.py`; this class holds the state and decides when it moves.
"""

import math
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor

from data_lt.errors import UserError, unknown_name
from pilot_tal.losses import tal_math
from pilot_tal.losses.base import LOSSES, TaskLoss, check_batch, sum_over_ranks
from pilot_tal.schema import Rule
from pilot_tal.stream.task import TaskInfo

MEMORY_EPOCHS = 2.0
REDUCTIONS = ("mean", "sum", "none")
SAVED = ("Q", "updates", "alpha", "calibration_classes", "lam")


@LOSSES.register
class TAL(TaskLoss):
    """Cross-entropy that weakens the negative supervision of classes with little recent positive supervision.

        criterion = TAL(num_classes=20)
        loss = criterion(logits, targets)     # in train() mode this also updates Q

    Args:
        num_classes: columns of the logits; without it they come with `begin_task`.
        lam: memory λ of Q, between 0 and 1: Q remembers about 1/(1−λ) updates. With `"auto"`, `begin_task` sets it so
            that Q remembers `memory_epochs` epochs (2 unless given).
        r: exponent of the weight w = (Q/Q_max)^r.
        update: `"paper"` (Algorithm 1), or `"normalized"`, which divides the negatives by C−1.
        start: `"zero"` (the paper), or `"steady"`: the balanced steady state, where TAL equals cross-entropy.
        scope: which C calibrates α in `begin_task`: the `"task"`'s classes, or all `"seen"` so far.
        eps: floor of w inside the logarithm.
        reduction: `"mean"`, `"sum"` or `"none"`, over the rows that are not ignored.
        ignore_index: targets with this value give no loss and do not count.
        accumulate: gradient accumulation: Q moves once in so many calls, by their summed counts. 0 leaves it to
            `apply_update()` after each optimizer step (also for `torch.compile`, which compiles anew for every count).
        validate: check the values of logits and targets. None checks on the CPU, where it is almost free; True on every
            device, which then waits for each check; False only the targets on the CPU. Compiled calls check nothing.
        dtype: of Q and α, float32 or float64; the logits' type does not matter.
        process_group: the ranks whose counts are summed, so that all hold the same Q; None is the default group.

    Q is updated in place; use `tal.Q.clone()` to keep a copy.
    """

    name, title, prior = "tal", "TAL", "online"

    Q: Tensor
    lam: float
    r: float
    update: str
    start: str
    scope: str
    eps: float
    memory_epochs: float | None
    _updates: Tensor
    _pending: Tensor | None

    def __init__(
        self,
        num_classes: int | None = None,
        lam: Annotated[float | str, Rule("memory λ of Q", above=0, below=1, words=("auto",))] = 0.995,
        r: Annotated[float, Rule("exponent of the weight", above=0, high=1000)] = 1.0,
        update: Annotated[str, Rule("Algorithm 1, or the authors' code", choices=tal_math.UPDATES)] = "paper",
        start: Annotated[str, Rule("Q at the start of a task", choices=("zero", "steady"))] = "zero",
        scope: Annotated[str, Rule("which classes calibrate α", choices=("task", "seen"))] = "task",
        eps: Annotated[float, Rule("floor of the weight", above=0, below=1)] = 1e-8,
        reduction: str = "mean",
        ignore_index: int = -100,
        accumulate: int = 1,
        validate: bool | None = None,
        dtype: torch.dtype = torch.float32,
        memory_epochs: Annotated[float | None, Rule("epochs Q remembers, with lam=auto", above=0, high=1e6)] = None,
        process_group: Any = None,
    ):
        super().__init__(lam=lam, r=r, update=update, start=start, scope=scope, eps=eps, memory_epochs=memory_epochs)
        if reduction not in REDUCTIONS:
            raise unknown_name("reduction", str(reduction), REDUCTIONS)
        if dtype not in (torch.float32, torch.float64):
            raise UserError(f"dtype (of Q) must be torch.float32 or torch.float64, got {dtype}")
        if lam == "auto":
            self._settle("lam", math.nan)  # until a task begins
            self._settle("memory_epochs", self.memory_epochs or MEMORY_EPOCHS)
        elif self.memory_epochs is not None:
            raise UserError(f"memory_epochs={self.memory_epochs:g} needs lam=auto, got lam={self.lam:g}")
        self.reduction, self.ignore_index = reduction, ignore_index
        self.accumulate = tal_math.whole("accumulate", accumulate, 0)
        self.validate, self.process_group = validate, process_group
        self.register_buffer("Q", torch.zeros(0, dtype=dtype))
        self.register_buffer("_updates", torch.zeros((), dtype=torch.int64), persistent=False)
        self._balance = tal_math.balance(1)
        self._forget()
        if num_classes is not None:
            self.reset(tal_math.whole("num_classes", num_classes, 2))

    @property
    def num_classes(self) -> int:
        """Classes the loss sees: the columns of the logits."""
        return self.Q.numel()

    @property
    def alpha(self) -> float:
        """α: what weighs the negatives so that α·w = 1 on a balanced stream."""
        return self._balance.alpha

    @property
    def calibration_classes(self) -> int:
        """The number of classes by which α is calibrated."""
        return self._balance.classes

    @property
    def max_strength(self) -> float:
        """Q_max = λ/(1−λ)."""
        return tal_math.max_strength(self.lam)

    @property
    def updates(self) -> int:
        """How often Q has moved since the start."""
        return int(self._updates)

    def begin_task(self, task: TaskInfo) -> None:
        """Starts anew for the classes of `task`; α is calibrated by `scope`."""
        self.reset(task.num_classes, task.stop if self.scope == "seen" else task.num_classes, task.epoch_steps)

    def reset(self, num_classes: int, calibration_classes: int | None = None, epoch_steps: int | None = None) -> None:
        """Forgets Q and starts with `num_classes`; α may be calibrated for others, and λ needs steps if automatic."""
        classes = tal_math.whole("num_classes", num_classes, 1)
        seen = classes if calibration_classes is None else calibration_classes
        self._calibrate(tal_math.whole("calibration_classes", seen, 1), self._lam_for(epoch_steps))
        self.Q = self._new_strength(classes)
        self._updates.zero_()
        self._forget()

    def grow(self, num_classes: int, epoch_steps: int | None = None) -> None:
        """Adds classes, keeps Q of the old ones, calibrates α anew: for learners that replay old classes."""
        added = tal_math.whole("num_classes", num_classes, self.num_classes) - self.num_classes
        before = self.max_strength
        self._calibrate(int(num_classes), self._lam_for(epoch_steps))
        self.Q = torch.cat([self.Q * (self.max_strength / before), self._new_strength(added)])  # w stays under any λ
        self._forget()

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss under the present Q; in `train()` mode Q moves afterwards. A failing call moves nothing."""
        Q = self.Q
        all_count = self._check(logits, targets, Q)
        counts, columns = tal_math.positives(targets, Q, None if all_count else self.ignore_index)
        weight, shift = self._weights(Q)
        mean = self.reduction == "mean" and not all_count  # of some rows, or of none: 0, where cross-entropy has NaN
        reduction = "sum" if mean else self.reduction
        loss = tal_math.tal_loss(logits, targets, shift, reduction, self.ignore_index, columns)
        if mean:
            loss = loss / counts.sum().clamp_min_(1)
        if self.training:
            self._count(Q, weight, counts, len(targets) if all_count else 0)
        return loss

    def apply_update(self) -> None:
        """Moves Q by the counts since the last update; without any, on any rank, it stays."""
        Q, pending = self.Q, self._pending
        self._move(Q, self._weights(Q)[0], torch.zeros_like(Q) if pending is None else pending)

    def negative_weights(self) -> Tensor:
        """α·w for each class: what its logit weighs as a negative, against 1 in cross-entropy."""
        return self._weights(self.Q)[1].exp()

    def calibration(self) -> float:
        """Mean α·w over the classes: near 0 after a zero start, 1 once a balanced stream has settled."""
        return float(self.negative_weights().mean())

    def is_calibrated(self, tolerance: float = 0.1) -> bool:
        """Whether the mean α·w is at least 1 − `tolerance`. It says nothing of single classes: one alone reaches it."""
        return self.calibration() >= 1.0 - tolerance

    def state_to_log(self) -> dict[str, Tensor]:
        """Q and α·w of each class."""
        return {"Q": self.Q.clone(), "weights": self.negative_weights()}

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        return (
            f"num_classes={self.num_classes}, lam={self.lam}, r={self.r}, update={self.update!r}, "
            f"start={self.start!r}, alpha={self.alpha:.6g}, updates={self.updates}"
        )

    def _lam_for(self, epoch_steps: int | None) -> float:
        return self.lam if self.memory_epochs is None else tal_math.memory_lam(self.memory_epochs, epoch_steps)

    def _calibrate(self, classes: int, lam: float) -> None:
        """Takes λ, and the balance of `classes`; nothing changes if there is none."""
        self._balance = tal_math.balance(classes, self.r, self.update)
        self._settle("lam", lam)
        steady, of = self._balance.steady * self.max_strength, f"of {classes} classes with r={self.r:g}"
        if self.eps * self.alpha > 1.0:
            warnings.warn(
                f"eps={self.eps:g} lies above the calibrated weight 1/α={1 / self.alpha:.2g} {of}, "
                "so every negative weighs more than in cross-entropy; lower eps or r",
                stacklevel=4,
            )
        if steady < torch.finfo(self.Q.dtype).tiny:
            warnings.warn(
                f"{str(self.Q.dtype).removeprefix('torch.')} cannot hold Q*={steady:.2g} {of}, "
                "so the calibrated regime is out of reach; use dtype=torch.float64 or a larger r",
                stacklevel=4,
            )

    def _new_strength(self, classes: int) -> Tensor:
        steady = self._balance.steady * self.max_strength
        return self.Q.new_full((classes,), steady if self.start == "steady" else 0.0)

    def _forget(self) -> None:
        """Leaves behind half an accumulation, which belongs to another Q."""
        self._pending, self._calls = None, 0

    def _weights(self, Q: Tensor) -> tuple[Tensor, Tensor]:
        """w, and log(α·w)."""
        weight = tal_math.negative_weight(Q, self.max_strength, self.r)
        return weight, tal_math.log_weights(weight, -self.r * math.log(self._balance.steady), self.eps)

    def _count(self, Q: Tensor, weight: Tensor, counts: Tensor, rows: int) -> None:
        """Notes the positives of a call; moves Q once all calls of an update are there."""
        if self._pending is not None:
            counts, rows = self._pending + counts, 0
        if self.accumulate and self._calls + 1 >= self.accumulate:
            self._move(Q, weight, counts, rows)
        else:
            self._pending = counts
            self._calls += bool(self.accumulate)

    def _move(self, Q: Tensor, weight: Tensor, counts: Tensor, rows: int = 0) -> None:
        """Moves Q by the counts of all ranks, if there are any; `rows` are their sum, where it is known."""
        if self._pending is not None:
            self._pending, self._calls = None, 0
        if sum_over_ranks(counts, self.process_group):
            rows = 0
        total = None if rows else counts.sum()
        rate = counts / (rows if total is None else total)  # NaN without any count, which `where` leaves out
        moved = tal_math.updated_strength(Q, weight, rate, self.lam, self.r, self._balance.share)
        Q.copy_(moved if total is None else torch.where(total > 0, moved, Q))
        self._updates.add_(1 if total is None else total > 0)

    def _check(self, logits: Tensor, targets: Tensor, Q: Tensor) -> bool:
        """Validate shapes, and values where that is free or requested; return whether all rows count."""
        if not Q.numel():
            raise UserError("TAL: begin_task() must come before the first loss")
        check_batch(logits, targets, Q.numel(), Q)
        if torch.compiler.is_compiling() or not (logits.is_cpu or self.validate):
            return False
        if self.validate is not False:
            _check_finite(logits)
        return _all_count(targets, Q.numel(), self.ignore_index)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TAL":
        """Moves the tensors, but without .half() and .bfloat16(): rounded, Q's steady state would drift."""

        def moved(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            short = result.is_floating_point() and result.dtype.itemsize < torch.float32.itemsize
            return tensor.to(result.device) if short else result

        super()._apply(moved, recurse)
        self._pending = None if self._pending is None else self._pending.to(self.Q)
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in SAVED[1:]:
            destination[prefix + name] = torch.tensor(getattr(self, name), dtype=torch.float64)

    def _load_from_state_dict(self, state_dict, prefix, _metadata, strict, missing, unexpected, errors) -> None:
        saved = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
        unexpected.extend(prefix + name for name in saved if strict and name not in SAVED)
        missing.extend(absent := [prefix + name for name in SAVED if name not in saved])
        if absent:
            return
        lam, alpha, classes = float(saved["lam"]), float(saved["alpha"]), int(saved["calibration_classes"])
        again = "make TAL with the settings it was saved with"
        if self.memory_epochs is None and not math.isclose(self.lam, lam):
            given = f"{self.lam:g} here: Q would be out of scale"
            errors.append(f"lam is {lam:.6g} in the saved state, but {given}; {again}")
        elif not math.isclose(tal_math.balance(classes, self.r, self.update).alpha, alpha, rel_tol=1e-6):
            given = f"r={self.r:g} and update={self.update!r} give another"
            errors.append(f"alpha is {alpha:.6g} in the saved state, but {given}: {again}")
        else:
            self._calibrate(classes, lam)
            self.Q = saved["Q"].to(self.Q, copy=True)  # never share memory with the source
            self._updates.fill_(int(saved["updates"]))
            self._forget()


def _check_finite(logits: Tensor) -> None:
    """Every logit must be finite. Their sum shows it, unless it overflows."""
    if math.isfinite(logits.detach().sum()) or bool(logits.isfinite().all()):
        return
    row, column = (~logits.isfinite()).nonzero()[0].tolist()
    value = logits[row, column].item()
    left_out = "to leave classes out, slice their columns away instead of setting them to -inf"
    raise UserError(
        f"logits must be finite, got {value} in row {row}, column {column}; "
        + (left_out if value == -math.inf else "if training diverged, lower the learning rate")
    )


def _all_count(targets: Tensor, classes: int, ignore_index: int) -> bool:
    """Every target must be a class or to be ignored; whether there are any, and none to be ignored."""
    if not targets.numel():
        return False
    low, high = targets.aminmax()
    if int(low) >= 0 and int(high) < classes:
        return not 0 <= ignore_index < classes
    wrong = targets[(targets != ignore_index) & ((targets < 0) | (targets >= classes))]
    if wrong.numel():
        raise UserError(
            f"targets must lie in 0 … {classes - 1} (or be ignore_index={ignore_index}), "
            f"got {int(wrong[0])}; inside a task they count from the task's first class"
        )
    return False

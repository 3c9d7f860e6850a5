"""What `TAL` refuses or warns of: parameters, values it cannot count with, limits, the state of another TAL."""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from data_lt.errors import UserError, unknown_name
from pilot_tal.losses.tal_math import Balance, balance

if TYPE_CHECKING:
    from pilot_tal.losses.tal import TAL

REDUCTIONS = ("mean", "sum", "none")
SAVED = ("Q", "updates", "alpha", "calibration_classes", "lam")


def check_call(reduction: str, accumulate: int, weight: Any, label_smoothing: float, dtype: torch.dtype) -> None:
    """The parameters that are no settings of a run."""
    if reduction not in REDUCTIONS:
        raise unknown_name("reduction", str(reduction), REDUCTIONS)
    if not isinstance(accumulate, int) or accumulate < 0:
        raise UserError(f"accumulate must be a whole number of at least 0, got {accumulate!r}")
    if weight is not None:
        raise UserError("weight must be None: TAL sets the weights of the classes itself")
    if label_smoothing:
        raise UserError(f"label_smoothing must be 0: TAL has none, got {label_smoothing!r}")
    if dtype not in (torch.float32, torch.float64):
        raise UserError(f"dtype (of Q) must be torch.float32 or torch.float64, got {dtype}")


def whole(name: str, value: int, least: int) -> int:
    """`value` as a whole number of at least `least`; NumPy's will do."""
    if not hasattr(value, "__index__") or isinstance(value, bool) or value < least:
        raise UserError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def check_finite(logits: Tensor) -> None:
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


def check_range(targets: Tensor, classes: int, ignore_index: int) -> bool:
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


def warn_of_limits(calibrated: Balance, max_strength: float, r: float, eps: float, dtype: torch.dtype) -> None:
    """Warns where the floor or the arithmetic keeps TAL from its calibrated regime."""
    steady, of = calibrated.steady * max_strength, f"of {calibrated.classes} classes with r={r:g}"
    if eps * calibrated.alpha > 1.0:
        warnings.warn(
            f"eps={eps:g} lies above the calibrated weight 1/α={1 / calibrated.alpha:.2g} {of}, "
            "so every negative weighs more than in cross-entropy; lower eps or r",
            stacklevel=5,
        )
    if steady < torch.finfo(dtype).tiny:
        warnings.warn(
            f"{str(dtype).removeprefix('torch.')} cannot hold Q*={steady:.2g} {of}, "
            "so the calibrated regime is out of reach; use dtype=torch.float64 or a larger r",
            stacklevel=5,
        )


def read_saved(
    tal: "TAL",
    state: Mapping[str, Tensor],
    prefix: str,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> dict[str, Tensor] | None:
    """TAL's part of a saved state; None, and the reason in one of the lists, if it is not one of its own."""
    saved = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    unexpected.extend(prefix + name for name in saved if strict and name not in SAVED)
    absent = [prefix + name for name in SAVED if name not in saved]
    if absent:
        missing.extend(absent)
        return None
    lam, alpha, classes = float(saved["lam"]), float(saved["alpha"]), int(saved["calibration_classes"])
    again = "make TAL with the settings it was saved with"
    if tal.memory_epochs is None and not math.isclose(tal.lam, lam):
        errors.append(f"lam is {lam:.6g} in the saved state, but {tal.lam:g} here: Q would be out of scale; {again}")
        return None
    if not math.isclose(balance(classes, tal.r, tal.update).alpha, alpha, rel_tol=1e-6):
        given = f"r={tal.r:g} and update={tal.update!r} give another"
        errors.append(f"alpha is {alpha:.6g} in the saved state, but {given}: {again}")
        return None
    return saved


def never_rounded(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A move of tensors without .half() and .bfloat16(): rounded, Q's steady state would drift."""

    def moved(tensor: Tensor) -> Tensor:
        result = fn(tensor)
        short = result.is_floating_point() and result.dtype.itemsize < torch.float32.itemsize
        return tensor.to(result.device) if short else result

    return moved

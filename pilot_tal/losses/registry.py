"""Losses by name."""

import inspect
from typing import Any

from torch import nn

from pilot_tal.errors import PilotTalError, unknown_name

LOSSES: dict[str, type[nn.Module]] = {}


def register(name: str):
    """Class decorator: makes a loss known under `name`."""

    def add(cls: type[nn.Module]) -> type[nn.Module]:
        LOSSES[name] = cls
        return cls

    return add


def loss_options(name: str) -> dict[str, Any]:
    """The options of a loss with their defaults."""
    if name not in LOSSES:
        raise unknown_name("loss", name, LOSSES)
    parameters = inspect.signature(LOSSES[name]).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}


def build_loss(name: str, **options: Any) -> nn.Module:
    """Makes the loss `name`; it still needs `begin_task` before its first call.

    Raises:
        PilotTalError: no such loss, no such option, or a value out of range.
    """
    known = loss_options(name)
    for option, value in options.items():
        if option not in known:
            if not known:
                raise PilotTalError(f"loss {name!r} has no options, got {option!r}")
            raise unknown_name(f"option of loss {name!r}", option, known)
        default = known[option]
        if isinstance(default, (int, float)) and not isinstance(value, (int, float)):
            raise PilotTalError(f"{name}.{option} must be a number, got {value!r}")
    return LOSSES[name](**options)

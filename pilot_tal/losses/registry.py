"""Losses by name."""

from typing import Any

from data_lt.errors import Registry
from pilot_tal.losses.base import TaskLoss
from pilot_tal.schema import settings_of, unknown_setting

LOSSES: Registry[type[TaskLoss]] = Registry("loss")


def build_loss(name: str, **options: Any) -> TaskLoss:
    """Makes the loss `name`; it still needs `begin_task` before its first call.

    Raises:
        UserError: no such loss, no such option, or a value out of range.
    """
    known = settings_of(LOSSES[name])
    for option in options:
        if option not in known:
            raise unknown_setting(option, known, f"the loss {name}")
    return LOSSES[name](**options)

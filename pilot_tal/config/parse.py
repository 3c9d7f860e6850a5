"""`key=value` as it is typed, and the plugins that it names: learners, losses and datasets from outside."""

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from data_lt.errors import UserError, foreign_code
from data_lt.files import given_path

ALIASES = {"epochs": "tuned_epoch", "loss": "losses", "seed": "seeds"}
"""Other words for a key: `epochs` is LAMDA-PILOT's `tuned_epoch`, one loss is a list of one."""


def parse_items(items: Iterable[str], aliases: Mapping[str, str] = ALIASES) -> dict[str, str]:
    """The values by key, aliases resolved; no key may be given twice."""
    values: dict[str, str] = {}
    written: dict[str, str] = {}
    for item in items:
        word, sign, text = item.partition("=")
        if not sign or not word:
            raise UserError(f"settings are written key=value, got {item[:60]!r}")
        key = aliases.get(word, word)
        if key in values:
            both = f"{written[key]} and {word} are one setting" if written[key] != word else f"{word} is given twice"
            raise UserError(f"{both}; give it once")
        values[key], written[key] = text, word
    return values


def split_values(text: str) -> list[str]:
    """`5,10` → two values; commas inside brackets do not count, and neither do spaces around a value."""
    return list(dict.fromkeys(part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()))


def as_typed(value: Any) -> str:
    """A value as it is typed after `key=`."""
    if isinstance(value, tuple):
        return f"[{','.join(map(as_typed, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def load_plugins(names: Iterable[str] = ()) -> None:
    """Imports what is installed under the entry-point group `pilot_tal.plugins`, then the modules or files named."""
    for name in (*(entry.value for entry in entry_points(group="pilot_tal.plugins")), *names):
        _load(name)


def absolute(names: Iterable[str]) -> tuple[str, ...]:
    """The same modules and files, for a process that works in another folder."""
    return tuple(str(_file(name).resolve()) if _file(name).is_file() else name for name in names)


def _file(name: str) -> Path:
    return given_path(name if name.endswith(".py") else f"{name}.py", "plugins")


@cache
def _load(name: str) -> None:
    """Once a process: what registers itself twice is refused."""
    file = _file(name)
    with foreign_code(f"the plugin {name[:60]!r} cannot be loaded"):
        if not file.is_file():
            importlib.import_module(name.partition(":")[0])
            return
        spec = importlib.util.spec_from_file_location(f"pilot_tal_plugin_{file.stem}", file)
        assert spec is not None and spec.loader is not None
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)

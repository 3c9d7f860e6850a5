"""Learners, losses and datasets from outside: packages that announce themselves, and modules that a user names."""

import importlib
import importlib.util
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from data_lt.errors import foreign_code
from data_lt.files import given_path

GROUP = "pilot_tal.plugins"


def load_plugins(names: tuple[str, ...] = ()) -> None:
    """Imports what is installed under the entry-point group `pilot_tal.plugins`, then the modules or files named."""
    for name in (*_installed(), *names):
        _load(name)


def absolute(names: tuple[str, ...]) -> tuple[str, ...]:
    """The same modules and files, for a process that works in another folder."""
    return tuple(str(_file(name).resolve()) if _file(name).is_file() else name for name in names)


def _file(name: str) -> Path:
    return given_path(name if name.endswith(".py") else f"{name}.py", "plugins")


@cache
def _installed() -> tuple[str, ...]:
    return tuple(entry.value for entry in entry_points(group=GROUP))


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

"""Things of one kind by name: datasets here, learners and losses in `pilot_tal`."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeVar

from data_lt.errors import UserError, unknown_name

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


class Named(Protocol):
    """What can be registered: it carries its own name, and the title under which people know it."""

    @property
    def name(self) -> str:
        """As on the command line."""

    @property
    def title(self) -> str:
        """As in a report."""


Entry = TypeVar("Entry", bound=Named)


class Registry(Mapping[str, Entry]):
    """Entries by name, in the order in which they were registered. A name taken twice is refused."""

    def __init__(self, kind: str):
        self.kind = kind
        self._entries: dict[str, Entry] = {}

    def register(self, entry: Entry) -> Entry:
        """Makes `entry` known under its name; also a class decorator."""
        name = getattr(entry, "name", None)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UserError(
                f"the name of a {self.kind} must be lower-case letters, digits and _ (at most 40), got {name!r}"
            )
        if not getattr(entry, "title", ""):
            raise UserError(f"the {self.kind} {name} needs a title for reports")
        if name in self._entries:
            raise UserError(f"a {self.kind} named {name!r} is registered already; choose another name")
        self._entries[name] = entry
        return entry

    def __getitem__(self, name: str) -> Entry:
        """The entry of that name; an unknown one is an error that suggests the nearest."""
        if name not in self._entries:
            raise unknown_name(self.kind, str(name), self._entries)
        return self._entries[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The entry of that name, or `default`."""
        return self._entries.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

"""Things of one kind by name: datasets here, learners and losses in `pilot_tal`."""

import re
from typing import NoReturn, TypeVar

from data_lt.errors import UserError, unknown_name

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


Entry = TypeVar("Entry")


class Registry(dict[str, Entry]):
    """Entries by name, in the order in which they were registered; each has a `name` and a `title` for reports."""

    def __init__(self, kind: str):
        self.kind = kind

    def register(self, entry: Entry) -> Entry:
        """Adds `entry` under its name; also a class decorator.

        Raises:
            UserError: the name is taken or not allowed, or there is no title.
        """
        name = getattr(entry, "name", None)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UserError(
                f"the name of a {self.kind} must be lower-case letters, digits and _ (at most 40), got {name!r}"
            )
        if not getattr(entry, "title", ""):
            raise UserError(f"the {self.kind} {name} needs a title for reports")
        if name in self:
            raise UserError(f"a {self.kind} named {name!r} is registered already; choose another name")
        self[name] = entry
        return entry

    def __missing__(self, name: str) -> NoReturn:
        raise unknown_name(self.kind, str(name), self)

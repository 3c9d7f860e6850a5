"""The one exception a user is meant to read, registries of names with "did you mean", and commands to type."""

import contextlib
import difflib
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

_MOST_LISTED = 20

Entry = TypeVar("Entry")


class Terminated(SystemExit):
    """SIGTERM was received; any other `SystemExit` comes from foreign code."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


def terminate(*_: object) -> NoReturn:
    """A handler for SIGTERM, which schedulers send: ends a command in good order, as Ctrl-C does."""
    raise Terminated


class UserError(ValueError):
    """A sentence for the user: what is wrong, what is allowed, what to do. The command line prints it bare."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, or None when nothing is close; `lam` means `tal.lam`, `lr` means `init_lr`."""
    names = sorted(known)
    longer = [full for full in names if full.endswith((f".{name.lower()}", f"_{name.lower()}"))]
    return next(iter(longer or difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)), None)


def unknown_name(kind: str, name: str, known: Iterable[str], listed_by: str = "") -> UserError:
    """The error for a name that is not a known `kind`: the nearest one, and the list or the command that prints it."""
    names = sorted(known)
    guess = nearest(name, names)
    hints = [f"did you mean {guess!r}?"] if guess else []
    if len(names) <= _MOST_LISTED:
        hints.append(f"known: {', '.join(names)}")
    elif not guess:
        few = f"known: {', '.join(names[:_MOST_LISTED])} and {len(names) - _MOST_LISTED:,} more"
        hints.append(f"all are listed by: {listed_by}" if listed_by else few)
    return UserError(f"unknown {kind} {name[:60]!r}: {' '.join(hints)}")


class Registry(dict[str, Entry]):
    """Things of one kind (datasets, learners, losses) by name; each has a `name` and a `title` for reports."""

    def __init__(self, kind: str):
        self.kind = kind

    def register(self, entry: Entry) -> Entry:
        """Adds `entry` under its name, which must be free and allowed; also a class decorator."""
        name = getattr(entry, "name", None)
        if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name):
            allowed = "lower-case letters, digits and _ (at most 40)"
            raise UserError(f"the name of a {self.kind} must be {allowed}, got {name!r}")
        if not getattr(entry, "title", ""):
            raise UserError(f"the {self.kind} {name} needs a title for reports")
        if name in self:
            raise UserError(f"a {self.kind} named {name!r} is registered already; choose another name")
        self[name] = entry
        return entry

    def __missing__(self, name: str) -> NoReturn:
        raise unknown_name(self.kind, str(name), self)


def command(*arguments: object) -> str:
    """A command line of ours as this user can type it: the program is named as it was called."""
    called = Path(sys.argv[0] if sys.argv else "")
    if called.name == "__main__.py" and called.parent.name == "pilot_tal":
        words = [_typed(Path(sys.executable)), "-m", "pilot_tal"]
    else:  # called from Python: the program is beside its interpreter, if it is installed
        program = called if called.stem == "pilot-tal" else Path(sys.executable).with_name("pilot-tal")
        words = [_typed(program) if program.exists() else "pilot-tal"]
    return shlex.join([*words, *map(str, arguments)])


def _typed(program: Path) -> str:
    """The shortest spelling that runs this program from the working directory."""
    if shutil.which(program.name) == str(program):
        return program.name
    try:
        near = Path(os.path.abspath(program)).relative_to(Path.cwd())
    except (ValueError, OSError):
        return str(program)
    return str(near) if len(near.parts) > 1 else f"./{near}"


def printable(text: str) -> str:
    """Returns `text` with control characters and invalid Unicode escaped, on one line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)


def one_line(text: str) -> str:
    """Returns `text` on one line, without repeated spaces, and printable."""
    return printable(" ".join(text.split()))


def sentence(error: BaseException) -> str:
    """Returns an error as one line; one that is not a `UserError` with its type first."""
    try:
        text = one_line(str(error))
    except Exception:  # a broken __str__ of foreign code
        text = ""
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}".rstrip(": ")


@contextlib.contextmanager
def foreign_code(what: str) -> Iterator[None]:
    """Raises whatever foreign code raises, `sys.exit` included, as a `UserError` that begins with `what`."""
    try:
        yield
    except (UserError, KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:
        raise UserError(f"{what}: {sentence(error)[:200]}") from error

"""Files written whole or not at all, files read with care, checksums, and the progress of long jobs."""

import contextlib
import errno
import glob
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from data_lt.errors import UserError

_LONGEST_NAME, _LONGEST_PATH = 255, 4000  # bytes; Linux takes 4,095 in a path, and we append names
_LEFT = 24 * 3600.0  # seconds after which a staging folder is one that a killed process has left
_GUARD = "'"
_FORMULA = tuple(f"=+-@\t\r\n＝＋－＠{_GUARD}")  # what makes a spreadsheet run a text, and our own mark


def _fits(part: str) -> bool:
    return "\0" not in part and len(os.fsencode(part)) <= _LONGEST_NAME


def is_name(text: str) -> bool:
    """Whether a text is the name of a file, not a path."""
    return bool(text) and Path(text).name == text and _fits(text)


def given_path(path: str | Path, name: str) -> Path:
    """A path that a user gave as `name`, with ~ expanded; one that no file can have is refused."""
    if not str(path).strip():
        raise UserError(f"{name} is empty; give a path, or . for the working directory")
    if len(os.fsencode(path)) > _LONGEST_PATH or any(not _fits(part) for part in Path(path).parts):
        raise UserError(f"{name} cannot be a path: it or a name in it is too long, or holds a zero byte")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{name}={path}: there is no such home directory") from error


@contextlib.contextmanager
def os_errors(what: str) -> Iterator[None]:
    """Raises an `OSError` as a `UserError` that begins with `what`, such as "cannot write PATH"."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: {error.strerror or error}") from error


@contextlib.contextmanager
def atomic_path(path: str | Path, check: Callable[[], None] | None = None) -> Iterator[Path]:
    """Yields a temporary path that replaces `path` on success and is removed on failure.

    Readers see the old file or the new one, never a part, also after a power cut: the file is synced before the
    rename, and its directory after it. `check` is called first and immediately before the rename; it raises to keep the
    old file. A full disk or a directory that cannot be written raises a `UserError`.
    """
    path = Path(path)
    if check is not None:
        check()
    with os_errors(f"cannot write {path}"):
        make_folder(path.parent)
        temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.tmp")
        temporary.touch(exist_ok=False)
        try:
            yield temporary
            sync(temporary)
            if check is not None:
                check()
            temporary.replace(path)
            sync(path.parent)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Creates a directory and its parents, and syncs each new entry."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync(folder.parent)


def sync(path: Path) -> None:
    """Waits until a file's content, or a directory's entries, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks cannot sync a directory
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def staged_folder(path: str | Path) -> Iterator[Path]:
    """Gives a temporary folder to fill; on success its files go to the folder `path`, on failure none does.

    A folder that is new appears whole. In one that exists, files of the same name are replaced and others stay. What
    a killed process has left is removed after a day.
    """
    path = Path(path)
    with os_errors(f"cannot write to {path}"):
        # Inside a folder that exists: its parent may be another file system, from which nothing can be renamed.
        beside, prefix = path if path.is_dir() else path.parent, f".{path.name or 'new'}."
        beside.mkdir(parents=True, exist_ok=True)
        for left in beside.glob(f"{glob.escape(prefix)}*.tmp"):
            with contextlib.suppress(OSError):  # another process has just finished
                if left.is_dir() and left.stat().st_mtime < time.time() - _LEFT:
                    shutil.rmtree(left, ignore_errors=True)
        temporary = beside / f"{prefix}{secrets.token_hex(4)}.tmp"
        temporary.mkdir()
        try:
            yield temporary
            _move(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    """Moves a file or folder, or a folder's entries where the target exists; all by renaming, which needs no space."""
    try:
        source.replace(target)
    except OSError:
        if not (source.is_dir() and target.is_dir()):
            raise
        for entry in sorted(source.iterdir()):
            _move(entry, target / entry.name)


def write_text(path: str | Path, text: str, check: Callable[[], None] | None = None) -> None:
    """Writes `text` as UTF-8 with plain newlines, whole or not at all (see `atomic_path`)."""
    with atomic_path(path, check) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def write_json(path: str | Path, value: Any, check: Callable[[], None] | None = None) -> None:
    """Writes `value` as readable JSON (keys in their order, no NaN), whole or not at all (see `atomic_path`)."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", check)


def open_to_append(path: str | Path) -> TextIO:
    """Opens a text file to append to; a FIFO without a reader raises an `OSError` instead of blocking."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
    return open(handle, "a", encoding="utf-8", errors="backslashreplace")


def read_bytes(path: str | Path, limit: int = 1 << 30) -> bytes:
    """Reads a regular file of at most `limit` bytes; a FIFO or a device raises an `OSError` instead of blocking."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb") as file:
        _check_stat(os.fstat(handle), limit)
        return file.read()


def check_regular(path: Path, name: str, limit: int = 1 << 40) -> None:
    """Refuses what is not a regular file of at most `limit` bytes: reading a FIFO or a device may never end."""
    with os_errors(f"cannot read {name} {str(path)[:200]}"):
        _check_stat(path.stat(), limit)


def _check_stat(found: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if found.st_size > limit:
        raise OSError(errno.EFBIG, f"larger than {limit >> 20:,} MiB")


def read_text(path: str | Path, name: str) -> str:
    """Reads a UTF-8 file, with or without a byte-order mark; errors call it `name`."""
    try:
        with os_errors(f"cannot read {name} {str(path)[:200]}"):
            return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {name} {path}: it is not UTF-8 text") from error


def read_names(source: str | Path, what: str) -> list[str]:
    """The names in a file that was given as `what`, one per line; blank lines are skipped."""
    path = given_path(source, what)
    names = [line.strip() for line in read_text(path, f"{what}, the file of class names,").splitlines() if line.strip()]
    if not names:
        raise UserError(f"{path} is empty; write one class name per line")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{path} has the name {twice[:60]!r} twice; each class has one line")
    return names


def read_json(path: str | Path) -> Any:
    """Reads a JSON file; one that is missing or not valid (see `parse_json`) raises a `UserError`."""
    with os_errors(f"cannot read {path}"):
        content = read_bytes(path)
    try:
        return parse_json(content)
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {str(error)[:80]}") from error


def parse_json(content: bytes | str) -> Any:
    """Parses JSON; anything else, and NaN, infinity and numbers beyond a float's range, raises a `ValueError`."""
    text = content.decode("utf-8") if isinstance(content, bytes) else content
    try:
        return json.loads(text, parse_constant=_number, parse_float=_number, parse_int=_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a finite number")
    return int(text) if text.lstrip("-").isdecimal() else value


def guarded(text: str) -> str:
    """A text that is safe in a CSV: with an apostrophe, as OWASP advises, before what a spreadsheet would run."""
    return f"{_GUARD}{text}" if text.startswith(_FORMULA) else text


def unguarded(text: str) -> str:
    """What `guarded` made this of."""
    return text.removeprefix(_GUARD)


def checksum(path: str | Path, algorithm: str = "sha256") -> str:
    """Hex digest of a file's bytes, read in pieces."""
    digest = hashlib.new(algorithm)
    try:
        with Path(path).open("rb") as file:
            for piece in iter(lambda: file.read(1 << 24), b""):
                digest.update(piece)
    except OSError as error:  # one of reading does not name the file
        raise OSError(error.errno, error.strerror, str(path)) from error
    return digest.hexdigest()


class _Bar(tqdm):
    """A bar without tqdm's monitor thread, which must not exist when processes are forked."""

    monitor_interval = 0


def progress(label: str, total: int | None, start: int = 0, is_bytes: bool = False) -> tqdm:
    """A bar on a terminal, a line now and then elsewhere; use it in a `with` block and call its `update`."""
    unit = {"unit": "B", "unit_scale": True, "unit_divisor": 1024} if is_bytes else {"unit": ""}
    pause = {"leave": False} if sys.stderr.isatty() else {"mininterval": 10, "miniters": 1, "delay": 10}
    return _Bar(desc=label, total=total, initial=start, file=sys.stderr, **unit, **pause)

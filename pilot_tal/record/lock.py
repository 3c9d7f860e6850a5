"""A lock on a run directory that its owner renews while it lives; works on any disk, unlike `flock`.

A lock is a numbered file, `.lock-000007`; the highest number counts. A process that wants the directory creates the
next number, which the file system grants to one process only, once the highest is free or its owner is dead: its
process is gone (visible on the same host), or it has not renewed its lock for a minute by the clock of the waiting
process. No two clocks are compared. A suspended owner that wakes up finds a higher number or another token and must
not write any more: `Lock.check` comes immediately before every rename and deletion in the directory. Lock files are
renewed in place, so that a full disk does not let them expire. They also hold what `pilot-tal status` shows.
"""

import contextlib
import json
import os
import platform
import re
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_lt.errors import UserError
from data_lt.files import make_folder, os_errors, parse_json, read_bytes

RENEW_SECONDS = 5.0
DEAD_SECONDS = 60.0
LOOK_SECONDS = 1.0
_FREE = b"free"
_NAME = re.compile(r"\.lock-([0-9]{6,12})")
_SIZE = 1024  # bytes of a lock, always the same so that it can be written in place


class Busy(UserError):
    """Another process works in the directory."""


class Lock:
    """The exclusive right to write in a directory; what the owner is `doing` is written with the next renewal."""

    def __init__(self, path: Path, number: int):
        self.path, self.number = path, number
        self.file = _file(path, number)
        self.token = secrets.token_hex(8)
        self.doing: dict[str, Any] = {}
        self._beats = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def content(self) -> bytes:
        """The content of the lock's file; `started` tells its process from a later one with the same number."""
        pid = os.getpid()
        owner = {"host": platform.node(), "space": _space(), "pid": pid, "started": _started(pid)}
        owner |= {"token": self.token, "beat": self._beats}
        text = json.dumps({**owner, "doing": self.doing})
        return (text if len(text) <= _SIZE else json.dumps(owner)).encode("ascii").ljust(_SIZE)

    def held(self) -> bool:
        """Whether this is still the directory's lock: the highest number, with this token."""
        number, owner = _newest(self.path)
        return number == self.number and owner is not None and owner.get("token") == self.token

    def check(self) -> None:
        """Raises a `UserError` unless the lock is still held; called immediately before every rename and deletion."""
        if self.held():
            return
        if lock_numbers(self.path):
            raise UserError(f"another process has taken over {self.path} while this one was suspended")
        raise UserError(
            f"the lock of {self.path} is gone: the disk was unmounted, the directory was removed, or another process "
            "finished the run while this one was suspended"
        )

    def release(self, remove: bool) -> None:
        """Releases the lock; `remove` deletes all lock files, for a directory in which nothing is left to do."""
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(OSError, UserError):
            if not remove:
                self._overwrite(_FREE.ljust(_SIZE))
                return
            for number in lock_numbers(self.path):  # its own last, so that no other ever counts
                if self.held():
                    _file(self.path, number).unlink(missing_ok=True)

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            self._beats += 1
            with contextlib.suppress(OSError, UserError):  # a disk that does not answer must not end a training
                if not self._overwrite(self.content()):
                    return

    def _overwrite(self, content: bytes) -> bool:
        """Writes in place, never seen empty or of another length; returns False if the lock is no longer held."""
        if not self.held():
            return not lock_numbers(self.path)  # an unmounted disk may come back; a successor's lock is not touched
        with self.file.open("r+b", buffering=0) as opened:
            opened.write(content)
        return True


@contextlib.contextmanager
def locked(path: Path, remove: bool = False) -> Iterator[Lock]:
    """Holds the lock of the directory `path` inside the context, or raises `Busy`.

    When the context ends without an exception, nothing is left to do in the directory and its locks are removed; so
    whoever gets a lock must first look whether the run is finished. With `remove` they are removed after an exception
    as well, for a directory that is then as it was before.
    """
    lock = _take(path)
    try:
        yield lock
        remove = True
    finally:
        lock.release(remove)


@dataclass(frozen=True)
class Owner:
    """The process that works in a directory; `silent` is the seconds since its last renewal (by two clocks)."""

    where: str
    doing: dict[str, Any]
    silent: float


def owner_of(path: Path) -> Owner | None:
    """Returns the owner of a directory, or None; of a dead owner on another host only its silence is known."""
    number, owner = _newest(path)
    if owner is None or _is_alive(owner) is False:
        return None
    doing, silent = owner.get("doing"), 0.0
    with contextlib.suppress(OSError):
        silent = max(0.0, time.time() - _file(path, number).stat().st_mtime)
    return Owner(_where(owner), doing if isinstance(doing, dict) else {}, silent)


def lock_numbers(path: Path) -> list[int]:
    """The numbers of a directory's lock files, of the living or the dead, in order."""
    try:
        names = os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


def _take(path: Path) -> Lock:
    with os_errors(f"cannot write to {path}"):
        make_folder(path)
    first, since = None, time.monotonic()
    looked = since
    while True:
        number, owner = _newest(path)
        if owner is None or _is_alive(owner) is False:
            return _create(path, number)
        if _is_alive(owner) or first not in (None, (number, owner)):
            raise Busy(f"another process is working in {path} ({_where(owner)}); wait for it to end")
        first, before, looked = (number, owner), looked, time.monotonic()
        if looked - before > RENEW_SECONDS:
            since = looked  # the disk or this process was suspended, and the owner perhaps with it
        # An owner that was killed before it wrote its lock, or whose lock is damaged, can write nothing any more.
        if looked - since > (DEAD_SECONDS if owner else RENEW_SECONDS):
            return _create(path, number)
        time.sleep(LOOK_SECONDS)


def _create(path: Path, before: int) -> Lock:
    """Creates the next lock, which only one process can."""
    lock = Lock(path, before + 1)
    with os_errors(f"cannot write to {path}"):
        try:
            file = lock.file.open("xb")
        except (FileExistsError, FileNotFoundError) as error:  # taken, or removed by whoever took it
            raise Busy(f"another process has just begun to work in {path}; wait for it to end") from error
        try:
            with file:
                file.write(lock.content())
        except OSError:
            lock.file.unlink()
            raise
    lock._thread.start()
    return lock


def _file(path: Path, number: int) -> Path:
    return path / f".lock-{number:06d}"


def _newest(path: Path) -> tuple[int, dict[str, Any] | None]:
    """Number and owner of the lock that counts."""
    number = max(lock_numbers(path), default=0)
    return number, _read(_file(path, number)) if number else None


def _read(file: Path) -> dict[str, Any] | None:
    """The owner that a lock names: None if it is free, nothing if it is empty or damaged."""
    with os_errors(f"cannot read {file}"):
        try:
            content = read_bytes(file, 64 * _SIZE).strip()
        except FileNotFoundError:
            return None  # released between two looks
    if content == _FREE:
        return None
    with contextlib.suppress(ValueError):
        if isinstance(owner := parse_json(content), dict):
            return owner
    return {}


def _where(owner: dict[str, Any]) -> str:
    return f"{owner.get('host', '?')}, process {owner.get('pid', '?')}"


def _is_alive(owner: dict[str, Any]) -> bool | None:
    """Whether the owner's process lives; None if that cannot be seen from here."""
    if not owner.get("space") or owner["space"] != _space() or not isinstance(owner.get("pid"), int):
        return None
    return owner.get("started") == _started(owner["pid"])


def _space() -> str:
    """Where process numbers mean the same: one boot of one host, one container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{platform.node()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""  # unknown: only silence shows a dead owner


def _started(pid: int) -> str | None:
    """When a process started, in ticks since boot; None if it is gone or the platform does not show it."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *rest = line.rpartition(")")[2].split()
        return None if state in "ZX" else rest[18]
    except (OSError, ValueError, IndexError):
        return None

"""A lock on a run directory that its owner renews while it lives; works on any disk.

`flock` does nothing on some network disks, so it is not used. A lock is a numbered file, `.lock-000007`; the highest
number counts. A process that wants the directory creates the next number, which the file system grants to one process
only, once the highest is free or its owner is dead. An owner is dead when its process is gone (visible on the same
host), or when it has not renewed its lock for a minute by the clock of the waiting process: no two clocks are compared.
Every lock has a random token. A suspended owner that wakes up finds a higher number or another token and must not
write any more: `Lock.check` comes immediately before every rename and deletion in the directory. Lock files are renewed
in place, so that a full disk does not let them expire. They also hold what `pilot-tal status` shows of the owner.
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
_FREE = "free"
_NAME = re.compile(r"\.lock-([0-9]{6,12})")
_SIZE = 1024  # bytes of a lock, always the same so that it can be written in place


class Busy(UserError):
    """Another process works in the directory."""


class Lock:
    """The exclusive right to write in a directory.

    Attributes:
        doing: What the owner does, shown by `pilot-tal status`; written with the next renewal.
    """

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
        return _padded(text if len(text) <= _SIZE else json.dumps(owner))

    def held(self) -> bool:
        """Whether this is still the directory's lock: the highest number, with this token."""
        return _highest(self.path) == self.number and _parse(_read(self.file)).get("token") == self.token

    def check(self) -> None:
        """Raises a `UserError` unless the lock is still held; called immediately before every rename and deletion."""
        if self.held():
            return
        if _highest(self.path):
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
                self._overwrite(_padded(_FREE))
                return
            for number in sorted(_numbers(self.path)):  # its own last, so that no other ever counts
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
            return not _highest(self.path)  # an unmounted disk may come back; a successor's lock is not touched
        with self.file.open("r+b", buffering=0) as opened:
            opened.write(content)
        return True


@contextlib.contextmanager
def locked(path: Path, remove: bool = False) -> Iterator[Lock]:
    """Holds the lock of the directory `path` inside the context.

    When the context ends without an exception, nothing is left to do in the directory and its locks are removed; so
    whoever gets a lock must first look whether the run is finished.

    Args:
        path: The directory.
        remove: Remove the locks after an exception as well, for a directory that is then as it was before.

    Raises:
        Busy: another process holds it.
        UserError: it cannot be written.
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
    """Returns the owner of a directory, or None; of a dead owner on another host only its silence is known.

    Raises:
        UserError: the lock cannot be read.
    """
    number, content = _newest(path)
    if content == _FREE or _is_gone(content):
        return None
    owner, silent = _parse(content), 0.0
    with contextlib.suppress(OSError):
        silent = max(0.0, time.time() - _file(path, number).stat().st_mtime)
    doing = owner.get("doing")
    where = f"{owner.get('host', '?')}, process {owner.get('pid', '?')}"
    return Owner(where, doing if isinstance(doing, dict) else {}, silent)


def has_locks(path: Path) -> bool:
    """Whether a directory has lock files, of the living or the dead."""
    return bool(_numbers(path))


def _take(path: Path) -> Lock:
    with os_errors(f"cannot write to {path}"):
        make_folder(path)
    first, since = None, time.monotonic()
    looked = since
    while True:
        number, content = _newest(path)
        first = content if first is None else first
        if time.monotonic() - looked > RENEW_SECONDS:
            since = time.monotonic()  # the disk or this process was suspended, and the owner perhaps with it
        looked = time.monotonic()
        patience = DEAD_SECONDS if content else RENEW_SECONDS  # an empty lock: its process ended before it wrote
        dead = content == _FREE or _is_gone(content) or looked - since > patience
        if content != first or (not dead and _is_here(content)):
            owner = owner_of(path)
            where = "just now" if owner is None else owner.where
            raise Busy(f"another process is working in {path} ({where}); wait for it to end")
        if dead:
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


def _padded(text: str) -> bytes:
    return text.encode("ascii").ljust(_SIZE)


def _file(path: Path, number: int) -> Path:
    return path / f".lock-{number:06d}"


def _numbers(path: Path) -> list[int]:
    try:
        names = os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [int(found[1]) for name in names if (found := _NAME.fullmatch(name))]


def _highest(path: Path) -> int:
    return max(_numbers(path), default=0)


def _newest(path: Path) -> tuple[int, str]:
    """Number and content of the lock that counts."""
    number = _highest(path)
    return number, _read(_file(path, number)) if number else _FREE


def _read(file: Path) -> str:
    with os_errors(f"cannot read {file}"):
        try:
            return read_bytes(file, 64 * _SIZE).decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return _FREE  # released between two looks


def _parse(content: str) -> dict:
    try:
        owner = parse_json(content)
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


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


def _is_here(content: str) -> bool:
    """Whether the owner lives in the same space of processes, so that its death can be seen."""
    owner = _parse(content)
    return bool(owner.get("space")) and owner["space"] == _space() and isinstance(owner.get("pid"), int)


def _is_gone(content: str) -> bool:
    """Whether the owner's process is known to have ended."""
    owner = _parse(content)
    return _is_here(content) and owner.get("started") != _started(owner["pid"])

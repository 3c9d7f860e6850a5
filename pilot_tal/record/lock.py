"""One process at a time in a run directory, on any disk: a lock that its owner renews while it lives.

`flock` does nothing on some network disks, so there is none here. A lock is a numbered file, `.lock-000007`; the
highest number counts. Whoever wants the directory makes the next number, which the file system gives to one process
only, once the highest is free or its owner dead. An owner is dead when its process is gone (seen on its own machine),
or when it has not renewed its lock for a minute by the clock of whoever waits: no two clocks are compared. An owner
that was only asleep finds the higher number when it wakes, and stops. No number is given away twice: all stay until
nothing is left to do, and are renewed in place, never made anew, so that a full disk does not let them fade. A lock
also tells `pilot-tal status` what its owner does.
"""

import contextlib
import errno
import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_lt.errors import UserError

RENEW_SECONDS = 5.0
DEAD_SECONDS = 60.0
LOOK_SECONDS = 1.0
_FREE = "free"
_SIZE = 1024  # bytes of a lock: always as many, so that it can be written in place


class Busy(UserError):
    """Another process works in the directory."""


class Lock:
    """The right to work in a directory.

    Attributes:
        doing: What its owner does, for whoever looks; told with the next renewal.
    """

    def __init__(self, path: Path, number: int):
        self.path, self.number = path, number
        self.file = _file(path, number)
        self.lost = False
        self.doing: dict[str, Any] = {}
        self._beats = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def begin(self) -> None:
        """Renews the lock from now on."""
        self._thread.start()

    def content(self) -> bytes:
        """The lock as it stands on disk."""
        owner = {**_owner(os.getpid()), "beat": self._beats}
        text = json.dumps({**owner, "doing": self.doing})
        return _padded(text if len(text) <= _SIZE else json.dumps(owner))

    def check(self) -> None:
        """Must come before anything is written: another process may have taken over while this one slept."""
        if self.lost or _highest(self.path) != self.number:
            raise UserError(
                f"another process has taken over {self.path} while this one did not answer; it goes on there"
            )

    def release(self, remove: bool) -> None:
        """Lets go. `remove` leaves nothing behind, for a directory in which nothing is left to do."""
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if _highest(self.path) != self.number:
                return
            if not remove:
                _overwrite(self.file, _padded(_FREE))
                return
            for number in sorted(_numbers(self.path)):  # its own last, so that no other ever counts
                if number <= self.number:
                    _file(self.path, number).unlink(missing_ok=True)

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            self._beats += 1
            with contextlib.suppress(OSError):  # a disk that does not answer must not end a training
                if _highest(self.path) != self.number:
                    self.lost = True
                    return
                _overwrite(self.file, self.content())


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Lock]:
    """Holds the directory `path` while the context lasts.

    When the context ends well, nothing is left to do in the directory, and the lock is removed: so whoever gets one
    must first look whether all is done.

    Raises:
        Busy: another process holds it.
        UserError: it cannot be written.
    """
    lock = _take(path)
    try:
        yield lock
    except BaseException:
        lock.release(remove=False)
        raise
    lock.release(remove=True)


@dataclass(frozen=True)
class Owner:
    """Who works in a directory: where, what it does, and seconds since it was last heard of (by two clocks)."""

    where: str
    doing: dict[str, Any]
    silent: float


def owner_of(path: Path) -> Owner | None:
    """Who works in a directory; None if nobody does. A dead owner on another machine is told by its silence."""
    number = _highest(path)
    content = _read(_file(path, number)) if number else _FREE
    if content == _FREE or _is_gone(content):
        return None
    owner, silent = _parse(content), 0.0
    with contextlib.suppress(OSError):
        silent = max(0.0, time.time() - _file(path, number).stat().st_mtime)
    doing = owner.get("doing")
    where = f"{owner.get('host', '?')}, process {owner.get('pid', '?')}"
    return Owner(where, doing if isinstance(doing, dict) else {}, silent)


def forget_dead(path: Path) -> None:
    """Removes the lock of a process that was killed in its last moment, from a directory with nothing left to do."""
    if _numbers(path) and owner_of(path) is None:
        with contextlib.suppress(UserError), locked(path):
            pass


def _take(path: Path) -> Lock:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror or error}") from error
    first, since = None, time.monotonic()
    looked = since
    while True:
        number = _highest(path)
        content = _read(_file(path, number)) if number else _FREE
        first = content if first is None else first
        if time.monotonic() - looked > RENEW_SECONDS:
            since = time.monotonic()  # the disk or this machine slept, and so may have the owner
        looked = time.monotonic()
        dead = content == _FREE or _is_gone(content) or time.monotonic() - since > DEAD_SECONDS
        if content != first or (not dead and _is_here(content)):
            raise Busy(f"another process is working in {path} ({_where(path)}); wait for it to end")
        if dead:
            return _create(path, number)
        time.sleep(LOOK_SECONDS)


def _where(path: Path) -> str:
    owner = owner_of(path)
    return "just now" if owner is None else owner.where


def _create(path: Path, before: int) -> Lock:
    lock = Lock(path, before + 1)
    try:
        _claim(lock)
    except (FileExistsError, FileNotFoundError) as error:  # taken, or cleaned away by whoever took it
        raise Busy(f"another process has just begun to work in {path}; wait for it to end") from error
    except OSError as error:
        with contextlib.suppress(OSError):
            path.rmdir()  # leaves no empty folder, and no other one is removed
        raise UserError(f"cannot write to {path}: {error.strerror or error}") from error
    lock.begin()
    return lock


def _claim(lock: Lock) -> None:
    """Makes the lock's file, which one process can, with its owner in it from the first moment."""
    content = lock.content()
    temporary = lock.path / f".{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        temporary.write_bytes(content)
        os.link(temporary, lock.file)
        return
    except PermissionError:
        if not os.access(lock.path, os.W_OK):
            raise
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL):
            raise
    finally:
        temporary.unlink(missing_ok=True)
    with lock.file.open("xb", buffering=0) as opened:  # a disk without hard links
        opened.write(content)


def _padded(text: str) -> bytes:
    return text.encode("ascii").ljust(_SIZE)


def _overwrite(file: Path, content: bytes) -> None:
    """Writes in place and in one piece: the file must be there, and is never seen empty or of another length."""
    with file.open("r+b", buffering=0) as opened:
        opened.write(content)


def _file(path: Path, number: int) -> Path:
    return path / f".lock-{number:06d}"


def _numbers(path: Path) -> list[int]:
    return [int(file.name[7:]) for file in path.glob(".lock-*") if file.name[7:].isdecimal()]


def _highest(path: Path) -> int:
    return max(_numbers(path), default=0)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return _FREE  # let go of between two looks
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from error


def _parse(content: str) -> dict:
    try:
        owner = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _owner(pid: int) -> dict:
    """Names a process so that another one with the same number is told from it."""
    return {"host": platform.node(), "space": _space(), "pid": pid, "started": _started(pid)}


def _space() -> str:
    """Where process numbers mean the same: one boot of one machine, one container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{platform.node()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""  # nothing is known: only the clock tells a dead owner


def _started(pid: int) -> str | None:
    """When a process began, in the machine's own ticks; None if it is gone or the platform does not tell."""
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

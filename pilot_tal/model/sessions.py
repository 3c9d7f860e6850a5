"""A model that goes on learning, on disk: a run directory whose stream grows by one task per session.

    sessions.json      the settings at creation, and each session: date, source, classes, counts, images with SHA-256
    held_out/          copies of held-out images, for methods whose features of an image change

A session is prepared in a hidden folder and takes effect by one rename, so that a process that is killed leaves the
model as it was, or as it is afterwards.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from data_lt.errors import UserError
from data_lt.files import given_path, read_json, staged_folder, write_json
from pilot_tal.model.images import HELD_OUT, Photo
from pilot_tal.record.lock import Lock, locked
from pilot_tal.record.run_dir import RECORD, RESULT, damaged, read_run_record, read_sealed, write_sealed
from pilot_tal.schema import build
from pilot_tal.version import __version__

SESSIONS, KEPT = "sessions.json", "held_out"
_STAGED, _READY, _FILES = ".session", ".session-ready", "files.json"
_OWN = (KEPT, "predictions", "steps", "states", "checkpoint")


@dataclass(frozen=True)
class Session:
    """One call of `learn`.

    Attributes:
        number: From 0.
        date: When it began, UTC.
        source: Where the images came from.
        task: The task of its new classes; None if it had none.
        train: Training images of each class.
        held_out: Held-out images of each class.
        repeated: Images left out, because they were learned before.
        forgot: The class that was removed, for a session of `forget`.
        seconds: How long it took.
        pilot_tal: Version.
    """

    number: int
    date: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    source: str = ""
    task: int | None = None
    train: dict[str, Any] = field(default_factory=dict)
    held_out: dict[str, Any] = field(default_factory=dict)
    repeated: int = 0
    forgot: str | None = None
    seconds: float = 0.0
    pilot_tal: str = __version__


@dataclass(frozen=True)
class History:
    """The sessions of a model and the images of each; `settings` are those given at creation."""

    settings: tuple[str, ...] = ()
    sessions: tuple[Session, ...] = ()
    images: tuple[tuple[Photo, ...], ...] = ()

    @property
    def known(self) -> dict[str, tuple[str, str]]:
        """Class and split of every image, by checksum."""
        return {photo.checksum: (photo.label, photo.split) for photos in self.images for photo in photos}

    @property
    def held_out(self) -> list[Photo]:
        """All held-out images, in the order in which they came."""
        return [photo for photos in self.images for photo in photos if photo.split == HELD_OUT]

    def plus(self, session: Session, photos: Iterable[Photo]) -> "History":
        """The history with one more session."""
        return History(self.settings, (*self.sessions, session), (*self.images, tuple(photos)))

    def without(self, label: str) -> "History":
        """The history without the images of a class; a session that added no other class has no task any more."""
        images = tuple(tuple(photo for photo in photos if photo.label != label) for photos in self.images)
        sessions, task, seen = [], 0, {label}
        for one in self.sessions:
            adds = one.task is not None and bool(one.train.keys() - seen)
            seen |= one.train.keys()
            train, held_out = ({k: v for k, v in part.items() if k != label} for part in (one.train, one.held_out))
            sessions.append(replace(one, task=task if adds else None, train=train, held_out=held_out))
            task += adds
        return History(self.settings, tuple(sessions), images)


def read_history(folder: Path) -> History:
    """Reads the sessions of a model folder; empty for a folder without a run.

    Raises:
        UserError: it is a run directory of `run` or `compare`, or a file is damaged.
    """
    file = folder / SESSIONS
    if not file.is_file():
        if (folder / RECORD).is_file():
            raise UserError(f"{folder} is a finished benchmark run, whose stream is closed; give a new folder to learn")
        return History()
    content = read_sealed(file)
    try:
        sessions = tuple(build(Session, one) for one in content["sessions"])
        images = tuple(tuple(Photo(Path(row[0]), *row) for row in rows) for rows in content["images"])
        return History(tuple(map(str, content["settings"])), sessions, images)
    except (IndexError, KeyError, TypeError, UserError) as error:
        raise damaged(file, str(error)[:80]) from error


def write_history(folder: Path, history: History) -> None:
    """Writes the sessions and their lists of images."""
    sessions = [asdict(session) for session in history.sessions]
    images = [[[one.name, one.label, one.checksum, one.split] for one in photos] for photos in history.images]
    write_sealed(folder / SESSIONS, {"settings": list(history.settings), "sessions": sessions, "images": images})


def copy_model(source: Path, folder: str | Path) -> Path:
    """Copies a model folder to a new place, whose name the model takes."""
    target = given_path(folder, "the folder")
    if not (source / SESSIONS).is_file():
        raise UserError("only a model that has learned classes by learn can be saved; use export for others")
    if target.resolve() == source.resolve():
        return source
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"{target} exists already; give a new folder")
    with staged_folder(target) as staged:
        for name in _files_of(source):
            (staged / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, staged / name)
        record = read_run_record(staged)
        write_sealed(staged / RECORD, replace(record, data=replace(record.data, **data_name(target))).plain())
    return target


def data_name(folder: Path) -> dict[str, Any]:
    """Name and title of a model's images in tables and plots: those of its folder."""
    title = folder.resolve().name
    return {"name": re.sub(r"\W+", "_", title.lower()).strip("_") or "model", "title": title}


def kept_file(folder: Path, photo: Photo) -> Path:
    """Where a copy of a held-out image is kept."""
    return folder / KEPT / f"{photo.checksum[:32]}{photo.file.suffix.lower()}"


@contextlib.contextmanager
def staged_session(folder: Path, lock: Lock) -> Iterator[Path]:
    """Yields a copy of the model folder to change; on success it takes the folder's place, else nothing happens."""
    staged = folder / _STAGED
    shutil.rmtree(staged, ignore_errors=True)  # of a session that was killed
    for file in _files_of(folder):
        _link(folder / file, staged / file)
    staged.mkdir(exist_ok=True)
    try:
        yield staged
        write_json(staged / _FILES, _files_of(staged))
        lock.check()
        staged.replace(folder / _READY)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    _apply(folder)


def keep_last_checkpoint(folder: Path) -> None:
    """Removes the learners after earlier tasks, and files that no longer belong to the run."""
    result = read_sealed(folder / RESULT)
    last = f"checkpoint/task{result['tasks_done'] - 1:02d}."
    files = {name: seal for name, seal in result["files"].items() if not name.startswith("checkpoint/") or last in name}
    write_sealed(folder / RESULT, {**result, "files": files})
    for name in _files_of(folder):
        if name.partition("/")[0] in _OWN[1:] and name not in files:
            (folder / name).unlink()


def complete_session(folder: Path) -> None:
    """Finishes a session whose process was killed while its files took their places."""
    if (folder / _READY).is_dir():
        with locked(folder):
            _apply(folder)


def _apply(folder: Path) -> None:
    """Moves the files of a finished session to their places; can be repeated until it is done."""
    ready = folder / _READY
    if not ready.is_dir():
        return
    names = read_json(ready / _FILES)
    for name in sorted(names, key=lambda name: (name == RESULT, name == RECORD, name)):
        if (ready / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (ready / name).replace(folder / name)
    for name in set(_files_of(folder)) - set(names):
        (folder / name).unlink()
    shutil.rmtree(ready)


def _files_of(folder: Path) -> list[str]:
    """The files of a model, below its folder."""
    top = [RECORD, RESULT, SESSIONS, "log.txt"]
    below = [str(file.relative_to(folder)) for name in _OWN for file in sorted((folder / name).glob("*"))]
    return [name for name in top + below if (folder / name).is_file()]


def _link(source: Path, target: Path) -> None:
    """A second name of a file that is never changed in place, or a copy where the disk has no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.name != "log.txt":
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)

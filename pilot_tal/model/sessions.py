"""A model that goes on learning, on disk: a run directory whose stream grows by one task per session.

    sessions.json      the settings at creation, and each session: date, source, images with class, SHA-256 and split
    held_out/          copies of held-out images, for methods whose features of an image change

A session is prepared in a hidden folder and takes effect by one rename, so that a process that is killed leaves the
model as it was, or as it is afterwards.
"""

import contextlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from data_lt.errors import UserError
from data_lt.files import given_path, os_errors, staged_folder
from pilot_tal.model.images import HELD_OUT, TRAIN, Photo
from pilot_tal.record.lock import Lock, locked
from pilot_tal.record.run_dir import (
    FOLDERS,
    LOG,
    RECORD,
    RESULT,
    SESSION,
    damaged,
    read_run_record,
    read_sealed,
    write_sealed,
)
from pilot_tal.version import __version__

SESSIONS = "sessions.json"
_STAGED, _READY = SESSION, f"{SESSION}-ready"
_HIDDEN = shutil.ignore_patterns(".*")  # locks, and sessions under way


@dataclass(frozen=True)
class Session:
    """One call of `learn` or `forget`.

    Attributes:
        number: From 0.
        date: When it began, UTC.
        source: Where the images came from.
        repeated: Images left out, because they were learned before.
        forgot: The class that was removed, for a session of `forget`.
        seconds: How long it took.
        pilot_tal: Version.
        images: The images with class, SHA-256 and split; those of a class that was forgotten later are gone.
    """

    number: int
    date: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    source: str = ""
    repeated: int = 0
    forgot: str | None = None
    seconds: float = 0.0
    pilot_tal: str = __version__
    images: tuple[Photo, ...] = field(default=(), repr=False)

    @property
    def train(self) -> dict[str, int]:
        """Training images of each class."""
        return dict(Counter(photo.label for photo in self.images if photo.split == TRAIN))

    @property
    def held_out(self) -> dict[str, int]:
        """Held-out images of each class."""
        return dict(Counter(photo.label for photo in self.images if photo.split == HELD_OUT))


@dataclass(frozen=True)
class History:
    """The sessions of a model; `settings` are those given at creation."""

    settings: tuple[str, ...] = ()
    sessions: tuple[Session, ...] = ()

    @property
    def images(self) -> list[Photo]:
        """The images of all sessions, in the order in which they came."""
        return [photo for session in self.sessions for photo in session.images]

    @property
    def held_out(self) -> list[Photo]:
        """All held-out images."""
        return [photo for photo in self.images if photo.split == HELD_OUT]

    def stream(self) -> dict[str, Any]:
        """Tasks, classes and training images: a session with new classes is a task."""
        counts, sizes = Counter[str](), []
        for session in self.sessions:
            known = len(counts)
            counts.update(session.train)
            sizes.append(len(counts) - known)
        return {
            "task_sizes": tuple(size for size in sizes if size),
            "class_names": tuple(counts),
            "class_order": tuple(range(len(counts))),
            "train_counts": tuple(counts.values()),
        }

    def plus(self, session: Session) -> "History":
        """The history with one more session."""
        return replace(self, sessions=(*self.sessions, session))

    def without(self, label: str) -> "History":
        """The history without the images of a class."""
        left = (tuple(photo for photo in session.images if photo.label != label) for session in self.sessions)
        sessions = tuple(replace(one, images=images) for one, images in zip(self.sessions, left, strict=True))
        return replace(self, sessions=sessions)


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
        rows = [tuple(Photo(Path(row[0]), *row) for row in session.pop("images")) for session in content["sessions"]]
        sessions = [Session(**one, images=images) for one, images in zip(content["sessions"], rows, strict=True)]
        return History(tuple(content["settings"]), tuple(sessions))
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise damaged(file, str(error)[:80]) from error


def write_history(folder: Path, history: History) -> None:
    """Writes the sessions with their lists of images."""
    rows = ([[one.name, one.label, one.checksum, one.split] for one in own.images] for own in history.sessions)
    sessions = [
        asdict(replace(own, images=())) | {"images": row} for own, row in zip(history.sessions, rows, strict=True)
    ]
    write_sealed(folder / SESSIONS, {"settings": list(history.settings), "sessions": sessions})


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
        shutil.copytree(source, staged, ignore=_HIDDEN, dirs_exist_ok=True)
        record = read_run_record(staged)
        write_sealed(staged / RECORD, replace(record, data=replace(record.data, **data_name(target))).plain())
    return target


def data_name(folder: Path) -> dict[str, Any]:
    """Name and title of a model's images in tables and plots: those of its folder."""
    title = folder.resolve().name
    return {"name": re.sub(r"\W+", "_", title.lower()).strip("_") or "model", "title": title}


def kept_file(folder: Path, photo: Photo) -> Path:
    """Where a copy of a held-out image is kept."""
    return folder / "held_out" / f"{photo.checksum[:32]}{photo.file.suffix.lower()}"


@contextlib.contextmanager
def staged_session(folder: Path, lock: Lock) -> Iterator[Path]:
    """Yields a copy of the model folder to change; on success it takes the folder's place, else nothing happens."""
    staged = folder / _STAGED
    shutil.rmtree(staged, ignore_errors=True)  # of a session that was killed
    with os_errors(f"cannot write to {folder}"):
        try:
            shutil.copytree(folder, staged, ignore=_HIDDEN, copy_function=_link)
            yield staged
            lock.check()
            staged.replace(folder / _READY)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        apply_session(folder)


def complete_session(folder: Path) -> None:
    """Finishes a session whose process was killed while its files took their places."""
    if (folder / _READY).is_dir():
        with locked(folder):
            apply_session(folder)


def apply_session(folder: Path) -> None:
    """Moves the files of a finished session to their places; can be repeated until it is done."""
    ready = folder / _READY
    if not ready.is_dir():
        return
    for file in sorted(ready.rglob("*")):
        if file.is_file():
            target = folder / file.relative_to(ready)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)
    named = {folder / name for name in read_sealed(folder / RESULT)["files"]}
    for file in {file for part in FOLDERS for file in (folder / part).glob("*")} - named:  # of earlier sessions
        file.unlink()
    shutil.rmtree(ready)


def _link(source: str, target: str) -> None:
    """A second name of a file that is never changed in place, or a copy where the disk has no links."""
    if Path(source).name != LOG:
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)

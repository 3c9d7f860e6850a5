"""A model that goes on learning, on disk: a run directory whose stream grows by one task per session.

    sessions.json      the settings at creation, and each session: date, source, images with class, SHA-256 and split
    held_out/          copies of held-out images, for methods whose features of an image change

A session is prepared in a hidden folder and takes effect by one rename, so that a process that is killed leaves the
model as it was, or as it is afterwards.
"""

import contextlib
import hashlib
import math
import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from PIL import Image

from data_lt import CARDS
from data_lt.errors import UserError
from data_lt.files import check_regular, checksum, given_path, os_errors, staged_folder
from data_lt.pictures import to_rgb
from data_lt.pools import official_pools
from data_lt.prepare import OWN, find_pool
from pilot_tal.model.model import LARGEST_IMAGE
from pilot_tal.record.lock import Lock, locked
from pilot_tal.record.run_dir import FOLDERS, RECORD, RESULT, SESSION, read_run_record, read_sealed, write_sealed
from pilot_tal.version import __version__

Photos = str | Path | Mapping[str, Iterable[str | Path | Image.Image]]
TRAIN, HELD_OUT = "train", "held out"
SESSIONS = "sessions.json"
_READY = f"{SESSION}-ready"
_HIDDEN = shutil.ignore_patterns(".*")  # locks, and sessions under way


@dataclass(frozen=True)
class Photo:
    """One image: `name` is shown, `split` is empty until it is decided."""

    file: Path = field(compare=False)
    name: str
    label: str
    checksum: str
    split: str = ""


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
        left = [(one, tuple(photo for photo in one.images if photo.label != label)) for one in self.sessions]
        return replace(self, sessions=tuple(replace(one, images=images) for one, images in left))


def read_history(folder: Path) -> History:
    """Reads the sessions of a model folder; empty for a folder without a run.

    Raises:
        UserError: it is a run directory of `run` or `compare`, or the file is damaged.
    """
    if not (folder / SESSIONS).is_file():
        if (folder / RECORD).is_file():
            raise UserError(f"{folder} is a finished benchmark run, whose stream is closed; give a new folder to learn")
        return History()
    content = read_sealed(folder / SESSIONS)
    rows = [tuple(Photo(Path(row[0]), *row) for row in one.pop("images")) for one in content["sessions"]]
    sessions = (Session(**one, images=images) for one, images in zip(content["sessions"], rows, strict=True))
    return History(tuple(content["settings"]), tuple(sessions))


def write_history(folder: Path, history: History) -> None:
    """Writes the sessions with their lists of images."""
    sessions = [
        asdict(replace(own, images=()))
        | {"images": [[one.name, one.label, one.checksum, one.split] for one in own.images]}
        for own in history.sessions
    ]
    write_sealed(folder / SESSIONS, {"settings": list(history.settings), "sessions": sessions})


def find_photos(photos: Photos, scratch: Path) -> list[Photo]:
    """Lists the images of a session, by class and name.

    Args:
        photos: A folder with one folder per class, or with train/ and test/ of them; or images by class.
        scratch: Where PIL images are written as PNG files, which keep every pixel.
    """
    found = []
    if isinstance(photos, Mapping):
        for number, (label, images) in enumerate(photos.items()):
            name = unicodedata.normalize("NFC", str(label).strip())
            if not name or not name.isprintable():
                raise UserError(f"a class needs a name of printable letters, got {label!r}")
            for file in _files(images, scratch / str(number)):
                found.append((file, file.name, name, ""))
    else:
        pool = find_pool(CARDS[OWN], given_path(photos, "PHOTOS"))
        train, test = official_pools(CARDS[OWN], pool)
        for label, files in pool.files.items():
            for split, names in (("" if test is None else TRAIN, train), (HELD_OUT, test or {})):
                for name in sorted(names.get(label, ())):
                    found.append((pool.root / files[name], files[name], label, split))
    for file, *_ in found:
        check_regular(file, "the image", LARGEST_IMAGE)
    return [Photo(file, name, label, checksum(file), split) for file, name, label, split in found]


def _files(images: Iterable[str | Path | Image.Image], scratch: Path) -> Iterator[Path]:
    scratch.mkdir()
    for number, image in enumerate([images] if isinstance(images, (str, Path, Image.Image)) else images):
        if isinstance(image, Image.Image):
            file = scratch / f"image{number:05d}.png"
            to_rgb(image).save(file)
            yield file
        else:
            yield given_path(image, "the image").absolute()


def choose_photos(found: list[Photo], before: list[Photo], again: bool, hold_out: float, seed: int) -> list[Photo]:
    """Leaves out images whose bytes were learned before or come twice, and decides which of the others are held out.

    Where train/ and test/ have not decided it, a share of each class is held out: at least one image, none of a class
    of one. The choice depends on the images' bytes and the seed alone.

    Args:
        found: The images of this session.
        before: All images of earlier sessions.
        again: Train on those that were trained on before once more; they are never held out, nor the reverse.
        hold_out: The share.
        seed: Of the choice.

    Raises:
        UserError: an image is in two classes.
    """
    if not 0 <= hold_out < 1:
        raise UserError(f"hold_out must be at least 0 and below 1, got {hold_out:g}")
    learned, kept = {photo.checksum: photo for photo in before}, dict[str, Photo]()
    for photo in found:
        old = learned.get(photo.checksum)
        first = old or kept.get(photo.checksum) or photo
        if first.label != photo.label:
            other = f"learned as {first.label!r}" if old else f"in {first.label!r} ({first.name})"
            raise UserError(f"{photo.name} in {photo.label!r} is also {other}; remove one of the two")
        if old is None:
            kept.setdefault(photo.checksum, photo)
        elif again and old.split == TRAIN and photo.split != HELD_OUT:
            kept.setdefault(photo.checksum, replace(photo, split=TRAIN))
    undecided: dict[str, list[str]] = {}
    for photo in kept.values():
        if not photo.split:
            undecided.setdefault(photo.label, []).append(photo.checksum)
    for own in undecided.values():
        number = min(max(1, math.floor(hold_out * len(own) + 0.5)), len(own) - 1) if hold_out else 0
        own.sort(key=lambda one: hashlib.sha256(f"{seed} {one}".encode()).digest())
        for place, one in enumerate(own):
            kept[one] = replace(kept[one], split=HELD_OUT if place < number else TRAIN)
    return list(kept.values())


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
    staged = folder / SESSION
    shutil.rmtree(staged, ignore_errors=True)  # of a session that was killed
    with os_errors(f"cannot write to {folder}"):
        try:
            shutil.copytree(folder, staged, ignore=_HIDDEN)
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

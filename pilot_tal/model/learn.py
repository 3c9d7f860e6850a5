"""Teaches a model new classes: each session is one task of a run directory whose stream stays open."""

import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import torch

from data_lt import CARDS, LongTailedSet
from data_lt.errors import UserError, unknown_name
from data_lt.files import given_path
from data_lt.options import DataOptions
from data_lt.pictures import shortened
from data_lt.prepare import OWN
from pilot_tal.backbone.load import load_backbone
from pilot_tal.config.grid import ONE_RUN, study_config
from pilot_tal.config.parse import parse_items
from pilot_tal.config.settings import Hardware, LossConfig, RunConfig, RunSettings
from pilot_tal.engine.callbacks import Callback
from pilot_tal.engine.hardware import choose_device
from pilot_tal.engine.jobs import native_record
from pilot_tal.engine.progress import Display
from pilot_tal.engine.trainer import load_shared
from pilot_tal.learners import LEARNERS
from pilot_tal.model.images import HELD_OUT, TRAIN, Photo, Photos, find_photos, split_photos, without_repeated
from pilot_tal.model.load import find_vit, learner_class, weights_source
from pilot_tal.model.session_trainer import ClosedFormSession, SessionTrainer, closed_forms, is_closed_form
from pilot_tal.model.sessions import (
    History,
    Session,
    apply_session,
    data_name,
    kept_file,
    read_history,
    staged_session,
    write_history,
)
from pilot_tal.record.lock import locked
from pilot_tal.record.run_dir import RECORD, RESULT, read_run_record, read_sealed, write_sealed
from pilot_tal.record.run_record import RunRecord, short_hash
from pilot_tal.schema import Rule, build, settings_of

DEFAULT_METHOD = "plda"
_CLOSED = {"tasks", "init_cls", "increment", "order", "data_root", "output", "jobs", "gpus", "jobs_per_gpu"}
_NOTE = "Held-out images"


@dataclass(frozen=True)
class Capacity:
    """What methods that cannot grow are built for."""

    max_tasks: Annotated[int, Rule("sessions among which DualPrompt and CODA-Prompt divide prompts", 1, 100_000)] = 20
    max_classes: Annotated[int, Rule("classes that a classifier has rows for from the start", 1, 100_000)] = 1000


@dataclass(frozen=True)
class Place:
    """A model folder while a session works on it; `record` is None for a new model."""

    folder: Path
    config: RunConfig
    hardware: Hardware
    history: History
    record: RunRecord | None
    capacity: Capacity

    @property
    def title(self) -> str:
        """The method's."""
        return LEARNERS[self.config.method].title

    @property
    def closed_form(self) -> bool:
        """Whether the method keeps additive statistics."""
        return is_closed_form(self.config.method)

    @property
    def classes(self) -> tuple[str, ...]:
        """Those learned before."""
        return self.record.stream.class_names if self.record else ()


def learn(
    folder: str | Path,
    photos: Photos,
    *,
    method: str | None = None,
    settings: Iterable[str] = (),
    hold_out: float = 0.2,
    again: bool = False,
    display: Display | None = None,
    callbacks: Sequence[Callback] = (),
) -> Session:
    """Learns the classes of `photos` as the next task of the model in `folder`, which the first session creates.

    The session takes effect as a whole: if it fails or is killed, the folder is as it was.

    Args:
        folder: The model folder.
        photos: A folder with one folder of images per class, or with train/ and test/; or images by class.
        method: The method of a new model.
        settings: `key=value`: of a new model all settings of its method; later those of the hardware alone.
        hold_out: Share of each class that is held out for the report, where there is no test/.
        again: Also train on images that were trained on before.
        display: Shows progress.
        callbacks: Called during training.

    Raises:
        UserError: the method cannot learn these images, or a setting is wrong.
        Busy: another process works on this model.
    """
    began, display = time.monotonic(), display or Display()
    source = str(photos) if isinstance(photos, (str, Path)) else "images in memory"
    with tempfile.TemporaryDirectory() as scratch, _opened(folder, method, list(settings)) as (place, staged), display:
        found = find_photos(photos, Path(scratch))
        chosen = split_photos(without_repeated(found, place.history.images, again), hold_out, place.config.seed)
        names = list(dict.fromkeys([*place.classes, *(photo.label for photo in chosen if photo.split == TRAIN)]))
        chosen.sort(key=lambda photo: (*names, photo.label).index(photo.label))  # as the trainer keeps them
        session = Session(
            len(place.history.sessions), source=source, repeated=len(found) - len(chosen), images=tuple(chosen)
        )
        _check_classes(place, session)
        if place.hardware.threads is not None:
            torch.set_num_threads(place.hardware.threads)
        trainer = _trainer(place, place.history.plus(session), names, session.images, staged)
        if place.record is not None:
            write_sealed(staged / RECORD, trainer.record.plain())
            write_sealed(staged / RESULT, {**read_sealed(staged / RESULT), "finished": False})
        if isinstance(trainer, ClosedFormSession) and len(names) == len(place.classes):
            trainer.add_images()
        else:
            trainer.execute(display, place.folder.name, callbacks)
        session = replace(session, seconds=round(time.monotonic() - began, 2))
        write_history(staged, place.history.plus(session))
    return session


def forget(folder: str | Path, label: str, *, settings: Iterable[str] = ()) -> Session:
    """Removes a class from a closed-form model.

    The classifier, the statistics, the held-out features, the lists of images and the predictions after each session
    are as if the class had not been there. Hyperparameters chosen by cross-validation, and an adapter that was trained
    in the first session, stay as they were.

    Args:
        folder: The model folder.
        label: The class.
        settings: `key=value` of the hardware.

    Raises:
        UserError: there is no such class, or the method cannot forget.
        Busy: another process works on this model.
    """
    began = time.monotonic()
    with _opened(folder, None, list(settings)) as (place, staged):
        if place.record is None:
            raise UserError(f"{folder} is not a model that learn created, so there is nothing to forget")
        if not place.closed_form:
            raise UserError(f"{place.title} cannot forget a class; methods that can: {', '.join(closed_forms())}")
        if label not in place.classes:
            raise unknown_name("class", label, place.classes)
        if len(place.classes) == 1:
            raise UserError(f"{label!r} is the only class of {folder}; remove the folder instead")
        left = place.history.without(label)
        trainer = cast(ClosedFormSession, _trainer(place, place.history, list(place.classes), (), staged))
        trainer.remove_class(place.classes.index(label), _record(place, place.record, left))
        session = Session(len(left.sessions), forgot=label, seconds=round(time.monotonic() - began, 2))
        write_history(staged, left.plus(session))
    return session


@contextmanager
def _opened(folder: str | Path, method: str | None, items: list[str]) -> Iterator[tuple[Place, Path]]:
    """A model folder with its lock held, and a copy to change, which takes its place when the context ends."""
    folder = given_path(folder, "FOLDER")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a folder")
    is_new = not folder.exists()
    try:
        with locked(folder, remove=True) as lock:
            apply_session(folder)
            place = open_folder(folder, method, items)
            with staged_session(folder, lock) as staged:
                yield place, staged
    finally:
        if is_new and not any(folder.glob("*")):  # the first session failed
            with suppress(OSError):
                folder.rmdir()


def open_folder(folder: Path, method: str | None, items: list[str]) -> Place:
    """Reads a model folder, or settles what a new one will be.

    Raises:
        UserError: the model exists and has another method or other settings.
    """
    history, given = read_history(folder), parse_items(items)
    for key in given:
        if key in _CLOSED or key in settings_of(DataOptions):
            raise UserError(f"learn takes no {key}: each session is one task, and its images are those of PHOTOS")
    limits = settings_of(Capacity)
    capacity = build(Capacity, {key: limits[key].parse(text) for key, text in given.items() if key in limits})
    shaping = [item for item in items if item.partition("=")[0] not in settings_of(Hardware)]
    plain = [item for item in items if item.partition("=")[0] not in limits]
    if not history.sessions:
        return _new_place(folder, method or DEFAULT_METHOD, plain, History(settings=tuple(shaping)), capacity)
    record = read_run_record(folder)
    if method not in (None, record.method.name):
        raise UserError(f"{folder} is a model of {record.method.name}, not of {method}; give a new folder")
    for item in shaping:
        if item not in history.settings:
            raise UserError(f"{folder} was created without {item}, which cannot change any more; give a new folder")
    hardware = study_config(record.method.name, OWN, [item for item in plain if item not in shaping]).hardware
    config = _config_of(record)
    return Place(folder, config, hardware, history, record, build(Capacity, record.engine.details))


def _new_place(folder: Path, method: str, items: list[str], history: History, capacity: Capacity) -> Place:
    study = study_config(method, OWN, items, usual=ONE_RUN)
    if len(study.runs) != 1:
        raise UserError(f"learn takes one method and one value of each setting, got {len(study.runs)} combinations")
    config = study.runs[0]
    own = config.method_config
    if LEARNERS[method].splits_pool and "size" in settings_of(type(own)):
        if "size" in parse_items(items):
            capacity = replace(capacity, max_tasks=max(1, own.size // own.top_k))  # type: ignore[attr-defined]
        else:
            own = replace(own, size=capacity.max_tasks * own.top_k)  # type: ignore[attr-defined, call-arg]
    config = replace(config, settings=replace(config.settings, tasks=1), method_config=own)
    return Place(folder, config, study.hardware, history, None, capacity)


def _config_of(record: RunRecord) -> RunConfig:
    """The config that a record was made from."""
    method, stream, backbone = record.method, record.stream, record.backbone
    settings = RunSettings(
        fidelity=method.fidelity,
        tasks=1,
        backbone=backbone.name,
        weights=weights_source(record),
        img_size=backbone.img_size,
        transform=stream.transform,
        normalize=stream.normalize,
        sampler=record.sampler,
        posthoc=record.posthoc,
        precision=backbone.precision,
    )
    own = build(learner_class(record).config_class, method.settings, method.name)
    loss = LossConfig(record.loss.name, record.loss.options)
    return RunConfig(method.name, OWN, loss, record.seed, settings, DataOptions(), own, changed=record.changed)


def _check_classes(place: Place, session: Session) -> None:
    """Refuses a session without new images, and one that the method cannot learn."""
    if not session.train:
        before = f"; {session.repeated} were learned before" * bool(session.repeated)
        raise UserError(f"{session.source} has no new image to train on{before}")
    if not session.held_out and not place.history.held_out:
        raise UserError(
            f"no image of {session.source} is held out, so nothing could be reported; give a class of at least two "
            "images, a test/ folder, or hold_out above 0"
        )
    known = [label for label in session.train if label in place.classes]
    if known and not place.closed_form:
        raise UserError(
            f"{place.title} cannot learn more images of {known[0]!r}, a class of an earlier session, without the "
            f"images of that session; leave the class out, or create a model of a method that can: "
            f"{', '.join(closed_forms())}"
        )
    untrained = [label for label in session.held_out if label not in (*session.train, *place.classes)]
    if untrained:
        raise UserError(f"{untrained[0]!r} has test images and no new image to train on; add some, or leave it out")
    tasks = place.record.num_tasks if place.record else 0
    if LEARNERS[place.config.method].splits_pool and tasks >= place.capacity.max_tasks:
        raise UserError(
            f"{place.title} was created for max_tasks={tasks} sessions, and all are used; create a model with more, or "
            "one of a method that grows freely, such as plda"
        )


def _trainer(place: Place, history: History, names: list[str], photos: Sequence[Photo], staged: Path) -> SessionTrainer:
    """The trainer of a session on `photos`, for a model with this history."""
    settings, data = place.config.settings, _data(place, history, names, photos, staged)
    if place.record is None:
        vit = load_backbone(settings.backbone, settings.weights, settings.img_size)
    else:
        vit = find_vit(place.record)
    record = _record(place, place.record or native_record(place.config, data), history)
    kind = ClosedFormSession if place.closed_form else SessionTrainer
    shared = load_shared(place.config, place.hardware, data, choose_device(place.hardware.device), vit)
    trainer = kind(place.config, place.hardware, shared, record, staged)
    trainer.names, trainer.kept = data.frame["name"].tolist(), [photo.name for photo in place.history.held_out]
    return trainer


def _data(place: Place, history: History, names: list[str], photos: Sequence[Photo], staged: Path) -> LongTailedSet:
    """The images that the session opens: its own, and the held-out ones of which copies are kept."""
    import pandas as pd

    rows = []
    for photo in () if place.closed_form else place.history.held_out:
        rows.append((str(kept_file(staged, photo)), names.index(photo.label), "test", photo.name))
    for photo in photos:
        file = photo.file.absolute()
        if photo.split == HELD_OUT and not place.closed_form:
            file = kept_file(staged, photo)
            file.parent.mkdir(exist_ok=True)
            shutil.copyfile(photo.file, file)
        split = "test" if photo.split == HELD_OUT else "train"
        rows.append((str(file), names.index(photo.label), split, photo.name))
    frame = pd.DataFrame(rows, columns=["path", "label", "split", "name"]).astype({"label": np.int64})
    shown = {"checksum": _checksum(history), "law": {}, "card": CARDS[OWN], **data_name(place.folder)}
    return LongTailedSet(root=Path(), frame=frame, class_names=names, **shown)


def _record(place: Place, record: RunRecord, history: History) -> RunRecord:
    """The record with the classes, tasks and training images of a history."""
    stream = replace(record.stream, order="as learned", **history.stream())
    having = {photo.label for photo in history.held_out}
    without = [label for label in stream.class_names if label not in having]
    what = "by their features, which never change" if place.closed_form else "as copies"
    note = f"{_NOTE} of all sessions are kept in the model's folder {what}, and predicted after each session."
    if without:
        note += f" Classes without a held-out image, so without an accuracy: {shortened(without)}."
    return replace(
        record,
        engine=replace(record.engine, details=asdict(place.capacity)),
        data=replace(record.data, checksum=_checksum(history), recipe={}, **data_name(place.folder)),
        stream=stream,
        notes=(*(text for text in record.notes if not text.startswith(_NOTE)), note),
    )


def _checksum(history: History) -> str:
    return short_hash(sorted({photo.checksum for photo in history.images}))

"""Teaches a model new classes: each session is one task of a run directory whose stream stays open."""

import datetime
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_lt import CARDS, LongTailedSet
from data_lt.errors import UserError
from data_lt.files import given_path
from data_lt.prepare import OWN
from pilot_tal.backbone import FrozenBackbone
from pilot_tal.backbone.load import load_backbone
from pilot_tal.config.grid import study_config
from pilot_tal.config.parse import parse_items
from pilot_tal.config.settings import DataConfig, Hardware, LossConfig, RunConfig, RunSettings
from pilot_tal.engine.callbacks import Callback
from pilot_tal.engine.native_record import native_record
from pilot_tal.engine.progress import Display, DisplayLine
from pilot_tal.learners import LEARNERS
from pilot_tal.model.load import find_vit, weights_source
from pilot_tal.model.photos import HELD_OUT, TRAIN, Photo, Photos, find_photos, split_photos, without_repeated
from pilot_tal.model.session_trainer import ClosedFormSession, closed_forms, is_closed_form, trainer_for
from pilot_tal.model.sessions import (
    History,
    Session,
    complete_session,
    data_name,
    keep_last_checkpoint,
    kept_file,
    read_history,
    staged_session,
    write_history,
)
from pilot_tal.model.stored import read_stored
from pilot_tal.record.lock import Lock, locked
from pilot_tal.record.run_dir import RECORD, RESULT, read_run_record, read_sealed, write_sealed
from pilot_tal.record.run_record import RunRecord, short_hash
from pilot_tal.schema import build, settings_of
from pilot_tal.version import __version__

DEFAULT_METHOD, HOLD_OUT, MAX_TASKS, MAX_CLASSES = "plda", 0.2, 20, 1000
_CLOSED = {"tasks", "init_cls", "increment", "order", "data_root", "output", "jobs", "gpus", "jobs_per_gpu"}


@dataclass(frozen=True)
class Place:
    """A model folder while a session works on it, with what the session needs."""

    folder: Path
    config: RunConfig
    hardware: Hardware
    history: History
    record: RunRecord | None
    capacity: dict[str, int]


def learn(
    folder: str | Path,
    photos: Photos,
    *,
    method: str | None = None,
    settings: Iterable[str] = (),
    hold_out: float = HOLD_OUT,
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
    folder = given_path(folder, "FOLDER")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a folder")
    began, items = time.monotonic(), list(settings)
    source = "images in memory" if not isinstance(photos, (str, Path)) else str(photos)
    with tempfile.TemporaryDirectory() as scratch:
        found = find_photos(photos, Path(scratch))
        complete_session(folder)
        with locked(folder) as lock:
            place = open_folder(folder, method, items)
            fresh = without_repeated(found, place.history.known, again)
            chosen = split_photos(fresh, hold_out, place.config.seed)
            session = new_session(
                len(place.history.sessions),
                source,
                train=_counts(chosen, TRAIN),
                held_out=_counts(chosen, HELD_OUT),
                repeated=len(found) - len(chosen),
            )
            return _learn(place, lock, chosen, session, began, display or Display(), callbacks)


def _learn(
    place: Place,
    lock: Lock,
    photos: list[Photo],
    session: Session,
    began: float,
    display: Display,
    callbacks: Sequence[Callback],
) -> Session:
    """Runs one session in a copy of the folder, which then takes its place."""
    if place.hardware.threads is not None:
        torch.set_num_threads(place.hardware.threads)
    _check_classes(place, session, photos)
    vit = load_vit(place)
    with staged_session(place.folder, lock) as staged, display:
        data = session_data(place, photos, staged)
        photos = sorted(photos, key=lambda photo: data.class_names.index(photo.label))  # as the trainer keeps them
        kept = [photo.name for photo in place.history.held_out]
        record = _extended(place, session, photos, data)
        trainer = trainer_for(place.config, place.hardware, data, record, staged, vit, kept)
        if place.record is not None:
            write_sealed(staged / RECORD, record.plain())
            write_sealed(staged / RESULT, {**read_sealed(staged / RESULT), "finished": False})
        if isinstance(trainer, ClosedFormSession) and place.record and record.num_tasks == place.record.num_tasks:
            trainer.add_images()
        else:
            session = replace(session, task=record.num_tasks - 1)
            trainer.execute(DisplayLine(display, place.folder.name), callbacks)
        session = replace(session, seconds=round(time.monotonic() - began, 2))
        history = place.history
        write_history(staged, History(history.settings, (*history.sessions, session), (*history.images, tuple(photos))))
        keep_last_checkpoint(staged)
    return session


def open_folder(folder: Path, method: str | None, items: list[str]) -> Place:
    """Reads a model folder, or settles what a new one will be.

    Raises:
        UserError: the model exists and has another method or other settings.
    """
    history = read_history(folder)
    given = parse_items(items)
    for key in given:
        if key in _CLOSED or key in settings_of(DataConfig):
            raise UserError(f"learn takes no {key}: each session is one task, and its images are those of PHOTOS")
    capacity = {key: _whole(key, given.get(key, str(usual))) for key, usual in
                (("max_tasks", MAX_TASKS), ("max_classes", MAX_CLASSES))}  # fmt: skip
    shaping = [item for item in items if item.partition("=")[0] not in settings_of(Hardware)]
    plain = [item for item in items if item.partition("=")[0] not in capacity]
    if not history.sessions:
        config, hardware = _new_config(method or DEFAULT_METHOD, plain, capacity)
        return Place(folder, config, hardware, History(settings=tuple(shaping)), None, capacity)
    record = read_run_record(folder)
    if method not in (None, record.method.name):
        raise UserError(f"{folder} is a model of {record.method.name}, not of {method}; give a new folder")
    for item in shaping:
        if item not in history.settings:
            raise UserError(f"{folder} was created without {item}, which cannot change any more; give a new folder")
    hardware = study_config(record.method.name, OWN, [item for item in plain if item not in shaping]).hardware
    weights = weights_source(read_stored(folder), None)
    details = {key: int(record.engine.details[key]) for key in capacity}
    return Place(folder, _config_of(record, weights), hardware, history, record, details)


def _new_config(method: str, items: list[str], capacity: dict[str, int]) -> tuple[RunConfig, Hardware]:
    study = study_config(method, OWN, items, losses=("tal",), seeds=(1993,), references=())
    if len(study.runs) != 1:
        raise UserError(f"learn takes one method and one value of each setting, got {len(study.runs)} combinations")
    config = study.runs[0]
    own = config.method_config
    if LEARNERS[method].splits_pool and "size" in settings_of(type(own)):
        if "size" in parse_items(items):
            capacity["max_tasks"] = max(1, own.size // own.top_k)  # type: ignore[attr-defined]
        else:
            own = replace(own, size=capacity["max_tasks"] * own.top_k)  # type: ignore[attr-defined, call-arg]
    return replace(config, settings=replace(config.settings, tasks=1), method_config=own), study.hardware


def _config_of(record: RunRecord, weights: str) -> RunConfig:
    """The config that a record was made from."""
    method, stream, backbone = record.method, record.stream, record.backbone
    if method.name not in LEARNERS:
        raise UserError(f"the method {method.name!r} is not of pilot_tal itself: name its module with plugins=")
    settings = RunSettings(
        fidelity=method.fidelity,
        tasks=1,
        backbone=backbone.name,
        weights=weights,
        img_size=backbone.img_size,
        transform=stream.transform,
        normalize=stream.normalize,
        sampler=record.sampler,
        posthoc=record.posthoc,
        precision=backbone.precision,
    )
    own = build(LEARNERS[method.name].config_class, method.settings, method.name)
    loss = LossConfig(record.loss.name, record.loss.options)
    return RunConfig(method.name, OWN, loss, record.seed, settings, DataConfig(), own, changed=record.changed)


def _check_classes(place: Place, session: Session, photos: list[Photo]) -> None:
    """Refuses a session without new images, and one that the method cannot learn."""
    if not session.train:
        raise UserError(
            f"{session.source} has no new image to train on: {session.repeated} were learned before"
            if session.repeated
            else f"{session.source} has no image to train on"
        )
    if not session.held_out and not place.history.held_out:
        raise UserError(
            f"no image of {session.source} is held out, so nothing could be reported; give a class of at least two "
            "images, a test/ folder, or hold_out above 0"
        )
    names = place.record.stream.class_names if place.record else ()
    known = [label for label in session.train if label in names]
    title = LEARNERS[place.config.method].title
    if known and not is_closed_form(place.config.method):
        raise UserError(
            f"{title} cannot learn more images of {known[0]!r}, a class of an earlier session, without the images of "
            f"that session; leave the class out, or create a model of a method that can: {', '.join(closed_forms())}"
        )
    untrained = [label for label in session.held_out if label not in (*session.train, *names)]
    if untrained:
        raise UserError(f"{untrained[0]!r} has test images and no new image to train on; add some, or leave it out")
    tasks = place.record.num_tasks if place.record else 0
    if LEARNERS[place.config.method].splits_pool and tasks >= place.capacity["max_tasks"]:
        raise UserError(
            f"{title} was created for max_tasks={tasks} sessions, and all are used; create a model with more, or one "
            "of a method that grows freely, such as plda"
        )


def load_vit(place: Place) -> FrozenBackbone:
    """The frozen backbone of a model, new or old."""
    if place.record is not None:
        return find_vit(read_stored(place.folder))
    settings = place.config.settings
    return load_backbone(settings.backbone, settings.weights, settings.img_size)


def session_data(place: Place, photos: list[Photo], staged: Path) -> LongTailedSet:
    """The images that the session opens: its own, and the held-out ones that were kept."""
    import pandas as pd

    old = place.record.stream.class_names if place.record else ()
    names = [*old, *dict.fromkeys(photo.label for photo in photos if photo.label not in old)]
    copied = not is_closed_form(place.config.method)
    rows = [(str(kept_file(staged, photo)), photo, "test") for photo in place.history.held_out if copied]
    for photo in photos:
        file = photo.file.absolute()
        if copied and photo.split == HELD_OUT:
            file = kept_file(staged, photo)
            file.parent.mkdir(exist_ok=True)
            shutil.copyfile(photo.file, file)
        rows.append((str(file), photo, "test" if photo.split == HELD_OUT else "train"))
    frame = pd.DataFrame(
        {
            "path": [path for path, _, _ in rows],
            "label": np.array([names.index(photo.label) for _, photo, _ in rows], dtype=np.int64),
            "split": [split for _, _, split in rows],
            "name": [photo.name for _, photo, _ in rows],
        }
    )
    seals = sorted([*place.history.known, *(photo.checksum for photo in photos)])
    return LongTailedSet(
        root=Path(),
        frame=frame,
        class_names=names,
        checksum=short_hash(seals),
        law={},
        card=CARDS[OWN],
        **data_name(place.folder),
    )


def _extended(place: Place, session: Session, photos: list[Photo], data: LongTailedSet) -> RunRecord:
    """The record with the session's classes as its last task."""
    before = place.record or native_record(place.config, data)
    old = place.record.stream if place.record else None
    sizes = old.task_sizes if old else ()
    first, classes = sum(sizes), len(data.class_names)
    counts = [*(old.train_counts if old else ()), *[0] * (classes - first)]
    for label, number in session.train.items():
        counts[data.class_names.index(label)] += number
    capacity = dict(place.capacity)
    while capacity["max_classes"] < classes:
        capacity["max_classes"] *= 2
    stream = replace(
        before.stream,
        order="as learned",
        task_sizes=(*sizes, classes - first) if classes > first else sizes,
        class_names=tuple(data.class_names),
        class_order=tuple(range(classes)),
        train_counts=tuple(counts),
    )
    notes = [note for note in before.notes if not note.startswith("Held-out images")]
    return replace(
        before,
        engine=replace(before.engine, details=capacity),
        data=replace(before.data, name=data.name, title=data.title, checksum=data.checksum, recipe={}),
        stream=stream,
        notes=(*notes, held_out_note(place, photos, data.class_names)),
    )


def held_out_note(place: Place, photos: list[Photo], classes: list[str]) -> str:
    """The sentence for the report on how held-out images are kept, and which classes have none."""
    having = {photo.label for photo in [*place.history.held_out, *photos] if photo.split == HELD_OUT}
    without = [label for label in classes if label not in having]
    what = "by their features, which never change" if is_closed_form(place.config.method) else "as copies"
    kept = f"Held-out images of all sessions are kept in the model's folder {what}, and predicted after each session."
    if not without:
        return kept
    more = f" and {len(without) - 5} more" if len(without) > 5 else ""
    return f"{kept} Classes without a held-out image, so without an accuracy: {', '.join(without[:5])}{more}."


def new_session(number: int, source: str, **more: Any) -> Session:
    """A session that begins now."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return Session(number, now, source, pilot_tal=__version__, **more)


def _counts(photos: list[Photo], split: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for photo in photos:
        if photo.split == split:
            counts[photo.label] = counts.get(photo.label, 0) + 1
    return counts


def _whole(key: str, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise UserError(f"{key} must be a whole number from 1 to 100000, got {text[:20]!r}")
    return int(text)

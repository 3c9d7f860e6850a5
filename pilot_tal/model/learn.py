"""Teaches a model new classes: each session is one task of a run directory whose stream stays open."""

import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch

from data_lt.errors import UserError, unknown_name
from data_lt.files import given_path
from data_lt.options import DataOptions
from data_lt.prepare import OWN
from pilot_tal.config.grid import ONE_RUN, study_config
from pilot_tal.config.parse import parse_items
from pilot_tal.config.settings import Hardware
from pilot_tal.engine.callbacks import Callback, Display
from pilot_tal.learners import LEARNERS
from pilot_tal.model.load import ABOUT
from pilot_tal.model.session_trainer import Capacity, ClosedFormSession, Place, SessionTrainer, closed_forms
from pilot_tal.model.sessions import (
    TRAIN,
    Photos,
    Session,
    apply_session,
    choose_photos,
    find_photos,
    read_history,
    staged_session,
    write_history,
)
from pilot_tal.record.lock import locked
from pilot_tal.record.run_dir import RECORD, RESULT, read_run_record, read_sealed, write_sealed
from pilot_tal.schema import build, settings_of

DEFAULT_METHOD = "plda"
_CLOSED = {"tasks", "init_cls", "increment", "order", "data_root", "output", "jobs", "gpus", "jobs_per_gpu"}


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
        chosen = choose_photos(found, place.history.images, again, hold_out, place.config.seed)
        names = list(dict.fromkeys([*place.classes, *(photo.label for photo in chosen if photo.split == TRAIN)]))
        chosen.sort(key=lambda photo: (*names, photo.label).index(photo.label))  # as the trainer keeps them
        repeated = len(found) - len(chosen)
        session = Session(len(place.history.sessions), source=source, repeated=repeated, images=tuple(chosen))
        _check_classes(place, session)
        if place.hardware.threads is not None:
            torch.set_num_threads(place.hardware.threads)
        kind = ClosedFormSession if place.closed_form else SessionTrainer
        trainer = kind(place, place.history.plus(session), chosen, staged)
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
            title = LEARNERS[place.config.method].title
            raise UserError(f"{title} cannot forget a class; methods that can: {', '.join(closed_forms())}")
        if label not in place.classes:
            raise unknown_name("class", label, place.classes)
        if len(place.classes) == 1:
            raise UserError(f"{label!r} is the only class of {folder}; remove the folder instead")
        left = place.history.without(label)
        trainer = ClosedFormSession(place, place.history, (), staged)
        trainer.remove_class(place.classes.index(label), place.recorded(place.record, left))
        session = Session(len(left.sessions), forgot=label, seconds=round(time.monotonic() - began, 2))
        write_history(staged, left.plus(session))
    return session


@contextmanager
def _opened(folder: str | Path, method: str | None, items: list[str]) -> Iterator[tuple[Place, Path]]:
    """A model folder with its lock held, and a copy to change, which takes its place when the context ends."""
    folder = given_path(folder, "FOLDER")
    if (folder / ABOUT).is_file():
        raise UserError(f"{folder} is an exported model, which cannot learn: give the model's own folder, or a new one")
    is_new = not folder.exists()
    try:
        with locked(folder, remove=True) as lock:
            apply_session(folder)
            place = open_folder(folder, method, items)
            with staged_session(folder, lock) as staged:
                yield place, staged
    finally:
        if is_new:
            with suppress(OSError):  # only an empty folder can be removed: the first session failed
                folder.rmdir()


def open_folder(folder: Path, method: str | None, items: list[str]) -> Place:
    """Reads a model folder, or settles what a new one will be.

    Raises:
        UserError: the model exists and has another method or other settings.
    """
    history, limits = read_history(folder), settings_of(Capacity)
    record = read_run_record(folder) if history.sessions else None
    for key in parse_items(items):
        if key in _CLOSED or key in settings_of(DataOptions):
            raise UserError(f"learn takes no {key}: each session is one task, and its images are those of PHOTOS")
    shaping = [item for item in items if item.partition("=")[0] not in settings_of(Hardware)]
    hardware = [item for item in items if item not in shaping]
    if record is not None:
        if method not in (None, record.method.name):
            raise UserError(f"{folder} is a model of {record.method.name}, not of {method}; give a new folder")
        if other := next((item for item in shaping if item not in history.settings), None):
            raise UserError(f"{folder} was created without {other}, which cannot change any more; give a new folder")
        method, shaping = record.method.name, list(history.settings)
    plain = [item for item in shaping if item.partition("=")[0] not in limits]
    study = study_config(method or DEFAULT_METHOD, OWN, [*plain, *hardware], usual=ONE_RUN)
    if len(study.runs) != 1:
        raise UserError(f"learn takes one method and one value of each setting, got {len(study.runs)} combinations")
    config, given = study.runs[0], parse_items(shaping)
    own, splits = config.method_config, LEARNERS[config.method].splits_pool
    capacity = build(Capacity, {key: limits[key].parse(text) for key, text in given.items() if key in limits})
    if record is not None:
        own = own.recorded(record.method.settings, record.method.name)
        capacity = build(Capacity, record.engine.details)
    elif splits and "size" in given:
        capacity = replace(capacity, max_tasks=max(1, own.size // own.top_k))  # type: ignore[attr-defined]
    elif splits and "size" in settings_of(type(own)):
        own = replace(own, size=capacity.max_tasks * own.top_k)  # type: ignore[attr-defined, call-arg]
    config = replace(config, settings=replace(config.settings, tasks=1), method_config=own)
    return Place(folder, config, study.hardware, replace(history, settings=tuple(shaping)), record, capacity)


def _check_classes(place: Place, session: Session) -> None:
    """Refuses a session without new images, and one that the method cannot learn."""
    learner = LEARNERS[place.config.method]
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
            f"{learner.title} cannot learn more images of {known[0]!r}, a class of an earlier session, without the "
            f"images of that session; leave it out, or create a model of a method that can: {', '.join(closed_forms())}"
        )
    untrained = [label for label in session.held_out if label not in (*session.train, *place.classes)]
    if untrained:
        raise UserError(f"{untrained[0]!r} has test images and no new image to train on; add some, or leave it out")
    tasks = place.record.num_tasks if place.record else 0
    if learner.splits_pool and tasks >= place.capacity.max_tasks:
        raise UserError(
            f"{learner.title} was created for max_tasks={tasks} sessions, and all are used; create a model with more, "
            "or one of a method that grows freely, such as plda"
        )

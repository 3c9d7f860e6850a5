"""Removes a class from a model that learns, as if it had never been there."""

import itertools
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

from data_lt.errors import UserError, unknown_name
from data_lt.files import given_path
from pilot_tal.learners import LEARNERS
from pilot_tal.model.learn import Place, held_out_note, load_vit, new_session, open_folder, session_data
from pilot_tal.model.session_trainer import ClosedFormSession, closed_forms, is_closed_form, trainer_for
from pilot_tal.model.sessions import (
    History,
    Session,
    complete_session,
    keep_last_checkpoint,
    read_history,
    staged_session,
    write_history,
)
from pilot_tal.record.lock import locked
from pilot_tal.record.run_record import RunRecord, short_hash


def forget(folder: str | Path, label: str, *, settings: Iterable[str] = ()) -> Session:
    """Removes a class from a closed-form model.

    The classifier, the statistics, the held-out features, the lists of images and the predictions after each session
    are as if the class had not been there; only hyperparameters chosen by cross-validation stay as they were.

    Args:
        folder: The model folder.
        label: The class.
        settings: `key=value` of the hardware.

    Raises:
        UserError: there is no such class, or the method cannot forget.
        Busy: another process works on this model.
    """
    folder, began = given_path(folder, "FOLDER"), time.monotonic()
    complete_session(folder)
    if not read_history(folder).sessions:
        raise UserError(f"{folder} is not a model that learn created, so there is nothing to forget")
    with locked(folder) as lock:
        place = open_folder(folder, None, list(settings))
        record = _record(place)
        _check(place, label)
        left = place.history.without(label)
        with staged_session(folder, lock) as staged:
            kept = [photo.name for photo in place.history.held_out]
            data = session_data(place, [], staged)
            trainer = trainer_for(place.config, place.hardware, data, record, staged, load_vit(place), kept)
            index = record.stream.class_names.index(label)
            cast(ClosedFormSession, trainer).remove_class(index, _without(replace(place, history=left), index))
            seconds = round(time.monotonic() - began, 2)
            session = new_session(len(left.sessions), "", forgot=label, seconds=seconds)
            write_history(staged, History(left.settings, (*left.sessions, session), (*left.images, ())))
            keep_last_checkpoint(staged)
    return session


def _check(place: Place, label: str) -> None:
    names, title = _record(place).stream.class_names, LEARNERS[place.config.method].title
    if not is_closed_form(place.config.method):
        raise UserError(f"{title} cannot forget a class; methods that can: {', '.join(closed_forms())}")
    if label not in names:
        raise unknown_name("class", label, names)
    if len(names) == 1:
        raise UserError(f"{label!r} is the only class of {place.folder}; remove the folder instead")


def _without(place: Place, index: int) -> RunRecord:
    """The record without a class; a task that had no other goes as well."""
    record = _record(place)
    stream = record.stream
    own = next(task for task, end in enumerate(itertools.accumulate(stream.task_sizes)) if index < end)
    sizes = (size - (task == own) for task, size in enumerate(stream.task_sizes))
    names = stream.class_names[:index] + stream.class_names[index + 1 :]
    stream = replace(
        stream,
        task_sizes=tuple(size for size in sizes if size),
        class_names=names,
        class_order=tuple(range(len(names))),
        train_counts=stream.train_counts[:index] + stream.train_counts[index + 1 :],
    )
    notes = [note for note in record.notes if not note.startswith("Held-out images")]
    data = replace(record.data, checksum=short_hash(sorted(place.history.known)))
    return replace(record, data=data, stream=stream, notes=(*notes, held_out_note(place, [], list(names))))


def _record(place: Place) -> RunRecord:
    assert place.record is not None
    return place.record

"""The record of a run of our own engine, known before anything is loaded but the list of images."""

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np

from data_lt import LongTailedSet
from pilot_tal.backbone.load import Statistics, file_fingerprint, pixel_statistics, raw_pixels_note, statistics_text
from pilot_tal.config.settings import RunConfig
from pilot_tal.learners import LEARNERS
from pilot_tal.losses import LOSSES
from pilot_tal.record.run_record import (
    NO_LOSS,
    BackboneRecord,
    DataRecord,
    EngineRecord,
    LossRecord,
    MethodRecord,
    RunRecord,
    StreamRecord,
)
from pilot_tal.stream.tasks import ORDERS, class_order, equal_tasks, given_tasks, imbalanced_counts, incremental_tasks


def native_record(config: RunConfig, data: LongTailedSet) -> RunRecord:
    """What will be run; its name is that of the run's directory."""
    settings, loss = config.settings, config.loss
    title = "no loss" if loss.name == NO_LOSS else LOSSES[loss.name].title
    statistics = pixel_statistics(settings.normalize, settings.backbone, settings.fidelity)
    names = data.class_names
    training = (data.frame["split"] == "train").to_numpy()
    counts = np.bincount(data.frame["label"].to_numpy()[training], minlength=len(names)).tolist()
    order = class_order(settings.order, config.seed, names, counts)
    sizes = _task_sizes(config, len(names))
    return RunRecord(
        engine=EngineRecord("native", "native"),
        method=MethodRecord(
            config.method, LEARNERS[config.method].title, settings.fidelity, asdict(config.method_config)
        ),
        loss=LossRecord(loss.name, title, dict(loss.options)),
        seed=config.seed,
        data=DataRecord(data.name, data.title, data.checksum, data.law),
        backbone=BackboneRecord(
            settings.backbone,
            file_fingerprint(settings.weights, settings.backbone),
            settings.img_size,
            settings.precision,
        ),
        stream=StreamRecord(
            transform=settings.transform,
            normalize=statistics_text(statistics),
            order=settings.order if settings.order in ORDERS else file_fingerprint(settings.order),
            task_sizes=tuple(sizes),
            class_names=tuple(names[original] for original in order),
            class_order=tuple(order),
            train_counts=tuple(imbalanced_counts(sizes, [counts[original] for original in order], settings.task_rho)),
            task_rho=settings.task_rho,
        ),
        sampler=settings.sampler,
        posthoc=settings.posthoc,
        quick=config.quick,
        changed=dict(config.changed),
        notes=(*_notes(config, statistics), *data.notes),
    )


def _notes(config: RunConfig, statistics: Statistics | None) -> Iterator[str]:
    settings = config.settings
    if config.quick:
        yield "A quick run of a few steps: its numbers mean nothing."
    if raw := raw_pixels_note(statistics, settings.backbone, settings.weights, settings.fidelity):
        yield raw


def _task_sizes(config: RunConfig, classes: int) -> list[int]:
    settings = config.settings
    if settings.task_sizes is not None:
        return given_tasks(classes, settings.task_sizes)
    if settings.init_cls is None or settings.increment is None:
        return equal_tasks(classes, settings.tasks or 1)
    return incremental_tasks(classes, settings.init_cls, settings.increment)

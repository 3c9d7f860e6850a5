"""The runs of a study as jobs: label, record, directory, the command that repeats each, and what they share."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from data_lt import LongTailedSet, prepare
from pilot_tal.backbone import FrozenBackbone
from pilot_tal.backbone.load import Statistics, file_fingerprint, pixel_statistics, raw_pixels_note, statistics_text
from pilot_tal.config.grid import run_config
from pilot_tal.config.parse import as_typed
from pilot_tal.config.settings import AUTO, Hardware, RunConfig, StudyConfig
from pilot_tal.engine.hardware import choose_device
from pilot_tal.engine.trainer import Shared, Trainer, load_shared
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
from pilot_tal.stream.task import ORDERS, class_order, equal_tasks, given_tasks, imbalanced_counts, incremental_tasks


@dataclass
class Job:
    """One run of a study, and how far the launcher is with it; its record and path are derived once, here.

    Attributes:
        trainer: Built once, before anything starts.
        tries: How often it was started.
        not_before: Earliest time of its next start.
        failure: Why it failed; empty otherwise.
    """

    label: str
    config: RunConfig
    record: RunRecord
    path: Path
    trainer: Trainer | None = None
    tries: int = 0
    not_before: float = 0.0
    failure: str = ""

    @cached_property
    def images(self) -> int:
        """About how many images its training shows."""
        assert self.trainer is not None
        return self.trainer.settings.batch_size * sum(map(self.trainer.steps, self.trainer.tasks))


class Jobs:
    """Builds the jobs of a study from what they share: lists of images, decoded images, backbones.

    Args:
        study: The runs.
        device: The device that runs will find elsewhere; None: the study's, on this machine.
    """

    def __init__(self, study: StudyConfig, device: torch.device | None = None):
        self.study, self._device = study, device
        self._data: dict[tuple, LongTailedSet] = {}
        self._backbones: dict[tuple, FrozenBackbone] = {}
        self._shared: WeakValueDictionary[tuple, Shared] = WeakValueDictionary()  # freed with the last trainer

    @cached_property
    def all(self) -> list[Job]:
        """The jobs, in the order of the study."""
        runs, output = self.study.runs, Path(self.study.hardware.output)
        records = [native_record(config, self.data(config)) for config in runs]
        named = zip(labels(runs, [record.data.name for record in records]), runs, records, strict=True)
        return [Job(label, config, record, output / record.name) for label, config, record in named]

    def data(self, config: RunConfig) -> LongTailedSet:
        """The images of a run."""
        key = (config.dataset, config.data)
        if key not in self._data:
            self._data[key] = prepare(config.dataset, self.study.hardware.data_root, config.data)
        return self._data[key]

    def trainer(self, job: Job) -> Trainer:
        """The trainer of a job; bad settings raise here, before anything starts."""
        if job.trainer is None:
            shared = self._share(job.config)
            job.trainer = Trainer(job.config, self.study.hardware, shared, job.record, job.path)
        return job.trainer

    def _share(self, config: RunConfig) -> Shared:
        settings, hardware = config.settings, self.study.hardware
        vit = (settings.backbone, settings.weights, settings.img_size)
        key = (config.dataset, config.data, vit)
        if (shared := self._shared.get(key)) is None:
            device = self._device or choose_device(hardware.device)
            shared = load_shared(config, hardware, self.data(config), device, self._backbones.get(vit))
            self._backbones[vit], self._shared[key] = shared.backbone, shared
        return shared


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


def labels(runs: Sequence[RunConfig], datasets: Sequence[str]) -> list[str]:
    """A unique label per run: method, dataset, loss, seed, and every setting that varies among runs alike in these."""
    named = zip(runs, datasets, strict=True)
    titles = [f"{run.method} {dataset} {run.loss.name} seed {run.seed}" for run, dataset in named]
    values = [_flat(run) for run in runs]
    alike: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for title, own in zip(titles, values, strict=True):
        alike[title].append(own)
    found = []
    for title, own in zip(titles, values, strict=True):
        more = (f"{key}={as_typed(v)}" for key, v in own.items() if any(o[key] != v for o in alike[title]))
        found.append(" ".join([title, *more]))
    return found


def _flat(config: RunConfig) -> dict[str, Any]:
    options = {f"{config.loss.name}.{key}": value for key, value in config.loss.options.items()}
    return {**vars(config.settings), **vars(config.data), **vars(config.method_config), **options}


def run_arguments(config: RunConfig, hardware: Hardware, plugins: tuple[str, ...] = ()) -> list[str]:
    """`run l2p demo_lt loss=tal seed=1993 …`: the arguments of `pilot-tal` for exactly this run."""
    usual = vars(Hardware()) | ({"data_root": None} if os.environ.get("PILOT_TAL_DATA") else {})
    given = dict(config.given) | {key: value for key, value in vars(hardware).items() if value != usual[key]}
    loss = [] if config.loss.name == NO_LOSS else [f"loss={config.loss.name}"]
    items = [f"{'epochs' if key == 'tuned_epoch' else key}={as_typed(value)}" for key, value in given.items()]
    named = [f"plugins={','.join(plugins)}"] if plugins else []
    quick = ["--quick"] if config.quick else []
    return ["run", config.method, config.dataset, *loss, f"seed={config.seed}", *items, *named, *quick]


def from_arguments(arguments: Sequence[str]) -> StudyConfig:
    """The study, of one run, that `run_arguments` describe."""
    _, method, dataset, *rest = arguments
    return run_config(method, dataset, [item for item in rest if item != "--quick"], "--quick" in rest)


def for_other_launcher(hardware: Hardware) -> Hardware:
    """The settings of a run whose slot another launcher chooses."""
    return replace(hardware, jobs=AUTO, gpus=None)

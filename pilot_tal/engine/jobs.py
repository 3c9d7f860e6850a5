"""The runs of a study as jobs: label, record, directory, the command that repeats each, and what they share."""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from data_lt import LongTailedSet, prepare
from pilot_tal.backbone import FrozenBackbone
from pilot_tal.backbone.load import file_fingerprint, pixel_statistics, raw_pixels_note, statistics_text
from pilot_tal.config.parse import as_typed
from pilot_tal.config.settings import Hardware, RunConfig, StudyConfig
from pilot_tal.engine.hardware import choose_device
from pilot_tal.engine.trainer import Shared, Trainer, load_shared
from pilot_tal.learners import LEARNERS
from pilot_tal.losses import LOSSES
from pilot_tal.record import run_record as records
from pilot_tal.record.run_record import NO_LOSS, RunRecord
from pilot_tal.stream.task import ORDERS, class_order, equal_tasks, given_tasks, imbalanced_counts, incremental_tasks


@dataclass
class Job:
    """One run of a study, and how far the launcher is with it; its record and path are derived once, here."""

    label: str
    config: RunConfig
    record: RunRecord
    path: Path
    trainer: Trainer | None = None  # built once, before anything starts
    killed: bool = False
    not_before: float = 0.0  # time of its next start
    failure: str = ""

    @cached_property
    def images(self) -> int:
        """About how many images its training shows."""
        assert self.trainer is not None
        return self.trainer.settings.batch_size * sum(map(self.trainer.steps, self.trainer.tasks))


class Jobs:
    """Builds the jobs of a study from what they share: images, backbones, and a device, if it is not found here."""

    def __init__(self, study: StudyConfig, device: torch.device | None = None):
        self.study, self.device = study, device or choose_device(study.hardware.device)
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
            config, hardware = job.config, self.study.hardware
            vit = (config.settings.backbone, config.settings.weights, config.settings.img_size)
            key = (config.dataset, config.data, vit)
            if (shared := self._shared.get(key)) is None:
                shared = load_shared(config, hardware, self.data(config), self.device, self._backbones.get(vit))
                self._backbones[vit], self._shared[key] = shared.backbone, shared
            job.trainer = Trainer(config, hardware, shared, job.record, job.path)
        return job.trainer


def native_record(config: RunConfig, data: LongTailedSet) -> RunRecord:
    """What will be run; its name is that of the run's directory."""
    settings, loss, learner = config.settings, config.loss, LEARNERS[config.method]
    statistics = pixel_statistics(settings.normalize, settings.backbone, settings.fidelity)
    names = data.class_names
    training = (data.frame["split"] == "train").to_numpy()
    counts = np.bincount(data.frame["label"].to_numpy()[training], minlength=len(names)).tolist()
    order = class_order(settings.order, config.seed, names, counts)
    sizes = _task_sizes(config, len(names))
    title = "no loss" if loss.name == NO_LOSS else LOSSES[loss.name].title
    weights = file_fingerprint(settings.weights, settings.backbone)
    quick = "A quick run of a few steps: its numbers mean nothing." if config.quick else None
    raw = raw_pixels_note(statistics, settings.backbone, settings.weights, settings.fidelity)
    return RunRecord(
        engine=records.EngineRecord("native", "native"),
        method=records.MethodRecord(config.method, learner.title, settings.fidelity, asdict(config.method_config)),
        loss=records.LossRecord(loss.name, title, dict(loss.options)),
        seed=config.seed,
        data=records.DataRecord(data.name, data.title, data.checksum, data.law),
        backbone=records.BackboneRecord(settings.backbone, weights, settings.img_size, settings.precision),
        stream=records.StreamRecord(
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
        notes=(*filter(None, (quick, raw)), *data.notes),
    )


def _task_sizes(config: RunConfig, classes: int) -> list[int]:
    settings = config.settings
    if settings.task_sizes is not None:
        return given_tasks(classes, settings.task_sizes)
    if settings.init_cls is None or settings.increment is None:
        return equal_tasks(classes, settings.tasks or 1)
    return incremental_tasks(classes, settings.init_cls, settings.increment)


def labels(runs: Sequence[RunConfig], datasets: Sequence[str]) -> list[str]:
    """A unique label per run: method, dataset, loss, seed, and every setting that varies among runs alike in these."""
    alike: dict[str, list[dict[str, Any]]] = defaultdict(list)
    rows = []
    for run, dataset in zip(runs, datasets, strict=True):
        title = f"{run.method} {dataset} {run.loss.name} seed {run.seed}"
        options = {f"{run.loss.name}.{key}": value for key, value in run.loss.options.items()}
        rows.append((title, {**vars(run.settings), **vars(run.data), **vars(run.method_config), **options}))
        alike[title].append(rows[-1][1])
    return [
        " ".join([title, *(f"{key}={as_typed(v)}" for key, v in own.items() if any(o[key] != v for o in alike[title]))])
        for title, own in rows
    ]


def run_arguments(config: RunConfig, hardware: Hardware, plugins: tuple[str, ...] = ()) -> list[str]:
    """`run l2p demo_lt loss=tal seed=1993 …`: the arguments of `pilot-tal` for exactly this run."""
    usual = vars(Hardware()) | ({"data_root": None} if os.environ.get("PILOT_TAL_DATA") else {})
    given = dict(config.given) | {key: value for key, value in vars(hardware).items() if value != usual[key]}
    loss = [] if config.loss.name == NO_LOSS else [f"loss={config.loss.name}"]
    items = [f"{'epochs' if key == 'tuned_epoch' else key}={as_typed(value)}" for key, value in given.items()]
    named = [f"plugins={','.join(plugins)}"] if plugins else []
    quick = ["--quick"] if config.quick else []
    return ["run", config.method, config.dataset, *loss, f"seed={config.seed}", *items, *named, *quick]

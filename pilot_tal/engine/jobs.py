"""The runs of a study as jobs: label, record, directory, the command that repeats each, and what they share."""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from data_lt import LongTailedSet, prepare
from pilot_tal.backbone import FrozenBackbone
from pilot_tal.config.grid import run_config
from pilot_tal.config.parse import as_typed
from pilot_tal.config.settings import AUTO, Hardware, RunConfig, StudyConfig
from pilot_tal.engine.hardware import choose_device
from pilot_tal.engine.native_record import native_record
from pilot_tal.engine.trainer import Shared, Trainer, load_shared
from pilot_tal.record.run_record import NO_LOSS, RunRecord


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
        self._shared: dict[tuple, Shared] = {}

    @cached_property
    def all(self) -> list[Job]:
        """The jobs, in the order of the study."""
        runs, output = self.study.runs, Path(self.study.hardware.output)
        records = [native_record(config, self.data(config)) for config in runs]
        named = zip(labels(runs), runs, records, strict=True)
        return [Job(label, config, record, output / record.name) for label, config, record in named]

    def data(self, config: RunConfig) -> LongTailedSet:
        """The images of a run."""
        key = _keys(config)[0]
        if key not in self._data:
            self._data[key] = prepare(config.dataset, self.study.hardware.data_root, config.data)
        return self._data[key]

    def shared(self, config: RunConfig) -> Shared:
        """What a run shares with others."""
        data, vit = _keys(config)
        if (data, vit) not in self._shared:
            hardware = self.study.hardware
            device = self._device or choose_device(hardware.device)
            found = load_shared(config, hardware, self.data(config), device, self._backbones.get(vit))
            self._backbones[vit], self._shared[data, vit] = found.backbone, found
        return self._shared[data, vit]

    def keep_only(self, needed: Iterable[Job]) -> None:
        """Frees the decoded images that none of these jobs needs."""
        keys = {_keys(job.config) for job in needed}
        self._shared = {key: shared for key, shared in self._shared.items() if key in keys}

    def shared_bytes(self) -> int:
        """Memory of the backbones and of the largest set of images, if they are kept decoded."""
        backbones = sum(tensor.nbytes for vit in self._backbones.values() for tensor in vit.state_dict().values())
        return backbones + max(shared.store.decoded_bytes() for shared in self._shared.values())

    def trainer(self, job: Job) -> Trainer:
        """The trainer of a job; bad settings raise here, before anything starts."""
        if job.trainer is None:
            shared = self.shared(job.config)
            job.trainer = Trainer(job.config, self.study.hardware, shared, job.record, job.path)
        return job.trainer


def _keys(config: RunConfig) -> tuple[tuple, tuple]:
    """What tells images apart, and what backbones."""
    settings = config.settings
    return (config.dataset, *astuple(config.data)), (settings.backbone, settings.weights, settings.img_size)


def labels(runs: Sequence[RunConfig]) -> list[str]:
    """A unique label per run: method, dataset, loss, seed, and every setting that varies among runs alike in these."""
    titles = [f"{run.method} {run.dataset} {run.loss.name} seed {run.seed}" for run in runs]
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

"""The cells of a plan: what each is called, where it goes, the command that repeats it, and what cells share."""

import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from data_lt import LongTailedSet
from pilot_tal.backbone import FrozenBackbone
from pilot_tal.config.defaults import defaults
from pilot_tal.config.grid import run_config
from pilot_tal.config.parse import as_typed
from pilot_tal.config.settings import AUTO, QUICK_EPOCHS, Machine, Plan, RunConfig
from pilot_tal.engine.native_record import native_record
from pilot_tal.engine.shared import Shared, choose_device, find_data, load_shared
from pilot_tal.engine.trainer import Trainer
from pilot_tal.losses import LOSSES
from pilot_tal.record.run_record import NO_LOSS
from pilot_tal.schema import defaults_of


@dataclass
class Cell:
    """One run of a plan, on its way; `images` are those that its training shows, about."""

    label: str
    config: RunConfig
    path: Path
    images: int = 0
    tries: int = 0
    not_before: float = 0.0
    failure: str = ""
    trainer: Trainer | None = None


class Cells:
    """Makes the runs of a plan out of what they share: lists of images, decoded images, ViTs.

    Args:
        plan: The runs.
        device: What the runs will find elsewhere; without it the plan's is looked for on this machine.
    """

    def __init__(self, plan: Plan, device: torch.device | None = None):
        self.plan, self._device = plan, device
        self._data: dict[tuple, LongTailedSet] = {}
        self._backbones: dict[tuple, FrozenBackbone] = {}
        self._shared: dict[tuple, Shared] = {}

    def all(self) -> list[Cell]:
        """The cells in the plan's order."""
        labelled = zip(labels(self.plan.runs), self.plan.runs, strict=True)
        return [Cell(label, config, self.path(config)) for label, config in labelled]

    def data_of(self, config: RunConfig) -> LongTailedSet:
        """The images of a run."""
        key = self._keys(config)[0]
        if key not in self._data:
            self._data[key] = find_data(config.dataset, config.data, self.plan.machine.data_root)
        return self._data[key]

    def path(self, config: RunConfig) -> Path:
        """The directory of a run."""
        return Path(self.plan.machine.output) / native_record(config, self.data_of(config)).name

    def shared(self, config: RunConfig) -> Shared:
        """What a run shares with others."""
        data, vit = self._keys(config)
        if (data, vit) not in self._shared:
            device = self._device or choose_device(self.plan.machine.device)
            found = load_shared(config, self.plan.machine, self.data_of(config), device, self._backbones.get(vit))
            self._backbones[vit], self._shared[data, vit] = found.backbone, found
        return self._shared[data, vit]

    def forget_others(self, needed: Iterable[RunConfig]) -> None:
        """Lets go of the decoded images that none of these runs needs."""
        keys = {self._keys(config) for config in needed}
        self._shared = {key: shared for key, shared in self._shared.items() if key in keys}

    def shared_bytes(self) -> int:
        """Memory of the ViTs and of the largest set of images, if they are kept decoded."""
        vits = sum(tensor.nbytes for vit in self._backbones.values() for tensor in vit.state_dict().values())
        return vits + max(shared.store.decoded_bytes() for shared in self._shared.values())

    def run(self, config: RunConfig) -> Trainer:
        """A run, ready to be executed."""
        return Trainer(config, self.plan.machine, self.shared(config))

    @staticmethod
    def _keys(config: RunConfig) -> tuple[tuple, tuple]:
        """What tells images apart, and what ViTs."""
        settings = config.settings
        return (config.dataset, *astuple(config.data)), (settings.backbone, settings.weights, settings.img_size)


def labels(runs: tuple[RunConfig, ...]) -> list[str]:
    """A few words for each run, no two alike: method, dataset, loss, seed, and what else varies among its like."""
    titles = [f"{run.method} {run.dataset} {run.loss.name} seed {run.seed}" for run in runs]
    alike: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for title, run in zip(titles, runs, strict=True):
        alike[title].append(_flat(run))
    found = []
    for title, run in zip(titles, runs, strict=True):
        more = {key: value for key, value in _flat(run).items() if any(o[key] != value for o in alike[title])}
        found.append(" ".join([title, *(f"{key}={as_typed(value)}" for key, value in more.items())]))
    return found


def _flat(config: RunConfig) -> dict[str, Any]:
    options = {f"{config.loss.name}.{key}": value for key, value in config.loss.options.items()}
    return {**vars(config.settings), **vars(config.data), **vars(config.method_config), **options}


def run_arguments(config: RunConfig, machine: Machine, plugins: tuple[str, ...] = ()) -> list[str]:
    """`run l2p demo_lt loss=tal seed=1993 …`: the arguments of `pilot-tal` that make this run, and no other."""
    usual = {**defaults(config.method, config.dataset), **defaults_of(type(config.data))}
    if config.quick:
        usual["tuned_epoch"] = QUICK_EPOCHS
    if config.settings.tasks is None:
        usual["tasks"] = None  # init_cls with increment or task_sizes took its place
    if config.loss.name != NO_LOSS:
        usual |= {f"{config.loss.name}.{key}": value for key, value in defaults_of(LOSSES[config.loss.name]).items()}
    changed = {key: value for key, value in _flat(config).items() if value != usual.get(key)}
    here = vars(Machine()) | ({"data_root": None} if os.environ.get("PILOT_TAL_DATA") else {})
    changed |= {key: value for key, value in vars(machine).items() if value != here[key]}
    loss = [] if config.loss.name == NO_LOSS else [f"loss={config.loss.name}"]
    named = [f"plugins={','.join(plugins)}"] if plugins else []
    items = [f"{'epochs' if key == 'tuned_epoch' else key}={as_typed(value)}" for key, value in changed.items()]
    quick = ["--quick"] if config.quick else []
    return ["run", config.method, config.dataset, *loss, f"seed={config.seed}", *items, *named, *quick]


def anywhere(machine: Machine) -> Machine:
    """The machine's settings for a run that another launcher finds a place for."""
    return replace(machine, jobs=AUTO, gpus=None)


def plan_of(arguments: Sequence[str]) -> Plan:
    """The plan, of one run, that `run_arguments` stand for."""
    _, method, dataset, *rest = arguments
    return run_config(method, dataset, [item for item in rest if item != "--quick"], "--quick" in rest)


def command_line(*arguments: str) -> str:
    """A command of `pilot-tal` that can be typed as it is: with the program that the user called."""
    called = sys.argv[0]
    program = [called] if Path(called).stem == "pilot-tal" else [sys.executable, "-m", "pilot_tal"]
    return shlex.join([*program, *arguments])

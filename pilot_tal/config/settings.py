"""What a run is made of, as dataclasses: the schema of `key=value`, with types, ranges, help and defaults."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import yaml

from data_lt import CARDS
from data_lt.errors import UserError
from data_lt.options import DataOptions
from pilot_tal.backbone import DEFAULT_BACKBONE
from pilot_tal.backbone.load import default_weights
from pilot_tal.config.parse import ALIASES
from pilot_tal.learners import FIDELITIES, LEARNERS, MethodConfig
from pilot_tal.learners.posthoc import POSTHOC
from pilot_tal.schema import Rule, build, defaults_of, settings_of
from pilot_tal.stream.batches import SAMPLERS
from pilot_tal.stream.store import CACHE_CHOICES
from pilot_tal.stream.transforms import TRANSFORMS

PRECISIONS = ("fp32", "tf32", "bf16")
LOGS = ("none", "tensorboard", "wandb", "trackio")
AUTO = "auto"
QUICK_STEPS, QUICK_TEST_IMAGES, QUICK_EPOCHS = 2, 2, 2
_DEVICES = r"auto|cpu|mps|cuda(:\d{1,3})?"
_ONE_OR_THREE = r"(\d*\.?\d+|\[\d*\.?\d+,\d*\.?\d+,\d*\.?\d+\])"


@dataclass(frozen=True)
class RunSettings:
    """What every method has: the stream, the ViT and the arithmetic."""

    fidelity: Annotated[str, Rule("as LAMDA-PILOT behaves, or with its defects repaired", choices=FIDELITIES)] = "pilot"
    tasks: Annotated[int | None, Rule("tasks of equally many classes; 1 is joint training", 1, 100_000)] = 5
    init_cls: Annotated[int | None, Rule("classes of the first task, in place of tasks", 1, 100_000)] = None
    increment: Annotated[int | None, Rule("classes of each further task, with init_cls", 1, 100_000)] = None
    task_sizes: Annotated[
        tuple[int, ...] | None, Rule("classes of each task, such as 20,5,10, in place of tasks", 1, 100_000, shortest=1)
    ] = None
    task_rho: Annotated[float, Rule("factor by which the last task's classes are rarer, others by less", 1, 1e6)] = 1.0
    order: Annotated[str, Rule("of classes: shuffled (by seed), head_first, tail_first, a file of names")] = "shuffled"
    backbone: Annotated[str, Rule("a timm model, demo_vit, or one that a plugin registers")] = DEFAULT_BACKBONE
    weights: Annotated[str, Rule("hub (timm's), random, or a file (.safetensors, .pth, .npz)")] = "hub"
    img_size: Annotated[int | None, Rule("pixels of the ViT's images; null: the ViT's own", 1, 4096)] = None
    transform: Annotated[str, Rule("crops and flips", choices=TRANSFORMS)] = "pilot"
    normalize: Annotated[
        str,
        Rule(
            "auto, weights (as they expect), none, or MEAN/STD such as 0.5/0.5 or [0.5,0.4,0.4]/[0.2,0.2,0.2]",
            pattern=rf"auto|weights|none|{_ONE_OR_THREE}/{_ONE_OR_THREE}",
        ),
    ] = "auto"
    sampler: Annotated[str, Rule("natural: each image once; others: rare classes more", choices=(*SAMPLERS,))] = (
        "natural"
    )
    posthoc: Annotated[str, Rule("correction of the classifier at evaluation", choices=POSTHOC)] = "none"
    precision: Annotated[str, Rule("arithmetic; tf32 needs a CUDA device", choices=PRECISIONS)] = "fp32"


@dataclass(frozen=True)
class Hardware:
    """Where a run happens; none of it changes the result (but `threads` and `eval_batch_size`, in the last bits)."""

    data_root: Annotated[str, Rule("where the images are; else PILOT_TAL_DATA of the environment")] = "data"
    output: Annotated[str, Rule("where the runs go")] = "runs"
    device: Annotated[str, Rule("auto, cpu, mps, cuda or cuda:NUMBER", pattern=_DEVICES)] = "auto"
    workers: Annotated[int | None, Rule("processes that decode images; null: by device", 0, 256)] = None
    cache: Annotated[str, Rule("keep decoded images in memory", choices=CACHE_CHOICES)] = "auto"
    threads: Annotated[int | None, Rule("threads on a CPU; null: all cores, or 1 with several jobs", 1, 1024)] = None
    eval_batch_size: Annotated[
        int | str, Rule("images evaluated at a time; auto: 256 on a GPU, else batch_size", 1, 65_536, words=(AUTO,))
    ] = AUTO
    jobs: Annotated[int | str, Rule("runs at a time; auto: by GPUs, cores and memory", 1, 4096, words=(AUTO,))] = AUTO
    gpus: Annotated[tuple[int, ...] | None, Rule("GPUs to use; null: all", 0, 1024, unique=True, shortest=1)] = None
    jobs_per_gpu: Annotated[int, Rule("runs at a time on one GPU", 1, 64)] = 1
    log: Annotated[str, Rule("where the runs are logged to as well", choices=LOGS)] = "none"


@dataclass(frozen=True)
class LossConfig:
    """A loss with all its options; `none` for a method that trains nothing."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunConfig:
    """One run: everything that shapes its result. Where and how fast it runs is `Hardware`'s.

    `changed` holds the settings that are not defaults: name → [value, default]; `given` those that were given, defaults
    or not: what a command that repeats the run must name.
    """

    method: str
    dataset: str
    loss: LossConfig
    seed: int
    settings: RunSettings
    data: DataOptions
    method_config: MethodConfig
    quick: bool = False
    changed: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class StudyConfig:
    """What a command asks for: runs, the hardware for them, and the loss that others are compared with."""

    runs: tuple[RunConfig, ...]
    hardware: Hardware
    plugins: tuple[str, ...] = ()
    baseline: str = "ce"


def defaults(method: str, dataset: str, backbone: str | None = None) -> dict[str, Any]:
    """Run settings and the method's own, by name: those of the method, then the dataset's, then of both together.

    Weights and image size of the default backbone do not apply to another `backbone` that the user asked for.
    """
    config = LEARNERS[method].config_class
    known = {**settings_of(RunSettings), **settings_of(config)}
    values = {**defaults_of(RunSettings), **defaults_of(config), **_method_values(method)}
    of_card = {ALIASES.get(key, key): value for key, value in CARDS[dataset].defaults.items()}
    values |= {key: value for key, value in of_card.items() if key in known} | _method_values(method, dataset)
    if backbone not in (None, values["backbone"]):
        values |= {"weights": default_weights(backbone), "img_size": None}
    return {key: known[key].check(value) for key, value in values.items()}


def method_config(method: str, dataset: str | None = None, **changes: Any) -> MethodConfig:
    """The method's settings with some changed."""
    values = {**_method_values(method), **(_method_values(method, dataset) if dataset else {})}
    made = LEARNERS[method].config_class
    return build(made, {**{k: v for k, v in values.items() if k in settings_of(made)}, **changes}, method)


def _method_values(method: str, dataset: str | None = None) -> dict[str, Any]:
    """What a method's YAML file says: for all datasets, or its section for one."""
    values = dict(_read(_config_file(method)))
    sections = values.pop("datasets", None) or {}
    return values if dataset is None else dict(sections.get(dataset) or {})


@cache
def _read(path: Path) -> dict[str, Any]:
    values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold settings, one a line")
    return values


def _config_file(method: str) -> Path:
    """`configs/methods/` beside the package in a checkout, inside it when installed, or beside a plugin's module."""
    package = Path(__file__).resolve().parents[1]
    module = getattr(sys.modules[LEARNERS[method].__module__], "__file__", None) or __file__
    for root in (package / "configs" / "methods", package.parent / "configs" / "methods", Path(module).parent):
        if (root / f"{method}.yaml").is_file():
            return root / f"{method}.yaml"
    raise UserError(f"{method} has no settings: {method}.yaml is neither in configs/methods nor beside its module")

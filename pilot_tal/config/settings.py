"""What a run is made of, as dataclasses: they are the schema of `key=value`, with types, ranges, defaults and help."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from data_lt.options import DataOptions
from pilot_tal.backbone import DEFAULT_BACKBONE
from pilot_tal.learners import FIDELITIES, MethodConfig
from pilot_tal.learners.posthoc import POSTHOC
from pilot_tal.schema import Rule
from pilot_tal.stream.batches import SAMPLERS
from pilot_tal.stream.store import CACHE_CHOICES
from pilot_tal.stream.transforms import TRANSFORMS

DEFAULT_SEEDS = (1993, 1994, 1995)
DEFAULT_LOSSES = ("ce", "tal", "tal_auto")
DEFAULT_REFERENCES = ("simplecil", "plda")
BASELINE = "ce"
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
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
    task_rho: Annotated[
        float, Rule("classes of the last task are rarer by this factor, those between by less", 1, 1e6)
    ] = 1.0
    order: Annotated[str, Rule("of the classes: shuffled (by seed), head_first, tail_first, or a file of names")] = (
        "shuffled"
    )
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
    sampler: Annotated[
        str,
        Rule("natural: each training image once per epoch; others draw rare classes more often", choices=(*SAMPLERS,)),
    ] = "natural"
    posthoc: Annotated[str, Rule("correction of the classifier at evaluation", choices=POSTHOC)] = "none"
    precision: Annotated[str, Rule("arithmetic; all but fp32 want a GPU, bf16 works anywhere", choices=PRECISIONS)] = (
        "fp32"
    )


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
    jobs: Annotated[
        int | str, Rule("runs at a time; auto: by GPUs, or by cores and memory", 1, 4096, words=(AUTO,))
    ] = AUTO
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
    """One run: everything that shapes its result. Where and how fast it runs is `Hardware`'s."""

    method: str
    dataset: str
    loss: LossConfig
    seed: int
    settings: RunSettings
    data: DataOptions
    method_config: MethodConfig
    quick: bool = False
    changed: Mapping[str, Any] = field(default_factory=dict)
    """Settings that are not the defaults of method, dataset and loss: name → [value, default]."""
    given: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Settings that were given, defaults or not: what a command that repeats the run must name."""


@dataclass(frozen=True)
class StudyConfig:
    """What a command asks for: runs, the hardware for them, and the loss that others are compared with."""

    runs: tuple[RunConfig, ...]
    hardware: Hardware
    plugins: tuple[str, ...] = ()
    baseline: str = BASELINE

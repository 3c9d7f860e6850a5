"""`key=value` settings → what to run. Every key is checked before anything starts."""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pilot_tal.errors import PilotTalError, unknown_name
from pilot_tal.files import checksum

DEVICES = ("auto", "cpu", "cuda", "mps")
DEFAULT_SEEDS = (1993, 1994, 1995)
QUICK_STEPS, QUICK_TEST_IMAGES, QUICK_EPOCHS = 2, 2, 2


@dataclass(frozen=True)
class DataConfig:
    """How the long-tailed set is made of the images; None means the dataset's own value."""

    classes: str = "all"
    manifest: str | None = None
    folder: str | None = None
    law: str | None = None
    shape: float | None = None
    n_max: int | None = None
    n_min: int | None = None
    test_per_class: int | None = None
    split_seed: int | None = None


@dataclass(frozen=True)
class RunConfig:
    """One run. Everything here shapes its result and so its name; where and how fast it runs is `Machine`'s."""

    method: str
    dataset: str
    loss: str
    seed: int
    fidelity: str = "pilot"
    tasks: int = 5
    init_cls: int | None = None
    increment: int | None = None
    backbone: str = ""
    weights: str = ""
    img_size: int | None = None
    transform: str = ""
    precision: str = "fp32"
    quick: bool = False
    data: DataConfig = field(default_factory=DataConfig)
    settings: Mapping[str, Any] = field(default_factory=dict)
    loss_options: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Plain values, as they stand in the run directory."""
        values = asdict(self)
        values["loss"] = {"name": values.pop("loss"), **values.pop("loss_options")}
        values["weights"] = _fingerprint(self.weights)
        values["data"]["manifest"] = _fingerprint(self.data.manifest)
        if values["init_cls"] is not None:
            values["tasks"] = None
        return values


@dataclass(frozen=True)
class Machine:
    """Where a run happens; none of it changes the result."""

    data_root: str = ""
    output: str = "runs"
    device: str = "auto"
    workers: int | None = None
    cache: str = "auto"


@dataclass(frozen=True)
class Plan:
    """What a command line asks for: runs over losses and seeds on one machine."""

    runs: tuple[RunConfig, ...]
    machine: Machine


_PLAN_KEYS = ("losses", "loss", "seeds", "seed", "epochs")
_RUN_KEYS = {
    "fidelity": str,
    "tasks": int,
    "init_cls": int,
    "increment": int,
    "backbone": str,
    "weights": str,
    "img_size": int,
    "transform": str,
    "precision": str,
}


def make_plan(method: str, dataset: str, items: Iterable[str] = (), quick: bool = False) -> Plan:
    """Reads `key=value` items over the defaults of method and dataset.

    Raises:
        PilotTalError: an unknown method, dataset, loss or key (with the nearest name), or a bad value.
    """
    from data_lt import CARDS
    from pilot_tal.images import TRANSFORMS
    from pilot_tal.learners import FIDELITIES, METHODS
    from pilot_tal.training import PRECISIONS

    _known("method", method, METHODS)
    _known("dataset", dataset, CARDS)
    values = _parse(items)
    if "tuned_epoch" in values:  # LAMDA-PILOT's name
        if "epochs" in values:
            raise PilotTalError("epochs and tuned_epoch are one setting; give epochs alone")
        values["epochs"] = values.pop("tuned_epoch")
    losses, seeds = _losses_and_seeds(values)
    options = _loss_options(values, losses)
    machine = _machine(values)
    defaults = dict(dataset_defaults(dataset, method))
    epochs = defaults.pop("epochs", None)
    if quick:
        epochs = QUICK_EPOCHS
    if epochs is not None:
        values.setdefault("epochs", str(epochs))
    base = {**defaults, **_typed(values, _RUN_KEYS)}
    data = DataConfig(**_typed(values, _types(DataConfig)))
    _known("fidelity", base.get("fidelity", "pilot"), FIDELITIES)
    _known("transform", base["transform"], TRANSFORMS)
    _known("precision", base.get("precision", "fp32"), PRECISIONS)
    if ("init_cls" in base) != ("increment" in base) or {"init_cls", "tasks"} <= base.keys():
        raise PilotTalError("init_cls and increment go together; give both, or tasks alone")
    settings = _method_settings(method, dataset, values)
    runs = [
        RunConfig(method, dataset, loss, seed, quick=quick, data=data, settings=settings, loss_options=chosen, **base)
        for seed in seeds
        for loss, chosen in options.items()
    ]
    return Plan(tuple(runs), machine)


def all_keys(method: str) -> list[str]:
    """Every key that `key=value` takes for a method."""
    from pilot_tal.learners.config import CONFIGS
    from pilot_tal.losses import LOSSES, loss_options

    keys = [*_PLAN_KEYS, *_RUN_KEYS, *_types(DataConfig), *_types(Machine)]
    keys += [entry.name for entry in fields(CONFIGS[method]) if entry.name != "tuned_epoch"]
    return keys + [f"{loss}.{option}" for loss in LOSSES for option in loss_options(loss)]


@cache
def dataset_defaults(dataset: str, method: str) -> dict[str, Any]:
    """`configs/datasets/<dataset>.yaml`, with its section for the method."""
    values = yaml.safe_load(config_path("datasets", dataset).read_text(encoding="utf-8"))
    by_method = values.pop("methods", None) or {}
    return {**values, **by_method.get(method, {})}


def config_path(kind: str, name: str) -> Path:
    """A file of `configs/`: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).resolve().parent
    for root in (package / "configs", package.parent / "configs"):
        path = root / kind / f"{name}.yaml"
        if path.is_file():
            return path
    raise PilotTalError(f"configs/{kind}/{name}.yaml is missing from this installation of pilot_tal")


def _parse(items: Iterable[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for item in items:
        key, sign, text = item.partition("=")
        if not sign or not key:
            raise PilotTalError(f"settings are written key=value, got {item!r}")
        if key in values:
            raise PilotTalError(f"{key} is given twice")
        values[key] = text
    return values


def _value(key: str, text: str) -> Any:
    """A number, a truth value, a list or text, as written."""
    for kind in (int, float):
        try:
            number = kind(text)  # 1e-3 too, which YAML takes for text
        except ValueError:
            continue
        return _finite(key, number)
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise PilotTalError(f"{key}={text} cannot be read: {str(error).splitlines()[0]}") from error


def _losses_and_seeds(values: dict[str, str]) -> tuple[list[str], list[int]]:
    for one, many in (("loss", "losses"), ("seed", "seeds")):
        if one in values and many in values:
            raise PilotTalError(f"give {one} or {many}, not both")
    from pilot_tal.losses import LOSSES

    losses = _names(values.pop("losses", values.pop("loss", "ce,tal")))
    for loss in losses:
        _known("loss", loss, LOSSES)
    seeds = _names(values.pop("seeds", values.pop("seed", ",".join(map(str, DEFAULT_SEEDS)))))
    try:
        numbers = [int(seed) for seed in seeds]
    except ValueError as error:
        raise PilotTalError(f"seeds must be whole numbers with commas between, got {seeds}") from error
    if min(numbers, default=0) < 0 or max(numbers, default=0) >= 2**32:
        raise PilotTalError(f"seeds must be 0 to 2^32 - 1, got {numbers}")
    if not losses or not numbers:
        raise PilotTalError("losses and seeds need at least one value each")
    return list(dict.fromkeys(losses)), list(dict.fromkeys(numbers))


def _names(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _loss_options(values: dict[str, str], losses: list[str]) -> dict[str, dict[str, Any]]:
    """The full options of each chosen loss: defaults, then `loss.option=value`."""
    from pilot_tal.losses import LOSSES, build_loss, loss_options

    chosen: dict[str, dict[str, Any]] = {loss: {} for loss in losses}
    for key in [key for key in values if key.partition(".")[0] in LOSSES and "." in key]:
        loss, _, option = key.partition(".")
        if loss not in chosen:
            raise PilotTalError(f"{key} is set, but {loss} is not among the losses {', '.join(losses)}")
        chosen[loss][option] = _value(key, values.pop(key))
    for loss, options in chosen.items():
        build_loss(loss, **options)  # refuses unknown options and values out of range
        defaults = loss_options(loss)
        numbers = {key: float(value) for key, value in options.items() if isinstance(defaults[key], float)}
        chosen[loss] = {**defaults, **options, **numbers}  # 1 and 1.0 are one run
    return chosen


def _machine(values: dict[str, str]) -> Machine:
    from pilot_tal.images import CACHE_CHOICES

    machine = Machine(**_typed(values, _types(Machine)))
    kind, _, index = machine.device.partition(":")
    _known("device", kind, DEVICES)
    if index and not (kind == "cuda" and index.isdecimal()):
        raise PilotTalError(f"device must be {', '.join(DEVICES)} or cuda:NUMBER, got {machine.device!r}")
    _known("cache", machine.cache, CACHE_CHOICES)
    if machine.workers is not None and machine.workers < 0:
        raise PilotTalError(f"workers must be at least 0, got {machine.workers}")
    root = machine.data_root or os.environ.get("PILOT_TAL_DATA") or "data"
    return replace(machine, data_root=root)


def _method_settings(method: str, dataset: str, values: dict[str, str]) -> dict[str, Any]:
    """What is left must be settings of the method, under LAMDA-PILOT's names; `epochs` is its `tuned_epoch`."""
    from pilot_tal.learners import config_dict, load_method_config

    if "epochs" in values:
        values["tuned_epoch"] = epochs = values.pop("epochs")
        if not epochs.isdecimal() or int(epochs) < 1:
            raise PilotTalError(f"epochs must be a whole number of at least 1, got {epochs!r}")
    known = set(all_keys(method)) | {"tuned_epoch"}
    for key in values:
        if key not in known:
            raise unknown_name("key", key, known)
    return config_dict(load_method_config(method, dataset, {key: _value(key, text) for key, text in values.items()}))


@cache
def _fingerprint(file: str | None) -> str | None:
    """A file's name and checksum, so that the run's name follows what is in it; other values as they are."""
    if file == "bundled":
        from pilot_tal.demo_vit import demo_vit_path

        file = str(demo_vit_path())
    if file is None or not Path(file).is_file():
        return file
    return f"{Path(file).name}@{checksum(file)[:16]}"


def _finite(key: str, number: float) -> float:
    if not math.isfinite(number):
        raise PilotTalError(f"{key} must be finite, got {number}")
    return number


def _typed(values: dict[str, str], types: Mapping[str, type]) -> dict[str, Any]:
    """Takes the keys of `types` out of `values`, each as its type."""
    taken = {}
    for key in [key for key in types if key in values]:
        text, kind = values.pop(key), types[key]
        if not text:
            raise PilotTalError(f"{key} has no value; write {key}=VALUE or leave it out")
        try:
            taken[key] = kind(text) if kind is str else _finite(key, kind(text))
        except PilotTalError:
            raise
        except ValueError as error:
            name = {int: "a whole number", float: "a number"}[kind]
            raise PilotTalError(f"{key} must be {name}, got {text!r}") from error
    return taken


def _types(cls: type) -> dict[str, type]:
    """Field → str, int or float, from annotations such as `int | None`."""
    plain = {str: str, int: int, float: float}
    kinds = {}
    for entry in fields(cls):
        options = getattr(entry.type, "__args__", (entry.type,))
        kinds[entry.name] = next(plain[option] for option in options if option in plain)
    return kinds


def _known(kind: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise unknown_name(kind, str(name), known)

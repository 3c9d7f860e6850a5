"""From a command line to jobs: reads the checkout's config, prepares the data, names the runs.

This part runs in our own environment; what it leaves to the driver is a file.
"""

import inspect
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilot_tal.errors import PilotTalError, unknown_name
from pilot_tal.files import checksum, read_json
from pilot_tal.losses import build_loss, loss_options
from pilot_tal.rundir import run_name
from pilot_tal.upstream.job import CLASSIFIERS, Data, Job
from pilot_tal.upstream.seams import check_seams, find_toolbox, module_numbers
from pilot_tal.upstream.sites import LAMDA_PILOT, Toolbox
from pilot_tal.upstream.weights import SUFFIXES

VIT_SETTINGS = ("img_size", "patch_size", "depth", "num_heads", "embed_dim", "mlp_ratio")
_NOT_IN_CONFIG = ("dataset", "seed", "device", "prefix", "config")


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    repo: Path
    config: str
    losses: Sequence[str]
    dataset: str | None = None
    seeds: Sequence[int] = ()
    data_root: Path = Path("data")
    output: Path = Path("runs")
    device: str | None = None
    workers: int | None = None
    weights: str | None = None
    classifier: str = "cnn"
    overrides: Sequence[str] = field(default_factory=tuple)


def make_jobs(request: Request) -> list[Job]:
    """One job for each seed and loss, after the checkout's seams were checked.

    Raises:
        PilotTalError: The checkout, its config, the data or an option is not as it must be.
    """
    repo = request.repo.resolve()
    toolbox = find_toolbox(repo)
    args = _read_config(repo, toolbox, request.config)
    learner = toolbox.learner(args["model_name"])
    check_seams(repo, toolbox, learner)
    if request.classifier not in CLASSIFIERS:
        raise unknown_name("classifier", request.classifier, CLASSIFIERS)
    sections = _sections(request.overrides, request.losses)
    vit = _vit(sections.pop("vit"), toolbox, request)
    constants = _apply(args, sections.pop(""), module_numbers(repo, learner), toolbox)
    data = _data(request, sections.pop("data"), toolbox, args)
    options = {loss: {**loss_options(loss), **sections[loss]} for loss in request.losses}
    for loss in request.losses:
        build_loss(loss, **sections[loss])  # refuses wrong options now, not after the data were read
    seeds = list(request.seeds) or _seeds(args)
    common = {"constants": constants, "vit": vit, "classifier": request.classifier}
    shared = {**common, "repo": str(repo), "args": args, "data": data, "method": args["model_name"].lower()}
    shared |= {
        "device": _devices(request.device),
        "workers": request.workers,
        "weights": _weights(request, toolbox),
    }
    shared["data_root"] = str(request.data_root.resolve())
    shared |= {"dataset": request.dataset or args["dataset"], "notes": _notes(toolbox, request, vit)}
    jobs = []
    for seed in seeds:
        for loss in request.losses:
            config = _config(shared, toolbox, loss, seed, options[loss])
            name = run_name(shared["dataset"], shared["method"], loss, seed, config)
            jobs.append(Job(run_dir=str(request.output.resolve() / name), loss=loss, seed=seed, config=config,
                            loss_options=sections[loss], **shared))  # fmt: skip
    return jobs


def _read_config(repo: Path, toolbox: Toolbox, config: str) -> dict[str, Any]:
    path = repo / config if (repo / config).is_file() else Path(config)
    if not path.is_file():
        known = [f"exps/{file.name}" for name in toolbox.learners for file in repo.glob(f"exps/{name}*.json")]
        raise unknown_name(f"config of the checkout {repo}", config, known)
    args = read_json(path)
    needed = ("model_name", "dataset", "init_cls", "increment", "shuffle", "seed", "device")
    missing = [key for key in needed if not isinstance(args, dict) or key not in args]
    if missing:
        raise PilotTalError(f"{path} is not a config of the checkout: {', '.join(missing)} is missing")
    return args


def _sections(overrides: Iterable[str], losses: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`key=value` sorted by section: `data.`, `vit.`, a loss's name, or none for the checkout's own settings."""
    found: dict[str, dict[str, Any]] = {"": {}, "data": {}, "vit": {}, **{loss: {} for loss in losses}}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise PilotTalError(f"a setting must be key=value, got {text!r}")
        section, _, name = key.rpartition(".")
        if section not in found:
            raise unknown_name(f"section in {text!r}", section, [name for name in found if name])
        try:
            found[section][name] = json.loads(value)
        except ValueError:
            found[section][name] = value
    return found


def _apply(args: dict[str, Any], given: dict[str, Any], numbers: dict[str, Any], toolbox: Toolbox) -> dict[str, Any]:
    """Puts settings into the checkout's config; gives those that are numbers in the learner's file."""
    constants = {}
    for name, value in given.items():
        if name in ("seed", "device", "model_name"):
            raise PilotTalError(f"{name} has an option of its own or belongs to the config; do not set it")
        if name in args:
            args[name] = value
        elif name in numbers:
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                raise PilotTalError(f"{name} must be a number, got {value!r}")
            constants[name] = value
        else:
            raise unknown_name(f"setting of {toolbox.title}'s {args['model_name']}", name, {*args, *numbers})
    for name in ("init_cls", "increment"):
        if not isinstance(args[name], int) or args[name] < 1:
            raise PilotTalError(f"{name} must be a whole number of at least 1, got {args[name]!r}")
    return constants


def _data(request: Request, options: dict[str, Any], toolbox: Toolbox, args: dict[str, Any]) -> Data | None:
    if request.dataset is None:
        if options:
            raise PilotTalError(f"data.{next(iter(options))} needs one of our datasets (--dataset)")
        return None
    from data_lt import prepare

    known = [p.name for p in inspect.signature(prepare).parameters.values() if p.kind == p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise unknown_name("setting of the data", f"data.{name}", [f"data.{k}" for k in known])
    found = prepare(request.dataset, request.data_root, **options)
    if args["init_cls"] > len(found.class_names):
        raise PilotTalError(f"init_cls must be at most {len(found.class_names)} classes, got {args['init_cls']}")
    if toolbox is LAMDA_PILOT:
        # As the checkout treats the balanced originals: ImageNet-R has transforms of its own with CODA-Prompt.
        alias, template = request.dataset, "imagenetr" if request.dataset == "imagenetr_lt" else "cub"
    else:
        # PyCIL's networks look for "cifar" or "imagenet" in the name.
        alias, template = f"{request.dataset}-{args['dataset']}", args["dataset"]
    splits = {
        split: [(path, int(label)) for path, label in zip(part["path"], part["label"], strict=True)]
        for split in ("train", "test")
        for part in [found.frame[found.frame["split"] == split]]
    }
    root = str(Path(found.root).resolve())
    return Data(root, alias, template, list(found.class_names), **splits, checksum=found.checksum)


def _vit(given: dict[str, Any], toolbox: Toolbox, request: Request) -> dict[str, Any]:
    for name, value in given.items():
        if name not in VIT_SETTINGS:
            raise unknown_name("setting of the ViT", f"vit.{name}", [f"vit.{k}" for k in VIT_SETTINGS])
        if not isinstance(value, (int, float)) or value <= 0:
            raise PilotTalError(f"vit.{name} must be a positive number, got {value!r}")
    if given and toolbox is not LAMDA_PILOT:
        raise PilotTalError(f"vit.{next(iter(given))}: {toolbox.title}'s learners have no ViT")
    if given and request.weights is None:
        raise PilotTalError("another shape of the ViT needs weights of that shape: give --weights FILE or random")
    if "img_size" in given and request.dataset is None:
        raise PilotTalError("vit.img_size needs one of our datasets (--dataset): the checkout's own are of 224 pixels")
    return given


def _weights(request: Request, toolbox: Toolbox) -> str | None:
    if request.weights in (None, "random"):
        return request.weights
    path = Path(request.weights)
    if toolbox is not LAMDA_PILOT:
        raise PilotTalError(f"--weights is for LAMDA-PILOT's ViT; {toolbox.title}'s networks start from nothing")
    if path.suffix not in SUFFIXES or not path.is_file():
        raise PilotTalError(f"weights must be 'random' or a {', '.join(SUFFIXES)} file that exists, got {path}")
    return str(path.resolve())


def _devices(device: str | None) -> list[int] | None:
    if device is None:
        return None
    if device == "cpu":
        return [-1]
    try:
        return [int(part) for part in device.split(",")]
    except ValueError as error:
        raise PilotTalError(f"device must be cpu or GPU numbers such as 0 or 0,1, got {device!r}") from error


def _seeds(args: dict[str, Any]) -> list[int]:
    seeds = args["seed"] if isinstance(args["seed"], list) else [args["seed"]]
    return [int(seed) for seed in seeds]


def _config(shared: dict[str, Any], toolbox: Toolbox, loss: str, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """What `config.json` says; runs that differ in nothing else are compared."""
    settings = {key: value for key, value in shared["args"].items() if key not in _NOT_IN_CONFIG}
    weights = shared["weights"]
    return {
        "engine": toolbox.engine,
        "dataset": shared["dataset"],
        "method": shared["method"],
        "loss": loss,
        "seed": seed,
        "fidelity": "pilot",
        loss: options,
        "upstream": {**settings, **shared["constants"]},
        "manifest": shared["data"].checksum[:16] if shared["data"] else None,
        "template": shared["data"].template if shared["data"] else None,
        "weights": weights if weights in (None, "random") else checksum(weights)[:16],
        "vit": shared["vit"],
        "classifier": shared["classifier"],
    }


def _notes(toolbox: Toolbox, request: Request, vit: dict[str, Any]) -> list[str]:
    notes = [f"Run by {toolbox.title}'s own code; only the loss, the data and the record are ours."]
    if toolbox.growing:
        whose = "nearest class mean" if request.classifier == "nme" else "trained classifier"
        notes.append(f"Predictions are those of the {whose}.")
    if request.weights == "random" and toolbox is LAMDA_PILOT:
        notes.append("A trial with random ViT weights: the figures say nothing about the methods.")
    if vit:
        shape = ", ".join(f"{name} {value}" for name, value in vit.items())
        notes.append(f"A trial with another ViT ({shape}).")
    return notes

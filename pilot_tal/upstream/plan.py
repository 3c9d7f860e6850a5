"""From a command line to jobs: reads the checkout's config, prepares the data, names the runs.

This part runs in our own environment and writes a file for the driver.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from data_lt import CARDS, prepare
from data_lt.errors import UserError, unknown_name
from data_lt.files import read_json
from data_lt.options import DataOptions
from pilot_tal.backbone.load import file_fingerprint
from pilot_tal.backbone.weights import weights_file
from pilot_tal.config.parse import absolute, load_plugins, parse_items
from pilot_tal.losses import LOSSES, build_loss
from pilot_tal.record.run_record import (
    NO_LOSS,
    BackboneRecord,
    DataRecord,
    EngineRecord,
    LossRecord,
    MethodRecord,
    run_name,
)
from pilot_tal.schema import Rule, defaults_of, settings_of
from pilot_tal.upstream.job import CLASSIFIERS, Data, Job
from pilot_tal.upstream.seams import check_seams, find_toolbox, module_numbers
from pilot_tal.upstream.sites import LAMDA_PILOT, LearnerSites, Toolbox

# Keys of a config that are no settings of the method: the run's record has them elsewhere, or not at all.
_ELSEWHERE = (
    *("dataset", "seed", "device", "prefix", "config", "model_name"),
    *("init_cls", "increment", "shuffle", "backbone_type", "convnet_type"),
)


@dataclass(frozen=True)
class VitShape:
    """Another shape of the ViT, for trials; null is the checkout's own."""

    img_size: Annotated[int | None, Rule("pixels of its images", 1, 4096)] = None
    patch_size: Annotated[int | None, Rule("pixels of a patch", 1, 4096)] = None
    depth: Annotated[int | None, Rule("blocks", 1, 100)] = None
    num_heads: Annotated[int | None, Rule("heads of a block", 1, 1000)] = None
    embed_dim: Annotated[int | None, Rule("width", 1, 10_000)] = None
    mlp_ratio: Annotated[float | None, Rule("width of a block's MLP, in widths", above=0, high=100)] = None


def make_jobs(
    repo: Path,
    config: str,
    settings: Sequence[str] = (),
    *,
    losses: Sequence[str] = (),
    dataset: str | None = None,
    data_root: Path = Path("data"),
    seeds: Sequence[int] = (),
    output: Path = Path("runs"),
    device: str | None = None,
    workers: int | None = None,
    weights: str | None = None,
    classifier: str = "cnn",
    plugins: tuple[str, ...] = (),
) -> list[Job]:
    """One job for each seed and loss, after the checkout's seams were checked; arguments as on the command line.

    Raises:
        UserError: The checkout, its config, the data or an option is not as it must be.
    """
    load_plugins(plugins)
    repo = repo.resolve()
    toolbox = find_toolbox(repo)
    args = _read_config(repo, toolbox, config)
    learner = toolbox.learner(args["model_name"])
    check_seams(repo, toolbox, learner)
    if classifier not in CLASSIFIERS:
        raise unknown_name("classifier", classifier, CLASSIFIERS)
    if losses and not learner.trains:
        raise UserError(f"{learner.title} trains nothing, so it takes no loss; leave --loss {losses[0]} out")
    names = list(losses) or ["tal"] * learner.trains
    sections = _sections(settings, names)
    vit = _parsed("vit", sections["vit"], VitShape)
    constants, changed = _apply(args, sections[""], module_numbers(repo, learner), toolbox)
    loss_records = [_loss(name, sections[name]) for name in names] or [LossRecord(NO_LOSS, "no loss")]
    weights = _weights(weights, vit, toolbox, args, dataset)
    data_options = _parsed("data", sections["data"], DataOptions)
    data, data_record = _data(dataset, data_root, data_options, toolbox, learner, args)
    if dataset:
        changed |= _differences(data_options, {**vars(CARDS[dataset]), "split_seed": CARDS[dataset].seed})
    method = _method(args, learner, constants)
    shared = {
        "engine": asdict(EngineRecord(toolbox.engine, toolbox.title, {"classifier": classifier, "vit": vit})),
        "method": asdict(method),
        "data": asdict(data_record),
        "backbone": asdict(_backbone(args, toolbox, weights, vit)),
        "stream": _stream(args, toolbox, data),
    }
    notes = _notes(toolbox, learner, classifier, weights)
    job = Job(str(repo), "", args, {}, constants, data, str(data_root.resolve()), _devices(device), workers, weights,
              vit, classifier, absolute(plugins))  # fmt: skip
    jobs = []
    for seed, loss in product(_seeds(list(seeds) or args["seed"]), loss_records):
        record = {**shared, "loss": asdict(loss), "seed": seed}
        identity = {**record, "tasks": [args["init_cls"], args["increment"]]}
        run_dir = output.resolve() / run_name(data_record, method, loss, seed, identity)
        usual = {} if loss.name == NO_LOSS else defaults_of(LOSSES[loss.name])
        record |= {"changed": {**changed, **_differences(loss.options, usual)}, "notes": notes}
        jobs.append(replace(job, run_dir=str(run_dir), record=record))
    return jobs


def _differences(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    return {name: [value, usual.get(name)] for name, value in values.items() if value != usual.get(name)}


def _loss(name: str, given: Mapping[str, str]) -> LossRecord:
    options = {**defaults_of(LOSSES[name]), **_parsed(name, given, LOSSES[name])}
    build_loss(name, **options)  # refuses options that do not go together
    return LossRecord(name, LOSSES[name].title, options)


def _read_config(repo: Path, toolbox: Toolbox, config: str) -> dict[str, Any]:
    path = repo / config if (repo / config).is_file() else Path(config)
    if not path.is_file():
        served = (file for file in repo.glob("exps/*.json") if read_json(file).get("model_name") in toolbox.learners)
        raise unknown_name(f"config of the checkout {repo}", config, [f"exps/{file.name}" for file in served])
    args = read_json(path)
    needed = ("model_name", "dataset", "init_cls", "increment", "shuffle", "seed", "device")
    missing = [key for key in needed if not isinstance(args, dict) or key not in args]
    if missing:
        raise UserError(f"{path} is not a config of the checkout: {', '.join(missing)} is missing")
    if not isinstance(args["model_name"], str):
        raise UserError(f"{path} is not a config of the checkout: its model_name is no name")
    return args


def _sections(settings: Sequence[str], losses: Sequence[str]) -> dict[str, dict[str, str]]:
    """`key=value` sorted by section: `data.`, `vit.`, a loss's name, or none for the checkout's own settings."""
    found: dict[str, dict[str, str]] = {"": {}, "data": {}, "vit": {}, **{loss: {} for loss in losses}}
    for key, text in parse_items(settings, aliases={}).items():
        section, _, name = key.rpartition(".")
        if section not in found:
            raise unknown_name(f"section in {key!r}", section, [name for name in found if name])
        found[section][name] = text
    return found


def _parsed(section: str, given: Mapping[str, str], group: Callable[..., Any]) -> dict[str, Any]:
    """The values of a section, by the settings of a class."""
    known = {name: replace(s, name=f"{section}.{name}") for name, s in settings_of(group).items()}
    for name in given:
        if name not in known:
            raise unknown_name("setting", f"{section}.{name}", [setting.name for setting in known.values()])
    return {name: known[name].parse(text) for name, text in given.items()}


def _apply(
    args: dict[str, Any], given: Mapping[str, str], numbers: Mapping[str, Any], toolbox: Toolbox
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sets values of the checkout's config; returns those that are numbers in the learner's file, and all changes."""
    constants: dict[str, Any] = {}
    changed: dict[str, Any] = {}
    for name, text in given.items():
        value = _read_value(text)
        if name in ("seed", "device", "model_name"):
            raise UserError(f"{name} has an option of its own or belongs to the config; do not set it")
        if name not in args and name not in numbers:
            raise unknown_name(f"setting of {toolbox.title}'s {args['model_name']}", name, {*args, *numbers})
        before = args[name] if name in args else numbers[name]
        if type(before) in (int, float) and type(value) not in (int, float):
            raise UserError(f"{name} must be a number, got {value!r}")
        (args if name in args else constants)[name] = value
        changed |= _differences({name: value}, {name: before})
    for name in ("init_cls", "increment"):
        if not isinstance(args[name], int) or args[name] < 1:
            raise UserError(f"{name} must be a whole number of at least 1, got {args[name]!r}")
    return constants, changed


def _read_value(text: str) -> Any:
    """As the checkout's JSON would have it, or text; NaN and infinity are none of its numbers."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except ValueError:
        return text
    return value


def _method(args: dict[str, Any], learner: LearnerSites, constants: dict[str, Any]) -> MethodRecord:
    settings = {key: value for key, value in args.items() if key not in _ELSEWHERE}
    return MethodRecord(args["model_name"].lower(), learner.title, "pilot", {**settings, **constants})


def _backbone(args: dict[str, Any], toolbox: Toolbox, weights: str | None, vit: dict[str, Any]) -> BackboneRecord:
    name = args.get("backbone_type") or args.get("convnet_type") or "unknown"
    source = weights or ("hub" if toolbox is LAMDA_PILOT else "random")
    return BackboneRecord(str(name), file_fingerprint(source), vit.get("img_size"))


def _stream(args: dict[str, Any], toolbox: Toolbox, data: Data | None) -> dict[str, Any]:
    """What of the stream is known before the checkout has made it."""
    order = "shuffled" if args["shuffle"] else "as in the checkout"
    if toolbox is LAMDA_PILOT:  # which feeds its ViTs pixels in [0, 1]
        return {"transform": "pilot", "normalize": "none", "order": order}
    own = f"{toolbox.title}'s {data.template if data else args['dataset']}"
    return {"transform": own, "normalize": own, "order": order}


def _data(
    dataset: str | None,
    data_root: Path,
    options: Mapping[str, Any],
    toolbox: Toolbox,
    learner: LearnerSites,
    args: dict[str, Any],
) -> tuple[Data | None, DataRecord]:
    if dataset is None:
        if options:
            raise UserError(f"data.{next(iter(options))} needs one of our datasets (--dataset)")
        return None, DataRecord(args["dataset"], args["dataset"])
    found = prepare(dataset, data_root, **options)
    if args["init_cls"] > len(found.class_names):
        raise UserError(f"init_cls must be at most {len(found.class_names)} classes, got {args['init_cls']}")
    if toolbox is LAMDA_PILOT:
        # As the checkout treats the balanced originals: ImageNet-R has transforms of its own with CODA-Prompt.
        alias, template = dataset, "imagenetr" if dataset == "imagenetr_lt" else "cub"
    else:
        # PyCIL's networks look for "cifar" or "imagenet" in the name.
        alias, template = f"{dataset}-{args['dataset']}", args["dataset"]
    frame = found.frame
    train, test = (frame.loc[frame["split"] == split, ["path", "label"]].values.tolist() for split in ("train", "test"))
    if min(Counter(label for _, label in train).values()) < learner.least:
        raise UserError(
            f"{learner.title} takes a covariance of every class, which needs {learner.least} training images; "
            f"set data.n_min={learner.least}"
        )
    root = str(Path(found.root).resolve())
    record = DataRecord(found.name, found.title, found.checksum, found.law)
    return Data(root, alias, template, list(found.class_names), train, test), record


def _weights(
    given: str | None, vit: Mapping[str, Any], toolbox: Toolbox, args: dict[str, Any], dataset: str | None
) -> str | None:
    """The ViT's weights: a file, "random", or None for the checkout's own download."""
    if given is None and args.get("pretrained") is False:
        given = "random"
    if (vit or given) and toolbox is not LAMDA_PILOT:
        raise UserError(f"--weights and vit.… are for LAMDA-PILOT's ViT; {toolbox.title}'s networks start from nothing")
    if vit and given is None:
        raise UserError("another shape of the ViT needs weights of that shape: give --weights FILE or random")
    if "img_size" in vit and dataset is None:
        raise UserError("vit.img_size needs one of our datasets (--dataset): the checkout's own are of 224 pixels")
    return given if given in (None, "random") else str(weights_file(given).resolve())


def _devices(device: str | None) -> list[int | str] | None:
    if device is None:
        return None
    try:
        return [-1] if device == "cpu" else [int(part) for part in device.split(",")]
    except ValueError as error:
        raise UserError(f"device must be cpu or GPU numbers such as 0 or 0,1, got {device!r}") from error


def _seeds(given: Any) -> list[int]:
    seeds = given if isinstance(given, list) else [given]
    if not seeds:
        raise UserError("the config has no seed; give one with --seed")
    for seed in seeds:
        if type(seed) is not int or not 0 <= seed < 2**32:
            raise UserError(f"a seed must be a whole number from 0 to {2**32 - 1}, got {seed!r}")
    return seeds


def _notes(toolbox: Toolbox, learner: LearnerSites, classifier: str, weights: str | None) -> list[str]:
    notes = [f"Run by {toolbox.title}'s own code; only the loss, the data and the record are ours."]
    if learner.growing:
        whose = "nearest class mean" if classifier == "nme" else "trained classifier"
        notes.append(f"Predictions are those of the {whose}.")
    if weights == "random":
        notes.append("A trial with random ViT weights: the figures say nothing about the methods.")
    return notes

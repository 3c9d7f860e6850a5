"""From a command line to jobs: reads the checkout's config, prepares the data, names the runs.

This part runs in our own environment and writes a file for the driver.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from data_lt import CARDS, prepare
from data_lt.errors import UserError, unknown_name
from data_lt.files import read_json
from data_lt.options import DataOptions
from pilot_tal.backbone.load import file_fingerprint
from pilot_tal.backbone.weights import read_state, weights_file
from pilot_tal.config.parse import absolute, load_plugins, parse_items
from pilot_tal.losses import LOSSES, build_loss
from pilot_tal.record import run_record
from pilot_tal.schema import defaults_of, settings_of
from pilot_tal.upstream.checkout import ENGINE, LEARNERS, TITLE, LearnerSites, known_learner, locate
from pilot_tal.upstream.driver import Job

# Keys of a config that are no settings of the method: the run's record has them elsewhere, or not at all.
_ELSEWHERE = (
    *("dataset", "seed", "device", "prefix", "config", "model_name"),
    *("init_cls", "increment", "shuffle", "backbone_type"),
)
_NEEDED = ("model_name", "dataset", "init_cls", "increment", "shuffle", "seed", "device", "backbone_type")
_VIT_B = {"img_size": 224, "patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12, "mlp_ratio": 4.0}
_HEAD = 64  # columns of an attention head, in all ViTs of Google and DeiT


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
    plugins: tuple[str, ...] = (),
) -> list[Job]:
    """One job for each seed and loss, after the checkout was checked; arguments as on the command line.

    Raises:
        UserError: The checkout, its config, the data or an option is not as it must be.
    """
    load_plugins(plugins)
    repo = repo.resolve()
    args = _read_config(repo, config)
    if not (seeds or args["seed"]):
        raise UserError("the config has no seed; give one with --seed")
    learner = known_learner(str(args["model_name"]))
    locate(repo, learner)
    if losses and not learner.trains:
        raise UserError(f"{learner.title} trains nothing, so it takes no loss; leave --loss {losses[0]} out")
    names = list(losses) or ["tal"] * learner.trains
    given, changed = _apply(settings, args, {"data": DataOptions, **{name: LOSSES[name] for name in names}})
    no_loss = run_record.LossRecord(run_record.NO_LOSS, "no loss")
    loss_records = [_loss(name, given[name]) for name in names] or [no_loss]
    weights = "random" if weights is None and args.get("pretrained") is False else weights
    vit: dict[str, Any] = {}
    if weights not in (None, "random"):
        file = weights_file(weights).resolve()
        weights, vit = str(file), _vit_shape(file)
    if dataset:
        data, data_record = _data(dataset, data_root, given["data"], learner, args)
        changed |= _differences(given["data"], {**vars(CARDS[dataset]), "split_seed": CARDS[dataset].seed})
    elif given["data"] or "img_size" in vit:
        what = f"data.{next(iter(given['data']))}" if given["data"] else f"a ViT for {vit['img_size']} pixels"
        raise UserError(f"{what} needs one of our datasets (--dataset)")
    else:
        data, data_record = None, run_record.DataRecord(args["dataset"], args["dataset"])
    method_settings = {key: value for key, value in args.items() if key not in _ELSEWHERE}
    method = run_record.MethodRecord(learner.name, learner.title, "pilot", method_settings)
    shared = _shared(method, data_record, args, weights, vit)
    notes = [f"Run by {TITLE}'s own code; only the loss, the data and the record are ours."]
    if weights == "random":
        notes.append("A trial with random ViT weights: the figures say nothing about the methods.")
    if dataset:
        args["dataset"] = dataset
    job = Job(str(repo), "", args, {}, data, str(data_root.resolve()), _devices(device), workers, weights, vit,
              absolute(plugins))  # fmt: skip
    jobs = []
    for seed, loss in product(seeds or args["seed"], loss_records):
        record = {**shared, "loss": asdict(loss), "seed": seed}
        identity = {**record, "tasks": [args["init_cls"], args["increment"]]}
        run_dir = output.resolve() / run_record.run_name(data_record, method, loss, seed, identity)
        usual = defaults_of(LOSSES[loss.name]) if names else {}
        record |= {"changed": {**changed, **_differences(loss.options, usual)}, "notes": notes}
        jobs.append(replace(job, run_dir=str(run_dir), record=record))
    return jobs


def _shared(
    method: run_record.MethodRecord,
    data: run_record.DataRecord,
    args: Mapping[str, Any],
    weights: str | None,
    vit: Mapping[str, Any],
) -> dict[str, Any]:
    """What the records of all jobs have in common."""
    backbone = run_record.BackboneRecord(args["backbone_type"], file_fingerprint(weights or "hub"), vit.get("img_size"))
    order = "shuffled" if args["shuffle"] else "as in the checkout"
    return {
        "engine": asdict(run_record.EngineRecord(ENGINE, TITLE, {"classifier": "cnn", "vit": dict(vit)})),
        "method": asdict(method),
        "data": asdict(data),
        "backbone": asdict(backbone),
        # What of the stream is known before the checkout has made it; its ViTs get pixels in [0, 1].
        "stream": {"transform": "pilot", "normalize": "none", "order": order},
    }


def _loss(name: str, given: Mapping[str, Any]) -> run_record.LossRecord:
    options = {**defaults_of(LOSSES[name]), **given}
    build_loss(name, **options)  # refuses options that do not go together
    return run_record.LossRecord(name, LOSSES[name].title, options)


def _differences(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    return {name: [value, usual.get(name)] for name, value in values.items() if value != usual.get(name)}


def _read_config(repo: Path, config: str) -> dict[str, Any]:
    if not repo.is_dir():
        raise UserError(f"repo must be the directory of a checkout, got {repo}, which does not exist")
    if not (repo / "trainer.py").is_file() or not (repo / "backbone").is_dir():
        raise UserError(f"{repo} is not a checkout of {TITLE}: it needs trainer.py and backbone/")
    path = repo / config if (repo / config).is_file() else Path(config)
    if not path.is_file():
        served = [f"exps/{file.name}" for file in repo.glob("exps/*.json") if _serves(file)]
        raise unknown_name(f"config of the checkout {repo}", config, served)
    args = read_json(path)
    missing = [key for key in _NEEDED if not isinstance(args, dict) or key not in args]
    if missing:
        raise UserError(f"{path} is not a config of the checkout: {', '.join(missing)} is missing")
    args["seed"] = args["seed"] if isinstance(args["seed"], list) else [args["seed"]]
    if wrong := [seed for seed in args["seed"] if type(seed) is not int or not 0 <= seed < 2**32]:
        raise UserError(f"a seed must be a whole number from 0 to {2**32 - 1}, but {path} has {wrong[0]!r}")
    return args


def _serves(file: Path) -> bool:
    try:
        known = read_json(file)
    except UserError:
        return False
    return isinstance(known, dict) and str(known.get("model_name")) in LEARNERS


def _apply(
    settings: Sequence[str], args: dict[str, Any], groups: Mapping[str, Callable[..., Any]]
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Sets values of the checkout's config; returns those of the groups (`data.n_max=8`), and what has changed."""
    options = {
        f"{group}.{name}": option for group, made in groups.items() for name, option in settings_of(made).items()
    }
    found: dict[str, dict[str, Any]] = {group: {} for group in groups}
    changed: dict[str, Any] = {}
    for name, text in parse_items(settings, aliases={}).items():
        if name in options:
            group, _, short = name.partition(".")
            found[group][short] = replace(options[name], name=name).parse(text)
            continue
        value = _read_value(text)
        if name in ("seed", "device", "model_name"):
            raise UserError(f"{name} has an option of its own or belongs to the config; do not set it")
        if name not in args:
            raise unknown_name(f"setting of {TITLE}'s {args['model_name']}", name, {*args, *options})
        if type(args[name]) in (int, float) and type(value) not in (int, float):
            raise UserError(f"{name} must be a number, got {value!r}")
        changed |= _differences({name: value}, args)
        args[name] = value
    for name in ("init_cls", "increment"):
        if not isinstance(args[name], int) or args[name] < 1:
            raise UserError(f"{name} must be a whole number of at least 1, got {args[name]!r}")
    return found, changed


def _read_value(text: str) -> Any:
    """As the checkout's JSON would have it, or text; NaN and infinity are none of its numbers."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except ValueError:
        return text
    return value


def _data(
    dataset: str, data_root: Path, options: Mapping[str, Any], learner: LearnerSites, args: Mapping[str, Any]
) -> tuple[dict[str, Any], run_record.DataRecord]:
    found = prepare(dataset, data_root, **options)
    if args["init_cls"] > len(found.class_names):
        raise UserError(f"init_cls must be at most {len(found.class_names)} classes, got {args['init_cls']}")
    frame = found.frame
    train, test = (frame.loc[frame["split"] == split, ["path", "label"]].values.tolist() for split in ("train", "test"))
    if min(Counter(label for _, label in train).values()) < learner.least:
        raise UserError(
            f"{learner.title} takes a covariance of every class, which needs {learner.least} training images; "
            f"set data.n_min={learner.least}"
        )
    root, names = str(Path(found.root).resolve()), list(found.class_names)
    record = run_record.DataRecord(found.name, found.title, found.checksum, found.law)
    return {"root": root, "class_names": names, "train": train, "test": test}, record


def _vit_shape(file: Path) -> dict[str, Any]:
    """What of the shape of a file's ViT is not as in ViT-B/16, as arguments of timm's ViT."""
    state = {} if file.suffix == ".npz" else read_state(file)
    try:
        width, _, patch, _ = state["patch_embed.proj.weight"].shape
        found = {
            "img_size": patch * round((state["pos_embed"].shape[1] - 1) ** 0.5),
            "patch_size": patch,
            "embed_dim": width,
            "depth": 1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks.")),
            "num_heads": width // _HEAD,
            "mlp_ratio": state["blocks.0.mlp.fc1.weight"].shape[0] / width,
        }
    except (KeyError, ValueError):  # JAX names, which are those of ViT-B/16 here, or no ViT: the driver will tell
        return {}
    if width % _HEAD or not 2 * _HEAD <= width <= 1024:
        raise UserError(f"{file} has a ViT of width {width}; only Ti, S, B and L are driven, whose heads have {_HEAD}")
    return {name: value for name, value in found.items() if value != _VIT_B[name]}


def _devices(device: str | None) -> list[int | str] | None:
    if device is None:
        return None
    try:
        return [-1] if device == "cpu" else [int(part) for part in device.split(",")]
    except ValueError as error:
        raise UserError(f"device must be cpu or GPU numbers such as 0 or 0,1, got {device!r}") from error

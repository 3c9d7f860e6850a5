"""From `key=value` settings to the runs of a study. Every key is checked before anything starts."""

import itertools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from data_lt import CARDS
from data_lt.errors import UserError, command, unknown_name
from data_lt.files import given_path
from data_lt.options import DataOptions, make_recipe
from pilot_tal.backbone.load import given_statistics
from pilot_tal.config.parse import load_plugins, parse_items, split_values
from pilot_tal.config.settings import (
    QUICK_EPOCHS,
    Hardware,
    LossConfig,
    RunConfig,
    RunSettings,
    StudyConfig,
    defaults,
    method_config,
)
from pilot_tal.learners import LEARNERS, TrainedConfig
from pilot_tal.losses import LOSSES
from pilot_tal.record.run_record import NO_LOSS
from pilot_tal.schema import Made, Option, Rule, build, defaults_of, settings_of

MOST_RUNS = 10_000
UPSTREAM_ONLY = ("aper_adapter", "aper_finetune", "aper_ssf", "aper_vpt", "finetune", "slca")
"""Methods that run in a checkout of LAMDA-PILOT alone."""
ALL_DATASETS = ("cub_lt", "imagenetr_lt", "food101_lt")
USUAL = {"losses": "ce,tal,tal_auto", "seeds": "1993,1994,1995", "references": "simplecil,plda", "baseline": "ce"}
ONE_RUN = {"losses": "tal", "seeds": "1993", "references": "none"}


@dataclass(frozen=True)
class Choices:
    """Settings of a study: what is compared with what."""

    losses: Annotated[str, Rule("losses to train with")] = USUAL["losses"]
    seeds: Annotated[int, Rule("seeds; each shuffles the classes anew", 0, 2**32 - 1)] = 1993
    references: Annotated[str, Rule("training-free methods beside one that trains, or none")] = USUAL["references"]
    baseline: Annotated[str, Rule("loss that the report compares the others with")] = USUAL["baseline"]
    plugins: Annotated[str, Rule("modules or files that register methods, losses or datasets")] = ""


def run_config(method: str, dataset: str, items: Iterable[str] = (), quick: bool = False) -> StudyConfig:
    """The study of exactly one run; by default with TAL and the first seed."""
    study = study_config(method, dataset, items, quick, ONE_RUN)
    if len(study.runs) != 1:
        raise UserError(f"run takes one value of each setting, got {len(study.runs)} runs; use compare")
    return study


def study_config(
    methods: str, datasets: str, items: Iterable[str] = (), quick: bool = False, usual: Mapping[str, str] = USUAL
) -> StudyConfig:
    """The runs of a study: the product of all lists in its settings, and the training-free references.

    Args:
        methods: One method, several with commas, or all.
        datasets: One dataset, several with commas, or all (the paper's three).
        items: `key=value`; any setting accepts a comma-separated list. Options of a loss multiply that loss alone.
        quick: A smoke test of a few steps.
        usual: Losses, seeds and references where `items` have none.
    """
    given = parse_items(items)
    plugins = tuple(split_values(given.get("plugins", "")))
    load_plugins(plugins)
    chosen = _names("method", methods, tuple(LEARNERS), LEARNERS), _names("dataset", datasets, ALL_DATASETS, CARDS)
    choices = {**USUAL, **usual, **given}
    configs = _losses(given, split_values(choices["losses"]))
    numbers = _values(settings_of(Choices)["seeds"], choices["seeds"])
    beside = _references(choices["references"])
    hardware = _hardware(given)
    anywhere = {key: setting for method in chosen[0] for key, setting in known_settings(method).items()}
    if unknown := given.keys() - anywhere.keys():  # a setting of some of the methods is for those alone
        raise _unknown_setting(min(unknown), chosen[0], anywhere)
    runs: list[RunConfig] = []
    for method, dataset in itertools.product(*chosen):
        shaping = _COMMON | settings_of(LEARNERS[method].config_class).keys()
        for base in _bases(method, dataset, given, shaping, quick):
            trains = LEARNERS[method].trains(base.method_config)
            for seed, loss in itertools.product(numbers, configs if trains else [LossConfig(NO_LOSS)]):
                options = _changed(loss.options, defaults_of(LOSSES[loss.name])) if trains else {}
                named = {f"{loss.name}.{key}": value for key, (value, _) in options.items()}
                changed, given_here = {**base.changed, **options}, {**base.given, **named}
                runs.append(replace(base, seed=seed, loss=loss, changed=changed, given=given_here))
            if len(runs) > MOST_RUNS:
                raise UserError(f"these lists make more than {MOST_RUNS:,} runs; split them over several commands")
    trained = any(run.loss.name != NO_LOSS for run in runs)
    for_a_loss = [key for key in given if key == "losses" or key.partition(".")[0] in LOSSES]
    for_a_loss += ["sampler"] * (given.get("sampler", "natural") != "natural")
    if for_a_loss and not trained:
        raise UserError(f"{methods} trains nothing with a loss; leave {for_a_loss[0]}={given[for_a_loss[0]][:60]} out")
    if trained:
        for dataset, method in itertools.product(chosen[1], (name for name in beside if name not in chosen[0])):
            for base in _bases(method, dataset, given, _COMMON, quick):
                runs += [replace(base, seed=seed) for seed in numbers]
    names = dict.fromkeys(loss.name for loss in configs)
    if "baseline" in given and given["baseline"] not in names:
        raise UserError(f"baseline={given['baseline'][:60]} is not among the losses {', '.join(names)}")
    return StudyConfig(tuple(runs), hardware, plugins, choices["baseline"])


_COMMON = {*settings_of(RunSettings), *settings_of(DataOptions)}  # which a reference shares with the trained methods


def _bases(method: str, dataset: str, given: Mapping[str, str], keys: set[str], quick: bool) -> Iterable[RunConfig]:
    """The runs of a method on a dataset, one per combination of the values given for these keys."""
    known = {key: setting for key, setting in known_settings(method).items() if key in keys}
    without: list[RunConfig] = []
    for values in _product(given, known):
        base = _base(method, dataset, values, quick)
        if "sampler" in values and not LEARNERS[method].trains(base.method_config):  # nothing is drawn
            base = _base(method, dataset, {key: value for key, value in values.items() if key != "sampler"}, quick)
            if base in without:
                continue
            without.append(base)
        yield base


def _references(text: str) -> list[str]:
    names = [] if text == "none" else _names("method", text, (), LEARNERS)
    for name in names:
        if LEARNERS[name].trains(method_config(name)):
            raise UserError(f"references={name}: {name} trains; name it among the methods instead")
    return names


def _unknown_setting(key: str, methods: list[str], known: Mapping[str, Option]) -> UserError:
    others = {method: found[key].name for method in LEARNERS if key in (found := known_settings(method))}
    if others:
        name = next(iter(others.values()))
        return UserError(f"unknown setting {name!r} of {', '.join(methods)}: it is one of {', '.join(others)}")
    return unknown_name("setting", key, (setting.name for setting in known.values()), command("list", methods[0]))


def known_settings(method: str) -> dict[str, Option]:
    """Every key that `key=value` takes for a method."""
    groups = (Choices, RunSettings, DataOptions, Hardware, LEARNERS[method].config_class)
    known = {name: setting for group in groups for name, setting in settings_of(group).items()}
    if not LEARNERS[method].linear_classifier:
        del known["posthoc"]
    if not issubclass(LEARNERS[method].config_class, TrainedConfig):
        del known["sampler"]
    if "tuned_epoch" in known:
        known["tuned_epoch"] = replace(known["tuned_epoch"], name="epochs")  # as people call it
    return known | {key: setting for loss in LOSSES for key, setting in loss_settings(loss).items()}


def loss_settings(loss: str) -> dict[str, Option]:
    """Every key that `key=value` takes for a loss, such as `tal.lam`."""
    return {f"{loss}.{name}": replace(s, name=f"{loss}.{name}") for name, s in settings_of(LOSSES[loss]).items()}


def _base(method: str, dataset: str, values: Mapping[str, Any], quick: bool) -> RunConfig:
    """A run without its seed and loss."""
    usual = defaults(method, dataset, values.get("backbone"))
    values = dict(values)
    for key in ("weights", "order"):  # shells do not expand ~ after `=`
        if values.get(key, "").startswith("~"):
            values[key] = str(given_path(values[key], key))
    merged = {**usual, **({"tuned_epoch": QUICK_EPOCHS} if quick else {}), **values}
    if (values.get("init_cls") is None) != (values.get("increment") is None):
        raise UserError("init_cls and increment go together; give both, or tasks alone")
    ways = [key for key in ("tasks", "init_cls", "task_sizes") if values.get(key) is not None]
    if len(ways) > 1:
        raise UserError("tasks, init_cls with increment, and task_sizes each set the tasks; give one of them")
    if ways not in ([], ["tasks"]):
        merged["tasks"] = None
    settings, data = _built(RunSettings, merged), _built(DataOptions, merged)
    own = _built(LEARNERS[method].config_class, merged)
    card = CARDS[dataset]
    make_recipe(card, data)  # refuses options that do not go together
    if "/" in settings.normalize:
        given_statistics(settings.normalize)
    of_card = {key: getattr(card, "seed" if key == "split_seed" else key, None) for key in settings_of(DataOptions)}
    changed = _changed(values, {**of_card, "classes": ("all",), "merge": False, **usual})
    return RunConfig(method, dataset, LossConfig(NO_LOSS), 0, settings, data, own, quick, changed, values)


def _built(group: type[Made], values: Mapping[str, Any]) -> Made:
    return build(group, {key: value for key, value in values.items() if key in settings_of(group)})


def _changed(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    return {key: [value, usual.get(key)] for key, value in values.items() if value != usual.get(key)}


def _product(given: Mapping[str, str], known: Mapping[str, Option]) -> Iterable[dict[str, Any]]:
    """Every combination of the values given for these settings."""
    axes = {key: _values(known[key], text) for key, text in given.items() if key in known}
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


def _values(setting: Option, text: str) -> list[Any]:
    if setting.many and not text.startswith("["):  # a list: its commas separate no runs
        return [setting.parse(text)]
    return [setting.parse(part) for part in split_values(text) or [""]]


def _names(kind: str, text: str, every: tuple[str, ...], known: Mapping[str, Any]) -> list[str]:
    names = list(every) if text == "all" else split_values(text)
    for name in names or [text]:
        if name not in known and kind == "method" and name.lower() in UPSTREAM_ONLY:
            raise UserError(f"{name} is not built in; it is available through {command('upstream')} with a checkout")
        if name not in known:
            raise unknown_name(kind, name[:60], known)
    return names


def _losses(given: Mapping[str, str], names: list[str]) -> list[LossConfig]:
    """The losses of these names, each with every combination of the options given for it."""
    if not names:
        raise UserError("losses has no value; write losses=ce,tal or leave it out")
    found = []
    for name in names:
        options = {f"{name}.{key}": replace(s, name=f"{name}.{key}") for key, s in settings_of(LOSSES[name]).items()}
        for values in _product(given, options):
            short = {key.partition(".")[2]: value for key, value in values.items()}
            LOSSES[name](**short)  # refuses options that do not go together
            found.append(LossConfig(name, {**defaults_of(LOSSES[name]), **short}))
    for key in given:
        section = key.partition(".")[0]
        if "." in key and section in LOSSES and section not in names:
            raise UserError(f"{key} is set, but {section} is not among the losses {', '.join(names)}")
    return found


def _hardware(given: Mapping[str, str]) -> Hardware:
    values = {key: option.parse(given[key]) for key, option in settings_of(Hardware).items() if key in given}
    values.setdefault("data_root", os.environ.get("PILOT_TAL_DATA") or "data")
    for key in values.keys() & {"data_root", "output"}:
        values[key] = str(given_path(values[key], key))
    return Hardware(**values)

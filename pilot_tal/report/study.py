"""Runs sorted into settings, and each setting's runs into arms that can be compared.

A setting is a dataset with its training images, a method, its tasks and a fidelity. An arm is what differs inside
one: the engine, the loss and any other value of the config, over several seeds. Two arms are compared on the seeds
they share.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pilot_tal.errors import PilotTalError
from pilot_tal.metrics import Difference, Spread, paired_difference, rank_classes, spread, summarize
from pilot_tal.report.tal_state import read_states
from pilot_tal.report.text import DATASETS, ENGINES, LOSSES, METHODS, clean, number, slug
from pilot_tal.rundir import Run, RunInfo, find_runs, load_run

BASELINE = "ce"
_WITH_TASKS = {"init_cls", "increment", "checksum", "manifest"}  # keys that may follow a setting's tasks or classes
# Keys of a config that name the run or the machine, not what was trained.
_NOT_COMPARED = {
    *("dataset", "method", "loss", "losses", "seed", "seeds", "fidelity", "tasks", "engine"),
    *("output", "device", "workers", "cache", "data_root"),
}
_CHECKSUM = "data.checksum"
_DIGEST = re.compile(r"(?:^|(?<=@))([0-9a-f]{8})[0-9a-f]{8,}$")  # a checksum, or one behind a file's name

Values = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Result:
    """A run and its metrics, which an unfinished one does not have."""

    run: Run
    metrics: dict[str, Any]


@dataclass
class Arm:
    """Runs that differ in nothing but the seed; `own` holds the loss's config values, `shared` the others."""

    engine: str
    loss: str
    shared: Values
    own: Values
    label: str = ""
    slug: str = ""
    variant: str = ""
    own_variant: str = ""
    results: dict[int, Result] = field(default_factory=dict)
    unfinished: list[Run] = field(default_factory=list)
    counts: bool = True
    """Whether it is in headlines and may be the best; quick runs are only where there are no others."""

    @property
    def quick(self) -> bool:
        """Whether its runs took a few steps only."""
        return ("quick", "true") in self.shared

    @property
    def seeds(self) -> list[int]:
        """Seeds of the finished runs."""
        return sorted(self.results)

    def values(self, metric: str) -> dict[int, float]:
        """The metric of each finished run that has it."""
        found = {seed: self.results[seed].metrics.get(metric) for seed in self.seeds}
        return {seed: value for seed, value in found.items() if value is not None}

    def spread(self, metric: str) -> Spread | None:
        """Mean and deviation over the finished seeds; None where no run has the metric."""
        values = self.values(metric)
        return spread(list(values.values())) if values else None

    def only(self, seeds: Iterable[int]) -> "Arm":
        """The same arm with the finished runs of some seeds."""
        return replace(self, results={seed: self.results[seed] for seed in seeds})

    def mean_over_seeds(self, metric: str) -> np.ndarray:
        """Mean of a metric that is a list or a matrix."""
        return np.mean([np.array(self.results[s].metrics[metric], dtype=float) for s in self.seeds], axis=0)

    def by_class(self, metric: str) -> np.ndarray:
        """Mean over seeds of a per-class metric, by ascending original class index; NaN where undefined."""
        rows = []
        for result in self.results.values():
            values = np.array(result.metrics["per_class"][metric], dtype=float)
            rows.append(values[np.argsort(result.run.info.class_order)])
        table = np.array(rows)
        known = (~np.isnan(table)).sum(axis=0)
        return np.divide(np.nansum(table, axis=0), known, out=np.full(len(known), np.nan), where=known > 0)


@dataclass
class Setting:
    """What was learnt: a dataset by a method, in tasks, with a fidelity."""

    dataset: str
    method: str
    task_sizes: tuple[int, ...]
    fidelity: str
    data: tuple[tuple[int, str, int], ...]
    """Original index, name and number of training images of each class, by ascending original index."""
    data_note: str = ""
    """What tells the data from those of other settings of the dataset; empty where nothing needs to."""
    slug: str = ""
    arms: list[Arm] = field(default_factory=list)

    @property
    def title(self) -> str:
        """`CUB-LT · L2P · 5 tasks · pilot`."""
        return f"{self.dataset_name} · {self.method_name} · {self.tasks_name} · {clean(self.fidelity)}"

    @property
    def dataset_name(self) -> str:
        """Display name of the dataset, with a note where there are several of its kind."""
        name = DATASETS.get(self.dataset, clean(self.dataset))
        return f"{name} ({self.data_note})" if self.data_note else name

    @property
    def method_name(self) -> str:
        """Display name of the method."""
        return METHODS.get(self.method, clean(self.method))

    @property
    def tasks_name(self) -> str:
        """`5 tasks`."""
        return number(len(self.task_sizes), "task")

    def finished_arms(self) -> list[Arm]:
        """Arms with at least one finished run."""
        return [arm for arm in self.arms if arm.results]

    def compared_arms(self) -> list[Arm]:
        """Arms that have a baseline with which they share seeds."""
        return [arm for arm in self.finished_arms() if self.pairs(arm)]

    def baseline(self, arm: Arm) -> Arm | None:
        """The arm trained with CE and otherwise alike."""
        if arm.loss == BASELINE:
            return None
        alike = (a for a in self.arms if (a.loss, a.engine, a.shared) == (BASELINE, arm.engine, arm.shared))
        return next(alike, None)

    def pairs(self, arm: Arm) -> list[int]:
        """Seeds finished by the arm and by its baseline on the same data."""
        base = self.baseline(arm)
        if base is None:
            return []
        return [s for s in arm.seeds if s in base.results and same_data(arm.results[s].run, base.results[s].run)]

    def difference(self, arm: Arm, metric: str) -> Difference | None:
        """The arm minus its baseline, paired by seed."""
        base, seeds = self.baseline(arm), self.pairs(arm)
        if base is None or not seeds:
            return None
        mine, other = arm.values(metric), base.values(metric)
        return paired_difference({s: v for s, v in mine.items() if s in seeds}, other)

    def classes(self) -> "Classes":
        """The classes, by ascending original index."""
        originals, names, counts = zip(*self.data, strict=True)
        rank = rank_classes(counts, originals)
        return Classes(np.array(originals), list(map(clean, names)), np.array(counts), rank)


@dataclass(frozen=True)
class Classes:
    """All classes of a setting by ascending original index, and their places from rare to frequent."""

    originals: np.ndarray
    names: list[str]
    counts: np.ndarray
    rank: np.ndarray

    @property
    def tail(self) -> np.ndarray:
        """True for the tail."""
        return np.isin(np.arange(len(self.rank)), self.rank[: len(self.rank) // 2])


@dataclass
class Study:
    """All settings of a report, and remarks about the runs themselves."""

    settings: list[Setting]
    remarks: list[str]

    @property
    def finished(self) -> list[Setting]:
        """Settings with a finished run."""
        return [setting for setting in self.settings if setting.finished_arms()]


def load_study(paths: "Study | Iterable[str | Path]") -> Study:
    """Reads all runs at or below `paths`; what was read before is passed through.

    A run found below a folder that cannot be read is left out and named in the remarks.

    Raises:
        PilotTalError: a path is no folder, a run that was given itself cannot be read, or none can.
    """
    if isinstance(paths, Study):
        return paths
    given = [Path(path) for path in paths]
    results: list[Result] = []
    failures: dict[Path, PilotTalError] = {}
    for path in find_runs(given):
        try:
            results.append(_read(path))
        except PilotTalError as error:
            if path in given:
                raise
            failures[path] = error
    if not results:
        raise next(iter(failures.values()))
    left_out = (f"Left out, for it cannot be read: {clean(path.name)}. {clean(e)}." for path, e in failures.items())
    return make_study(results, left_out)


def make_study(results: Sequence[Result], left_out: Iterable[str] = ()) -> Study:
    """Sorts runs into settings and arms; `left_out` are remarks on runs that are not among them."""
    settings: dict[tuple, Setting] = {}
    arms: dict[tuple, Arm] = {}
    remarks = list(left_out)
    for result in results:
        info = result.run.info
        key = (info.dataset, info.method, info.task_sizes, info.fidelity, _data(info))
        setting = settings.setdefault(key, Setting(*key))
        identity = (info.engine, info.loss, *_config_values(result.run))
        if (key, identity) not in arms:
            arms[key, identity] = Arm(*identity)
            setting.arms.append(arms[key, identity])
        _add(arms[key, identity], result, remarks)
    for setting in settings.values():
        setting.arms.sort(key=_arm_order)
    _count([arm for setting in settings.values() for arm in setting.arms])
    for setting in settings.values():
        alike = [s for s in settings.values() if (s.dataset, s.method) == (setting.dataset, setting.method)]
        _label(setting.arms, [arm for s in alike for arm in s.arms])
    ordered = sorted(settings.values(), key=_setting_order)
    _note_data(ordered)
    _name_files(ordered, lambda s: f"{s.dataset} {s.data_note} {s.method} {s.tasks_name} {s.fidelity}")
    return Study(ordered, remarks)


def same_data(a: Run, b: Run) -> bool:
    """Same classes in the same order, as many training images, and the same test images."""
    same_lists = (a.info.class_order, a.info.train_counts) == (b.info.class_order, b.info.train_counts)
    return same_lists and all(
        np.array_equal(np.bincount(x[0]), np.bincount(y[0])) for x, y in zip(a.predictions, b.predictions, strict=True)
    )


def _read(path: Path) -> Result:
    """Reads a run and all that the report needs of it, so that what is broken shows here."""
    run = load_run(path)
    info = run.info
    if not run.finished or len(run.predictions) < info.num_tasks:
        return Result(run, {})
    read_states(run)
    try:
        return Result(run, summarize(run.predictions, info.task_sizes, info.train_counts, info.class_order))
    except PilotTalError as error:
        raise PilotTalError(f"{run.path}: {error}") from error


def _data(info: RunInfo) -> tuple[tuple[int, str, int], ...]:
    """The same for all seeds, whose class orders differ."""
    return tuple(sorted(zip(info.class_order, info.class_names, info.train_counts, strict=True)))


def _note_data(settings: Sequence[Setting]) -> None:
    """Notes what tells apart the data of settings that have one dataset and equally many classes."""
    kinds: dict[tuple[str, int], dict[tuple, list[Setting]]] = {}
    for setting in settings:
        kinds.setdefault((setting.dataset, len(setting.data)), {}).setdefault(setting.data, []).append(setting)
    for kind in kinds.values():
        for note, alike in zip(_notes(list(kind)), kind.values(), strict=True):
            for setting in alike:
                setting.data_note = note


def _notes(data: list[tuple]) -> list[str]:
    """A short note on each, by the first of its features that differs between any two."""
    if len(data) == 1:
        return [""]
    counts = [[count for *_, count in classes] for classes in data]
    ranges = [f"{min(c)}–{max(c)} images a class" for c in counts]
    sums = [f"{sum(c)} training images" for c in counts]
    numbers = [f"data {i}" for i in range(1, len(data) + 1)]
    return next(notes for notes in (ranges, sums, numbers) if len(set(notes)) == len(data))


def _add(arm: Arm, result: Result, remarks: list[str]) -> None:
    run, seed = result.run, result.run.info.seed
    if not result.metrics:
        arm.unfinished.append(run)
    elif seed in arm.results:
        kept = arm.results[seed].run
        remarks.append(f"{clean(run.path.name)} repeats {clean(kept.path.name)} and was left out.")
    else:
        arm.results[seed] = result


def _config_values(run: Run) -> tuple[Values, Values]:
    """The config values that matter, apart from and belonging to the loss."""
    shared, own = [], []
    for key, value in sorted(_flatten(run.config)):
        section = key.split(".")[0]
        if key in _NOT_COMPARED:
            continue
        if section in ("loss", run.info.loss):
            own.append((key, value))
        elif section not in LOSSES:
            shared.append((key, value))
    return tuple(shared), tuple(own)


def _flatten(value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flatten(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value)


def _count(arms: list[Arm]) -> None:
    """Lets quick runs count only where no other run has finished."""
    others = any(arm.results and not arm.quick for arm in arms)
    for arm in arms:
        arm.counts = not (arm.quick and others)


def _label(arms: list[Arm], kin: list[Arm]) -> None:
    """Names each arm of a setting by its loss and whatever else tells it from its kin: all of dataset and method."""
    engines = {arm.engine for arm in arms}
    for arm in arms:
        # What counts is not named after quick runs beside it.
        groups = ([a for a in g if a.engine == arm.engine and a.counts >= arm.counts] for g in (arms, kin))
        mates, others = groups
        variant = _distinct([a.shared for a in mates], [a.shared for a in others], arm.shared)
        named = arm.counts or "quick=true" in variant
        arm.variant = ", ".join(variant if named else [*variant, "quick=true"])
        own = ([a.own for a in group if a.loss == arm.loss] for group in (mates, others))
        arm.own_variant = ", ".join(_distinct(*own, arm.own))
        engine = ENGINES.get(arm.engine, arm.engine) if len(engines) > 1 else ""
        extra = [text for text in (engine, arm.variant, arm.own_variant) if text]
        name = LOSSES.get(arm.loss, arm.loss)
        arm.label = clean(f"{name} ({', '.join(extra)})" if extra else name)
    _name_files(arms, lambda arm: arm.label)


def _name_files(items: Sequence[Any], name: Callable[[Any], str]) -> None:
    """Gives each item a file name that no other has."""
    taken: set[str] = set()
    for item in items:
        base = slug(name(item))
        candidates = (base, *(f"{base}-{i}" for i in range(2, len(items) + 1)))
        item.slug = next(c for c in candidates if c not in taken)
        taken.add(item.slug)


def _distinct(mates: list[Values], kin: list[Values], values: Values) -> list[str]:
    """`key=value` for each key on which the kin do not agree; keys that follow the setting count among mates only."""
    here, everywhere = (set.intersection(*(set(v) for v in group)) for group in (mates, kin))
    found = []
    for key, value in values:
        name = key.split(".")[-1]
        of_setting = name in _WITH_TASKS or key.startswith("data.")
        if (key, value) not in (here if of_setting else everywhere) and not (key == _CHECKSUM and _is_told(mates)):
            shown = _DIGEST.sub(r"\1", value)
            found.append(f"{name}={shown}")
    return found


def _is_told(mates: list[Values]) -> bool:
    """Whether the other keys of the data tell the arms' checksums apart."""
    checksums: dict[Values, set[str | None]] = {}
    for values in mates:
        others = tuple((key, value) for key, value in values if key.startswith("data.") and key != _CHECKSUM)
        checksums.setdefault(others, set()).add(dict(values).get(_CHECKSUM))
    return all(len(found) == 1 for found in checksums.values())


def known_first(known: dict[str, str], name: str) -> tuple[int, str]:
    """Sorts known names in their order and others behind them."""
    return (list(known).index(name) if name in known else len(known), name)


def _arm_order(arm: Arm) -> tuple:
    return (known_first(ENGINES, arm.engine), arm.quick, arm.shared, known_first(LOSSES, arm.loss), arm.own)


def _setting_order(setting: Setting) -> tuple:
    names = (known_first(DATASETS, setting.dataset), known_first(METHODS, setting.method))
    return (*names, len(setting.task_sizes), setting.task_sizes, setting.fidelity, setting.data)

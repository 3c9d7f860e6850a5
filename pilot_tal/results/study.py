"""What a report compares with what.

A group is a dataset with its training images, a method, its tasks and a fidelity. A variant is what differs inside
one: the engine, the loss and any other condition, over several seeds. Variants are compared on the seeds they share.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pilot_tal.metrics import DEFINITIONS, Difference, Spread, confusion_shares, paired_difference, rank_classes, spread
from pilot_tal.record.run_dir import Run
from pilot_tal.record.run_record import NO_LOSS, RunRecord
from pilot_tal.results.display import clean, exact, number
from pilot_tal.results.frames import class_frame, difference_frame, failures, run_frame

if TYPE_CHECKING:
    import pandas as pd

BASELINE = "ce"
OF_SETTING = ("tasks", "init_cls", "increment", "fidelity")
"""Changed settings that make another group, not another variant."""

Values = tuple[tuple[str, str], ...]


@dataclass(eq=False)
class Variant:
    """Runs that differ in nothing but the seed.

    Attributes:
        record: The record of one of them.
        shared: The conditions that a loss leaves alone, by name.
        own: The options of the loss, by name.
        counts: Whether it is in headlines and may be the best; quick runs are only where there are no others.
        options_label: What tells its conditions from those of its kin; `own_options_label` the options of its loss.
        runs: The finished runs by seed.
    """

    record: RunRecord
    shared: Values
    own: Values
    counts: bool = True
    label: str = ""
    slug: str = ""
    colour: str = ""
    options_label: str = ""
    own_options_label: str = ""
    runs: dict[int, Run] = field(default_factory=dict)
    unfinished: list[Run] = field(default_factory=list)

    @property
    def loss(self) -> str:
        """Name of its loss."""
        return self.record.loss.name

    @property
    def loss_title(self) -> str:
        """Title of its loss."""
        return clean(self.record.loss.title)

    @property
    def engine(self) -> str:
        """Name of its engine."""
        return self.record.engine.name

    @property
    def trains(self) -> bool:
        """Whether it has a loss at all."""
        return self.loss != NO_LOSS

    @property
    def seeds(self) -> list[int]:
        """Seeds of the finished runs."""
        return sorted(self.runs)

    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Name → (value, default) of the settings that are not the defaults of method, dataset and loss."""
        return {name: (value, default) for name, (value, default) in self.record.changed.items()}

    def values(self, metric: str) -> dict[int, float]:
        """The metric of each finished run that has it."""
        found = {seed: self.runs[seed].metrics.get(metric) for seed in self.seeds}
        return {seed: value for seed, value in found.items() if value is not None}

    def spread(self, metric: str) -> Spread | None:
        """Mean and deviation over the finished seeds; None where no run has the metric."""
        values = self.values(metric)
        return spread(list(values.values())) if values else None

    def only(self, seeds: Iterable[int]) -> "Variant":
        """The same variant with the finished runs of some seeds."""
        return replace(self, runs={seed: self.runs[seed] for seed in seeds})

    def mean_over_seeds(self, metric: str) -> np.ndarray:
        """Mean of a metric that is a list or a matrix; NaN where undefined."""
        return _known_mean([np.array(self.runs[seed].metrics[metric], dtype=float) for seed in self.seeds])

    def by_class(self, metric: str) -> np.ndarray:
        """Mean over seeds of a per-class metric, by ascending original class index; NaN where undefined."""
        rows = []
        for run in self.runs.values():
            values = np.array(run.metrics["per_class"][metric], dtype=float)
            rows.append(values[np.argsort(run.record.stream.class_order)])
        return _known_mean(rows)

    def confusion(self) -> np.ndarray:
        """Share of the images of a class (row) that are taken for another (column) after the last task.

        Mean over seeds, by ascending original class index; NaN for a class without test images.
        """
        rows = []
        for run in self.runs.values():
            order = np.argsort(run.record.stream.class_order)
            rows.append(confusion_shares(*run.labels[-1], len(order))[np.ix_(order, order)])
        return _known_mean(rows)

    def most_confused(self, number: int = 10) -> list[tuple[int, int, float]]:
        """True class, predicted class (places by original index) and share of its images, the largest shares first."""
        shares = np.nan_to_num(self.confusion())
        np.fill_diagonal(shares, 0)
        pairs = zip(*(axis.tolist() for axis in np.nonzero(shares)), strict=True)
        # Shares that differ in their last bits alone are ties, which the smaller index wins.
        ranked = sorted(pairs, key=lambda pair: (-exact(shares[pair]), pair))
        return [(row, column, float(shares[row, column])) for row, column in ranked[:number]]


@dataclass(frozen=True)
class Reference:
    """A variant of another group that stands beside those of this one: nothing trained, or all classes at once."""

    title: str
    variant: Variant
    joint: bool


@dataclass(eq=False)
class Group:
    """What was learnt: a dataset by a method, in tasks, with a fidelity.

    Attributes:
        record: The record of one of its runs.
        data: Original index, name and number of training images of each class, by ascending original index.
        data_note: What tells the data from those of other groups of the dataset; empty where nothing needs to.
        references: What trains nothing on the same data and tasks, and the method itself on one task with all classes.
        is_bound: Whether it stands beside other groups so: one task with all classes.
        baseline_loss: Name of the loss that the others are compared with; `baseline_title` is its title.
    """

    record: RunRecord
    data: tuple[tuple[int, str, int], ...]
    data_note: str = ""
    slug: str = ""
    variants: list[Variant] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    is_bound: bool = False
    baseline_loss: str = BASELINE
    baseline_title: str = "CE"

    @property
    def dataset(self) -> str:
        """Name of the dataset."""
        return self.record.data.name

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.record.method.name

    @property
    def fidelity(self) -> str:
        """Whose behaviour the method has."""
        return clean(self.record.method.fidelity)

    @property
    def task_sizes(self) -> tuple[int, ...]:
        """Classes of each task."""
        return self.record.stream.task_sizes

    @property
    def title(self) -> str:
        """`CUB-LT · L2P · 5 tasks · pilot`."""
        return f"{self.dataset_title} · {self.method_title} · {self.tasks_title} · {self.fidelity}"

    @property
    def dataset_title(self) -> str:
        """Title of the dataset, with a note where there are several of its kind."""
        title = clean(self.record.data.title)
        return f"{title} ({self.data_note})" if self.data_note else title

    @property
    def method_title(self) -> str:
        """Title of the method."""
        return clean(self.record.method.title)

    @property
    def tasks_title(self) -> str:
        """`5 tasks`."""
        return number(len(self.task_sizes), "task")

    def finished_variants(self) -> list[Variant]:
        """Variants with at least one finished run."""
        return [variant for variant in self.variants if variant.runs]

    def compared_variants(self) -> list[Variant]:
        """Variants that have a baseline with which they share seeds."""
        return [variant for variant in self.finished_variants() if self.pairs(variant)]

    def baseline(self, variant: Variant, loss: str | None = None) -> Variant | None:
        """The variant trained with the loss `loss` (None: the group's baseline) and otherwise the same settings."""
        loss = loss or self.baseline_loss
        if variant.loss == loss or not variant.trains:
            return None
        alike = (a for a in self.variants if (a.loss, a.engine, a.shared) == (loss, variant.engine, variant.shared))
        return next(alike, None)

    def pairs(self, variant: Variant, loss: str | None = None) -> list[int]:
        """Seeds finished by the variant and by its baseline on the same data."""
        base = self.baseline(variant, loss)
        if base is None:
            return []
        return [seed for seed in variant.seeds if seed in base.runs and same_data(variant.runs[seed], base.runs[seed])]

    def difference(self, variant: Variant, metric: str) -> Difference | None:
        """The variant minus its baseline, paired by seed."""
        base, seeds = self.baseline(variant), self.pairs(variant)
        if base is None or not seeds:
            return None
        mine, other = variant.values(metric), base.values(metric)
        return paired_difference({s: v for s, v in mine.items() if s in seeds}, other)

    def classes(self) -> "Classes":
        """The classes, by ascending original index."""
        originals, names, counts = zip(*self.data, strict=True)
        rank = rank_classes(counts, originals)
        return Classes(np.array(originals), list(map(clean, names)), np.array(counts), rank)


@dataclass(frozen=True)
class Classes:
    """All classes of a group by ascending original index, and their places from rare to frequent."""

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
    """Several runs: as tables (pandas), as differences between losses, and as a report page.

    Attributes:
        groups: Runs of one dataset, method, tasks and fidelity, sorted into variants (losses and their options).
        remarks: Warnings about runs that were left out.
        baseline: Name of the loss that the others are compared with; `baseline_title` is its title.
    """

    groups: list[Group]
    remarks: list[str]
    baseline: str = BASELINE
    baseline_title: str = "CE"

    @property
    def runs(self) -> list[Run]:
        """The finished runs."""
        return [run for group in self.groups for variant in group.variants for _, run in sorted(variant.runs.items())]

    @property
    def finished(self) -> list[Group]:
        """Groups with a finished run."""
        return [group for group in self.groups if group.finished_variants()]

    @property
    def unfinished(self) -> list[Run]:
        """Runs that are still going on, were stopped or failed; they are in no mean."""
        return [run for group in self.groups for variant in group.variants for run in variant.unfinished]

    @property
    def failed(self) -> dict[str, str]:
        """Name of each failed run and why it failed."""
        return failures(self.unfinished)

    def frame(self) -> "pd.DataFrame":
        """One row per finished run: method, dataset, loss, seed, every setting that varies, and every metric."""
        return run_frame(self.runs)

    def per_class(self) -> "pd.DataFrame":
        """One row per run and class: name, training images, head or tail, accuracy, precision."""
        return class_frame(self.runs)

    def differences(self, baseline: str | None = None) -> "pd.DataFrame":
        """Each variant minus the variant with the loss `baseline` and otherwise the same settings.

        Args:
            baseline: Name of a loss; None: the baseline of the study.

        Returns:
            One row per group, variant and metric: the mean over shared seeds, its 95 % t-interval, and n, the number
            of shared seeds. The interval is NaN for one seed.

        Raises:
            UserError: no run was trained with that loss.
        """
        return difference_frame(self.groups, baseline or self.baseline)

    def report(self, folder: str | Path = "report") -> Path:
        """Write the report page with its tables and plots; return the path of the page."""
        from pilot_tal.results.build import build_report

        return build_report(self, folder)

    def _summary(self) -> "pd.DataFrame":
        frame = self.frame()
        keys = [key for key in frame.columns if key not in ("seed", "run") and key not in DEFINITIONS]
        table = frame.groupby(keys, sort=False, dropna=False)[["a_mean", "a_tail", "a_head"]].mean()
        return (100 * table).round(1).assign(runs=frame.groupby(keys, sort=False, dropna=False).size()).reset_index()

    def __repr__(self) -> str:
        head = f"Study of {len(self.runs)} finished and {len(self.unfinished)} unfinished runs"
        return f"{head}\n{self._summary().to_string(index=False)}" if self.runs else head

    def _repr_html_(self) -> str:
        head = f"<p>{len(self.runs)} finished and {len(self.unfinished)} unfinished runs</p>"
        return head + (self._summary().to_html(index=False) if self.runs else "")


def _known_mean(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Mean over tables of one shape of what is not NaN; NaN where nothing is."""
    table = np.array(tables)
    known = (~np.isnan(table)).sum(axis=0)
    return np.divide(np.nansum(table, axis=0), known, out=np.full(known.shape, np.nan), where=known > 0)


def same_data(a: Run, b: Run) -> bool:
    """Same classes in the same order, as many training images, and the same test images."""
    mine, other = a.record.stream, b.record.stream
    same_lists = (mine.class_order, mine.train_counts) == (other.class_order, other.train_counts)
    return same_lists and all(
        np.array_equal(np.bincount(x[0]), np.bincount(y[0])) for x, y in zip(a.labels, b.labels, strict=True)
    )

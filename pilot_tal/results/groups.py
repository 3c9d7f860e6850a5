"""What a report compares with what.

A group is a dataset with its training images, a method, its tasks and a fidelity. A variant is what differs inside
one: the engine, the loss and any other setting, over several seeds. Variants are compared on the seeds they share.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pilot_tal.metrics import (
    LOWER_IS_BETTER,
    Difference,
    Spread,
    confusion_shares,
    paired_difference,
    rank_classes,
    spread,
)
from pilot_tal.record.run_dir import Run
from pilot_tal.record.run_record import NO_LOSS, RunRecord
from pilot_tal.results.formats import clean, exact, number

BASELINE = "ce"

_MOST_FEATURED = 6  # variants in plots of single variants

Values = tuple[tuple[str, str], ...]


@dataclass(eq=False)
class Variant:
    """Runs that differ in the seed only.

    Attributes:
        record: The record of one of them.
        shared: The settings that a loss does not touch, by name.
        own: The options of the loss, by name.
        options_label: The settings that tell it from other variants; `own_options_label` the options of its loss.
        runs: The finished runs by seed.
        loss, loss_title, engine: Names; the title is `none` for a method that trains nothing.
        trains: Whether it has a loss at all.
    """

    record: RunRecord
    shared: Values
    own: Values
    label: str = ""
    slug: str = ""
    colour: str = ""
    options_label: str = ""
    own_options_label: str = ""
    runs: dict[int, Run] = field(default_factory=dict)
    unfinished: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loss, self.engine = self.record.loss.name, self.record.engine.name
        self.trains = self.loss != NO_LOSS
        self.loss_title = clean(self.record.loss.title) if self.trains else NO_LOSS

    @property
    def seeds(self) -> list[int]:
        """Seeds of the finished runs."""
        return sorted(self.runs)

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

    def minus(self, other: "Variant", metric: str) -> Difference | None:
        """The paired difference of a metric over the seeds that both finished on the same data."""
        return paired_difference(self.only(shared_seeds(self, other)).values(metric), other.values(metric))

    def mean_over_seeds(self, metric: str) -> np.ndarray:
        """Mean of a metric that is a list or a matrix; NaN where undefined."""
        return _known_mean([self.runs[seed].metrics[metric] for seed in self.seeds])

    def by_class(self, metric: str) -> np.ndarray:
        """Mean over seeds of a per-class metric, by ascending original class index; NaN where undefined."""
        values = [(np.array(run.metrics["per_class"][metric]), _original_order(run)) for run in self.runs.values()]
        return _known_mean([found[order] for found, order in values])

    def confusion(self) -> np.ndarray:
        """Share of the images of a class (row) that are taken for another (column) after the last task.

        Mean over seeds, by ascending original class index; NaN for a class without test images.
        """
        orders = [(run, _original_order(run)) for run in self.runs.values()]
        shares = [confusion_shares(*run.labels[-1], len(order))[np.ix_(order, order)] for run, order in orders]
        return _known_mean(shares)

    def most_confused(self, number: int = 10) -> list[tuple[int, int, float]]:
        """True class, predicted class (places by original index) and share of its images, the largest shares first."""
        shares = np.round(np.nan_to_num(self.confusion()), 12)  # so that ties are ties; the smaller index comes first
        np.fill_diagonal(shares, 0)
        places = np.argsort(-shares, axis=None, kind="stable")[:number]
        pairs = [divmod(int(place), len(shares)) for place in places]
        return [(row, column, float(shares[row, column])) for row, column in pairs if shares[row, column] > 0]


@dataclass(frozen=True)
class Reference:
    """A variant of another group to compare with: a training-free method, or all classes in one task (`joint`)."""

    title: str
    variant: Variant
    joint: bool


@dataclass(frozen=True)
class Classes:
    """All classes of a group by ascending original index; `order` are their places from frequent to rare."""

    originals: np.ndarray
    names: list[str]
    counts: np.ndarray
    order: np.ndarray
    tail: np.ndarray


@dataclass(eq=False)
class Group:
    """A dataset learned by a method, in tasks, with a fidelity.

    Attributes:
        record: The record of one of its runs.
        data: Original index, name and number of training images of each class, by ascending original index.
        data_note: What tells the data from those of other groups of the dataset; empty where nothing needs to.
        references: Training-free methods on the same data and tasks, and the method itself on one task.
        is_bound: Whether it is such a one-task reference of another group.
        baseline_loss: The loss that the others are compared with.
    """

    record: RunRecord
    data: tuple[tuple[int, str, int], ...]
    data_note: str = ""
    slug: str = ""
    variants: list[Variant] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    is_bound: bool = False
    baseline_loss: str = BASELINE

    def __post_init__(self) -> None:
        method, self.task_sizes = self.record.method, self.record.stream.task_sizes
        self.dataset, self.method = self.record.data.name, method.name
        self.method_title, self.fidelity = clean(method.title), clean(method.fidelity)
        self.tasks_title = number(len(self.task_sizes), "task")

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
    def even_tests(self) -> bool:
        """Whether all classes have as many test images, so that A_Last equals A_Mean."""
        return len({n for run in self.runs for n in run.metrics["per_class"]["test_images"]}) == 1

    @property
    def runs(self) -> list[Run]:
        """The finished runs."""
        return [run for variant in self.variants for _, run in sorted(variant.runs.items())]

    def finished_variants(self) -> list[Variant]:
        """Variants with at least one finished run."""
        return [variant for variant in self.variants if variant.runs]

    def featured_variants(self) -> list[Variant]:
        """The finished variants; of many, one per loss and settings: that with default options, or else the first."""
        variants = self.finished_variants()
        if len(variants) <= _MOST_FEATURED:
            return variants
        chosen: dict[tuple, Variant] = {}
        for variant in sorted(variants, key=lambda v: bool(v.record.changed.keys() & dict(v.own).keys())):
            chosen.setdefault((variant.engine, variant.shared, variant.loss), variant)
        return [variant for variant in variants if variant in chosen.values()]

    def rows(self) -> list[tuple[str, Variant]]:
        """Label and variant of every row of a table: the finished variants, then the references."""
        own = [(variant.label, variant) for variant in self.finished_variants()]
        return own + [(reference.title, reference.variant) for reference in self.references]

    def compared_variants(self) -> list[Variant]:
        """Variants that have a baseline with which they share seeds."""
        return [variant for variant in self.finished_variants() if self.pairs(variant)]

    def baseline(self, variant: Variant) -> Variant | None:
        """The variant trained with the baseline loss and otherwise the same settings."""
        if variant.loss == self.baseline_loss or not variant.trains:
            return None
        kind = (self.baseline_loss, variant.engine, variant.shared)
        return next((a for a in self.variants if (a.loss, a.engine, a.shared) == kind), None)

    @property
    def baseline_title(self) -> str:
        """Title of the baseline loss."""
        known = (variant.loss_title for variant in self.variants if variant.loss == self.baseline_loss)
        return next(known, self.baseline_loss.upper())

    def pairs(self, variant: Variant) -> list[int]:
        """Seeds finished by the variant and by its baseline on the same data."""
        base = self.baseline(variant)
        return [] if base is None else shared_seeds(variant, base)

    def difference(self, variant: Variant, metric: str) -> Difference | None:
        """The variant minus its baseline, paired by seed."""
        base = self.baseline(variant)
        return None if base is None else variant.minus(base, metric)

    def class_differences(self, variant: Variant) -> np.ndarray:
        """Accuracy of each class minus that of the baseline, over the shared seeds, by original index."""
        base, seeds = self.baseline(variant), self.pairs(variant)
        assert base is not None and seeds, "only for variants that are compared"
        change = variant.only(seeds).by_class("accuracy") - base.only(seeds).by_class("accuracy")
        return np.round(change, 12)  # so that no change is 0

    def classes(self) -> Classes:
        """The classes, by ascending original index."""
        originals, names, counts = zip(*self.data, strict=True)
        rank = rank_classes(counts, originals)
        tail = np.isin(np.arange(len(rank)), rank[: len(rank) // 2])
        return Classes(np.array(originals), list(map(clean, names)), np.array(counts), rank[::-1], tail)


def winner(variants: Sequence[Variant], metric: str) -> Variant | None:
    """The variant with the best mean, if its paired 95 % interval against the runner-up excludes 0."""
    sign = -1 if metric in LOWER_IS_BETTER else 1
    means = {v: exact(sign * found.mean) for v in variants if (found := v.spread(metric))}
    if len(means) < 2:
        return None
    best, second = sorted(means, key=lambda v: -means[v])[:2]
    lead = best.minus(second, metric)
    ends = [] if lead is None or lead.low is None or lead.high is None else [sign * lead.low, sign * lead.high]
    return best if ends and exact(min(ends)) > 0 else None


def shared_seeds(a: Variant, b: Variant) -> list[int]:
    """Seeds that both finished on the same data: class order, training images and test images per class."""
    return [seed for seed in a.seeds if seed in b.runs and _data(a.runs[seed]) == _data(b.runs[seed])]


def _data(run: Run) -> tuple:
    stream = run.record.stream
    return (stream.class_order, stream.train_counts, np.bincount(run.labels[-1][0]).tolist())


def _original_order(run: Run) -> np.ndarray:
    """Labels by ascending original class index."""
    return np.argsort(run.record.stream.class_order)


def _known_mean(tables: Sequence) -> np.ndarray:
    """Mean over tables of one shape of what is not NaN; NaN where nothing is."""
    return np.ma.masked_invalid(np.array(tables, dtype=float)).mean(axis=0).filled(np.nan)

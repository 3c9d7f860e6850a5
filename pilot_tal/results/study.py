"""What a report compares with what, and `Study`: several runs as tables (pandas), differences and a report.

A group is a dataset with its training images, a method, its tasks and a fidelity. A variant is what differs inside
one: the engine, the loss and any other setting, over several seeds. Variants are compared on the seeds they share.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from data_lt.errors import UserError
from pilot_tal import metrics
from pilot_tal.metrics import DEFINITIONS, Difference, Spread
from pilot_tal.record.run_dir import Run
from pilot_tal.record.run_record import NO_LOSS, RunRecord
from pilot_tal.record.states import state_of
from pilot_tal.results.formats import clean, exact, number

if TYPE_CHECKING:
    from pilot_tal.results.findings import Finding

BASELINE = "ce"
_MOST_FEATURED = 6  # variants in plots of single variants

Values = tuple[tuple[str, str], ...]


@dataclass(eq=False)
class Variant:
    """Runs that differ in the seed only: the finished ones by seed, and the unfinished ones.

    `shared` are the settings that a loss does not touch, `own` the options of the loss, by name; `options_label` and
    `own_options_label` those of them that tell it from other variants. A method that trains nothing has loss `none`.
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
        return {seed: v for seed in self.seeds if (v := self.runs[seed].metrics.get(metric)) is not None}

    def spread(self, metric: str) -> Spread | None:
        """Mean and deviation over the finished seeds; None where no run has the metric."""
        values = self.values(metric)
        return metrics.spread([*values.values()]) if values else None

    def only(self, seeds: Iterable[int]) -> "Variant":
        """The same variant with the finished runs of some seeds."""
        return replace(self, runs={seed: self.runs[seed] for seed in seeds})

    def minus(self, other: "Variant", metric: str) -> Difference | None:
        """The paired difference of a metric over the seeds that both finished on the same data."""
        return metrics.paired_difference(self.only(shared_seeds(self, other)).values(metric), other.values(metric))

    def mean_over_seeds(self, metric: str) -> np.ndarray:
        """Mean of a metric that is a list or a matrix; NaN where undefined."""
        return _known_mean([self.runs[seed].metrics[metric] for seed in self.seeds])

    def by_class(self, metric: str) -> np.ndarray:
        """Mean over seeds of a per-class metric, by ascending original class index; NaN where undefined."""
        runs = [(run.metrics["per_class"][metric], _original_order(run)) for run in self.runs.values()]
        return _known_mean([np.array(found)[order] for found, order in runs])

    def confusion(self) -> np.ndarray:
        """Share of the images of a class (row) taken for another (column) after the last task, otherwise as above."""
        runs = [(run.labels[-1], _original_order(run)) for run in self.runs.values()]
        return _known_mean([metrics.confusion_shares(*found, len(o))[np.ix_(o, o)] for found, o in runs])

    def most_confused(self, number: int = 10) -> list[tuple[int, int, float]]:
        """True class, predicted class (places by original index) and share of its images, the largest shares first."""
        shares = np.round(np.nan_to_num(self.confusion()), 12)  # so that ties are ties; the smaller index comes first
        np.fill_diagonal(shares, 0)
        pairs = [divmod(int(p), len(shares)) for p in np.argsort(-shares, axis=None, kind="stable")[:number]]
        return [(*pair, float(shares[pair])) for pair in pairs if shares[pair] > 0]


class Reference(NamedTuple):
    """A training-free method on the data and tasks of a group, to compare with."""

    title: str
    variant: Variant


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
    """A dataset learned by a method, in tasks, with a fidelity; `record` is that of one of its runs.

    `data` are original index, name and number of training images of each class, by ascending original index, and
    `data_note` is what tells them from those of other groups of the dataset.
    """

    record: RunRecord
    data: tuple[tuple[int, str, int], ...]
    data_note: str = ""
    slug: str = ""
    variants: list[Variant] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
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
        return [variant.runs[seed] for variant in self.variants for seed in variant.seeds]

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
        return [(variant.label, variant) for variant in self.finished_variants()] + [*self.references]

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
        rank = metrics.rank_classes(counts, originals)
        tail = np.isin(np.arange(len(rank)), metrics.tail_classes(counts, originals))
        return Classes(np.array(originals), list(map(clean, names)), np.array(counts), rank[::-1], tail)


@dataclass
class Study:
    """Several runs: as tables (pandas), as differences between losses, and as a report.

    `groups` are runs of one dataset, method, tasks and fidelity, sorted into variants (losses and their options);
    `remarks` are findings on runs that were left out.
    """

    groups: list[Group]
    remarks: "list[Finding]"

    @property
    def baseline(self) -> str:
        """The loss that the others are compared with."""
        return self.groups[0].baseline_loss

    @property
    def runs(self) -> list[Run]:
        """The finished runs."""
        return [run for group in self.groups for run in group.runs]

    @property
    def finished(self) -> list[Group]:
        """Groups with a finished run."""
        return [group for group in self.groups if group.runs]

    @property
    def unfinished(self) -> list[Run]:
        """Runs that are still going on, were stopped or failed; they are in no mean."""
        return [run for group in self.groups for variant in group.variants for run in variant.unfinished]

    @property
    def failed(self) -> dict[str, str]:
        """Name of each failed run and why it failed."""
        states = [state_of(run.path) for run in self.unfinished]
        return {state.name: state.detail.split("\n")[0][:400] for state in states if state.state == "failed"}

    def frame(self) -> pd.DataFrame:
        """One row per finished run: method, dataset, loss, seed, every setting that varies, and every metric."""
        settings = [_settings(run.record) for run in self.runs]
        keys = {key: None for found in settings for key in found}
        varying = [key for key in keys if len({repr(found[key]) for found in settings if key in found}) > 1]
        return pd.DataFrame(
            _names(run.record)
            | {key: found.get(key) for key in varying}
            | {key: run.metrics.get(key) for key in DEFINITIONS}
            | {"run": run.path.name}
            for run, found in zip(self.runs, settings, strict=True)
        )

    def per_class(self) -> pd.DataFrame:
        """One row per run and class, in the order of its training: training images, part, accuracy, precision."""
        tables = []
        for run in self.runs:
            stream, found = run.record.stream, run.metrics["per_class"]
            columns = {"class": stream.class_names, "training_images": stream.train_counts, "part": "head"}
            columns |= {"accuracy": found["accuracy"], "precision": found["precision"], "run": run.path.name}
            tables.append(pd.DataFrame({**_names(run.record), **columns}))
            tables[-1].loc[run.metrics["tail_classes"], "part"] = "tail"
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()

    def with_baseline(self, loss: str) -> "Study":
        """The same study, every loss compared with `loss`; a `UserError` if no finished run was trained with it."""
        losses = {variant.loss for group in self.groups for variant in group.finished_variants() if variant.trains}
        if loss not in losses:
            known = ", ".join(sorted(losses)) or "none"
            raise UserError(f"no run was trained with the baseline {loss!r}; losses of this study: {known}")
        return replace(self, groups=[replace(group, baseline_loss=loss) for group in self.groups])

    def differences(self, baseline: str | None = None) -> pd.DataFrame:
        """Each variant minus the variant with the loss `baseline` (None: that of the study) and otherwise its settings.

        Returns:
            One row per group, variant and metric: the mean over shared seeds, its 95 % t-interval, and n, the number
            of shared seeds. The interval is NaN for one seed.

        Raises:
            UserError: no finished run was trained with that loss.
        """
        columns = ["dataset", "method", "tasks", "fidelity", "loss", "options", "baseline"]
        rows = [
            (group.dataset, group.method, len(group.task_sizes), group.fidelity, variant.loss, variant.label,
             group.baseline_loss, metric, found.mean, found.low, found.high, found.n)
            for group in self.with_baseline(baseline or self.baseline).groups
            for variant in group.compared_variants()
            for metric in DEFINITIONS
            if (found := group.difference(variant, metric)) is not None
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=[*columns, "metric", "mean", "low", "high", "n"])

    def report(self, folder: str | Path = "report", plots: bool = False, features: bool = False) -> Path:
        """Write the report into `folder` as `pilot_tal.report` does; return the path of its overview page."""
        from pilot_tal.results.build import build_report

        return build_report(self, folder, plots=plots, features=features)

    def _summary(self) -> pd.DataFrame:
        frame = self.frame()
        keys = [key for key in frame.columns if key not in ("seed", "run") and key not in DEFINITIONS]
        groups = frame.groupby(keys, sort=False, dropna=False)
        table = (100 * groups[["a_mean", "a_tail", "a_head"]].mean()).round(1)
        return table.assign(runs=groups.size()).reset_index()

    def __repr__(self) -> str:
        head = f"Study of {len(self.runs)} finished and {len(self.unfinished)} unfinished runs"
        return f"{head}\n{self._summary().to_string(index=False)}" if self.runs else head

    def _repr_html_(self) -> str:
        head = f"<p>{len(self.runs)} finished and {len(self.unfinished)} unfinished runs</p>"
        return head + (self._summary().to_html(index=False) if self.runs else "")


def winner(variants: Sequence[Variant], metric: str) -> Variant | None:
    """The variant with the best mean, if its paired 95 % interval against the runner-up excludes 0."""
    sign = -1 if metric in metrics.LOWER_IS_BETTER else 1
    means = {v: exact(sign * found.mean) for v in variants if (found := v.spread(metric))}
    if len(means) < 2:
        return None
    best, second = sorted(means, key=lambda v: -means[v])[:2]
    lead = best.minus(second, metric)
    if lead is None or lead.low is None or lead.high is None:
        return None
    return best if exact(min(sign * lead.low, sign * lead.high)) > 0 else None


def shared_seeds(a: Variant, b: Variant) -> list[int]:
    """Seeds that both finished on the same data: class order, training images and test images per class."""
    return [seed for seed in a.seeds if seed in b.runs and _data(a.runs[seed]) == _data(b.runs[seed])]


def _data(run: Run) -> tuple:
    stream = run.record.stream
    return (stream.class_order, stream.train_counts, run.metrics["per_class"]["test_images"])


def _original_order(run: Run) -> np.ndarray:
    return np.argsort(run.record.stream.class_order)


def _known_mean(tables: Sequence) -> np.ndarray:
    """Mean over tables of one shape of what is not NaN; NaN where nothing is."""
    return np.ma.masked_invalid(np.array(tables, dtype=float)).mean(axis=0).filled(np.nan)


def _names(record: RunRecord) -> dict:
    return {"method": record.method.name, "dataset": record.data.name, "loss": record.loss.name, "seed": record.seed}


def _settings(record: RunRecord) -> dict:
    return {
        "engine": record.engine.name,
        "fidelity": record.method.fidelity,
        "task_sizes": "+".join(map(str, record.stream.task_sizes)),
        **record.conditions(),
        **{f"{record.loss.name}.{key}": value for key, value in record.loss.options.items()},
    }

"""`Study`: several runs as tables (pandas), differences and a report."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from data_lt.errors import UserError
from pilot_tal.metrics import DEFINITIONS, tail_classes
from pilot_tal.record.run_dir import ERROR, Run
from pilot_tal.results.groups import Group

if TYPE_CHECKING:
    from pilot_tal.results.findings import Finding


@dataclass
class Study:
    """Several runs: as tables (pandas), as differences between losses, and as a report.

    Attributes:
        groups: Runs of one dataset, method, tasks and fidelity, sorted into variants (losses and their options).
        remarks: Findings on runs that were left out.
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
        return [group for group in self.groups if group.finished_variants()]

    @property
    def unfinished(self) -> list[Run]:
        """Runs that are still going on, were stopped or failed; they are in no mean."""
        return [run for group in self.groups for variant in group.variants for run in variant.unfinished]

    @property
    def failed(self) -> dict[str, str]:
        """Name of each failed run and why it failed."""
        files = [run.path / ERROR for run in self.unfinished]
        texts = {file: file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()}
        return {file.parent.name: (text.splitlines() or ["failed"])[0][:400] for file, text in texts.items()}

    def frame(self) -> pd.DataFrame:
        """One row per finished run: method, dataset, loss, seed, every setting that varies, and every metric."""
        names = [_names(run) for run in self.runs]
        settings = [_settings(run) for run in self.runs]
        varying = [
            key
            for key in dict.fromkeys(key for found in settings for key in found)
            if len({repr(found[key]) for found in settings if key in found}) > 1
        ]
        return pd.DataFrame(
            {
                **name,
                **{key: found.get(key) for key in varying},
                **{key: run.metrics.get(key) for key in DEFINITIONS},
                "run": run.path.name,
            }
            for name, found, run in zip(names, settings, self.runs, strict=True)
        )

    def per_class(self) -> pd.DataFrame:
        """One row per run and class, in the order of its training: training images, part, accuracy, precision."""
        tables = []
        for run in self.runs:
            stream, found = run.record.stream, run.metrics["per_class"]
            tail = set(tail_classes(stream.train_counts, stream.class_order).tolist())
            columns = {
                **_names(run),
                "class": stream.class_names,
                "training_images": stream.train_counts,
                "part": ["tail" if label in tail else "head" for label in range(len(stream.class_order))],
                "accuracy": found["accuracy"],
                "precision": found["precision"],
                "run": run.path.name,
            }
            tables.append(pd.DataFrame(columns))
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()

    def with_baseline(self, loss: str) -> "Study":
        """The same study, with every loss compared with `loss`.

        Raises:
            UserError: no finished run was trained with that loss.
        """
        losses = {variant.loss for group in self.groups for variant in group.finished_variants() if variant.trains}
        if loss not in losses:
            known = ", ".join(sorted(losses)) or "none"
            raise UserError(f"no run was trained with the baseline {loss!r}; losses of this study: {known}")
        return replace(self, groups=[replace(group, baseline_loss=loss) for group in self.groups])

    def differences(self, baseline: str | None = None) -> pd.DataFrame:
        """Each variant minus the variant with the loss `baseline` and otherwise the same settings.

        Args:
            baseline: Name of a loss; None: the baseline of the study.

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
        """Write the report; return the path of its overview page.

        Args:
            folder: Where to write it.
            plots: Draw every plot, and write each as SVG, PDF and PNG.
            features: Add a map of the frozen features of the test images; needs `umap-learn`, images and weights.
        """
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


def _names(run: Run) -> dict:
    record = run.record
    return {
        "method": record.method.name,
        "dataset": record.data.name,
        "loss": record.loss.name,
        "seed": record.seed,
    }


def _settings(run: Run) -> dict:
    record = run.record
    return {
        "engine": record.engine.name,
        "fidelity": record.method.fidelity,
        "task_sizes": "+".join(map(str, record.stream.task_sizes)),
        **record.conditions(),
        **{f"{record.loss.name}.{key}": value for key, value in record.loss.options.items()},
    }

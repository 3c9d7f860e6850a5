"""`Study`: several runs as tables, differences and a report."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from data_lt.errors import UserError
from pilot_tal.metrics import DEFINITIONS
from pilot_tal.record.run_dir import Run
from pilot_tal.results.frames import class_frame, difference_frame, failures, run_frame
from pilot_tal.results.groups import Group

if TYPE_CHECKING:
    import pandas as pd

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
        return failures(self.unfinished)

    def frame(self) -> "pd.DataFrame":
        """One row per finished run: method, dataset, loss, seed, every setting that varies, and every metric."""
        return run_frame(self.runs)

    def per_class(self) -> "pd.DataFrame":
        """One row per run and class: name, training images, head or tail, accuracy, precision."""
        return class_frame(self.runs)

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

    def differences(self, baseline: str | None = None) -> "pd.DataFrame":
        """Each variant minus the variant with the loss `baseline` and otherwise the same settings.

        Args:
            baseline: Name of a loss; None: the baseline of the study.

        Returns:
            One row per group, variant and metric: the mean over shared seeds, its 95 % t-interval, and n, the number
            of shared seeds. The interval is NaN for one seed.

        Raises:
            UserError: no finished run was trained with that loss.
        """
        return difference_frame(self.with_baseline(baseline or self.baseline).groups)

    def report(self, folder: str | Path = "report", plots: bool = False) -> Path:
        """Write the report; return the path of its overview page.

        Args:
            folder: Where to write it.
            plots: Draw every plot, and write each as SVG, PDF and PNG.
        """
        from pilot_tal.results.build import build_report

        return build_report(self, folder, plots=plots)

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

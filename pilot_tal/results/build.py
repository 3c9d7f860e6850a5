"""Build the report: an overview page, one page per group, tables and plots."""

import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from data_lt.files import given_path, staged_folder
from data_lt.progress import progress
from pilot_tal.results.conditions import conditions_table
from pilot_tal.results.drawing import FORMATS, Plot, style
from pilot_tal.results.findings import group_findings, headline, study_findings
from pilot_tal.results.grouping import load_study
from pilot_tal.results.groups import BASELINE, Group
from pilot_tal.results.options import featured_variants
from pilot_tal.results.page import ARCHIVE, Part, render
from pilot_tal.results.plots_classes import (
    accuracy_by_class,
    difference_by_class,
    precision_recall_by_task,
)
from pilot_tal.results.plots_confusion import confusion
from pilot_tal.results.plots_options import options_plots
from pilot_tal.results.plots_overview import group_tradeoff, study_plots
from pilot_tal.results.plots_tasks import after_task, task_matrix
from pilot_tal.results.plots_training import loss_curves, tal_over_steps
from pilot_tal.results.study import Study
from pilot_tal.results.tables import (
    changes_table,
    classes_table,
    confused_table,
    metrics_table,
    options_table,
    overview_table,
    paper_layout_table,
    runs_table,
    tasks_table,
    unfinished_table,
)

ALL_PLOTS_UP_TO = 4
"""Groups of a report whose pages have every plot; those of larger reports have the main ones unless asked."""


def build_report(
    runs: Study | Iterable[str | Path],
    output: str | Path,
    baseline: str = BASELINE,
    *,
    plots: bool = False,
    watched: bool = False,
) -> Path:
    """Write the report on all runs at or below `runs` into `output`; all its files appear together or none does.

    Args:
        runs: A study, run directories, or folders of them.
        output: Folder of the report.
        baseline: The loss that the others are compared with; a study has its own.
        plots: Draw every plot, and write each as SVG, PDF and PNG.
        watched: Let the pages reload themselves.

    Returns:
        The overview page, `output/index.html`. The same runs give the same bytes.

    Raises:
        UserError: there is no run, one is damaged, no run has the baseline, or the folder cannot be written.
    """
    study, output = load_study(runs, baseline), given_path(output, "output")
    finished, results = study.finished, headline(study)
    every = plots or len(finished) <= ALL_PLOTS_UP_TO
    with staged_folder(output) as folder, progress("report", len(finished)) as done, style():
        section = None
        for group in finished:  # one at a time, so that memory does not grow with their number
            section = _group_part(group, every, folder / "plots" if plots else None)
            _write_tables(folder, section)
            if len(finished) > 1:
                _write(folder / f"{group.slug}.html", render(study, [], None, section, watched))
            done(1)
        overview = _study_part(study, folder / "plots" if plots else None)
        _write_tables(folder, overview)
        only = section if len(finished) == 1 else None
        _write(folder / "index.html", render(study, results, overview, only, watched))
        _archive(folder)
    return output / "index.html"


def _study_part(study: Study, files: Path | None) -> Part:
    tables = [unfinished_table(study)] if study.unfinished else []
    tables += [paper_layout_table(study), overview_table(study)] if study.finished else []
    part = Part("overview", conditions_table(study, "conditions"), study_findings(study), tables)
    _draw(part, study_plots(study), files)
    return part


def _group_part(group: Group, every: bool, files: Path | None) -> Part:
    tables = [table for table in (metrics_table(group), changes_table(group), options_table(group)) if table]
    folded = [
        ("After each task", tasks_table(group)),
        ("Most confused pairs", confused_table(group)),
        ("Each run", runs_table(group)),
        ("Each class", classes_table(group)),
    ]
    conditions = conditions_table(group, f"conditions-{group.slug}")
    part = Part(group.slug, conditions, group_findings(group), tables, folded, group=group)
    _draw(part, _group_plots(group, every), files)
    return part


def _group_plots(group: Group, every: bool) -> Iterator[Plot]:
    """The plots of a group: the main ones, or `every` one."""
    variants, several = featured_variants(group), len(group.task_sizes) > 1
    yield group_tradeoff(group)
    yield accuracy_by_class(group, variants)
    if several:
        yield after_task(group, variants)
    if not every:
        return
    yield from (difference_by_class(group, v) for v in group.compared_variants() if v in variants)
    yield from options_plots(group)
    yield from loss_curves(variants)
    yield from tal_over_steps(variants)
    if several:
        yield precision_recall_by_task(group, variants)
        yield from map(task_matrix, variants)
    yield from (confusion(group, variant) for variant in variants)


def _draw(part: Part, plots: Iterable[Plot], files: Path | None) -> None:
    for plot in plots:
        part.add(plot, FORMATS if files else ())
        if files:
            plot.save(files / part.folder)


def _write_tables(folder: Path, part: Part) -> None:
    for table in (part.conditions, *part.tables, *(table for _, table in part.folded)):
        for extension, text in table.texts():
            _write(folder / "tables" / f"{table.name}.{extension}", text)


def _archive(folder: Path) -> None:
    """Everything in one file, for "download all"; without time stamps, so that its bytes depend on its content."""
    with zipfile.ZipFile(folder / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ARCHIVE):
            archive.writestr(zipfile.ZipInfo(str(path.relative_to(folder))), path.read_bytes(), zipfile.ZIP_DEFLATED)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))

"""Builds the report: the page, its tables and its plots."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from data_lt.files import given_path, staged_folder
from data_lt.progress import progress
from pilot_tal.results.formats import to_csv, to_latex, to_markdown
from pilot_tal.results.grouping import load_study
from pilot_tal.results.page import Overview, Section, plot_file, render
from pilot_tal.results.plots import difference_plots, group_plots, level_plots
from pilot_tal.results.study import BASELINE, Group, Study
from pilot_tal.results.svg import standalone
from pilot_tal.results.tables import (
    ablation_table,
    classes_table,
    confused_table,
    metrics_table,
    overview_table,
    paper_layout_table,
    seeds_table,
    tasks_table,
    unfinished_table,
)

_FORMATS = {"csv": to_csv, "md": to_markdown, "tex": to_latex}


@dataclass(frozen=True)
class Drawn:
    """A report with its tables and plots made, which takes most of the time, and nothing written."""

    study: Study
    overview: Overview
    sections: list[Section]


def build_report(run_paths: Study | Iterable[str | Path], output: str | Path, baseline: str = BASELINE) -> Path:
    """Writes the report on all runs at or below `run_paths` into `output`; a study has its own baseline.

    Returns:
        The page, `output/index.html`. Beside it lie `tables/` (each table as CSV, Markdown and LaTeX) and
        `plots/` (each plot as SVG). All appear together or none does. The same runs give the same bytes.
    """
    output = given_path(output, "output")
    return write_report(draw_report(load_study(run_paths, baseline)), output)


def draw_report(study: Study) -> Drawn:
    """Makes all tables and plots."""
    tables = (overview_table(study), paper_layout_table(study), unfinished_table(study))
    overview = Overview(*tables, level_plots(study), difference_plots(study))
    sections = []
    with progress("report", len(study.finished)) as done:
        for group in study.finished:
            sections.append(_section(group))
            done(1)
    return Drawn(study, overview, sections)


def write_report(drawn: Drawn, output: Path, watched: bool = False) -> Path:
    """Writes what was drawn; the page of one that is `watched` loads itself again and again."""
    overview, sections = drawn.overview, drawn.sections
    with staged_folder(output) as folder:
        for table in (overview.table, overview.layout, *(table for s in sections for table in s.tables)):
            for extension, write in _FORMATS.items():
                _write(folder / "tables" / f"{table.name}.{extension}", write(table))
        for name, drawings in (("overview", overview.plots), *((s.group.slug, s.plots) for s in sections)):
            for plot in drawings:
                _write(folder / plot_file(name, plot), standalone(plot.svg))
        _write(folder / "index.html", render(drawn.study, overview, sections, watched))
    return output / "index.html"


def _section(group: Group) -> Section:
    return Section(
        group=group,
        metrics=metrics_table(group),
        ablation=ablation_table(group),
        tasks=tasks_table(group),
        confused=confused_table(group),
        seeds=seeds_table(group),
        classes=classes_table(group),
        plots=group_plots(group),
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))

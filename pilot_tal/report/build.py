"""Builds the report: the page, its tables and its plots."""

from collections.abc import Iterable
from pathlib import Path

from data_lt.progress import progress
from pilot_tal.files import write_text
from pilot_tal.report.page import Section, plot_file, render
from pilot_tal.report.plots import overview_plots, setting_plots
from pilot_tal.report.study import Setting, Study, load_study
from pilot_tal.report.svg import standalone
from pilot_tal.report.table import Table, to_csv, to_latex, to_markdown
from pilot_tal.report.tables import (
    classes_table,
    metrics_table,
    overview_table,
    paper_layout_table,
    seeds_table,
)

_FORMATS = {"csv": to_csv, "md": to_markdown, "tex": to_latex}


def build_report(run_paths: Study | Iterable[str | Path], output: str | Path) -> Path:
    """Writes the report on all runs at or below `run_paths` into `output`.

    Returns:
        The page, `output/index.html`. Beside it lie `tables/` (each table as CSV, Markdown and LaTeX) and
        `plots/` (each plot as SVG). The same runs give the same bytes.
    """
    output = Path(output)
    study = load_study(run_paths)
    overview, layout = overview_table(study), paper_layout_table(study)
    plots = overview_plots(study)
    sections = []
    with progress("report", len(study.finished)) as done:
        for setting in study.finished:
            sections.append(_section(setting))
            done(1)
    for table in (overview, layout, *(t for s in sections for t in (s.metrics, s.seeds, s.classes))):
        _write_table(output, table)
    for folder, drawn in (("overview", plots), *((s.setting.slug, s.plots) for s in sections)):
        for plot in drawn:
            write_text(output / plot_file(folder, plot), standalone(plot.svg))
    page = output / "index.html"
    write_text(page, render(study, overview, layout, plots, sections))
    return page


def _section(setting: Setting) -> Section:
    return Section(
        setting=setting,
        metrics=metrics_table(setting),
        seeds=seeds_table(setting),
        classes=classes_table(setting),
        plots=setting_plots(setting),
    )


def _write_table(output: Path, table: Table) -> None:
    for extension, write in _FORMATS.items():
        write_text(output / "tables" / f"{table.name}.{extension}", write(table))

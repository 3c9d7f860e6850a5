"""Build the report: an overview page, one page per group, tables and plots."""

import base64
import hashlib
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from data_lt.files import given_path, progress, staged_folder
from pilot_tal.metrics import DEFINITIONS
from pilot_tal.results import formats, tables
from pilot_tal.results.drawing import FORMATS, Plot, style
from pilot_tal.results.findings import Finding, group_findings, headline, study_findings
from pilot_tal.results.formats import Table, clean, listed
from pilot_tal.results.grouping import load_study
from pilot_tal.results.groups import BASELINE, Group
from pilot_tal.results.plots_classes import accuracy_by_class, confusion, difference_by_class
from pilot_tal.results.plots_overview import feature_maps, group_tradeoff, study_plots
from pilot_tal.results.plots_tasks import (
    after_task,
    precision_recall_by_task,
    prompts_picked,
    tal_over_steps,
    task_matrix,
    training_curves,
)
from pilot_tal.results.study import Study
from pilot_tal.results.thumbnails import thumbnails

ALL_PLOTS_UP_TO = 4
"""Groups of a report whose pages have every plot; those of larger reports have the main ones unless asked."""
ARCHIVE = "report.zip"


@dataclass
class Part:
    """What a page shows of the study, or of one group: tables in sight, tables to open, and plots.

    A plot is its file name, title, caption and inline SVG; `formats` are those of the files.
    """

    folder: str
    conditions: Table
    findings: list[Finding]
    tables: list[Table]
    folded: list[tuple[str, Table]] = field(default_factory=list)
    plots: list[tuple[str, str, str, Markup]] = field(default_factory=list)
    formats: tuple[str, ...] = ()
    group: Group | None = None

    def write(self, folder: Path, plots: Iterable[Plot], as_files: bool) -> "Part":
        """Write the tables; add the plots, and write them too where wanted."""
        for table in (self.conditions, *self.tables, *(table for _, table in self.folded)):
            for extension, text in table.texts():
                _write(folder / "tables" / f"{table.name}.{extension}", text)
        for plot in plots:
            svg = Markup(plot.inline(f"{self.folder}-p{len(self.plots)}"))  # Matplotlib escapes the texts in it
            self.plots.append((plot.name, plot.title, plot.caption, svg))
            if as_files:
                self.formats = FORMATS
                plot.save(folder / "plots" / self.folder)
        return self


def build_report(
    runs: Study | Iterable[str | Path],
    output: str | Path,
    baseline: str = BASELINE,
    *,
    plots: bool = False,
    features: bool = False,
) -> Path:
    """Write the report on all runs at or below `runs` into `output`; all its files appear together or none does.

    Args:
        runs: A study, run directories, or folders of them.
        output: Folder of the report.
        baseline: The loss that the others are compared with; a study has its own.
        plots: Draw every plot, and write each as SVG, PDF and PNG.
        features: Add a map of the frozen features of the test images; needs the images, the weights and umap-learn.

    Returns:
        The overview page, `output/index.html`. The same runs give the same bytes.

    Raises:
        UserError: there is no run, one is damaged, no run has the baseline, or the folder cannot be written.
    """
    study, output = load_study(runs, baseline), given_path(output, "output")
    finished, section = study.finished, None
    maps = feature_maps(study) if features else []
    every = plots or len(finished) <= ALL_PLOTS_UP_TO
    with staged_folder(output) as folder, progress("report", len(finished)) as bar, style():
        for group in finished:  # one at a time, so that memory does not grow with their number
            section = _group_part(group).write(folder, _group_plots(group, every), plots)
            if len(finished) > 1:
                _write(folder / f"{group.slug}.html", _render(study, None, section))
            bar.update(1)
        overview = _study_part(study).write(folder, chain(study_plots(study), maps), plots)
        _write(folder / "index.html", _render(study, overview, section if len(finished) == 1 else None))
        _archive(folder)
    return output / "index.html"


def _study_part(study: Study) -> Part:
    shown = [tables.unfinished_table(study)] if study.unfinished else []
    shown += [tables.paper_layout_table(study), tables.overview_table(study)] if study.finished else []
    return Part("overview", tables.conditions_table(study.finished, "conditions"), study_findings(study), shown)


def _group_part(group: Group) -> Part:
    shown = (tables.metrics_table(group), tables.changes_table(group))
    folded = [
        ("After each task", tables.tasks_table(group)),
        ("Most confused pairs", tables.confused_table(group)),
        ("Each run", tables.runs_table(group)),
        ("Each class", tables.classes_table(group)),
    ]
    conditions = tables.conditions_table([group], f"conditions-{group.slug}")
    return Part(group.slug, conditions, group_findings(group), [t for t in shown if t], folded, group=group)


def _group_plots(group: Group, every: bool) -> Iterator[Plot]:
    """The plots of a group: the main ones, or `every` one."""
    variants, several = group.featured_variants(), len(group.task_sizes) > 1
    yield group_tradeoff(group)
    yield accuracy_by_class(group, variants)
    if several:
        yield after_task(group, variants)
    if not every:
        return
    yield from (difference_by_class(group, v) for v in group.compared_variants() if v in variants)
    yield from training_curves(variants)
    yield from prompts_picked(group, variants)
    yield from tal_over_steps(variants)
    if several:
        yield precision_recall_by_task(group, variants)
        yield from map(task_matrix, variants)
    yield from (confusion(group, variant) for variant in variants)


def _render(study: Study, overview: Part | None, section: Part | None) -> str:
    """A page: the overview, one group, or both for a study of one group."""
    environment = _environment()
    assert environment.loader is not None
    script = environment.loader.get_source(environment, "page.js")[0]
    group = section.group if section else None
    return environment.get_template("page.html.j2").render(
        study=study,
        title=group.title if group and not overview else _title(study),
        headline=headline(study) if overview else [],
        overview=overview,
        section=section,
        thumbnails=thumbnails(group) if group and len(study.finished) <= ALL_PLOTS_UP_TO else None,
        tiled=[v for v in group.compared_variants() if v in group.featured_variants()] if group else [],
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        definitions=DEFINITIONS.values(),
        archive=ARCHIVE,
    ).rstrip() + "\n"  # fmt: skip


@cache
def _environment() -> Environment:
    loader = PackageLoader("pilot_tal", "results")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.filters |= {name: getattr(formats, name) for name in ("points", "percent", "interval", "number")}
    return environment


def _title(study: Study) -> str:
    datasets = dict.fromkeys(clean(group.record.data.title) for group in study.groups)
    losses = dict.fromkeys(v.loss_title for group in study.groups for v in group.variants if v.trains)
    methods = dict.fromkeys(group.method_title for group in study.groups)
    return f"{listed([*(losses or methods)])} on {', '.join(datasets)}"


def _archive(folder: Path) -> None:
    """Everything in one file, for "download all"; without time stamps, so that its bytes depend on its content."""
    with zipfile.ZipFile(folder / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ARCHIVE):
            archive.writestr(zipfile.ZipInfo(str(path.relative_to(folder))), path.read_bytes(), zipfile.ZIP_DEFLATED)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))

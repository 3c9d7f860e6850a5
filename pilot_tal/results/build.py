"""Build the report: an overview page, one page per group, tables and plots; and a summary for the terminal."""

import base64
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup
from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from data_lt.files import given_path, progress, staged_folder
from pilot_tal.metrics import DEFINITIONS
from pilot_tal.results import plots as draw
from pilot_tal.results import tables
from pilot_tal.results.drawing import FORMATS, Plot, style
from pilot_tal.results.findings import Finding, environment, group_findings, headline, study_findings
from pilot_tal.results.formats import Table, clean, difference_cell, percent, spread_cell, write_text
from pilot_tal.results.grouping import Runs, load_study
from pilot_tal.results.images import feature_maps, thumbnails
from pilot_tal.results.study import BASELINE, Group, Study

ALL_PLOTS_UP_TO = 4  # groups of a report whose pages have every plot; those of larger ones only if asked


@dataclass
class Part:
    """What a page shows of the study, or of one group: tables in sight, tables to open, and plots as inline SVG."""

    folder: str
    conditions: Table
    findings: list[Finding]
    tables: list[Table]
    folded: dict[str, Table] = field(default_factory=dict)
    plots: list[tuple[Plot, Markup]] = field(default_factory=list)
    group: Group | None = None

    def write(self, folder: Path, plots: Iterable[Plot], as_files: bool) -> "Part":
        """Write the tables; add the plots, and write them too where wanted."""
        for table in (self.conditions, *self.tables, *self.folded.values()):
            table.write(folder / "tables")
        for plot in plots:
            svg = Markup(plot.inline(f"{self.folder}-p{len(self.plots)}"))  # Matplotlib escapes the texts in it
            self.plots.append((plot, svg))
            if as_files:
                plot.save(folder / "plots" / self.folder)
        return self


def build_report(
    runs: Runs, output: str | Path, baseline: str = BASELINE, *, plots: bool = False, features: bool = False
) -> Path:
    """Write the report on all runs at or below `runs` into `output`, with the options of `pilot_tal.report`.

    All its files appear together or none does; the same runs give the same bytes. Returns the overview page.
    """
    study, output = load_study(runs, baseline), given_path(output, "output")
    finished, section = study.finished, None
    every = plots or len(finished) <= ALL_PLOTS_UP_TO
    with staged_folder(output) as folder, progress("report", len(finished)) as bar, style():
        maps = feature_maps(study) if features else []
        for group in finished:  # one at a time, so that memory does not grow with their number
            section = _group_part(group).write(folder, _group_plots(group, every), plots)
            if len(finished) > 1:
                write_text(folder / f"{group.slug}.html", _page(study, None, section, plots))
            bar.update(1)
        shown = [tables.paper_layout_table(study), tables.overview_table(study)] if finished else []
        overview = Part("overview", tables.conditions_table(finished, "conditions"), study_findings(study), shown)
        overview.write(folder, (*draw.study_plots(study), *maps), plots)
        write_text(folder / "index.html", _page(study, overview, section if len(finished) == 1 else None, plots))
    return output / "index.html"


def _group_part(group: Group) -> Part:
    shown = [table for table in (tables.metrics_table(group), tables.changes_table(group)) if table.rows]
    folded = {
        "After each task": tables.tasks_table(group),
        "Most confused pairs": tables.confused_table(group),
        "Each run": tables.runs_table(group),
        "Each class": tables.classes_table(group),
    }
    conditions = tables.conditions_table([group], f"conditions-{group.slug}")
    return Part(group.slug, conditions, group_findings(group), shown, folded, group=group)


def _group_plots(group: Group, every: bool) -> Iterator[Plot]:
    variants, several = group.featured_variants(), len(group.task_sizes) > 1
    yield from (draw.group_tradeoff(group), draw.accuracy_by_class(group, variants))
    if several:
        yield draw.after_task(group, variants)
    if every:
        yield from (draw.difference_by_class(group, v) for v in group.compared_variants() if v in variants)
        yield from (*draw.training_curves(variants), *draw.prompts_picked(group, variants))
        yield from draw.tal_over_steps(variants)
        if several:
            yield draw.precision_recall_by_task(group, variants)
            yield from map(draw.task_matrix, variants)
        yield from (draw.confusion(group, variant) for variant in variants)


def _page(study: Study, overview: Part | None, section: Part | None, plot_files: bool) -> str:
    """A page: the overview, one group, or both for a study of one group."""
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    group = section.group if section else None
    datasets = dict.fromkeys(clean(each.record.data.title) for each in study.groups)
    losses = dict.fromkeys(v.loss_title for each in study.groups for v in each.variants if v.trains)
    *most, last = losses or dict.fromkeys(each.method_title for each in study.groups)
    title = f"{', '.join(most)}{' and ' if most else ''}{last} on {', '.join(datasets)}"
    return environment().get_template("page.html.j2").render(
        study=study,
        title=group.title if group and not overview else title,
        headline=headline(study) if overview else [],
        overview=overview,
        section=section,
        plot_formats=FORMATS if plot_files else (),
        thumbnails=thumbnails(group) if group and len(study.finished) <= ALL_PLOTS_UP_TO else None,
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        definitions=DEFINITIONS.values(),
    ).rstrip() + "\n"  # fmt: skip


def print_summary(runs: Runs, console: Console | None = None) -> None:
    """Print a table per group, what to be careful about, and what each loss did to the tail."""
    console, study = console or Console(), load_study(runs)
    printed: set[str] = set()
    for group in study.finished:
        console.print(_terminal_table(group))
        texts = [text for text in map(str, group_findings(group)) if text not in printed]
        printed.update(texts)
        for text in texts:
            console.print(Text(f"  ! {text}"))
    for finding in study_findings(study):
        console.print(Text(f"  ! {finding}"))
    for finding in headline(study):
        console.print(Text(str(finding), style="bold"))


def _terminal_table(group: Group) -> rich_table.Table:
    """Names are passed as `Text`, because brackets in them are not markup."""
    table = rich_table.Table("Loss", title=Text(group.title), box=box.SIMPLE_HEAD, title_justify="left")
    papers = {variant: tables.paper_numbers(group, variant) for variant in group.finished_variants()}
    columns = ["Seeds", "A_Mean", "A_Tail", "A_Head", f"A_Tail − {group.baseline_title} (95 %)"]
    for name in columns + (["Paper A_Mean", "Paper A_Tail"] if any(papers.values()) else []):
        table.add_column(name, justify="right")
    for label, variant in group.rows():
        found = group.difference(variant, "a_tail") if variant in papers else None
        cells = [spread_cell(variant.spread(key), digits=1) for key in ("a_mean", "a_tail", "a_head")]
        row = [f"{cell.text} {cell.detail}" for cell in (*cells, difference_cell(found, 1))]
        if paper := papers.get(variant):
            row += [percent(paper.a_mean, 1), percent(paper.a_tail, 1)]
        table.add_row(Text(label), str(len(variant.seeds)), *row, style=None if variant in papers else "dim")
    return table

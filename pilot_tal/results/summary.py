"""The comparison on the terminal."""

from collections.abc import Iterable
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pilot_tal.results.display import percent, with_deviation, with_interval
from pilot_tal.results.findings import group_findings, headline, study_findings
from pilot_tal.results.grouping import load_study
from pilot_tal.results.groups import Group, Variant
from pilot_tal.results.paper import paper_numbers
from pilot_tal.results.study import Study

_LEVELS = ("a_mean", "a_tail", "a_head")


def print_summary(runs: Study | Iterable[str | Path], console: Console | None = None) -> None:
    """Print a table per group, what to be careful about, and what each loss did to the tail."""
    console = console or Console()
    study = load_study(runs)
    printed: set[str] = set()
    for group in study.finished:
        console.print(_table(group))
        for text in map(str, group_findings(group)):
            if text not in printed:
                console.print(Text(f"  ! {text}"))
            printed.add(text)
    for finding in study_findings(study):
        console.print(Text(f"  ! {finding}"))
    for finding in headline(study):
        console.print(Text(str(finding), style="bold"))


def _table(group: Group) -> Table:
    """Names are passed as `Text`, because brackets in them are not markup."""
    table = Table(title=Text(group.title), box=box.SIMPLE_HEAD, title_justify="left")
    papers = [paper_numbers(group, variant) for variant in group.finished_variants()]
    table.add_column("Loss")
    columns = ["Seeds", "A_Mean", "A_Tail", "A_Head", f"A_Tail − {group.baseline_title} (95 %)"]
    for name in [*columns, "Paper A_Mean", "Paper A_Tail"] if any(papers) else columns:
        table.add_column(name, justify="right")
    for variant, paper in zip(group.finished_variants(), papers, strict=True):
        found = group.difference(variant, "a_tail")
        row = [*_levels(variant), with_interval(found, 1) if found else ""]
        row += [percent(paper.a_mean, 1), percent(paper.a_tail, 1)] if paper else []
        table.add_row(Text(variant.label), *row)
    for reference in group.references:
        table.add_row(Text(reference.title), *_levels(reference.variant), style="dim")
    return table


def _levels(variant: Variant) -> list[str]:
    found = [variant.spread(key) for key in _LEVELS]
    return [str(len(variant.seeds)), *("–" if spread is None else with_deviation(spread, 1) for spread in found)]

"""The comparison on the terminal."""

from collections.abc import Iterable
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pilot_tal.results.findings import group_findings, headline, study_findings
from pilot_tal.results.formats import difference_cell, percent, spread_cell
from pilot_tal.results.grouping import load_study
from pilot_tal.results.groups import Group
from pilot_tal.results.paper import paper_numbers
from pilot_tal.results.study import Study


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
    papers = {variant: paper_numbers(group, variant) for variant in group.finished_variants()}
    columns = ["Seeds", "A_Mean", "A_Tail", "A_Head", f"A_Tail − {group.baseline_title} (95 %)"]
    columns += ["Paper A_Mean", "Paper A_Tail"] if any(papers.values()) else []
    table.add_column("Loss")
    for name in columns:
        table.add_column(name, justify="right")
    for label, variant in group.rows():
        cells = [spread_cell(variant.spread(key), digits=1) for key in ("a_mean", "a_tail", "a_head")]
        found = group.difference(variant, "a_tail") if variant in papers else None
        cells += [difference_cell(found, 1)] if found else []
        row = [f"{cell.text} {cell.detail}".strip() for cell in cells] + ([] if found else [""])
        if paper := papers.get(variant):
            row += [percent(paper.a_mean, 1), percent(paper.a_tail, 1)]
        table.add_row(Text(label), str(len(variant.seeds)), *row, style=None if variant in papers else "dim")
    return table

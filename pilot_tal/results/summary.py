"""The comparison on the terminal."""

from collections.abc import Iterable
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pilot_tal.results.display import percent, with_deviation, with_interval
from pilot_tal.results.grouping import load_study
from pilot_tal.results.paper import paper_numbers
from pilot_tal.results.sentences import group_caveats, lead_sentences, study_caveats
from pilot_tal.results.study import Group, Study, Variant

_LEVELS = ("a_mean", "a_tail", "a_head")


def print_summary(run_paths: Study | Iterable[str | Path], console: Console | None = None) -> None:
    """Prints what each loss did to the tail, in a table a group, and what was not reached."""
    console = console or Console()
    study = load_study(run_paths)
    said: set[str] = set()
    for group in study.finished:
        console.print(_table(group))
        for caveat in group_caveats(group):
            if caveat not in said:
                console.print(Text(f"  ! {caveat}"))
            said.add(caveat)
    for caveat in study_caveats(study):
        console.print(Text(f"  ! {caveat}"))
    for sentence in lead_sentences(study):
        console.print(Text(sentence, style="bold"))


def _level(variant: Variant, key: str) -> str:
    spread = variant.spread(key)
    return "–" if spread is None else with_deviation(spread, 1)


def _table(group: Group) -> Table:
    """Names go in as `Text`, for brackets in them are not markup."""
    table = Table(title=Text(group.title), box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("Loss")
    papers = [paper_numbers(group, variant) for variant in group.finished_variants()]
    columns = ["Seeds", "A_Mean", "A_Tail", "A_Head", f"A_Tail − {group.baseline_title} (95 %)"]
    for name in [*columns, "Paper A_Mean", "Paper A_Tail"] if any(papers) else columns:
        table.add_column(name, justify="right")
    for variant, paper in zip(group.finished_variants(), papers, strict=True):
        numbers = [_level(variant, key) for key in _LEVELS]
        found = group.difference(variant, "a_tail")
        row = [str(len(variant.seeds)), *numbers, with_interval(found, 1) if found else ""]
        row += [percent(paper.a_mean, 1), percent(paper.a_tail, 1)] if paper else []
        table.add_row(Text(variant.label), *row)
    for reference in group.references:
        numbers = [_level(reference.variant, key) for key in _LEVELS]
        table.add_row(Text(reference.title), str(len(reference.variant.seeds)), *numbers, style="dim")
    return table

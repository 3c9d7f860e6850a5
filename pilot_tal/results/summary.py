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
from pilot_tal.results.sentences import lead_sentences, setting_caveats, study_caveats
from pilot_tal.results.study import Arm, Setting, Study

_LEVELS = ("a_mean", "a_tail", "a_head")


def print_summary(run_paths: Study | Iterable[str | Path], console: Console | None = None) -> None:
    """Prints what each loss did to the tail, in a table a setting, and what was not reached."""
    console = console or Console()
    study = load_study(run_paths)
    said: set[str] = set()
    for setting in study.finished:
        console.print(_table(setting))
        for caveat in setting_caveats(setting):
            if caveat not in said:
                console.print(Text(f"  ! {caveat}"))
            said.add(caveat)
    for caveat in study_caveats(study):
        console.print(Text(f"  ! {caveat}"))
    for sentence in lead_sentences(study):
        console.print(Text(sentence, style="bold"))


def _level(arm: Arm, key: str) -> str:
    spread = arm.spread(key)
    return "–" if spread is None else with_deviation(spread, 1)


def _table(setting: Setting) -> Table:
    """Names go in as `Text`, for brackets in them are not markup."""
    table = Table(title=Text(setting.title), box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("Loss")
    papers = [paper_numbers(setting, arm) for arm in setting.finished_arms()]
    columns = ["Seeds", "A_Mean", "A_Tail", "A_Head", "A_Tail − CE (95 %)"]
    for name in [*columns, "Paper A_Mean", "Paper A_Tail"] if any(papers) else columns:
        table.add_column(name, justify="right")
    for arm, paper in zip(setting.finished_arms(), papers, strict=True):
        numbers = [_level(arm, key) for key in _LEVELS]
        found = setting.difference(arm, "a_tail")
        row = [str(len(arm.seeds)), *numbers, with_interval(found, 1) if found else ""]
        row += [percent(paper.a_mean, 1), percent(paper.a_tail, 1)] if paper else []
        table.add_row(Text(arm.label), *row)
    for reference in setting.references:
        numbers = [_level(reference.arm, key) for key in _LEVELS]
        table.add_row(Text(reference.title), str(len(reference.arm.seeds)), *numbers, style="dim")
    return table

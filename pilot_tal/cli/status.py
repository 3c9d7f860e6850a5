"""`pilot-tal status`: how far the runs of a folder are, whoever runs them."""

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pilot_tal.cli.shared import echo, print_table

if TYPE_CHECKING:
    from rich.console import Group

    from pilot_tal.record.states import RunState

COLOURS = {"done": "green", "running": "cyan", "failed": "red", "stopped": "yellow"}


def status(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder of runs, or one run.")] = "runs",
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until all runs have ended.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show every run of FOLDER: done, running (where, task, time left), queued, failed (why), stopped.

    Works for every launcher at any time: it reads the run directories and SLURM's queue.

    Example: pilot-tal status runs --watch
    """
    from rich.live import Live

    from data_lt.files import given_path
    from pilot_tal.record.states import run_states, totals

    path = given_path(folder, "FOLDER")
    states = run_states(path)
    if as_json:
        content = {"runs": [asdict(state) for state in states], "total": totals(states)}
        echo(json.dumps(content, indent=2))  # ASCII, which no terminal or encoding changes
    elif not watch:
        print_table(_shown(states))
    else:
        with Live(auto_refresh=False) as live:
            while True:
                live.update(_shown(states), refresh=True)
                if not any(state.state in ("running", "queued") for state in states):
                    return
                time.sleep(5.0)
                states = run_states(path)


def _shown(states: "list[RunState]") -> "Group":
    """A table of the runs, and how many are in each state."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from data_lt.errors import printable
    from pilot_tal.engine.callbacks import duration
    from pilot_tal.record.states import totals

    table = Table("run", "state", "where", "")
    for state in states:
        left = "" if state.seconds_left is None else f", {duration(state.seconds_left)} of training left"
        cells = (state.name, state.state, state.where, state.detail + left)
        table.add_row(*(Text(printable(text)) for text in cells), style=COLOURS.get(state.state, ""))
    counts = ", ".join(f"{count} {state}" for state, count in totals(states).items())
    return Group(table, f"{len(states)} run{'s' * (len(states) != 1)}: {counts}")

"""The arguments that `run` and `compare` share, and the plan of a dry run."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from data_lt.errors import Terminated
from pilot_tal.cli.output import echo

if TYPE_CHECKING:
    from rich.table import Table

    from pilot_tal.config.settings import Plan

Method = Annotated[str, typer.Argument(help="A method, such as l2p or mos; `pilot-tal list` names all.")]
Dataset = Annotated[
    str,
    typer.Argument(help="A dataset, such as cub_lt, demo_lt (no download needed) or folder_lt (your own images)."),
]
Settings = Annotated[
    Optional[list[str]],  # noqa: UP045, typer reads this form on every Python
    typer.Argument(
        metavar="KEY=VALUE",
        help="Settings, e.g. tasks=10 seeds=1993,1994 losses=ce,tal tal.lam=0.99 fidelity=fixed epochs=2 "
        "data_root=/data weights=vit.safetensors device=cuda output=runs; `pilot-tal list METHOD` names all.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved plan and the time it takes, and stop.")]
Quick = Annotated[bool, typer.Option("--quick", help="Smoke test: a few steps of everything.")]


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C and SIGTERM end a training with a message and status 130 or 143."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as stop:
        echo("stopped; the same command resumes after the last finished task", err=True)
        raise (typer.Exit(130) if isinstance(stop, KeyboardInterrupt) else stop) from None


def show_plan(plan: "Plan") -> None:
    """Prints the runs of a plan as a table and, after a short probe of each method, how long they will take."""
    import torch
    from rich.table import Table

    from pilot_tal.engine.launch import find_gpus, find_places, find_threads
    from pilot_tal.engine.launch_cells import Cells
    from pilot_tal.engine.probe import Pace, measure
    from pilot_tal.engine.progress import duration
    from pilot_tal.engine.shared import choose_device, has_bf16
    from pilot_tal.record.run_dir import tasks_done

    cells, paces = Cells(plan), dict[tuple, Pace]()
    threads = find_threads(plan)
    if threads is not None:
        torch.set_num_threads(threads)
    table = Table("", "run", "tasks", "steps", "done", "time")
    todo, total = [], 0.0
    for number, cell in enumerate(cells.all(), 1):
        run = cells.run(cell.config)
        done, tasks = tasks_done(cell.path), len(run.tasks)
        left, seconds = run.tasks[done:], 0.0
        if left:
            key = (cell.config.method, cell.config.dataset, run.record.stream.task_sizes, cell.config.method_config)
            if key not in paces:
                paces[key] = measure(run)
            todo.append(cell)
            seconds = paces[key].seconds(run, left)
            total += seconds
        steps, time = sum(run.steps(task) for task in left), duration(seconds) if left else ""
        table.add_row(str(number), f"{cell.label}\n{cell.path.name}", str(tasks), f"{steps:,}", f"{done}/{tasks}", time)
    print_table(table)
    if todo:
        jobs = len(find_places(cells, todo, find_gpus(plan.machine)))
        echo(
            f"{len(todo)} of {len(plan.runs)} runs to do, {jobs} at a time, about {duration(total / jobs)} "
            "(by a probe of each method)"
        )
        precisions = {cell.config.settings.precision for cell in todo}
        if precisions <= {"fp32", "tf32"} and has_bf16(choose_device(plan.machine.device)):
            typer.echo("hint: this hardware computes in bf16; precision=bf16 is faster")


def print_table(table: "Table") -> None:
    """Prints a table to standard output; wide where nobody looks at it."""
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)

"""What several commands share: arguments, the table of a dry run, and output to any terminal in any encoding."""

import codecs
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from data_lt.errors import Terminated, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pilot_tal.config.settings import StudyConfig

_ASCII = {"−": "-", "–": "-", "—": "-", "·": "*", "…": "...", "×": "x", "±": "+-", "→": "->", "≤": "<=", "≥": ">="}
_ASCII |= {"ρ": "rho", "α": "alpha", "λ": "lambda", "“": '"', "”": '"', "’": "'"}

Method = Annotated[str, typer.Argument(metavar="METHOD", help="A method, such as l2p; `pilot-tal list` names all.")]
Dataset = Annotated[
    str, typer.Argument(metavar="DATASET", help="A dataset, such as cub_lt, demo_lt, or folder_lt (your own images).")
]
Settings = Annotated[
    Optional[list[str]],  # noqa: UP045, typer reads this form on every Python
    typer.Argument(
        metavar="KEY=VALUE",
        help="Settings, e.g. tasks=10 seeds=1993,1994 losses=ce,tal tal.lam=0.99 fidelity=fixed epochs=2 "
        "data_root=/data weights=vit.safetensors device=cuda output=runs; `pilot-tal list METHOD` names all.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the runs and their estimated time, and stop.")]
Quick = Annotated[bool, typer.Option("--quick", help="Smoke test: a few steps of everything.")]
DataRoot = Annotated[str, typer.Option(envvar="PILOT_TAL_DATA", help="Folder of the images, or a parent of it.")]
AfterTask = Annotated[int | None, typer.Option(help="Use the model after so many tasks.", show_default="all", min=1)]
Weights = Annotated[str | None, typer.Option(help="File of the ViT's weights.", show_default="as in the run")]
Plugins = Annotated[str, typer.Option(help="Modules or files of methods, losses or datasets.", show_default=False)]


def use_plugins(text: str) -> None:
    """Loads installed plugins and those of `--plugins`."""
    from pilot_tal.config.parse import load_plugins, split_values

    load_plugins(tuple(split_values(text)))


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C and SIGTERM end a training with a message and status 130 or 143."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as stop:
        echo("stopped; the same command resumes after the last finished task", err=True)
        raise (typer.Exit(130) if isinstance(stop, KeyboardInterrupt) else stop) from None


def show_runs(study: "StudyConfig") -> None:
    """Prints the runs of a study as a table and, after a short probe of each method, how long they will take."""
    import torch
    from rich.table import Table

    from pilot_tal.engine.callbacks import duration
    from pilot_tal.engine.hardware import choose_device, find_gpus, find_threads, has_bf16
    from pilot_tal.engine.jobs import Jobs
    from pilot_tal.engine.launch import find_slots, measure
    from pilot_tal.record.run_dir import read_result

    jobs, paces = Jobs(study), dict[tuple, tuple[float, float]]()
    threads = find_threads(study)
    if threads is not None:
        torch.set_num_threads(threads)
    table = Table("", "run", "tasks", "steps", "done", "time")
    todo, total = [], 0.0
    for number, job in enumerate(jobs.all, 1):
        trainer, config = jobs.trainer(job), job.config
        done, tasks = read_result(job.path)["tasks_done"], len(trainer.tasks)
        left, seconds = trainer.tasks[done:], 0.0
        if left:
            key = (config.method, config.dataset, job.record.stream.task_sizes, config.method_config)
            if key not in paces:
                paces[key] = measure(trainer)
            todo.append(job)
            step, image = paces[key]  # statistics and alignment at the end of a task are not measured
            seconds = sum(step * trainer.steps(task) + image * len(trainer.test_batches(task).indices) for task in left)
            total += seconds
        steps, time = sum(map(trainer.steps, left)), duration(seconds) if left else ""
        table.add_row(str(number), f"{job.label}\n{job.path.name}", str(tasks), f"{steps:,}", f"{done}/{tasks}", time)
    print_table(table)
    if todo:
        slots = len(find_slots(jobs, todo, find_gpus(study.hardware)))
        echo(
            f"{len(todo)} of {len(study.runs)} runs to do, {slots} at a time, about {duration(total / slots)} "
            "(by a probe of each method)"
        )
        precisions = {job.config.settings.precision for job in todo}
        if precisions <= {"fp32", "tf32"} and has_bf16(choose_device(study.hardware.device)):
            echo("hint: this hardware computes in bf16; precision=bf16 is faster")


def print_table(table: "RenderableType") -> None:
    """Prints a table to standard output; wide unless it is a terminal."""
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def echo(text: str, err: bool = False) -> None:
    """Prints lines, with control characters escaped so that no file name controls a terminal."""
    print("\n".join(map(printable, text.split("\n"))), file=sys.stderr if err else sys.stdout, flush=True)


def accept_any_text() -> None:
    """Lets the streams replace characters that their encoding lacks."""
    codecs.register_error("pilot_tal", _replaced)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # not a text stream of a process
            stream.reconfigure(errors="pilot_tal")  # type: ignore[union-attr]


def discard_output() -> None:
    """Sends what is still buffered to nowhere, or Python would fail again at its end."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                os.dup2(nowhere, stream.fileno())


def _replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)  # nothing is read from these streams
    return "".join(_ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end

"""`pilot-tal verify`: checks our learners against recordings of the original ones."""

from pathlib import Path
from typing import Annotated

import typer

from data_lt.errors import UserError, one_line
from data_lt.files import given_path
from pilot_tal.cli.shared import echo

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILES", help="Recordings (.npz): a ViT, batches, the start, and the state after each task."
    ),
]
HEADER = f"{'file':<28} {'method':<12} {'mode':<6} {'loss':<4} task  losses    states    scores    choices"


def verify(files: Files) -> None:
    """Check our learners against recordings of LAMDA-PILOT and print the largest differences.

    For each file, loss and task: the largest difference in the losses of all steps (allowed 2e-6), in the learned
    tensors (1e-4) and in the scores (2e-5), and whether all predictions are equal. The exit status is 0 if everything
    is within tolerance, 1 if not, and 2 if a file cannot be verified.

    Example: pilot-tal verify tests/recordings/l2p.npz
    """
    from pilot_tal.verify.verify import verify_file

    tasks = failed = unreadable = 0
    for path in files:
        try:
            for report in verify_file(given_path(path, "FILES")):
                if not tasks:
                    echo(HEADER)
                tasks += 1
                failed += not report.ok
                farthest = "" if report.ok else f"  NOT WITHIN TOLERANCE (farthest tensor: {report.worst_state})"
                echo(
                    f"{path.name:<28} {report.method:<12} {report.fidelity:<6} {report.loss:<4} {report.task:>4}  "
                    f"{report.losses:.2e}  {report.states:.2e}  {report.scores:.2e}  "
                    f"{'equal' if report.predictions else 'DIFFER'}{farthest}"
                )
                for problem in report.problems:
                    echo(f"    {problem}")
        except UserError as error:
            unreadable += 1
            echo(f"error: {one_line(str(error))}", err=True)
    if failed:
        echo(f"{failed} of {tasks} tasks not within tolerance", err=True)
    if failed or unreadable:
        raise typer.Exit(2 if unreadable else 1)
    echo("all within tolerance")

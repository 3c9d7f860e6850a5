"""`pilot-tal replay`: recorded runs of the original learners, played through ours."""

from pathlib import Path
from typing import Annotated

import typer

Files = Annotated[
    list[Path],
    typer.Argument(help="Recordings (.npz): a ViT, its batches, a start, and what every task ended with."),
]


def replay(files: Files) -> None:
    """Plays recordings through our learners and says how far the two part.

    For each file, loss and task: the largest difference in the losses of the steps (allowed 1e-4), in the learned
    tensors and in the scores (allowed 1e-3), and whether every first choice agrees. The exit status is 0 only if
    everything is within tolerance.
    """
    from pilot_tal.replay import replay_file

    failed = 0
    typer.echo(f"{'file':<28} {'method':<12} {'mode':<6} {'loss':<4} task  losses    states    scores    choices")
    for path in files:
        for report in replay_file(path):
            failed += not report.ok
            choices = "equal" if report.predictions else "DIFFER"
            typer.echo(
                f"{path.name:<28} {report.method:<12} {report.fidelity:<6} {report.loss:<4} {report.task:>4}  "
                f"{report.losses:.2e}  {report.states:.2e}  {report.scores:.2e}  {choices}"
                + ("" if report.ok else f"  NOT WITHIN TOLERANCE (farthest tensor: {report.worst_state})")
            )
            for problem in report.problems:
                typer.echo(f"    {problem}")
    if failed:
        typer.echo(f"{failed} tasks are not within tolerance", err=True)
        raise typer.Exit(1)
    typer.echo("all within tolerance")

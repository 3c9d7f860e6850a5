"""What `run` and `compare` share: reading the settings, running the cells, the plan of a dry run."""

from pathlib import Path
from typing import Annotated, Optional

import typer

from pilot_tal.config import Plan

Method = Annotated[str, typer.Argument(help="l2p, dualprompt, coda_prompt, lae or mos.")]
Dataset = Annotated[
    str,
    typer.Argument(
        help="cub_lt, imagenetr_lt, food101_lt, demo_lt (no download needed) or folder_lt (your own images)."
    ),
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
Quick = Annotated[bool, typer.Option("--quick", help="Send the whole pipeline through a few steps.")]


def run_cells(plan: Plan) -> list[Path]:
    """Runs what is not finished yet, one run after the other; images and ViT are loaded once."""
    from pilot_tal.engine.run import Run, find_data, is_finished, load_shared, run_path

    data = find_data(plan.runs[0], plan.machine)
    shared, paths = None, []
    for number, config in enumerate(plan.runs, 1):
        path = run_path(config, plan.machine, data)
        place = f"run {number}/{len(plan.runs)}: {path}"
        if is_finished(path):
            typer.echo(f"{place} is done", err=True)
        else:
            typer.echo(place, err=True)
            shared = shared or load_shared(config, plan.machine, data)
            try:
                Run(config, plan.machine, shared).execute()
            except KeyboardInterrupt:
                typer.echo("stopped; the same command goes on after the last finished task", err=True)
                raise
        paths.append(path)
    return paths


def show_plan(plan: Plan) -> None:
    """Prints the resolved plan and, after a short probe, how long it will take."""
    import yaml

    from pilot_tal.engine.probe import estimate
    from pilot_tal.engine.progress import duration
    from pilot_tal.engine.run import Run, is_finished, load_shared

    first = plan.runs[0]
    record = {key: value for key, value in first.record().items() if key not in ("loss", "seed")}
    typer.echo(yaml.safe_dump(record, sort_keys=False, allow_unicode=True).rstrip())
    losses = {config.loss: dict(config.loss_options) for config in plan.runs}
    typer.echo(yaml.safe_dump({"losses": losses}, sort_keys=False).rstrip())
    shared = load_shared(first, plan.machine)
    runs = [Run(config, plan.machine, shared) for config in plan.runs]
    left = [run for run in runs if not is_finished(run.path)]
    typer.echo(f"\ndata: {len(shared.data.frame):,} images in {shared.data.root}, device: {shared.device}")
    typer.echo(f"tasks: {' + '.join(map(str, runs[0].sizes))} classes")
    for run in runs:
        steps = sum(run.steps(task) for task in run.tasks)
        state = "done" if run not in left else f"{steps:,} steps"
        typer.echo(f"  {run.path}: {state}")
    if left:
        seconds = estimate(left[0]) * len(left)
        note = ", the alignment of MOS not counted" if first.method == "mos" else ""
        typer.echo(f"{len(left)} of {len(runs)} runs to do, about {duration(seconds)} (from a short probe{note})")

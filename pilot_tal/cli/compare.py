"""`pilot-tal compare`: losses side by side on the same seeds, and the report."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pilot_tal.cli.shared import Dataset, DryRun, Method, Quick, Settings, echo, show_runs, stoppable

SLURM = "slurm."  # prefix of the settings for SLURM, some of which are named as settings of a run (gpus)
Commands = Annotated[bool, typer.Option("--commands", help="Print one `pilot-tal run` for each run, and stop.")]
Slurm = Annotated[
    bool,
    typer.Option(
        "--slurm",
        help="Submit the runs to SLURM, with the options that follow: partition=gpu time=4:00:00 gpus=1 cpus=8 mem=32G "
        "array=32 account=NAME constraint=NAME qos=NAME runs_per_job=4.",
    ),
]


def compare(
    method: Method,
    dataset: Dataset,
    settings: Settings = None,
    dry_run: DryRun = False,
    quick: Quick = False,
    commands: Commands = False,
    slurm: Slurm = False,
) -> None:
    """Train METHOD on DATASET with each loss on each seed, and write a report.

    Defaults: losses=ce,tal,tal_auto, seeds=1993,1994,1995, and references=simplecil,plda, which train nothing. Methods,
    datasets and settings accept comma-separated lists. The runs use all cores or GPUs (jobs=, gpus=), or SLURM.
    Interrupted runs resume after their last finished task; finished ones are not trained again.

    Example: pilot-tal compare l2p demo_lt

    Example: pilot-tal compare l2p,lae cub_lt,food101_lt tasks=5,10 losses=ce,tal tal.lam=0.9,0.99 jobs=4
    """
    from data_lt.errors import command
    from pilot_tal import api
    from pilot_tal.config.grid import study_config
    from pilot_tal.engine.jobs import run_arguments
    from pilot_tal.record.run_dir import LOG
    from pilot_tal.results import print_summary

    given = settings or []
    for_slurm = [item.removeprefix(SLURM) for item in given if item.startswith(SLURM)]
    study = study_config(method, dataset, [item for item in given if not item.startswith(SLURM)], quick)
    if commands:
        elsewhere = replace(study.hardware, jobs="auto", gpus=None)  # the other launcher chooses the slots
        for config in study.runs:
            echo(command(*run_arguments(config, elsewhere, study.plugins)))
        return
    if slurm or for_slurm:
        from pilot_tal.engine.slurm import submit

        return submit(study, for_slurm, partial(_report_folder, method, dataset), echo, dry_run)
    if dry_run:
        return show_runs(study)
    with stoppable():
        outcome = api.launch(study)
    if done := [job.path for job in outcome.jobs if not job.failure]:
        found = api.study_of(done, study.baseline)
        page = found.report(_report_folder(method, dataset, [job.path for job in outcome.jobs]))
        print_summary(found)
        echo(f"report: {page}")
    if outcome.failed:
        echo(f"{len(outcome.failed)} of {len(outcome.jobs)} runs failed:", err=True)
        for job in outcome.failed:
            again = command(*run_arguments(job.config, outcome.study.hardware, study.plugins))
            echo(f"  {job.label}: {job.failure}\n    log: {job.path / LOG}\n    again: {again}", err=True)
        raise typer.Exit(1)


def mark_slurm(arguments: list[str]) -> list[str]:
    """Puts `slurm.` before the settings that follow `--slurm`, up to the next option."""
    marked, inside = [], False
    for argument in arguments:
        if argument.startswith("-"):
            inside = argument == "--slurm"
        elif inside and "=" in argument and not argument.startswith(SLURM):
            argument = SLURM + argument
        marked.append(argument)
    return marked


def _report_folder(method: str, dataset: str, paths: Sequence[Path]) -> Path:
    from pilot_tal.record.run_record import short_hash

    names = f"{dataset}-{method}".replace(",", "+")[:80]
    return paths[0].parent / "report" / f"{names}-{short_hash([path.name for path in paths])}"

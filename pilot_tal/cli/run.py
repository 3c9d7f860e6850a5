"""`pilot-tal run`: one cell of a comparison."""

import typer

from pilot_tal.cli.arguments import Dataset, DryRun, Method, Quick, Settings


def run(
    method: Method, dataset: Dataset, settings: Settings = None, dry_run: DryRun = False, quick: Quick = False
) -> None:
    """Train METHOD on DATASET once: one loss (default tal), one seed (default 1993).

    Started again, a broken run goes on after its last finished task, and a finished one is left alone.

    Example: pilot-tal run l2p demo_lt loss=tal seed=1993
    """
    from data_lt.errors import UserError
    from pilot_tal.cli.arguments import show_plan
    from pilot_tal.config.grid import make_plan
    from pilot_tal.engine.launch import launch
    from pilot_tal.results.summary import print_summary

    plan = make_plan(method, dataset, settings or (), quick, losses=("tal",), seeds=(1993,))
    if len(plan.runs) != 1:
        raise UserError(f"run takes one value of each setting, got {len(plan.runs)} runs; use compare")
    if dry_run:
        show_plan(plan)
        return
    paths = launch(plan).paths
    print_summary(paths)
    typer.echo(f"results: {paths[0]}")

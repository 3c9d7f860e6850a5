"""`pilot-tal compare`: losses side by side on the same seeds, and the report."""

import typer

from pilot_tal.commands._cells import Dataset, DryRun, Method, Quick, Settings


def compare(
    method: Method, dataset: Dataset, settings: Settings = None, dry_run: DryRun = False, quick: Quick = False
) -> None:
    """Train METHOD on DATASET with each loss on each seed (default ce and tal, seeds 1993 to 1995) and report.

    Started again, broken runs go on after their last finished task, and finished ones are left alone.

    Example: pilot-tal compare l2p demo_lt
    """
    from pathlib import Path

    from pilot_tal.commands._cells import run_cells, show_plan
    from pilot_tal.config import make_plan
    from pilot_tal.report import build_report, load_study, print_summary
    from pilot_tal.rundir import config_hash

    plan = make_plan(method, dataset, settings or (), quick)
    if dry_run:
        show_plan(plan)
        return
    study = load_study(run_cells(plan))
    name = f"{dataset}-{method}-{config_hash({'runs': [config.record() for config in plan.runs]})}"
    page = build_report(study, Path(plan.machine.output) / "report" / name)
    print_summary(study)
    typer.echo(f"report: {page}")

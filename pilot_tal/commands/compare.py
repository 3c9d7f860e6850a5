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
    from pilot_tal.report import build_report
    from pilot_tal.report.summary import print_summary

    plan = make_plan(method, dataset, settings or (), quick)
    if dry_run:
        show_plan(plan)
        return
    paths = run_cells(plan)
    output = Path(plan.machine.output) / "report" / f"{dataset}-{method}"
    page = build_report(paths, output)
    print_summary(paths)
    typer.echo(f"report: {page}")

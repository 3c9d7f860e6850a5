"""`pilot-tal run`: one cell of a comparison."""

import typer

from pilot_tal.commands._cells import Dataset, DryRun, Method, Quick, Settings


def run(
    method: Method, dataset: Dataset, settings: Settings = None, dry_run: DryRun = False, quick: Quick = False
) -> None:
    """Train METHOD on DATASET once: one loss (default tal), one seed (default 1993).

    Started again, a broken run goes on after its last finished task, and a finished one is left alone.

    Example: pilot-tal run l2p demo_lt loss=tal seed=1993
    """
    from pilot_tal.commands._cells import run_cells, show_plan
    from pilot_tal.config import make_plan
    from pilot_tal.errors import PilotTalError
    from pilot_tal.report.summary import print_summary

    given = {item.partition("=")[0] for item in settings or ()}
    defaults = [] if given & {"loss", "losses"} else ["loss=tal"]
    defaults += [] if given & {"seed", "seeds"} else ["seed=1993"]
    plan = make_plan(method, dataset, [*defaults, *(settings or ())], quick)
    if len(plan.runs) != 1:
        raise PilotTalError(f"run takes one loss and one seed, got {len(plan.runs)} runs; use `pilot-tal compare`")
    if dry_run:
        show_plan(plan)
        return
    paths = run_cells(plan)
    print_summary(paths)
    typer.echo(f"results: {paths[0]}")

"""`pilot-tal run`: one run."""

from pilot_tal.cli.shared import Dataset, DryRun, Method, Quick, Settings, echo, show_runs, stoppable


def run(
    method: Method, dataset: Dataset, settings: Settings = None, dry_run: DryRun = False, quick: Quick = False
) -> None:
    """Train METHOD on DATASET once: one loss (default tal), one seed (default 1993).

    An interrupted run resumes after its last finished task; a finished one is not trained again.

    Example: pilot-tal run l2p demo_lt loss=tal seed=1993
    """
    from pilot_tal import api
    from pilot_tal.config.grid import run_config
    from pilot_tal.results import print_summary

    study = run_config(method, dataset, settings or (), quick)
    if dry_run:
        return show_runs(study)
    with stoppable():
        (job,) = api.launch(study).jobs
    print_summary([job.path])
    echo(f"results: {job.path}")

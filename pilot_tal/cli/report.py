"""`pilot-tal report`: pages, tables and plots on runs that exist."""

from typing import Annotated

import typer

from pilot_tal.cli.shared import echo

# Texts, not paths: an empty one would become the working directory.
Runs = Annotated[
    list[str],
    typer.Argument(metavar="RUNS", help="Run directories, or folders that hold some, such as `runs`."),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        help="Folder of the report.",
        show_default="report, beside the first run or inside the first folder",
    ),
]
Baseline = Annotated[str, typer.Option("--baseline", help="Loss that the others are compared with.")]
Plots = Annotated[bool, typer.Option("--plots", help="Draw every plot, and write each as SVG, PDF and PNG.")]
Features = Annotated[
    bool,
    typer.Option("--features", help="Add a map of the frozen features of the test images; needs umap-learn."),
]


def report(
    runs: Runs,
    output: Output = None,
    baseline: Baseline = "ce",
    plots: Plots = False,
    features: Features = False,
) -> None:
    """Write a report on RUNS: an overview page, one page per group, and tables (CSV, Markdown, LaTeX).

    Example: pilot-tal report runs -o report
    """
    from data_lt.files import given_path
    from pilot_tal.record.run_dir import RECORD
    from pilot_tal.results import build_report, load_study, print_summary

    given = [given_path(path, "RUNS") for path in runs]
    folder = given[0].parent if (given[0] / RECORD).is_file() else given[0]
    target = folder / "report" if output is None else given_path(output, "--output")
    study = load_study(given, baseline)
    build_report(study, target, plots=plots, features=features)
    print_summary(study)
    echo(f"report: {target / 'index.html'}")

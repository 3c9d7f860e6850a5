"""`pilot-tal report`: the page, tables and plots on runs that are there already."""

from pathlib import Path
from typing import Annotated

import typer

Runs = Annotated[
    list[Path],
    typer.Argument(help="Run directories, or folders that hold some, such as `runs`.", show_default=False),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Folder of the report.",
        show_default="report, beside the first run or inside the first folder",
    ),
]


def report(runs: Runs, output: Output = None) -> None:
    """Write one HTML page on RUNS, with its tables (CSV, Markdown, LaTeX) and plots (SVG) beside it."""
    from pilot_tal.report import build_report, load_study, print_summary

    study = load_study(runs)
    folder = runs[0].parent if (runs[0] / "run.json").is_file() else runs[0]
    page = build_report(study, output or folder / "report")
    print_summary(study)
    typer.echo(f"report: {page}")

"""`pilot-tal report`: the page, tables and plots on runs that are there already."""

from typing import Annotated

import typer

from pilot_tal.cli.output import echo

# Texts, not paths: an empty one would become the working directory.
Runs = Annotated[
    list[str],
    typer.Argument(help="Run directories, or folders that hold some, such as `runs`.", show_default=False),
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
Watch = Annotated[
    bool,
    typer.Option("--watch", help="Stay, and write the page anew as the runs go on; Ctrl-C, or the last run, ends."),
]


def report(runs: Runs, output: Output = None, baseline: Baseline = "ce", watch: Watch = False) -> None:
    """Write one HTML page on RUNS, with its tables (CSV, Markdown, LaTeX) and plots (SVG) beside it.

    Example: pilot-tal report runs -o report
    """
    from data_lt.files import given_path
    from pilot_tal.record.run_dir import RECORD
    from pilot_tal.results import build_report, load_study, print_summary
    from pilot_tal.results.watch import watch_report

    given = [given_path(path, "RUNS") for path in runs]
    folder = given[0].parent if (given[0] / RECORD).is_file() else given[0]
    target = folder / "report" if output is None else given_path(output, "--output")
    if watch:
        echo(f"watching {', '.join(map(str, given))}: the page is written anew as the runs go on; Ctrl-C ends")
        study = watch_report(given, target, echo, baseline)
    else:
        study = load_study(given, baseline)
        build_report(study, target)
    if study is not None:
        print_summary(study)
        echo(f"report: {target / 'index.html'}")

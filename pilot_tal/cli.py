"""`pilot-tal`: the command line. Each command lives in `pilot_tal/commands/`."""

import sys

import typer

from pilot_tal import __version__
from pilot_tal.commands.build import build
from pilot_tal.commands.compare import compare
from pilot_tal.commands.list import list_names
from pilot_tal.commands.replay import replay
from pilot_tal.commands.report import report
from pilot_tal.commands.run import run
from pilot_tal.commands.upstream import upstream
from pilot_tal.errors import PilotTalError

app = typer.Typer(
    name="pilot-tal",
    help="Long-tailed class-incremental learning on a frozen ViT, with the Temporal-Adjusted Loss.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    """Long-tailed class-incremental learning on a frozen ViT, with the Temporal-Adjusted Loss."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


app.command("run")(run)
app.command("compare")(compare)
app.command("build")(build)
app.command("replay")(replay)
app.command("report")(report)
app.command("list")(list_names)
app.command("upstream")(upstream)


def main() -> None:
    """Runs the command line; an error meant for the user is one sentence and exit status 2."""
    try:
        app()
    except PilotTalError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except PermissionError as error:
        typer.echo(f"error: no permission for {error.filename}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()

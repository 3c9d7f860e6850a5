"""`pilot-tal`: the command line. Each command lives in `pilot_tal/cli/`."""

import contextlib
import inspect
import os
import re
import signal
import sys

import typer

from data_lt.errors import Terminated, UserError, command, one_line, terminate
from pilot_tal.cli.build import build
from pilot_tal.cli.compare import compare, mark_slurm
from pilot_tal.cli.export import export
from pilot_tal.cli.learn import learn
from pilot_tal.cli.list import list_names
from pilot_tal.cli.output import accept_any_text, discard_output, echo, is_output_error
from pilot_tal.cli.predict import predict
from pilot_tal.cli.report import report
from pilot_tal.cli.run import run
from pilot_tal.cli.status import status
from pilot_tal.cli.upstream import upstream
from pilot_tal.cli.verify import verify
from pilot_tal.version import __version__

_LONGEST_WORD = 100  # of what was typed, in an error about it

app = typer.Typer(name="pilot-tal", invoke_without_command=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def root(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and stop.")
) -> None:
    """Long-tailed class-incremental learning on a frozen ViT, with the Temporal-Adjusted Loss.

    Example, which needs no download: pilot-tal compare l2p demo_lt
    """
    if version:
        typer.echo(__version__)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("run")(run)
app.command("compare")(compare)
app.command("status")(status)
app.command("report")(report)
app.command("list")(list_names)
app.command("build")(build)
app.command("learn")(learn)
app.command("predict")(predict)
app.command("export")(export)
app.command("upstream")(upstream)
app.command("verify")(verify)
app.command("replay", hidden=True)(verify)  # the old name, for one release


def main() -> None:
    """Runs the command line; an error meant for the user is one sentence and exit status 2.

    Ctrl-C and SIGTERM, which schedulers send, end a command in good order with status 130 or 143; a second Ctrl-C
    ends it at once.
    """
    sys.argv = mark_slurm(sys.argv)
    _spell_examples()
    accept_any_text()
    handlers = {signal.SIGTERM: terminate, signal.SIGINT: _interrupt}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        status = _run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    sys.exit(status)


def _run() -> int:
    """Runs one command; returns its exit status."""
    try:
        status = app(standalone_mode=False) or 0
        sys.stdout.flush()
        return status
    except (KeyboardInterrupt, typer.Abort):
        said, status = "stopped", 130
    except Terminated:
        raise
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # the reader, such as `head`, has seen enough
            discard_output()
            return 1
        said, status = f"error: foreign code has ended the program with sys.exit({str(error.code)[:60]})", 1
    except Exception as error:
        if is_output_error(error):
            said, status = f"error: cannot write the output: {error.strerror}", 1  # type: ignore[attr-defined]
        else:
            sentence = _sentence(error)
            if sentence is None:  # a defect of ours, which its traceback helps to find
                raise
            said, status = f"error: {sentence}", 2
    with contextlib.suppress(OSError):
        echo(said, err=True)
    discard_output()
    return status


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    raise KeyboardInterrupt


def _spell_examples() -> None:
    """The examples in the help can be typed as they stand: the program is named as it was called."""
    program = command()
    for info in (*app.registered_commands, app.registered_callback):
        if info is not None and info.callback is not None:
            text = (inspect.getdoc(info.callback) or "").replace(": pilot-tal ", f": {program} ")
            info.help = re.sub(r"(?<!\n)\n(?!\n)", " ", text)  # paragraphs are wrapped to the terminal


def _sentence(error: Exception) -> str | None:
    """What to tell the user, in one line; None if the error was not meant for anybody."""
    if isinstance(error, UserError):
        return one_line(str(error))
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot use {one_line(str(error.filename))[:200]}: {error.strerror}"
    if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error):
        return "this does not fit into memory; lower batch_size, img_size, workers or jobs, or choose cache=off"
    if hasattr(error, "format_message"):  # of the parser: an option or argument that is unknown, missing or wrong
        words = [word for word in sys.argv[1:2] if word in {info.name for info in app.registered_commands}]
        said = re.sub(rf"(\S{{{_LONGEST_WORD}}})\S+", r"\1…", one_line(error.format_message()))
        return f"{said.rstrip('.')}; see {command(*words, '--help')}"
    return None

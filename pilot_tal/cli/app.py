"""`pilot-tal`: the command line, one file per command beside this one."""

import contextlib
import errno
import inspect
import os
import re
import signal
import sys
from collections.abc import Callable

import typer

from data_lt.errors import Terminated, UserError, command, one_line, terminate
from pilot_tal.cli import build, compare, export, learn, predict, report, run, status, upstream, verify
from pilot_tal.cli.list import list_names
from pilot_tal.cli.shared import accept_any_text, discard_output, echo
from pilot_tal.version import __version__

_COMMANDS: dict[str, Callable] = {
    **{"run": run.run, "compare": compare.compare, "status": status.status, "report": report.report},
    **{"list": list_names, "build": build.build, "learn": learn.learn, "predict": predict.predict},
    **{"export": export.export, "upstream": upstream.upstream, "verify": verify.verify},
    "replay": verify.verify,  # the old name, for one release
}

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


for _name, _function in _COMMANDS.items():
    _help = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(_function) or "")  # paragraphs wrap to the terminal
    app.command(_name, help=_help, hidden=_name == "replay")(_function)


def main() -> None:
    """Runs the command line; an error meant for the user is one sentence and exit status 2.

    Ctrl-C and SIGTERM end a command in good order with status 130 or 143; a second Ctrl-C ends it at once.
    """
    sys.argv = compare.mark_slurm(sys.argv)
    accept_any_text()
    handlers = {signal.SIGTERM: terminate, signal.SIGINT: _interrupt}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        code = app(standalone_mode=False) or 0
        sys.stdout.flush()
    except Terminated:
        raise
    except BaseException as error:
        text, code = _answer(error)
        with contextlib.suppress(OSError):
            echo(text, err=True) if text else None
        discard_output()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    sys.exit(code)


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    raise KeyboardInterrupt


def _answer(error: BaseException) -> tuple[str, int]:
    """One line for the user and the exit status; a defect of ours is raised, because its traceback helps to find it."""
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return "stopped", 130
    if isinstance(error, SystemExit):
        if isinstance(error.__context__, BrokenPipeError):  # the reader, such as `head`, has seen enough
            return "", 1
        return f"error: foreign code has ended the program with sys.exit({str(error.code)[:60]})", 1
    if isinstance(error, UserError):
        return f"error: {one_line(str(error))}", 2
    if isinstance(error, OSError) and error.filename is not None:
        return f"error: cannot use {one_line(str(error.filename))[:200]}: {error.strerror}", 2
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EPIPE):  # of a stream, not of a file
        return f"error: cannot write the output: {error.strerror}", 1
    if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error):
        return "error: out of memory; lower batch_size, img_size, workers or jobs, or choose cache=off", 2
    if hasattr(error, "format_message"):  # of the parser: an option or argument that is unknown, missing or wrong
        words = [word for word in sys.argv[1:2] if word in _COMMANDS]
        text = re.sub(r"(\S{100})\S+", r"\1…", one_line(error.format_message()))  # of very long words the beginning
        return f"error: {text.rstrip('.')}; see {command(*words, '--help')}", 2
    raise error

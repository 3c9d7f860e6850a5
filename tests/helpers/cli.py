"""The command line, in this process or in one of its own."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pilot_tal import cli

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Answer:
    """How a command ended: exit status, standard output, standard error."""

    status: int
    out: str
    err: str


def ask(*arguments: object) -> Answer:
    """Runs `pilot-tal` in this process."""
    out, err = io.StringIO(), io.StringIO()
    return Answer(_run(arguments, out, err), out.getvalue(), err.getvalue())


def command(*arguments: object) -> tuple[int, str]:
    """Runs `pilot-tal` in this process: exit status, and everything printed."""
    printed = io.StringIO()
    return _run(arguments, printed, printed), printed.getvalue()


def _run(arguments: tuple[object, ...], out: io.StringIO, err: io.StringIO) -> int:
    before = sys.argv
    sys.argv = ["pilot-tal", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = before
    raise AssertionError("main ends with an exit status")


def process(*arguments: object, **options) -> subprocess.Popen:
    """Starts `pilot-tal` as a process of its own."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-m", "pilot_tal", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background ignores it
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **options.pop("env", {})},
        **options,
    )

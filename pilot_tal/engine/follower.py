"""A program that is told whenever a task of a run is written. Whatever becomes of it, the training goes on."""

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from data_lt.errors import UserError
from pilot_tal.version import install_hint

NONE = "none"
SECONDS = 120.0  # that a follower may take for one call


def check_log(log: str) -> None:
    """Refuses a log whose package is not installed, before anything starts."""
    if log != NONE and importlib.util.find_spec(log) is None:
        raise UserError(f"log={log} needs the package {log}; install it {install_hint(log)}")


class Follower:
    """Starts `pilot_tal.watch` on the run directory, in a process of its own.

    A call writes whatever the log lacks, so one that is still busy is not disturbed: the next one catches up. The
    first failure, or a call that takes too long, is said once; after it the log is left alone.

    Args:
        log: `none`, or where the run is logged to.
        path: The run directory.
        say: Told what went wrong.
    """

    def __init__(self, log: str, path: Path, say: Callable[[str], None]):
        self.log, self.path, self.say = log, path, say
        self._process: subprocess.Popen | None = None
        self._printed: IO[bytes] | None = None
        self._alone = log == NONE
        self._started = 0.0

    def task_written(self) -> None:
        """The files of one more task are complete."""
        if not self._alone and not self._is_busy():
            self._start()

    def finish(self) -> None:
        """The run is complete: waits until the log is, too."""
        for start in (lambda: None, self._start):
            if not self._alone:
                start()
            while not self._alone and self._is_busy():
                time.sleep(0.02)

    def _start(self) -> None:
        try:
            self._printed = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the process
            command = [sys.executable, "-m", "pilot_tal.watch", self.log, str(self.path)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._printed, stderr=subprocess.STDOUT
            )
            self._started = time.monotonic()
        except OSError as error:
            self._leave_alone(str(error.strerror or error))

    def _is_busy(self) -> bool:
        """Whether a call goes on; one that has ended badly, or will not end, is the last."""
        if self._process is None:
            return False
        status = self._process.poll()
        if status is None and time.monotonic() - self._started < SECONDS:
            return True
        if status is None:
            self._process.kill()
            self._process.wait()
            self._leave_alone(f"it took more than {SECONDS:.0f} seconds")
        elif status != 0:
            self._leave_alone(self._last_line() or f"it ended with status {status}")
        self._process = None
        if self._printed is not None:
            self._printed.close()
        return False

    def _last_line(self) -> str:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._printed.seek(0)  # type: ignore[union-attr]
            lines = self._printed.read().decode("utf-8", "replace").split("\n")  # type: ignore[union-attr]
            return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]
        return ""

    def _leave_alone(self, problem: str) -> None:
        self._alone = True
        self.say(f"log={self.log} has failed and is left alone; the training goes on: {problem}")

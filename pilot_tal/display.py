"""Progress on a terminal, in a notebook or in a file, as the caller's standard error allows."""

import importlib
import sys
import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from data_lt.errors import printable
from pilot_tal.engine.callbacks import SECONDS_BETWEEN_LIVE, Display, Status


def make_display() -> Display:
    """A notebook gets one line that changes; anything else a terminal's live lines, or plain lines."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return NotebookDisplay() if hasattr(shell, "kernel") else TerminalDisplay()


class TerminalDisplay(Display):
    """On a terminal one line per run and one for the total; elsewhere messages only."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stderr, highlight=False)
        self.live = self.console.is_terminal
        self._statuses: dict[str, Status] = {}
        self._live = Live(console=self.console, transient=True, auto_refresh=False)
        self._shown = 0.0

    def __enter__(self) -> Display:
        if self.live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, name: str, status: Status | None) -> None:
        """Shows the status of a run; None when it has ended."""
        if status is None:
            self._statuses.pop(name, None)
        else:
            self._statuses[name] = status
        if self.live and time.monotonic() - self._shown >= SECONDS_BETWEEN_LIVE / 2:
            self._shown = time.monotonic()
            self._show([self._line(name, str(status)) for name, status in self._statuses.items()])

    def _line(self, name: str, status: str) -> str:
        """Status of a run in one line of the terminal; a label that is too long is cut, not the status."""
        left = max(10, self.console.width - len(status) - 2)
        return f"{name if len(name) <= left else name[: left - 1] + '…'}: {status}"

    def _show(self, lines: list[str]) -> None:
        texts = [Text(printable(line), no_wrap=True, overflow="ellipsis") for line in [*lines, self.total] if line]
        self._live.update(Group(*texts), refresh=True)

    def message(self, line: str, routine: bool = False) -> None:
        """Prints a line."""
        self.console.print(Text(printable(line)), soft_wrap=True)


class NotebookDisplay(TerminalDisplay):
    """One output of the cell that changes as the runs go on; messages that it does not show are printed."""

    def __enter__(self) -> Display:
        ipython = importlib.import_module("IPython.display")  # the notebook's, not a dependency of ours
        self._output: Any = ipython.display({"text/plain": ""}, raw=True, display_id=True)
        self.live = True
        return self

    def __exit__(self, *_: object) -> None:
        self._show([])

    def _show(self, lines: list[str]) -> None:
        self._output.update({"text/plain": "\n".join([line for line in (self.total, *lines) if line])}, raw=True)

    def message(self, line: str, routine: bool = False) -> None:
        """Prints a line, unless the changing output shows it too."""
        if not routine:
            print(line, file=sys.stderr)

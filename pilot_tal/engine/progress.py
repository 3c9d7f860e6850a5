"""What a person sees while runs go on: a live line for each on a terminal, plain lines elsewhere, all in their logs."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from data_lt.errors import UserError
from pilot_tal.record.lock import Lock

SECONDS_BETWEEN_LIVE = 0.2
SECONDS_BETWEEN_NOTES = 5.0
SECONDS_BETWEEN_LINES = 30.0


@dataclass(frozen=True)
class Status:
    """How far a run is; `left` are the seconds of training that are left."""

    place: str
    loss: float | None = None
    rate: float = 0.0
    left: float | None = None

    def __str__(self) -> str:
        if self.loss is None or self.left is None:
            return self.place
        return f"{self.place}, loss {self.loss:.3f}, {self.rate:.0f} images/s, {duration(self.left)} of training left"


class Line(Protocol):
    """Where a run tells how far it is. `live` says whether `update` is seen at once."""

    live: bool

    def update(self, status: Status) -> None:
        """This is how far the run is now."""

    def say(self, line: str) -> None:
        """A line that stays."""


class Display:
    """All that goes on: on a terminal a line for each run and one for the total, elsewhere what is said."""

    def __init__(self):
        self.console = Console(file=sys.stderr, highlight=False)
        self.live = self.console.is_terminal
        self.total = ""
        self._lines: dict[str, Status] = {}
        self._live = Live(console=self.console, transient=True, auto_refresh=False)
        self._shown = 0.0

    def __enter__(self) -> "Display":
        if self.live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self._live.stop()

    def update(self, name: str, status: Status | None) -> None:
        """This is how far a run is; None when it has ended."""
        if status is not None:
            self._lines[name] = status
        else:
            self._lines.pop(name, None)
        if self.live and time.monotonic() - self._shown >= SECONDS_BETWEEN_LIVE / 2:
            self._shown = time.monotonic()
            lines = [f"{name}: {status}" for name, status in self._lines.items()] + [self.total] * bool(self.total)
            texts = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
            self._live.update(Group(*texts), refresh=True)

    def say(self, line: str) -> None:
        """A line that stays."""
        self.console.print(Text(line), soft_wrap=True)

    def line(self, name: str) -> "DisplayLine":
        """The line of one run."""
        return DisplayLine(self, name)


class DisplayLine:
    """One run's line of a display."""

    def __init__(self, display: Display, name: str):
        self.display, self.name, self.live = display, name, display.live

    def update(self, status: Status) -> None:
        """This is how far the run is now."""
        self.display.update(self.name, status)

    def say(self, line: str) -> None:
        """A line that stays."""
        self.display.say(f"{self.name}: {line}")


class Progress:
    """Measures how far a run is, and tells it: on its line, in its log and with its lock.

    Args:
        line: Where it is shown.
        log: File that gets the lines that stay.
        total_steps: Training steps that are left, over all tasks.
        lock: Of the run's directory.
    """

    def __init__(self, line: Line, log: Path, total_steps: int, lock: Lock):
        self.line, self.log, self.left, self.lock = line, log, total_steps, lock
        self.steps, self.images = 0, 0.0
        self.busy = 0.0  # seconds in training steps alone, so that the time left is honest
        self.last_shown = self.last_line = time.monotonic()
        self.between = SECONDS_BETWEEN_LIVE if line.live else SECONDS_BETWEEN_NOTES

    def begin_steps(self) -> None:
        """The next step starts now; what came before was no training."""
        self.step_started = time.monotonic()

    def step(self, place: str, loss: Any, images: float) -> None:
        """A training step is over. `loss` is looked at only when it is shown."""
        now = time.monotonic()
        self.busy += now - self.step_started
        self.step_started = now
        self.steps, self.images = self.steps + 1, self.images + images
        if now - self.last_shown < self.between:
            return
        left = (self.left - self.steps) * self.busy / self.steps
        status = Status(place, float(loss), self.images / max(self.busy, 1e-9), left)
        self._tell(status)
        if not self.line.live and now - self.last_line >= SECONDS_BETWEEN_LINES:
            self.say(str(status))

    def doing(self, what: str) -> None:
        """Something else than training goes on."""
        self._tell(Status(what))

    def say(self, line: str) -> None:
        """A line that stays, also in the log."""
        self.last_line = time.monotonic()
        self.line.say(line)
        try:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise UserError(f"cannot write {self.log}: {error.strerror or error}") from error

    def _tell(self, status: Status) -> None:
        self.last_shown = time.monotonic()
        self.line.update(status)
        self.lock.doing = {"place": status.place, "left": status.left}


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 10 min`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"

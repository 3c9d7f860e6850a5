"""What a person sees while a run goes on: one live line on a terminal, plain lines elsewhere, all in the log."""

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pilot_tal.errors import PilotTalError

SECONDS_BETWEEN_LIVE = 0.2
SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Tells how far a run is.

    Args:
        title: The run, in a few words.
        log: File that gets the plain lines.
        total_steps: Training steps that are left, over all tasks.
    """

    def __init__(self, title: str, log: Path, total_steps: int):
        self.title, self.log, self.left = title, log, total_steps
        self.console = Console(file=sys.stderr, highlight=False)
        self.live = Live(console=self.console, transient=True, auto_refresh=False)
        self.steps = self.images = 0
        self.busy = 0.0  # seconds in training steps alone, so that the time left is honest
        self.last_shown = self.last_line = self.started = time.monotonic()

    def __enter__(self) -> "Progress":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def begin_steps(self) -> None:
        """The next step starts now; what came before was no training."""
        self.step_started = time.monotonic()

    def step(self, place: str, loss, images: int) -> None:
        """A training step is over. `loss` is looked at only when it is shown."""
        now = time.monotonic()
        self.busy += now - self.step_started
        self.step_started = now
        self.steps, self.images = self.steps + 1, self.images + images
        if self.console.is_terminal and now - self.last_shown >= SECONDS_BETWEEN_LIVE:
            self.last_shown = now
            self.live.update(Text(self._line(place, float(loss))), refresh=True)
        elif now - self.last_line >= SECONDS_BETWEEN_LINES:
            self.say(self._line(place, float(loss)))

    def say(self, line: str) -> None:
        """A line that stays, also in the log."""
        self.last_line = time.monotonic()
        self.console.print(Text(f"{self.title}: {line}"), soft_wrap=True)
        try:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise PilotTalError(f"cannot write {self.log}: {error.strerror or error}") from error

    def doing(self, what: str) -> None:
        """Something else than training goes on."""
        if self.console.is_terminal:
            self.live.update(Text(f"{self.title}: {what}"), refresh=True)

    def _line(self, place: str, loss: float) -> str:
        rate = self.images / self.busy if self.busy else 0.0
        left = (self.left - self.steps) * self.busy / self.steps
        return f"{place}, loss {loss:.3f}, {rate:.0f} images/s, {duration(left)} of training left"


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 10 min`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"

"""Progress of long jobs: a bar on a terminal, now and then a plain line elsewhere."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def progress(label: str, total: int | None, start: int = 0, is_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Yields a function that takes the amount done since the last call."""
    from rich.console import Console

    console = Console(file=sys.stderr)
    if console.is_terminal:
        with _bar(console, is_bytes) as bar:
            task = bar.add_task(label, total=total, completed=start)
            yield lambda amount: bar.advance(task, amount)
    else:
        yield _lines(label, total, start)


def _bar(console, is_bytes: bool):
    from rich import progress as rich

    amount = rich.DownloadColumn() if is_bytes else rich.MofNCompleteColumn()
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), amount, rich.TimeRemainingColumn())
    return rich.Progress(*columns, console=console, transient=True)


def _lines(label: str, total: int | None, start: int) -> Callable[[int], None]:
    state = {"done": start, "next": time.monotonic() + SECONDS_BETWEEN_LINES}

    def advance(amount: int) -> None:
        state["done"] += amount
        if time.monotonic() >= state["next"]:
            state["next"] = time.monotonic() + SECONDS_BETWEEN_LINES
            share = f" ({100 * state['done'] / total:.0f} %)" if total else ""
            print(f"{label}: {state['done']:,}{share}", file=sys.stderr, flush=True)

    return advance


def announce(text: str) -> None:
    """Prints one line to the standard error."""
    print(text, file=sys.stderr, flush=True)

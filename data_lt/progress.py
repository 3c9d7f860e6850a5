"""Progress of long jobs: a bar on a terminal, a line now and then elsewhere."""

import sys

from tqdm import tqdm


class Bar(tqdm):
    """A bar without tqdm's monitor thread, which must not exist when processes are forked."""

    monitor_interval = 0


def progress(label: str, total: int | None, start: int = 0, is_bytes: bool = False) -> Bar:
    """A bar to use in a `with` block; call its `update` with the amount done since the last call."""
    live = sys.stderr.isatty()
    unit = {"unit": "B", "unit_scale": True, "unit_divisor": 1024} if is_bytes else {"unit": ""}
    pause = {"leave": False} if live else {"mininterval": 10, "miniters": 1, "delay": 10}
    return Bar(desc=label, total=total, initial=start, file=sys.stderr, **unit, **pause)

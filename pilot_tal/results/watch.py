"""Keeps a report current while its runs go on."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from data_lt.errors import UserError
from pilot_tal.record.run_dir import RECORD, RESULT
from pilot_tal.record.states import run_states, totals
from pilot_tal.results.build import draw_report, write_report
from pilot_tal.results.grouping import load_study
from pilot_tal.results.study import BASELINE, Study

SECONDS_BETWEEN_LOOKS = 5.0


def watch_report(
    paths: Sequence[Path], output: Path, say: Callable[[str], None], baseline: str = BASELINE
) -> Study | None:
    """Writes the report, and anew whenever a run begins, ends a task or changes its state, until all runs are done.

    Ctrl-C ends it sooner. In the end the page no longer loads itself anew.

    Args:
        paths: Run directories, or folders of them.
        output: Folder of the report.
        say: Is given a line whenever something has happened.
        baseline: Name of the loss that the others are compared with.

    Returns:
        What the page shows in the end; None if there was nothing to show.

    Raises:
        UserError: a path is no folder. Anything else that is wrong (no run has begun, one is damaged, the disk is full)
            is said, and looked at again.
    """
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{str(path)!r} is not a directory; give run directories or a folder of them")
    drawn, before, said, done = None, None, "", False
    try:
        while not done:
            try:
                seen, done, counts = _look(paths)
                changed, line = seen != before, f"{counts}: {output / 'index.html'}"
                if changed:
                    drawn = draw_report(load_study(paths, baseline))
                    write_report(drawn, output, watched=True)
                    before = seen
            except UserError as error:
                changed, done, line = False, False, str(error)
            if changed or line != said:
                say(f"{time.strftime('%H:%M:%S')} {line}")
                said = line
            if not done:
                time.sleep(SECONDS_BETWEEN_LOOKS)
        say("all runs are done")
    except KeyboardInterrupt:
        say("stopped watching")
    finally:
        if drawn is not None:
            write_report(drawn, output)
    return None if drawn is None else drawn.study


def _look(paths: Sequence[Path]) -> tuple[list[tuple], bool, str]:
    """What a report depends on, whether all runs are done, and how many are in which state."""
    found = [(path, state) for path in paths for state in run_states(path)]
    seen = [(path, state.name, state.state, *_stamps(path / state.name)) for path, state in found]
    counts = totals(state for _, state in found)
    return seen, set(counts) == {"done"}, ", ".join(f"{count} {state}" for state, count in counts.items())


def _stamps(run: Path) -> list[int]:
    return [file.stat().st_mtime_ns for file in (run / RECORD, run / RESULT) if file.is_file()]

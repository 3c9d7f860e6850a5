"""Keep a report current while its runs go on."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from data_lt.errors import UserError
from pilot_tal.record.run_dir import RECORD, RESULT
from pilot_tal.record.states import run_states, totals
from pilot_tal.results.build import build_report
from pilot_tal.results.grouping import load_study
from pilot_tal.results.groups import BASELINE
from pilot_tal.results.study import Study

SECONDS_BETWEEN_LOOKS = 5.0


def watch_report(
    paths: Sequence[Path], output: Path, say: Callable[[str], None], baseline: str = BASELINE, plots: bool = False
) -> Study | None:
    """Write the report, and again whenever a run begins, ends a task or changes its state, until all are done.

    Ctrl-C ends it sooner. In the end the pages no longer reload themselves.

    Args:
        paths: Run directories, or folders of them.
        output: Folder of the report.
        say: Called with a line whenever something has happened.
        baseline: The loss that the others are compared with.
        plots: As for `build_report`.

    Returns:
        The study that the page shows in the end; None if there was nothing to show.

    Raises:
        UserError: a path is no folder. Other errors (no run yet, a damaged one, a full disk) are passed to `say`, and
            it looks again.
    """
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{str(path)!r} is not a directory; give run directories or a folder of them")
    study, before, said, done = None, None, "", False
    try:
        while not done:
            try:
                seen, finished, line = _look(paths)
                if seen != before:
                    study = load_study(paths, baseline)
                    build_report(study, output, plots=plots, watched=True)
                    before, said = seen, ""
                done, line = finished, f"{line}: {output / 'index.html'}"
            except UserError as error:
                line = str(error)
            if line != said:
                say(f"{time.strftime('%H:%M:%S')} {line}")
                said = line
            if not done:
                time.sleep(SECONDS_BETWEEN_LOOKS)
        say("all runs are done")
    except KeyboardInterrupt:
        say("stopped watching")
    finally:
        if study is not None:
            build_report(study, output, plots=plots)
    return study


def _look(paths: Sequence[Path]) -> tuple[list[tuple], bool, str]:
    """What a report depends on, whether all runs are done, and how many are in which state."""
    found = [(path, state) for path in paths for state in run_states(path)]
    seen = [(path, state.name, state.state, *_stamps(path / state.name)) for path, state in found]
    counts = totals(state for _, state in found)
    return seen, set(counts) == {"done"}, ", ".join(f"{count} {state}" for state, count in counts.items())


def _stamps(run: Path) -> list[int]:
    return [file.stat().st_mtime_ns for file in (run / RECORD, run / RESULT) if file.is_file()]

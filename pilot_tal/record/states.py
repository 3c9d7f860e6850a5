"""Which runs a folder holds or is meant to hold, and how far each is. Needs no torch.

Every launcher writes its plan to `OUTPUT/.plans/`, one file per plan: the names of its runs and the SLURM job of each,
so that `pilot-tal status` shows runs that have not begun. Run directories and `squeue` show the rest.
"""

import getpass
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from data_lt.errors import UserError
from data_lt.files import is_name, read_bytes, read_json, write_json
from pilot_tal.record.lock import lock_numbers, owner_of
from pilot_tal.record.run_dir import ERROR, RECORD, SESSION, is_finished, read_result, read_run_record
from pilot_tal.record.run_record import short_hash

PLANS = ".plans"
STATES = ("done", "running", "queued", "failed", "stopped", "not started")
SILENT_SECONDS = 120.0
NEVER_BEGUN = "cancelled or ended before its first record; see the log of the job, if there is one"
_LONGEST = 1e9  # seconds left that are worth showing
_ALIVE = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING")

Queue = Mapping[str, tuple[str, str]]  # state and reason of SLURM jobs that wait or run, by id (`12`, `12_3`)


def note_plan(output: Path, runs: Iterable[str], jobs: Mapping[str, str] | None = None) -> None:
    """Writes the names of a plan's runs, unless all are known, and the SLURM jobs that were given some of them."""
    names, known = list(runs), planned(output)[0]
    if jobs or not known.keys() >= set(names):
        known |= jobs or {}
        write_json(output / PLANS / f"{short_hash(names)}.json", {name: known.get(name, "") for name in names})


def planned(output: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the runs of all plans in a folder with their last SLURM job or "", and the problem of each bad plan."""
    found: dict[str, str] = {}
    bad: dict[str, str] = {}
    for file in sorted((output / PLANS).glob("*.json"), key=lambda file: file.lstat().st_mtime):
        try:
            plan = read_json(file)
            if not isinstance(plan, dict) or not all(is_name(name) for name in plan):
                raise UserError(f"{file} is not a plan: it must map names of runs to SLURM jobs; remove it")
            found |= {name: str(job) or found.get(name, "") for name, job in plan.items()}
        except UserError as error:
            bad[f"{PLANS}/{file.name}"] = str(error)
    return found, bad


def queued_jobs() -> Queue | None:
    """The user's jobs that wait or run; None if `squeue` does not answer."""
    command = ["squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%i|%T|%r"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.strip().split("|") for line in answer.stdout.splitlines()]
    return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3 and row[1] in _ALIVE}


@dataclass(frozen=True)
class RunState:
    """One run: `state` is one of `STATES`, `where` a process or a job, `detail` the task or the sentence."""

    name: str
    state: str
    where: str = ""
    detail: str = ""
    seconds_left: float | None = None


def run_states(folder: Path) -> list[RunState]:
    """All runs of a folder: those begun, and those that a plan noted there has still to begin."""
    if not folder.is_dir():
        raise UserError(f"{str(folder)!r} is not a directory; give a folder of runs")
    jobs, bad = planned(folder)
    found = ((Path(path), files) for path, _, files in os.walk(folder))
    begun = [path for path, files in found if {RECORD, ERROR} & {*files} or lock_numbers(path)]
    paths = {str(path.relative_to(folder)): path for path in begun if not path.name.startswith(SESSION)}
    paths |= {name: folder / name for name in jobs}
    if "." in paths:  # the folder is itself a run
        paths[folder.resolve().name] = paths.pop(".")
    if not paths and not bad:
        raise UserError(f"no runs found in {folder} (a run has a {RECORD})")
    queue = queued_jobs() if any(jobs.values()) else None
    states = [state_of(paths[name], name, jobs.get(name, ""), queue) for name in sorted(paths)]
    return [*states, *(RunState(name, "failed", "", problem) for name, problem in bad.items())]


def state_of(path: Path, name: str = "", job: str = "", queue: Queue | None = None) -> RunState:
    """The state of one run, given its SLURM job, if it has one, and SLURM's queue."""
    name, where, waiting = name or path.name, f"job {job}" if job else "", (queue or {}).get(job)
    try:
        if is_finished(path):
            return RunState(name, "done")
        owner = owner_of(path)
        silent = owner is not None and owner.silent > SILENT_SECONDS
        if owner is not None and not (silent and job and queue is not None and waiting is None):  # killed with its node
            places = [owner.where, where, f"silent for {owner.silent / 60:.0f} min" if silent else ""]
            position, left = str(owner.doing.get("position", "")), owner.doing.get("left")
            left = float(left) if isinstance(left, (int, float)) and 0 <= left < _LONGEST else None
            return RunState(name, "running", ", ".join(filter(None, places)), position, left)
        failed = path / ERROR
        if failed.is_file() and (waiting is None or waiting[0] == "RUNNING"):
            return RunState(name, "failed", where, read_bytes(failed).decode("utf-8", "replace").strip())
        if waiting is not None:
            return RunState(name, "queued", where, waiting[1].replace("None", ""))
        begun = (path / RECORD).is_file()
        after = f"after task {read_result(path)['tasks_done']} of {read_run_record(path).num_tasks}" if begun else ""
    except (UserError, OSError) as error:
        return RunState(name, "failed", "", str(error))
    if job and queue is None:
        return RunState(name, "queued", where, "squeue does not answer")
    if job:
        return RunState(name, "stopped", f"{where} ended", after or NEVER_BEGUN)
    return RunState(name, "stopped" if path.is_dir() else "not started", "", after)


def totals(states: Iterable[RunState]) -> dict[str, int]:
    """How many runs are in each state, in the order of `STATES`."""
    counted = Counter(state.state for state in states)
    return {state: counted[state] for state in STATES if counted[state]}

"""Which runs a folder is meant to hold, begun or not, and which SLURM jobs are to make them.

Every launcher writes its plan to `OUTPUT/.plans/`, one file per plan, so that `pilot-tal status` shows missing runs.
"""

import contextlib
import getpass
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from data_lt.errors import UserError
from data_lt.files import is_name, read_json, write_json
from pilot_tal.record.run_record import short_hash

PLANS = ".plans"
_ALIVE = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING")


def note_plan(output: Path, runs: Iterable[str], jobs: Mapping[str, str] | None = None) -> None:
    """Writes the names of a plan's runs, unless all are known, and the SLURM jobs that were given some of them."""
    names = list(runs)
    if not jobs and planned(output)[0].keys() >= set(names):
        return
    file = output / PLANS / f"{short_hash(names)}.json"
    before: dict[str, str] = {}
    with contextlib.suppress(UserError):  # a damaged plan is replaced
        before = _read(file)
    write_json(file, {name: (jobs or {}).get(name, before.get(name, "")) for name in names})


def planned(output: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the runs of all plans in a folder with their last SLURM job or "", and the problem of each bad plan."""
    found: dict[str, str] = {}
    bad: dict[str, str] = {}
    for file in sorted((output / PLANS).glob("*.json"), key=_age):
        try:
            for name, job in _read(file).items():
                found[name] = job or found.get(name, "")
        except UserError as error:
            bad[f"{PLANS}/{file.name}"] = str(error)
    return found, bad


def _age(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _read(file: Path) -> dict[str, str]:
    content = read_json(file)
    if not isinstance(content, dict) or not all(is_name(name) for name in content):
        raise UserError(f"{file} is not a plan: it must map names of runs to SLURM jobs; remove it")
    return {name: str(job) for name, job in content.items()}


@dataclass(frozen=True)
class QueuedJob:
    """A job as `squeue` shows it."""

    state: str
    reason: str
    node: str

    @property
    def running(self) -> bool:
        """Whether it has begun."""
        return self.state == "RUNNING"


def queued_jobs() -> dict[str, QueuedJob] | None:
    """The user's jobs that wait or run, by id (`12`, `12_3`); None if `squeue` does not answer."""
    if shutil.which("squeue") is None:
        return None
    command = ["squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%i|%T|%r|%N"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    rows = [line.strip().split("|") for line in answer.stdout.splitlines()]
    return {row[0]: QueuedJob(*row[1:4]) for row in rows if len(row) == 4 and row[1] in _ALIVE}

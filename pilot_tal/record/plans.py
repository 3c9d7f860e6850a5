"""Which runs a folder is meant to hold, begun or not, and which SLURM jobs are to make them.

Every launcher notes its plan in `OUTPUT/.plans/`, one file a plan; so `pilot-tal status` can tell what is missing.
"""

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
    """Notes the names of a plan's runs, unless they all are noted, and the SLURM jobs that were given some of them."""
    names = list(runs)
    if not jobs and planned(output).keys() >= set(names):
        return
    file = output / PLANS / f"{short_hash(names)}.json"
    before = _read(file)
    write_json(file, {name: (jobs or {}).get(name, before.get(name, "")) for name in names})


def planned(output: Path) -> dict[str, str]:
    """The runs of all plans noted in a folder, each with its last job, if SLURM has it."""
    found: dict[str, str] = {}
    for file in sorted((output / PLANS).glob("*.json"), key=lambda file: file.stat().st_mtime):
        for name, job in _read(file).items():
            found[name] = job or found.get(name, "")
    return found


def _read(file: Path) -> dict[str, str]:
    try:
        content = read_json(file)
    except UserError:
        return {}  # nothing but a convenience is lost
    if not isinstance(content, dict):
        return {}
    return {name: str(job) for name, job in content.items() if is_name(name)}


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

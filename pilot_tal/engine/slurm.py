"""The runs of a study as an array of SLURM jobs, each of which executes some lines `pilot-tal run …` of one script.

Preempted, or at the end of its time, a job is requeued; a run then resumes after its last finished task.
"""

import contextlib
import math
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch

from data_lt.errors import UserError, command, one_line
from pilot_tal.config.parse import parse_items
from pilot_tal.config.settings import AUTO, StudyConfig
from pilot_tal.engine.jobs import Jobs, run_arguments
from pilot_tal.record.states import note_plan, planned, queued_jobs, run_states
from pilot_tal.schema import Rule, build, settings_of

FOLDER = ".slurm"
MOST_JOBS = 1000  # in one array; SLURM's own default limit is 1001
_NAME = r"[^\s'\"]+"
# Shorter jobs get the signal for their last 90 seconds as they start, and would be requeued again and again.
_TIME = r"(?!0*[0-2](:\d+)?$|0+:0*[0-2]:\d+$)(\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2})"
_SCRIPT = """\
#!/bin/bash
{options}

# USR2 comes shortly before the end of the job's time. A run that the system has killed is tried once more.
trap 'kill $!; wait; [ "${{SLURM_RESTART_COUNT:-0}}" -lt 100 ] && scontrol requeue "$SLURM_JOB_ID"; exit 1' USR2
trap 'kill $!; wait; exit 143' TERM
failed=0
run() {{
  for attempt in 1 2; do
    "$@" & wait $!
    status=$?
    [ $status -eq 137 ] || break
  done
  [ $status -eq 0 ] || failed=1
}}

{body}
exit $failed"""
_REPORT = "import sys; from pilot_tal.api import write_slurm_report as write; write(sys.argv[3:], *sys.argv[1:3])"


@dataclass(frozen=True)
class SlurmConfig:
    """What may follow `--slurm`."""

    partition: Annotated[str | None, Rule("the name of a partition", pattern=_NAME)] = None
    time: Annotated[str, Rule("a time of 3 minutes or more such as 90 (minutes), 4:00:00 or 1-12", pattern=_TIME)] = (
        "4:00:00"
    )
    gpus: Annotated[str | None, Rule("a number of GPUs such as 1 or a100:1", pattern=r"([\w.-]+:)?\d{1,3}")] = None
    cpus: Annotated[int, Rule("cores of a job", 1, 1024)] = 1
    mem: Annotated[str | None, Rule("memory such as 32G", pattern=r"\d+[KMGT]?")] = None
    array: Annotated[int, Rule("jobs at a time", 1, 100_000)] = 32
    account: Annotated[str | None, Rule("the name of an account", pattern=_NAME)] = None
    constraint: Annotated[str | None, Rule("features that a node must have", pattern=_NAME)] = None
    qos: Annotated[str | None, Rule("the name of a quality of service", pattern=_NAME)] = None
    runs_per_job: Annotated[int, Rule("runs of one job, one after the other", 1, 10_000)] = 1


def submit(
    study: StudyConfig,
    items: Iterable[str],
    report: Callable[[Sequence[Path]], Path],
    message: Callable[[str], None],
    dry_run: bool = False,
) -> None:
    """Submits the runs that are neither done nor queued, and a last job that writes the report.

    `items` are `key=value` for SLURM, `report` returns the folder of the report on run directories. A dry run sends the
    script to `message` and submits nothing.
    """
    config = build(SlurmConfig, _parse(items), "SLURM")
    output, hardware, size = Path(study.hardware.output), study.hardware, config.runs_per_job
    on_node = "cuda" if int((config.gpus or "0").rpartition(":")[2]) else "cpu"  # this machine may have no GPU
    jobs = Jobs(study, torch.device(on_node if hardware.device == AUTO else hardware.device))
    busy: set[str] = set()
    with contextlib.suppress(UserError):  # nothing there yet
        busy = {run.name for run in run_states(output) if run.state in ("done", "running", "queued")}
    todo = [job for job in jobs.all if job.path.name not in busy]
    # One run at a time; without a GPU it uses the cores that the SLURM job has.
    threads = hardware.threads or (None if config.gpus else config.cpus)
    hardware = replace(hardware, jobs=AUTO, gpus=None, jobs_per_gpu=1, threads=threads)
    lines = [_line("-m", "pilot_tal", *run_arguments(job.config, hardware, study.plugins)) for job in todo]
    parts = math.ceil(len(todo) / size)
    script = _array_script(output, config, lines)
    if dry_run:
        message(script)
        message(f"{len(todo)} of {len(jobs.all)} runs to submit, in {parts} jobs")
        return
    if not todo:
        message("nothing to submit: every run is done, queued or running")
        return
    for job in todo:
        jobs.trainer(job)  # bad settings raise before anything is submitted
        job.trainer = None
    paths = [job.path for job in jobs.all]
    names = [path.name for path in paths]
    note_plan(output, names)  # where that fails, nothing is submitted
    if jobs.device.type == "cuda" and not config.gpus:
        message("note: the jobs ask SLURM for no GPU; unless the partition gives one, add --slurm gpus=1")
    ids = [_submit(output, script)]
    note_plan(output, names, {job.path.name: f"{ids[0]}_{number // size}" for number, job in enumerate(todo)})
    message(f"submitted {len(todo)} of {len(jobs.all)} runs in {parts} jobs")
    folder = report(paths)
    # The last job waits for the new jobs, and for those of these runs that were submitted before.
    alive, known = queued_jobs() or {}, planned(output)[0]
    waits = {*ids, *(known[name].partition("_")[0] for name in names if known.get(name) in alive)}
    last, after = replace(config, gpus=None, cpus=1, time="60"), f"afterany:{':'.join(sorted(waits))}"
    body = _line("-c", _REPORT, folder, study.baseline, *paths)
    try:
        ids.append(_submit(output, _script(output, last, body, "%j", dependency=after)))
        later = f"the report will be {folder / 'index.html'}"
    except UserError as error:  # warn only: jobs are already submitted
        message(f"the report will not be written: {error}")
        later = f"the report: {command('report', output)}"
    message(f"look:   {command('status', output, '--watch')}")
    message(f"cancel: scancel {' '.join(ids)}")
    message(f"logs:   {output / FOLDER}; {later}")


def _parse(items: Iterable[str]) -> dict[str, Any]:
    known, given = settings_of(SlurmConfig), parse_items(items, {"cells_per_job": "runs_per_job"})
    return {key: known[key].parse(text) if key in known else text for key, text in given.items()}


def _line(*words: object) -> str:
    return f"run {shlex.join(map(str, (sys.executable, *words)))}"


def _array_script(output: Path, config: SlurmConfig, lines: Sequence[str]) -> str:
    """The script of an array whose jobs execute `runs_per_job` of the lines each."""
    size = config.runs_per_job
    parts = ["\n".join(lines[start : start + size]) for start in range(0, len(lines), size)]
    if len(parts) > MOST_JOBS:
        raise UserError(
            f"{len(parts):,} jobs are more than the {MOST_JOBS:,} of an array; add --slurm "
            f"runs_per_job={math.ceil(len(lines) / MOST_JOBS)}"
        )
    cases = "\n".join(f"{number})\n{part}\n;;" for number, part in enumerate(parts))
    array = f"0-{len(parts) - 1}%{min(config.array, len(parts))}"
    return _script(output, config, f"case $SLURM_ARRAY_TASK_ID in\n{cases}\nesac", "%A_%a", array=array)


def _script(output: Path, config: SlurmConfig, body: str, log: str, **more: str) -> str:
    """A script for `sbatch`; an option that is None is the cluster's."""
    options = {
        **{"job-name": "pilot-tal", "nodes": 1, "cpus-per-task": config.cpus, "signal": "B:USR2@90"},
        **{"gres": f"gpu:{config.gpus}" if config.gpus else None, "open-mode": "append"},
        **{key: getattr(config, key) for key in ("partition", "time", "mem", "account", "constraint", "qos")},
        **{"output": (output / FOLDER / f"{log}.log").absolute(), **more},
    }
    lines = [f"#SBATCH --{key}={shlex.quote(str(value))}" for key, value in options.items() if value is not None]
    return _SCRIPT.format(options="\n".join(["#SBATCH --requeue", *lines]), body=body)


def _submit(output: Path, script: str) -> str:
    """Submits a script to SLURM; returns the id of the job."""
    (output / FOLDER).mkdir(exist_ok=True)
    try:
        done = subprocess.run(["sbatch", "--parsable"], input=script, capture_output=True, text=True)
    except FileNotFoundError as error:
        words = "this machine has no sbatch: run this where SLURM's commands are, or leave --slurm out"
        raise UserError(words) from error
    if done.returncode:
        raise UserError(f"SLURM refuses: {one_line(done.stderr)}")
    return done.stdout.strip().partition(";")[0]

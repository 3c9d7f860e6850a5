"""The runs of a study as SLURM jobs, through submitit.

A SLURM job gets the command lines of some runs and executes them one after the other, as `launch` does here. Preempted,
or at the end of its time, it is requeued; a run then resumes after its last finished task.
"""

import contextlib
import functools
import io
import math
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch

from data_lt.errors import UserError, command, terminate
from pilot_tal.config.parse import parse_items
from pilot_tal.config.settings import AUTO, StudyConfig
from pilot_tal.engine.jobs import Job, Jobs, for_other_launcher, from_arguments, run_arguments
from pilot_tal.engine.launch import check_output, launch
from pilot_tal.record.states import note_plan, planned, queued_jobs, run_states
from pilot_tal.schema import Rule, build, settings_of
from pilot_tal.version import install_hint

FOLDER = ".slurm"
MOST_TIMEOUTS = 100
MOST_JOBS = 1000  # in one array; SLURM's own default limit is 1001
_NAME = r"[^\s'\"]+"


@dataclass(frozen=True)
class SlurmConfig:
    """What may follow `--slurm`."""

    partition: Annotated[str | None, Rule("the name of a partition", pattern=_NAME)] = None
    time: Annotated[
        str, Rule("a time such as 90 (minutes), 4:00:00 or 1-12", pattern=r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}")
    ] = "4:00:00"
    gpus: Annotated[str | None, Rule("a number of GPUs such as 1 or a100:1", pattern=r"([\w.-]+:)?\d{1,3}")] = None
    cpus: Annotated[int, Rule("cores of a job", 1, 1024)] = 1
    mem: Annotated[str | None, Rule("memory such as 32G", pattern=r"\d+[KMGT]?")] = None
    array: Annotated[int, Rule("jobs at a time", 1, 100_000)] = 32
    account: Annotated[str | None, Rule("the name of an account", pattern=_NAME)] = None
    constraint: Annotated[str | None, Rule("features that a node must have", pattern=_NAME)] = None
    qos: Annotated[str | None, Rule("the name of a quality of service", pattern=_NAME)] = None
    runs_per_job: Annotated[int, Rule("runs of one job, one after the other", 1, 10_000)] = 1

    @property
    def minutes(self) -> int:
        """The time limit in whole minutes, as SLURM reads it."""
        days, dash, rest = self.time.rpartition("-")
        parts = [int(part) for part in rest.split(":")]
        if dash or len(parts) == 3:
            hours, minutes, seconds = (*parts, 0, 0)[:3]
        else:
            hours, (minutes, seconds) = 0, (*parts, 0)[:2]
        return max(1, math.ceil(24 * 60 * int(days or 0) + 60 * hours + minutes + seconds / 60))

    def parameters(self) -> dict[str, Any]:
        """The same under submitit's names."""
        return {
            "job_name": "pilot-tal",
            "time": self.minutes,
            "partition": self.partition,
            "gres": f"gpu:{self.gpus}" if self.gpus else None,
            "cpus_per_task": self.cpus,
            "srun_args": [f"--cpus-per-task={self.cpus}"],  # which srun of SLURM 22.05 to 23.02 does not inherit
            "mem": self.mem,
            "account": self.account,
            "constraint": self.constraint,
            "qos": self.qos,
            "array_parallelism": self.array,
            "signal_delay_s": min(90, 15 * self.minutes),
            "stderr_to_stdout": True,
            "wckey": None,
            "additional_parameters": {"requeue": True},
        }


class SlurmJob:
    """A SLURM job: some runs, each given as the arguments of its `pilot-tal run`."""

    def __init__(self, commands: Sequence[Sequence[str]]):
        self.commands = commands

    def __call__(self) -> None:
        """Executes the runs in turn; the failure of one leaves the others alone."""
        signal.signal(signal.SIGTERM, terminate)  # cancelled; submitit would go on
        studies = [from_arguments(arguments) for arguments in self.commands]
        runs = tuple(study.runs[0] for study in studies)
        outcome = launch(replace(studies[0], runs=runs, hardware=replace(studies[0].hardware, jobs=1)))
        if outcome.failed:
            causes = "; ".join(f"{job.label}: {job.failure}" for job in outcome.failed)
            raise RuntimeError(f"{len(outcome.failed)} of {len(runs)} runs failed: {causes}")

    def checkpoint(self) -> Any:
        """What is requeued: the same job, since every run resumes by itself."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit(
    study: StudyConfig,
    items: Iterable[str],
    report: Callable[[Sequence[Path]], Path],
    write_report: Callable[[Sequence[str], str], None],
    message: Callable[[str], None],
    dry_run: bool = False,
) -> None:
    """Submits the runs that are neither done nor queued, and a last job that writes the report.

    Args:
        study: The runs.
        items: `key=value` for SLURM.
        report: Returns the folder of the report on run directories.
        write_report: Writes the report on run directories into a folder; called in the last job.
        message: Receives messages, and the script of a dry run.
        dry_run: Pass the script to `message`, submit nothing.

    Raises:
        UserError: bad input, no submitit, no sbatch, or SLURM's own error.
    """
    config = build(SlurmConfig, _parse(items), "SLURM")
    _need_submitit()
    output = Path(study.hardware.output)
    device = _device_on_node(study.hardware.device, config)
    jobs = Jobs(study, device)
    todo = _not_queued(output, jobs.all)
    # One run at a time; without a GPU it uses the cores that the SLURM job has.
    threads = study.hardware.threads or (None if config.gpus else config.cpus)
    hardware = replace(for_other_launcher(study.hardware), jobs_per_gpu=1, threads=threads)
    commands = [run_arguments(job.config, hardware, study.plugins) for job in todo]
    size = config.runs_per_job
    parts = [SlurmJob(commands[start : start + size]) for start in range(0, len(commands), size)]
    if len(parts) > MOST_JOBS:
        raise UserError(
            f"{len(parts):,} jobs are more than the {MOST_JOBS:,} of an array; add --slurm "
            f"runs_per_job={math.ceil(len(todo) / MOST_JOBS)}"
        )
    if dry_run:
        message(_script(output, config, len(parts)))
        message(f"{len(todo)} of {len(jobs.all)} runs to submit, in {len(parts)} jobs")
        return
    if not todo:
        message("nothing to submit: every run is done, queued or running")
        return
    for job in todo:
        jobs.trainer(job)  # bad settings raise before anything is submitted
        job.trainer = None
    check_output(output)
    names = [job.path.name for job in jobs.all]
    note_plan(output, names)  # where that fails, nothing is submitted
    if device.type == "cuda" and not config.gpus:
        message("note: the jobs ask SLURM for no GPU; unless the partition gives one, add --slurm gpus=1")
    ids = _submit(output, config.parameters(), parts)
    note_plan(output, names, {job.path.name: ids[number // size] for number, job in enumerate(todo)})
    message(f"submitted {len(todo)} of {len(jobs.all)} runs in {len(parts)} jobs")
    folder = report([job.path for job in jobs.all])
    last = functools.partial(write_report, [str(job.path) for job in jobs.all], str(folder))
    try:
        ids += _submit(output, _last_parameters(output, config, names, ids), [last])
        later = f"the report will be {folder / 'index.html'}"
    except UserError as error:  # warn only: jobs are already submitted
        message(f"the report will not be written: {error}")
        later = f"the report: {command('report', output)}"
    message(f"look:   {command('status', output, '--watch')}")
    message(f"cancel: scancel {_arrays(ids)}")
    message(f"logs:   {output / FOLDER}; {later}")


def _last_parameters(output: Path, config: SlurmConfig, names: Sequence[str], new: Iterable[str]) -> dict[str, Any]:
    """Parameters of the job that waits for the new jobs, and for those of these runs that were submitted before."""
    alive, known = queued_jobs() or {}, planned(output)[0]
    waits = {*new, *(known[name] for name in names if known.get(name) in alive)}
    parameters = replace(config, gpus=None, cpus=1, time="60").parameters()
    return {**parameters, "dependency": f"afterany:{_arrays(waits, ':')}"}


def _arrays(jobs: Iterable[str], between: str = " ") -> str:
    """The arrays that SLURM jobs belong to."""
    return between.join(sorted({job.partition("_")[0] for job in jobs}))


def _parse(items: Iterable[str]) -> dict[str, Any]:
    known = settings_of(SlurmConfig)
    given = parse_items(items, {"cells_per_job": "runs_per_job"})
    return {key: known[key].parse(text) if key in known else text for key, text in given.items()}


def _need_submitit() -> None:
    try:
        import submitit  # noqa: F401
    except ImportError as error:
        raise UserError(f"--slurm needs the package submitit; install it {install_hint('slurm')}") from error


def _not_queued(output: Path, jobs: Sequence[Job]) -> list[Job]:
    """Jobs that are neither done, nor running, nor queued."""
    try:
        states = {state.name: state.state for state in run_states(output)} if output.is_dir() else {}
    except UserError:  # nothing there yet
        states = {}
    return [job for job in jobs if states.get(job.path.name) not in ("done", "running", "queued")]


def _device_on_node(device: str, config: SlurmConfig) -> torch.device:
    """The device that a job will find; the machine that submits it may have no GPU."""
    gpus = int((config.gpus or "0").rpartition(":")[2])
    return torch.device(("cuda" if gpus else "cpu") if device == AUTO else device)


def _script(output: Path, config: SlurmConfig, jobs: int) -> str:
    from submitit.slurm.slurm import _make_sbatch_string

    folder = (output / FOLDER).absolute()
    command = f"{sys.executable} -u -m submitit.core._submit {folder}"
    return _make_sbatch_string(command, folder, map_count=jobs if jobs > 1 else None, **config.parameters())


def _submit(output: Path, parameters: dict[str, Any], jobs: Sequence[Callable[[], None]]) -> list[str]:
    """Submits jobs to SLURM in one array; returns their ids."""
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise UserError("this machine has no sbatch: run this where SLURM's commands are, or leave --slurm out")
    executor = submitit.SlurmExecutor(folder=output / FOLDER, max_num_timeout=MOST_TIMEOUTS)
    executor.update_parameters(**parameters)
    try:
        with contextlib.redirect_stderr(io.StringIO()), executor.batch():
            submitted = [executor.submit(job) for job in jobs]
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        words = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
        raise UserError(f"SLURM refuses: {words}") from error
    return [job.job_id for job in submitted]

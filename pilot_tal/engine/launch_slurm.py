"""The cells of a plan as SLURM jobs, through submitit.

A job is given the command lines of some cells and runs them, one after the other, as this machine would. Preempted, or
at the end of its time, it is requeued; a run then goes on after its last finished task.
"""

import contextlib
import functools
import io
import math
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch

from data_lt.errors import UserError, terminate
from pilot_tal.config.parse import parse_items
from pilot_tal.config.settings import AUTO, Machine, Plan
from pilot_tal.engine.launch import check_output, launch
from pilot_tal.engine.launch_cells import Cell, Cells, anywhere, command_line, plan_of, run_arguments
from pilot_tal.record.plans import note_plan, planned, queued_jobs
from pilot_tal.record.states import run_states
from pilot_tal.schema import Rule, build, settings_of
from pilot_tal.version import install_hint

FOLDER = ".slurm"
MOST_TIMEOUTS = 100
MOST_JOBS_AN_ARRAY = 1000  # SLURM's own default limit is 1001
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
    cells_per_job: Annotated[int, Rule("runs of one job, one after the other", 1, 10_000)] = 1

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
    """What a job does: some cells, each given as the arguments of its `pilot-tal run`."""

    def __init__(self, commands: Sequence[Sequence[str]]):
        self.commands = commands

    def __call__(self) -> None:
        """Runs the cells in turn; the failure of one does not touch the others."""
        signal.signal(signal.SIGTERM, terminate)  # cancelled; submitit would go on
        plans = [plan_of(command) for command in self.commands]
        runs = tuple(run for plan in plans for run in plan.runs)
        outcome = launch(replace(plans[0], runs=runs, machine=replace(plans[0].machine, jobs=1)))
        if outcome.failed:
            causes = "; ".join(f"{cell.label}: {cell.failure}" for cell in outcome.failed)
            raise RuntimeError(f"{len(outcome.failed)} of {len(runs)} runs failed: {causes}")

    def checkpoint(self) -> Any:
        """What is requeued: the same, for every run knows how far it is."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit(
    plan: Plan,
    items: Iterable[str],
    report: Path,
    write_report: Callable[[Sequence[str], str], None],
    say: Callable[[str], None],
    dry_run: bool = False,
) -> None:
    """Submits what is neither done nor queued, and a last job that writes the report.

    Args:
        plan: The runs.
        items: `key=value` for SLURM.
        report: Folder of the report.
        write_report: Writes the report on run directories into a folder; called in the last job.
        say: Receives messages, and the script of a dry run.
        dry_run: Pass the script to `say`, submit nothing.

    Raises:
        UserError: bad input, no submitit, no sbatch, or what sbatch says.
    """
    config = build(SlurmConfig, _parse(items), "SLURM")
    _need_submitit()
    output = Path(plan.machine.output)
    device = _device_on_a_node(plan.machine, config)
    cells = Cells(plan, device)
    every = cells.all()
    todo = _not_queued(output, every)
    machine = _on_a_node(plan.machine, config)
    commands = [run_arguments(cell.config, machine, plan.plugins) for cell in todo]
    size = config.cells_per_job
    jobs = [SlurmJob(commands[start : start + size]) for start in range(0, len(commands), size)]
    if dry_run:
        say(_script(output, config, len(jobs)))
        say(f"{len(todo)} of {len(every)} runs to submit, in {len(jobs)} jobs")
        return
    if not todo:
        say("nothing to submit: every run is done, queued or running")
        return
    for cell in todo:
        cells.run(cell.config)  # what is wrong with it is said before anything is submitted
    check_output(output)
    note_plan(output, (cell.path.name for cell in every))  # where that fails, nothing is submitted
    if device.type == "cuda" and not config.gpus:
        say("note: the jobs ask SLURM for no GPU; unless the partition gives one, add --slurm gpus=1")
    ids: list[str] = []
    try:
        for accepted in _submit(output, config.parameters(), jobs):
            ids += accepted  # noted at once: a later array may be refused
            given = {cell.path.name: ids[place // size] for place, cell in enumerate(todo[: size * len(ids)])}
            note_plan(output, (cell.path.name for cell in every), given)
    except UserError as error:
        if not ids:
            raise
        raise UserError(
            f"{error}; {len(ids)} of {len(jobs)} jobs were accepted before and stay (scancel {_arrays(ids)}), and the "
            "same command later submits the rest and the report"
        ) from error
    say(f"submitted {len(todo)} of {len(every)} runs in {len(jobs)} jobs")
    later = f"the report: {command_line('report', str(output))}"
    with _warned("the report", say):
        last = functools.partial(write_report, [str(cell.path) for cell in every], str(report))
        for accepted in _submit(output, _last_parameters(output, config, every, ids), [last]):
            ids += accepted
        later = f"the report will be {report / 'index.html'}"
    say(f"look:   {command_line('status', str(output), '--watch')}")
    say(f"cancel: scancel {_arrays(ids)}")
    say(f"logs:   {output / FOLDER}; {later}")


def _last_parameters(output: Path, config: SlurmConfig, cells: Sequence[Cell], new: Iterable[str]) -> dict[str, Any]:
    """Of the job that waits for the new jobs, and for those of these cells that were submitted before."""
    alive, jobs = queued_jobs() or {}, planned(output)[0]
    waits = {*new, *(jobs[cell.path.name] for cell in cells if jobs.get(cell.path.name) in alive)}
    parameters = replace(config, gpus=None, cpus=1, time="60").parameters()
    return {**parameters, "dependency": f"afterany:{_arrays(waits, ':')}"}


def _arrays(jobs: Iterable[str], between: str = " ") -> str:
    """The arrays that jobs belong to."""
    return between.join(sorted({job.partition("_")[0] for job in jobs}))


@contextlib.contextmanager
def _warned(what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Warn only: jobs are already submitted."""
    try:
        yield
    except UserError as error:
        say(f"{what} will not be written: {error}")


def _parse(items: Iterable[str]) -> dict[str, Any]:
    known = settings_of(SlurmConfig)
    given = parse_items(items, {})
    return {key: known[key].parse(text) if key in known else text for key, text in given.items()}


def _need_submitit() -> None:
    try:
        import submitit  # noqa: F401
    except ImportError as error:
        raise UserError(f"--slurm needs the package submitit; install it {install_hint('slurm')}") from error


def _not_queued(output: Path, cells: Sequence[Cell]) -> list[Cell]:
    """Cells that nobody has done, works on, or is to work on."""
    if not output.is_dir():
        return list(cells)
    try:
        states = {state.name: state for state in run_states(output)}
    except UserError:  # nothing there yet
        return list(cells)
    taken = {name for name, state in states.items() if state.state in ("done", "running", "queued")}
    return [cell for cell in cells if cell.path.name not in taken]


def _on_a_node(machine: Machine, config: SlurmConfig) -> Machine:
    """One run at a time; without a GPU it uses the cores that the job has."""
    threads = machine.threads or (None if config.gpus else config.cpus)
    return replace(anywhere(machine), jobs_per_gpu=1, threads=threads)


def _device_on_a_node(machine: Machine, config: SlurmConfig) -> torch.device:
    """What a job will find; the machine that submits it may have no GPU."""
    gpus = int((config.gpus or "0").rpartition(":")[2])
    return torch.device(("cuda" if gpus else "cpu") if machine.device == AUTO else machine.device)


def _script(output: Path, config: SlurmConfig, jobs: int) -> str:
    from submitit.slurm.slurm import _make_sbatch_string

    folder = (output / FOLDER).absolute()
    command = f"{sys.executable} -u -m submitit.core._submit {folder}"
    return _make_sbatch_string(command, folder, map_count=jobs if jobs > 1 else None, **config.parameters())


def _submit(output: Path, parameters: dict[str, Any], jobs: Sequence[Callable[[], None]]) -> Iterator[list[str]]:
    """Hands jobs to SLURM, in arrays; gives the ids of each that it accepts."""
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise UserError("this machine has no sbatch: run this where SLURM's commands are, or leave --slurm out")
    executor = submitit.SlurmExecutor(folder=output / FOLDER, max_num_timeout=MOST_TIMEOUTS)
    executor.update_parameters(**parameters)
    for start in range(0, len(jobs), MOST_JOBS_AN_ARRAY):
        submitted = []
        try:
            with contextlib.redirect_stderr(io.StringIO()), executor.batch():
                submitted = [executor.submit(job) for job in jobs[start : start + MOST_JOBS_AN_ARRAY]]
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            words = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
            raise UserError(f"SLURM refuses: {words}") from error
        yield [job.job_id for job in submitted]

"""Launches the runs of a plan: one in this process, several in worker processes on all cores or GPUs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from data_lt.errors import UserError
from pilot_tal.config.settings import Machine, Plan
from pilot_tal.engine.callbacks import Callback
from pilot_tal.engine.launch_cells import Cell, Cells
from pilot_tal.engine.launch_workers import Workers, can_fork
from pilot_tal.engine.progress import Display, DisplayLine
from pilot_tal.engine.room import evaluation_bytes, training_bytes
from pilot_tal.engine.shared import MOST_WORKERS, choose_device, cores
from pilot_tal.engine.trainer import Trainer
from pilot_tal.record.plans import note_plan
from pilot_tal.record.run_dir import is_finished
from pilot_tal.record.writer import clean_finished
from pilot_tal.stream.memory import free_memory

MEMORY_SHARE = 0.8  # of the free memory that workers may plan with
WORKER_BYTES = 400 << 20  # of a worker beside its batches


@dataclass(frozen=True)
class Outcome:
    """What became of a plan: the directories of its runs, and the cells that failed."""

    plan: Plan
    paths: list[Path]
    failed: list[Cell]


def launch(plan: Plan, display: Display | None = None, callbacks: Sequence[Callback] = ()) -> Outcome:
    """Trains the runs that are not finished yet.

    Args:
        plan: The runs.
        display: Where progress is shown; None: nowhere.
        callbacks: Called in the process that trains a run.

    Raises:
        UserError: bad input, before anything starts; or, if the plan is of one run, what made it fail.
    """
    display = display or Display()
    gpus = find_gpus(plan.machine)
    plan = replace(plan, machine=replace(plan.machine, threads=find_threads(plan)))
    # A worker sees its own GPU alone, as the first.
    on_a_gpu = replace(plan.machine, device="cuda", workers=find_loaders(plan, gpus))
    cells = Cells(replace(plan, machine=on_a_gpu) if gpus else plan)
    every = cells.all()
    todo = [cell for cell in every if not _is_done(cell)]
    if todo:
        check_output(Path(plan.machine.output))
    if todo and len(every) > 1:
        note_plan(Path(plan.machine.output), (cell.path.name for cell in every))
    if len(todo) < len(every):
        display.say(f"{len(every) - len(todo)} of {len(every)} runs are done already")
    failed: list[Cell] = []
    if todo and len(every) == 1:
        _run_here(cells, todo[0], gpus, display, callbacks)
    elif todo:
        failed = _run_workers(cells, todo, gpus, display, callbacks)
    return Outcome(plan, [cell.path for cell in every], failed)


def _is_done(cell: Cell) -> bool:
    if not is_finished(cell.path):
        return False
    clean_finished(cell.path)
    return True


def check_output(output: Path) -> None:
    """Refuses a folder that cannot be written."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {output}: {error.strerror or error}") from error
    if not os.access(output, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {output}: no permission")


def _run_here(cells: Cells, cell: Cell, gpus: Sequence[str], display: Display, callbacks: Sequence[Callback]) -> None:
    """Executes a single run in this process, with all cores unless `threads` is set."""
    threads, visible = torch.get_num_threads(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[0]
    if cells.plan.machine.threads is not None:
        torch.set_num_threads(cells.plan.machine.threads)
    try:
        run = cells.run(cell.config)
        with display:
            run.execute(DisplayLine(display, cell.label), callbacks)
    finally:  # the caller may be a notebook
        torch.set_num_threads(threads)
        if gpus and visible is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        elif gpus and visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible


def _run_workers(
    cells: Cells, todo: Sequence[Cell], gpus: Sequence[str], display: Display, callbacks: Sequence[Callback]
) -> list[Cell]:
    machine, threads = cells.plan.machine, torch.get_num_threads()
    if callbacks and not can_fork():
        raise UserError(
            "callbacks of several runs need Linux and a process that has not used CUDA; call run once per run"
        )
    torch.set_num_threads(1)  # a process that has started threads may not be forked
    try:
        for cell in todo:  # bad settings raise before anything starts
            cell.trainer = cells.run(cell.config)
            tasks = cell.trainer.tasks
            cell.images = cell.trainer.settings.batch_size * sum(cell.trainer.steps(task) for task in tasks)
        places = find_places(cells, todo, gpus)
        with display:
            return Workers(cells, places, machine.threads or threads, display, callbacks).work(todo)
    finally:
        torch.set_num_threads(threads)


def find_threads(plan: Plan) -> int | None:
    """Threads of each run: one if several share a CPU; None for all cores.

    By the plan alone, not by what is left of it or fits: the same command gives the same bits wherever and whenever
    it goes on.
    """
    machine = plan.machine
    several = len(plan.runs) > 1 and machine.jobs != 1
    return 1 if machine.threads is None and several and choose_device(machine.device).type == "cpu" else machine.threads


def find_gpus(machine: Machine) -> list[str]:
    """The GPUs that the machine's settings ask for, as `CUDA_VISIBLE_DEVICES` names them; none on a CPU.

    Raises:
        UserError: one that is not there.
    """
    if choose_device(machine.device).type != "cuda":
        if machine.gpus is not None:
            raise UserError(f"gpus={','.join(map(str, machine.gpus))}: there is no CUDA device to use; leave gpus out")
        return []
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    visible = visible or [str(number) for number in range(torch.cuda.device_count())]
    index = torch.device(machine.device).index if machine.device != "auto" else None
    wanted = machine.gpus if machine.gpus is not None else range(len(visible)) if index is None else [index]
    missing = [number for number in wanted if number >= len(visible)]
    if missing:
        raise UserError(f"gpus: there is no GPU {missing[0]}; this machine has {len(visible)}, numbered from 0")
    return [visible[number] for number in wanted]


def find_loaders(plan: Plan, gpus: Sequence[str]) -> int | None:
    """Processes that decode images for a run on a GPU: the runs at a time share the cores."""
    machine = plan.machine
    if machine.workers is not None or not gpus:
        return machine.workers
    at_a_time = min(len(gpus) * machine.jobs_per_gpu, len(plan.runs))
    if not isinstance(machine.jobs, str):
        at_a_time = min(at_a_time, machine.jobs)
    return min(MOST_WORKERS, max(1, cores() // at_a_time))


def find_places(cells: Cells, todo: Sequence[Cell], gpus: Sequence[str]) -> list[str | None]:
    """One place for each run at a time, with the GPU it is for: `jobs` of them, or as many as there is room for."""
    machine = cells.plan.machine
    places: list[str | None] = [gpu for _ in range(machine.jobs_per_gpu) for gpu in gpus]
    if isinstance(machine.jobs, str):
        return (places or [None] * _fitting(cells, todo))[: len(todo)]
    return (places or [None] * machine.jobs)[: min(machine.jobs, len(todo))]


def _fitting(cells: Cells, todo: Sequence[Cell]) -> int:
    """Runs at a time without a GPU of their own: as many as there are cores for their threads, and memory."""
    machine = cells.plan.machine
    if choose_device(machine.device).type != "cpu":
        return 1
    own = WORKER_BYTES + max(_batch_bytes(cell.trainer or cells.run(cell.config)) for cell in todo)
    common = cells.shared_bytes()
    if not can_fork():  # every worker has its own
        common, own = 0, own + common
    fitting = int((MEMORY_SHARE * free_memory() - common) // own)
    return max(1, min(cores() // (find_threads(cells.plan) or cores()), fitting))


def _batch_bytes(run: Trainer) -> int:
    """About what a step of training or of evaluation takes of a batch."""
    vit, asked = run.shared.backbone, run.machine.eval_batch_size
    evaluated = run.settings.batch_size if isinstance(asked, str) else asked
    return max(training_bytes(vit, run.settings.batch_size), evaluation_bytes(vit, evaluated))

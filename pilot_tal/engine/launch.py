"""The runs of a plan: one alone in this process, several in processes of their own, on the cores or GPUs there are."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import typer

from data_lt.errors import UserError
from pilot_tal.config.settings import Machine, Plan
from pilot_tal.engine.launch_cells import Cell, Cells, command_line, run_arguments
from pilot_tal.engine.launch_workers import Workers, can_fork
from pilot_tal.engine.progress import Display
from pilot_tal.engine.room import evaluation_bytes, training_bytes
from pilot_tal.engine.shared import MOST_WORKERS, choose_device, cores
from pilot_tal.engine.trainer import Trainer
from pilot_tal.record.lock import forget_dead
from pilot_tal.record.plans import note_plan
from pilot_tal.record.run_dir import LOG, is_finished, remove_leftovers
from pilot_tal.stream.memory import free_memory

MEMORY_SHARE = 0.8  # of the free memory that workers may plan with
WORKER_BYTES = 400 << 20  # of a worker beside its batches


@dataclass(frozen=True)
class Outcome:
    """What became of a plan: the directories of its runs, and the cells that failed."""

    plan: Plan
    paths: list[Path]
    failed: list[Cell]


def launch(plan: Plan) -> Outcome:
    """Runs what is not finished yet.

    Raises:
        UserError: bad input, before anything starts; or, if the plan is of one run, what made it fail.
    """
    gpus = find_gpus(plan.machine)
    plan = replace(plan, machine=replace(plan.machine, threads=find_threads(plan)))
    # A worker sees its own GPU alone, as the first.
    on_a_gpu = replace(plan.machine, device="cuda", workers=find_loaders(plan, gpus))
    cells = Cells(replace(plan, machine=on_a_gpu) if gpus else plan)
    every = cells.all()
    check_output(Path(plan.machine.output))
    todo = [cell for cell in every if not _is_done(cell)]
    if len(every) > 1:
        note_plan(Path(plan.machine.output), (cell.path.name for cell in every))
    if len(todo) < len(every):
        typer.echo(f"{len(every) - len(todo)} of {len(every)} runs are done already", err=True)
    failed: list[Cell] = []
    try:
        if todo and len(every) == 1:
            _run_here(cells, todo[0], gpus)
        elif todo:
            failed = _run_workers(cells, todo, gpus)
    except (KeyboardInterrupt, SystemExit) as stop:
        typer.echo("stopped; the same command goes on after the last finished task", err=True)
        raise (typer.Exit(130) if isinstance(stop, KeyboardInterrupt) else stop) from None
    return Outcome(plan, [cell.path for cell in every], failed)


def conclude(outcome: Outcome) -> None:
    """Names the failures together, with the way to repeat each; then the exit status is 1."""
    plan = outcome.plan
    if not outcome.failed:
        return
    typer.echo(f"{len(outcome.failed)} of {len(plan.runs)} runs failed:", err=True)
    for cell in outcome.failed:
        again = command_line(*run_arguments(cell.config, plan.machine, plan.plugins))
        typer.echo(f"  {cell.label}: {cell.failure}\n    log: {cell.path / LOG}\n    again: {again}", err=True)
    raise typer.Exit(1)


def _is_done(cell: Cell) -> bool:
    if not is_finished(cell.path):
        return False
    remove_leftovers(cell.path)  # of a process that was killed in its last moment
    forget_dead(cell.path)
    return True


def check_output(output: Path) -> None:
    """Refuses a folder that cannot be written."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {output}: {error.strerror or error}") from error
    if not os.access(output, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {output}: no permission")


def _run_here(cells: Cells, cell: Cell, gpus: Sequence[str]) -> None:
    """A run alone, with all cores unless told otherwise."""
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[0]
    if cells.plan.machine.threads is not None:
        torch.set_num_threads(cells.plan.machine.threads)
    run = cells.run(cell.config)
    with Display() as display:
        run.execute(display.line(cell.label))


def _run_workers(cells: Cells, todo: Sequence[Cell], gpus: Sequence[str]) -> list[Cell]:
    machine, threads = cells.plan.machine, torch.get_num_threads()
    torch.set_num_threads(1)  # a process that has started threads may not be forked
    try:
        for cell in todo:  # what is wrong with one of them is said before anything starts
            run = cells.run(cell.config)
            cell.images = run.settings.batch_size * sum(run.steps(task) for task in run.tasks)
        places = find_places(cells, todo, gpus)
        with Display() as display:
            return Workers(cells, places, machine.threads or threads, display).work(todo)
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
    own = WORKER_BYTES + max(_batch_bytes(cells.run(cell.config)) for cell in todo)
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

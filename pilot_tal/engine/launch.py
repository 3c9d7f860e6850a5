"""Launches the runs of a study: one in this process, several in worker processes on all cores or GPUs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from data_lt.errors import UserError
from data_lt.files import os_errors
from pilot_tal.config.settings import StudyConfig
from pilot_tal.engine.callbacks import Callback
from pilot_tal.engine.hardware import (
    choose_device,
    cores,
    evaluation_bytes,
    find_gpus,
    find_loaders,
    find_threads,
    training_bytes,
)
from pilot_tal.engine.jobs import Job, Jobs
from pilot_tal.engine.progress import Display
from pilot_tal.engine.trainer import Trainer
from pilot_tal.engine.workers import Workers, can_fork
from pilot_tal.record.run_dir import is_finished
from pilot_tal.record.states import note_plan
from pilot_tal.record.writer import clean_finished
from pilot_tal.stream.memory import free_memory

MEMORY_SHARE = 0.8  # of the free memory for workers
WORKER_BYTES = 400 << 20  # of a worker beside its batches


@dataclass(frozen=True)
class Outcome:
    """What became of a study: its jobs, of which those with a `failure` failed."""

    study: StudyConfig
    jobs: list[Job]

    @property
    def paths(self) -> list[Path]:
        """The directories of all runs."""
        return [job.path for job in self.jobs]

    @property
    def failed(self) -> list[Job]:
        """The jobs that failed."""
        return [job for job in self.jobs if job.failure]


def launch(study: StudyConfig, display: Display | None = None, callbacks: Sequence[Callback] = ()) -> Outcome:
    """Trains the runs that are not finished yet.

    Args:
        study: The runs.
        display: Where progress is shown; None: nowhere.
        callbacks: Called in the process that trains a run.

    Raises:
        UserError: bad input, before anything starts; or, if the study has one run, what made it fail.
    """
    display = display or Display()
    gpus = find_gpus(study.hardware)
    study = replace(study, hardware=replace(study.hardware, threads=find_threads(study)))
    # A worker sees its own GPU alone, as the first.
    on_gpu = replace(study.hardware, device="cuda", workers=find_loaders(study, gpus))
    jobs = Jobs(replace(study, hardware=on_gpu) if gpus else study)
    output = Path(study.hardware.output)
    todo = [job for job in jobs.all if not _is_done(job)]
    if todo:  # finished runs are returned from a disk that cannot be written, too
        check_output(output)
    if todo and len(jobs.all) > 1:
        note_plan(output, (job.path.name for job in jobs.all))
    if len(todo) < len(jobs.all):
        display.say(f"{len(jobs.all) - len(todo)} of {len(jobs.all)} runs are done already")
    if todo and len(jobs.all) == 1:
        _run_here(jobs, todo[0], gpus, display, callbacks)
    elif todo:
        _run_workers(jobs, todo, gpus, display, callbacks)
    return Outcome(study, jobs.all)


def _is_done(job: Job) -> bool:
    if not is_finished(job.path):
        return False
    clean_finished(job.path)
    return True


def check_output(output: Path) -> None:
    """Raises a `UserError` for a folder that cannot be written."""
    with os_errors(f"cannot write to {output}"):
        output.mkdir(parents=True, exist_ok=True)
    if not os.access(output, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {output}: no permission")


def _run_here(jobs: Jobs, job: Job, gpus: Sequence[str], display: Display, callbacks: Sequence[Callback]) -> None:
    """Executes a single run in this process, with all cores unless `threads` is set."""
    threads, visible = torch.get_num_threads(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[0]
    if jobs.study.hardware.threads is not None:
        torch.set_num_threads(jobs.study.hardware.threads)
    try:
        trainer = jobs.trainer(job)
        with display:
            trainer.execute(display, job.label, callbacks)
    finally:  # the caller may be a notebook
        torch.set_num_threads(threads)
        if gpus and visible is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        elif gpus and visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible


def _run_workers(
    jobs: Jobs, todo: Sequence[Job], gpus: Sequence[str], display: Display, callbacks: Sequence[Callback]
) -> None:
    threads = torch.get_num_threads()
    if callbacks and not can_fork():
        raise UserError(
            "callbacks of several runs need Linux and a process that has not used CUDA; call run once per run"
        )
    torch.set_num_threads(1)  # a process that has started threads may not be forked
    try:
        for job in todo:  # bad settings raise before anything starts
            jobs.trainer(job)
        slots = find_slots(jobs, todo, gpus)
        with display:
            Workers(jobs, slots, jobs.study.hardware.threads or threads, display, callbacks).work(todo)
    finally:
        torch.set_num_threads(threads)


def find_slots(jobs: Jobs, todo: Sequence[Job], gpus: Sequence[str]) -> list[str | None]:
    """One slot per run at a time, with its GPU or None: `jobs` of them, or as many as cores, GPUs and memory allow."""
    hardware = jobs.study.hardware
    slots: list[str | None] = [gpu for _ in range(hardware.jobs_per_gpu) for gpu in gpus]
    if isinstance(hardware.jobs, str):
        return (slots or [None] * _fitting(jobs, todo))[: len(todo)]
    return (slots or [None] * hardware.jobs)[: min(hardware.jobs, len(todo))]


def _fitting(jobs: Jobs, todo: Sequence[Job]) -> int:
    """Runs at a time without a GPU: as many as there are cores for their threads, and memory."""
    if choose_device(jobs.study.hardware.device).type != "cpu":
        return 1
    own = WORKER_BYTES + max(_batch_bytes(jobs.trainer(job)) for job in todo)
    common = jobs.shared_bytes()
    if not can_fork():  # every worker has its own
        common, own = 0, own + common
    fitting = int((MEMORY_SHARE * free_memory() - common) // own)
    return max(1, min(cores() // (find_threads(jobs.study) or cores()), fitting))


def _batch_bytes(trainer: Trainer) -> int:
    """About what a step of training or of evaluation takes of a batch."""
    backbone, asked, own = trainer.shared.backbone, trainer.hardware.eval_batch_size, trainer.settings.batch_size
    return max(training_bytes(backbone, own), evaluation_bytes(backbone, own if isinstance(asked, str) else asked))

"""Launches the runs of a study: one in this process, several in worker processes on all cores or GPUs.

Where a process cannot be forked (`can_fork`), several runs are trained one after the other in this one.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from data_lt.errors import UserError, sentence
from data_lt.files import os_errors
from pilot_tal.config.settings import StudyConfig
from pilot_tal.engine.callbacks import Callback
from pilot_tal.engine.hardware import VISIBLE, can_fork, choose_device, cores, find_gpus, find_loaders, find_threads
from pilot_tal.engine.jobs import Job, Jobs
from pilot_tal.engine.progress import Display
from pilot_tal.engine.trainer import Trainer
from pilot_tal.engine.workers import Workers
from pilot_tal.record.run_dir import is_finished
from pilot_tal.record.states import note_plan
from pilot_tal.record.writer import clean_finished
from pilot_tal.stream.store import free_memory

MEMORY_SHARE = 0.4  # of the free memory for workers; decoded images may take as much
WORKER_BYTES = 400 << 20  # of a worker beside its batches
FLOATS_PER_TOKEN = 16  # of one block of a frozen ViT, for each number of a token


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
    # A run sees its own GPU alone, as the first.
    on_gpu = replace(study.hardware, device="cuda", workers=find_loaders(study, gpus))
    jobs = Jobs(replace(study, hardware=on_gpu) if gpus else study)
    output, total = Path(study.hardware.output), len(jobs.all)
    todo = [job for job in jobs.all if not _is_done(job)]
    if len(todo) < total:
        display.message(f"{total - len(todo)} of {total} runs are done already", routine=True)
    if not todo:  # finished runs are returned from a disk that cannot be written, too
        return Outcome(study, jobs.all)
    check_output(output)
    if total > 1:
        note_plan(output, (job.path.name for job in jobs.all))
    if total > 1 and can_fork():
        _run_workers(jobs, todo, gpus, display, callbacks)
    else:
        if total > 1:
            display.message("one run at a time: more need Linux and a process that has not used CUDA")
        _run_here(jobs, todo, gpus, display, callbacks)
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


def _run_here(
    jobs: Jobs, todo: Sequence[Job], gpus: Sequence[str], display: Display, callbacks: Sequence[Callback]
) -> None:
    """Executes runs in this process, with all cores unless `threads` is set; the error of a single run is raised."""
    threads, visible = torch.get_num_threads(), os.environ.get(VISIBLE)
    if gpus:
        os.environ[VISIBLE] = gpus[0]
    if jobs.study.hardware.threads is not None:
        torch.set_num_threads(jobs.study.hardware.threads)
    try:
        trainers = [jobs.trainer(job) for job in todo]  # bad settings raise before anything starts
        with display:
            for job, trainer in zip(todo, trainers, strict=True):
                try:
                    trainer.execute(display, job.label, callbacks)
                except Exception as error:
                    if len(jobs.all) == 1:
                        raise
                    job.failure = sentence(error)
                    display.message(f"{job.label}: failed, {job.failure}")
    finally:  # the caller may be a notebook
        torch.set_num_threads(threads)
        if gpus and visible is None:
            del os.environ[VISIBLE]
        elif gpus and visible is not None:
            os.environ[VISIBLE] = visible


def _run_workers(
    jobs: Jobs, todo: Sequence[Job], gpus: Sequence[str], display: Display, callbacks: Sequence[Callback]
) -> None:
    threads = torch.get_num_threads()
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
    if not can_fork():
        return [None]
    slots: list[str | None] = [gpu for _ in range(hardware.jobs_per_gpu) for gpu in gpus]
    if isinstance(hardware.jobs, str):
        return (slots or [None] * _fitting(jobs, todo))[: len(todo)]
    return (slots or [None] * hardware.jobs)[: min(hardware.jobs, len(todo))]


def _fitting(jobs: Jobs, todo: Sequence[Job]) -> int:
    """Runs at a time without a GPU: as many as there are cores for their threads, and memory."""
    if choose_device(jobs.study.hardware.device).type != "cpu":
        return 1
    fitting = int(MEMORY_SHARE * free_memory() // max(run_bytes(jobs.trainer(job)) for job in todo))
    return max(1, min(cores() // (find_threads(jobs.study) or cores()), fitting))


def run_bytes(trainer: Trainer) -> int:
    """About what a run takes beside the images and the ViT: a training step keeps something of every block."""
    vit = trainer.shared.backbone
    return WORKER_BYTES + 4 * FLOATS_PER_TOKEN * vit.depth * vit.tokens * vit.dim * trainer.settings.batch_size

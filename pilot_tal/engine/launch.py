"""Launches the runs of a study: one in this process, several in worker processes on all cores or GPUs.

Workers are forked, so the images that this process has decoded, and the backbone, are in memory once for all. Forking
is safe as long as this process has started neither threads of OpenMP nor CUDA, so it computes nothing. Where it cannot
be forked (`can_fork`), several runs are trained one after the other in this one.
"""

import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from data_lt.errors import UserError, sentence, terminate
from data_lt.files import open_to_append, os_errors
from pilot_tal.config.settings import StudyConfig
from pilot_tal.engine.callbacks import Callback, Display, Status, StepInfo, duration
from pilot_tal.engine.hardware import VISIBLE, can_fork, choose_device, cores, find_gpus, find_loaders, find_threads
from pilot_tal.engine.jobs import Job, Jobs
from pilot_tal.engine.loop import evaluate, sent, train_task
from pilot_tal.engine.trainer import Trainer
from pilot_tal.record.lock import Busy, owner_of
from pilot_tal.record.run_dir import LOG, is_finished
from pilot_tal.record.states import note_plan
from pilot_tal.record.writer import clean_finished, keep_failure
from pilot_tal.stream.store import free_memory

MEMORY_SHARE = 0.4  # of the free memory for workers; decoded images may take as much
WORKER_BYTES = 400 << 20  # of a worker beside its batches
PATIENCE = 5.0  # seconds before a run of another process is looked at again, and before a worker is killed


@dataclass(frozen=True)
class Outcome:
    """What became of a study: its jobs, of which those with a `failure` failed."""

    study: StudyConfig
    jobs: list[Job]

    @property
    def failed(self) -> list[Job]:
        """The jobs that failed."""
        return [job for job in self.jobs if job.failure]


def launch(study: StudyConfig, display: Display | None = None, callbacks: Sequence[Callback] = ()) -> Outcome:
    """Trains the runs that are not finished yet. Bad input raises before anything starts.

    The failure of one of several runs is noted in its job, that of a single run raised.
    """
    display = display or Display()
    gpus = find_gpus(study.hardware)
    study = replace(study, hardware=replace(study.hardware, threads=find_threads(study)))
    # A run sees its own GPU alone, as the first.
    on_gpu = replace(study.hardware, device="cuda", workers=find_loaders(study, gpus))
    jobs = Jobs(replace(study, hardware=on_gpu) if gpus else study)
    output, total = Path(study.hardware.output), len(jobs.all)
    todo = []
    for job in jobs.all:
        if is_finished(job.path):
            clean_finished(job.path)
        else:
            todo.append(job)
    if len(todo) < total:
        display.message(f"{total - len(todo)} of {total} runs are done already", routine=True)
    if not todo:  # finished runs are returned from a disk that cannot be written, too
        return Outcome(study, jobs.all)
    with os_errors(f"cannot write to {output}"):
        output.mkdir(parents=True, exist_ok=True)
    if total > 1:
        note_plan(output, (job.path.name for job in jobs.all))
    forked = total > 1 and can_fork()
    if total > 1 and not forked:
        display.message("one run at a time: more need Linux and a process that has not used CUDA")
    before, visible = torch.get_num_threads(), os.environ.get(VISIBLE)
    threads = study.hardware.threads or before
    torch.set_num_threads(1 if forked else threads)  # a process that has started threads may not be forked
    if gpus and not forked:
        os.environ[VISIBLE] = gpus[0]
    try:
        for job in todo:  # bad settings raise before anything starts
            jobs.trainer(job)
        with display:
            if forked:
                Workers(jobs, find_slots(jobs, todo, gpus), threads, display, callbacks).work(todo)
            for job in () if forked else todo:
                try:
                    jobs.trainer(job).execute(display, job.label, callbacks)
                except Exception as error:
                    if total == 1:
                        raise
                    job.failure = sentence(error)
                    display.message(f"{job.label}: failed, {job.failure}")
    finally:  # the caller may be a notebook
        torch.set_num_threads(before)
        os.environ.pop(VISIBLE, None)
        if visible is not None:
            os.environ[VISIBLE] = visible
    return Outcome(study, jobs.all)


def find_slots(jobs: Jobs, todo: Sequence[Job], gpus: Sequence[str]) -> list[str | None]:
    """One slot per run at a time, with its GPU or None: `jobs` of them, or as many as cores, GPUs and memory allow."""
    hardware = jobs.study.hardware
    if not can_fork():
        return [None]
    slots: list[str | None] = [gpu for _ in range(hardware.jobs_per_gpu) for gpu in gpus]
    if not isinstance(hardware.jobs, str):
        return (slots or [None] * hardware.jobs)[: min(hardware.jobs, len(todo))]
    if not slots and choose_device(hardware.device).type == "cpu":
        fitting = int(MEMORY_SHARE * free_memory() // max(run_bytes(jobs.trainer(job)) for job in todo))
        slots = [None] * min(cores() // (find_threads(jobs.study) or cores()), fitting)
    return (slots or [None])[: len(todo)]


def run_bytes(trainer: Trainer) -> int:
    """About what a run takes beside the images and the ViT: a training step keeps something of every block."""
    vit = trainer.shared.backbone
    return WORKER_BYTES + 64 * vit.depth * vit.tokens * vit.dim * trainer.settings.batch_size


def measure(run: Trainer) -> tuple[float, float]:
    """Seconds of a training step (a few of the first task, if that trains) and of an image that is evaluated."""
    task, device, precision = run.tasks[0], run.shared.device, run.config.settings.precision
    learner, times = run.build(), [time.perf_counter()]

    def on_step(info: StepInfo) -> None:
        float(info.loss)  # waits for the device
        times.append(time.perf_counter())

    with torch.random.fork_rng(devices=[]):
        batches = run.train_batches(task).epochs(1, 0, run.settings.drop_last, limit=4)
        train_task(learner, run.criterion(), task, batches, epochs=1, config=run.settings, device=device,
                   precision=precision, on_step=on_step)  # fmt: skip
        times = times[1:] if len(times) > 2 else times  # without the first step, which is slower
        test = run.test_batches(task)
        learner.end_task(lambda: (sent(device, x, y) for x, y, _ in itertools.islice(test.in_order(), 2)))
        start = time.perf_counter()
        tested = len(evaluate(learner, itertools.islice(test.in_order(), 2), device, precision)[0])
        per_image = (time.perf_counter() - start) / max(1, tested)
    return (times[-1] - times[0]) / max(1, len(times) - 1), per_image


@dataclass
class Worker:
    """A process and the job that it works on."""

    job: Job
    slot: str | None
    process: BaseProcess
    messages: Connection
    done: float = 0.0
    outcome: tuple[str, str] | None = None


class Workers:
    """Executes jobs in forked processes, one at a time in each slot, which is a GPU or None."""

    def __init__(self, jobs: Jobs, slots: Sequence[str | None], threads: int, display: Display,
                 callbacks: Sequence[Callback]):  # fmt: skip
        self.jobs, self.threads, self.display, self.callbacks = jobs, threads, display, callbacks
        self.free, self.slots = list(slots), len(slots)
        self.waiting: list[Job] = []
        self.running: list[Worker] = []
        self.ended: list[Job] = []
        self.started = time.monotonic()

    def work(self, todo: Sequence[Job]) -> None:
        """Executes all jobs; those that failed have a `failure`. No process is left, however this ends."""
        data = [id(self.jobs.data(job.config)) for job in todo]
        self.waiting = [todo[n] for n in sorted(range(len(todo)), key=lambda n: data.index(data[n]))]  # by dataset
        self.total_images = sum(job.images for job in todo)
        try:
            while self.waiting or self.running:
                while self.free and (
                    job := next((job for job in self.waiting if job.not_before <= time.monotonic()), None)
                ):
                    self._start(job)
                ends = [end for worker in self.running for end in (worker.messages, worker.process.sentinel)]
                wait(ends, timeout=0.5) if ends else time.sleep(0.5)
                for worker in list(self.running):
                    self._look(worker)
        finally:  # SIGTERM first, SIGKILL soon after
            for worker in self.running:
                worker.process.terminate()
            until = time.monotonic() + PATIENCE
            for worker in self.running:
                worker.process.join(max(0.0, until - time.monotonic()))
                worker.process.kill()
                worker.process.join()

    def _start(self, job: Job) -> None:
        self.waiting.remove(job)
        with contextlib.suppress(UserError):  # the worker reports damage
            if is_finished(job.path):  # by another process
                return self._end(job)
        trainer = self.jobs.trainer(job)
        trainer.shared.backbone.checksum  # noqa: B018, once here instead of in every worker
        store = trainer.shared.store
        if store.in_memory and not job.config.quick:
            self.display.update(job.label, Status("decoding images"))
            with contextlib.suppress(UserError):  # the worker reports what cannot be read
                store.keep(range(len(store.paths)))
        receive, send = multiprocessing.Pipe(duplex=False)
        slot = self.free.pop(0)
        order = (trainer, job.label, self.callbacks, _Pipe(send, self.display.live), slot, self.threads, os.getpid())
        process = multiprocessing.get_context("fork").Process(target=_work, args=order, daemon=False)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the worker ignores it
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        send.close()
        self.running.append(Worker(job, slot, process, receive))
        self.display.update(job.label, Status("begins"))

    def _look(self, worker: Worker) -> None:
        """Reads what a worker has sent, and settles its job if the process has ended."""
        status, job = worker.process.exitcode, worker.job
        with contextlib.suppress(EOFError, OSError):
            while worker.messages.poll():
                kind, content = worker.messages.recv()
                if kind == "update":
                    worker.done = content.done or worker.done
                    self.display.update(job.label, content)
                elif kind == "message":
                    self.display.message(*content)
                else:
                    worker.outcome = kind, content
        if status is not None:
            worker.process.join()
            worker.messages.close()
            self.running.remove(worker)
            self.free.append(worker.slot)
            self.display.update(job.label, None)
            cause = f"exited with status {status} and no error message"
            if status < 0:
                name = signal.Signals(-status).name
                cause = f"was killed ({name}{', as a system out of memory does' if name == 'SIGKILL' else ''})"
            self._settle(job, *(worker.outcome or ("killed", cause)))
        self.display.total = self._total()

    def _settle(self, job: Job, kind: str, content: str) -> None:
        """Ends a job, or puts it back: behind the others if another process works on it, first if it was killed."""
        if kind == "busy":
            if not job.not_before:
                self.display.message(f"{job.label}: {content.partition(';')[0]}; looked at again at the end")
            job.not_before = time.monotonic() + PATIENCE
            self.waiting.append(job)
        elif kind == "killed" and not job.killed:
            job.killed = True
            self.display.message(f"{job.label}: its process {content}; tried once more")
            self.waiting.insert(0, job)
        elif kind == "killed":
            fewer = f"; try fewer runs at a time: jobs={self.slots // 2}" if self.slots > 1 else ""
            content = f"its process {content}, 2 times{fewer}"
            with contextlib.suppress(UserError):
                if owner_of(job.path) is None:
                    keep_failure(job.path, content)
            self._end(job, content)
        else:
            self._end(job, content)

    def _end(self, job: Job, failure: str = "") -> None:
        job.failure, job.trainer = failure, None  # frees its images
        self.ended.append(job)
        how = f"failed, {failure}" if failure else "done"
        self.display.message(f"{job.label}: {how} ({self._total()})", routine=not failure)

    def _total(self) -> str:
        """How many runs are done, and the time left by the images trained on so far."""
        failed = sum(bool(job.failure) for job in self.ended)
        text = f"{len(self.ended) - failed} of {len(self.ended) + len(self.waiting) + len(self.running)} runs done"
        text += f", {failed} failed" if failed else ""
        done = sum(job.images for job in self.ended) + sum(one.job.images * one.done for one in self.running)
        left = (time.monotonic() - self.started) * (self.total_images - done) / done if done else 0.0
        return f"{text}, about {duration(left)} left" if left else text


class _Pipe(Display):
    """The display of the parent process."""

    def __init__(self, messages: Connection, live: bool):
        self.messages, self.live = messages, live

    def update(self, name: str, status: Status | None) -> None:
        self.messages.send(("update", status))

    def message(self, line: str, routine: bool = False) -> None:
        self.messages.send(("message", (line, routine)))


def _work(trainer: Trainer, label: str, callbacks: Sequence[Callback], display: _Pipe, slot: str | None, threads: int,
          parent: int) -> None:  # fmt: skip
    """Executes one run in a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when to stop
    signal.signal(signal.SIGTERM, terminate)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if slot is not None:
        os.environ[VISIBLE] = slot
    torch.set_num_threads(threads)
    try:
        with os_errors(f"cannot write {trainer.path / LOG}"):
            trainer.path.mkdir(parents=True, exist_ok=True)
            log = open_to_append(trainer.path / LOG)
        sys.stdout.flush()
        sys.stderr.flush()
        for number in (1, 2):  # what libraries print goes into the run's log
            os.dup2(log.fileno(), number)
        sys.stdout = sys.stderr = log
        trainer.execute(display, label, callbacks)
        outcome = "done", ""
    except Busy as error:
        outcome = "busy", str(error)
    except Exception as error:
        if not isinstance(error, UserError):
            traceback.print_exc()
        outcome = "failed", sentence(error)
    display.messages.send(outcome)


def _end_with(parent: int) -> None:
    """Ends this process when the one that started it is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)

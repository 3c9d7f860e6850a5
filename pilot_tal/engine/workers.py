"""Runs in forked worker processes, as many at a time as there are slots.

The images that this process has decoded, and the backbone, are in memory once for all workers. Forking is safe as long
as this process has started neither threads of OpenMP nor CUDA, so it computes nothing.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from data_lt.errors import UserError, sentence, terminate
from data_lt.files import open_to_append, os_errors
from pilot_tal.engine.callbacks import Callback
from pilot_tal.engine.hardware import VISIBLE
from pilot_tal.engine.jobs import Job, Jobs
from pilot_tal.engine.progress import Display, Status, duration
from pilot_tal.engine.trainer import Trainer
from pilot_tal.record.lock import Busy, owner_of
from pilot_tal.record.run_dir import LOG, is_finished
from pilot_tal.record.writer import keep_failure

SECONDS_TO_LOOK_AGAIN = 5.0
SECONDS_TO_STOP = 5.0
MOST_TRIES = 2


@dataclass
class Worker:
    """A process and the job that it works on."""

    job: Job
    slot: str | None
    process: BaseProcess
    messages: Connection
    status: Status | None = None
    outcome: tuple[str, str] | None = None


class Workers:
    """Executes jobs in forked processes.

    Args:
        jobs: What the jobs share.
        slots: One per process at a time: its GPU, or None.
        threads: Of each process.
        display: Where progress is shown.
        callbacks: Called in the workers.
    """

    def __init__(
        self, jobs: Jobs, slots: Sequence[str | None], threads: int, display: Display, callbacks: Sequence[Callback]
    ):
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
                self._start_some()
                ends = [end for worker in self.running for end in (worker.messages, worker.process.sentinel)]
                wait(ends, timeout=0.5) if ends else time.sleep(0.5)
                for worker in list(self.running):
                    self._look(worker)
        finally:
            self._stop()

    def _start_some(self) -> None:
        while self.free:
            job = next((job for job in self.waiting if job.not_before <= time.monotonic()), None)
            if job is None:
                return
            self.waiting.remove(job)
            with contextlib.suppress(UserError):  # the worker reports damage
                if is_finished(job.path):  # by another process
                    self._end(job)
                    continue
            self._start(job)

    def _start(self, job: Job) -> None:
        trainer = self.jobs.trainer(job)
        self._decode(job, trainer)
        receive, send = multiprocessing.Pipe(duplex=False)
        slot = self.free.pop(0)
        display = _Pipe(send, self.display.live)
        order = (trainer, job.label, self.callbacks, display, slot, self.threads, os.getpid())
        process = multiprocessing.get_context("fork").Process(target=_work, args=order, daemon=False)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the worker ignores it
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        send.close()
        job.tries += 1
        self.running.append(Worker(job, slot, process, receive))
        self.display.update(job.label, Status("begins"))

    def _decode(self, job: Job, trainer: Trainer) -> None:
        """Computes what workers share before the fork."""
        trainer.shared.backbone.checksum  # noqa: B018, once here instead of in every worker
        store = trainer.shared.store
        if store.in_memory and not job.config.quick:
            self.display.update(job.label, Status("decoding images"))
            # The worker reports what cannot be read.
            with ThreadPoolExecutor(os.cpu_count()) as pool, contextlib.suppress(UserError):
                for _ in pool.map(store.__getitem__, range(len(store.paths))):
                    pass

    def _look(self, worker: Worker) -> None:
        """Reads what a worker has sent, and settles its job if the process has ended."""
        ended, job = worker.process.exitcode is not None, worker.job
        with contextlib.suppress(EOFError, OSError):
            while worker.messages.poll():
                kind, content = worker.messages.recv()
                if kind == "status":
                    worker.status = content
                    self.display.update(job.label, content)
                elif kind == "line":
                    self.display.message(*content)
                else:
                    worker.outcome = kind, content
        if ended:
            worker.process.join()
            worker.messages.close()
            self.running.remove(worker)
            self.free.append(worker.slot)
            self.display.update(job.label, None)
            self._settle(job, *(worker.outcome or ("killed", _cause(worker.process.exitcode))))
        self.display.total = self._total()

    def _settle(self, job: Job, kind: str, content: str) -> None:
        """Ends a job, or puts it back: behind the others if another process works on it, first if it was killed."""
        if kind == "busy":
            if not job.not_before:
                self.display.message(f"{job.label}: {content.partition(';')[0]}; looked at again at the end")
            job.tries -= 1
            job.not_before = time.monotonic() + SECONDS_TO_LOOK_AGAIN
            self.waiting.append(job)
        elif kind == "killed" and job.tries < MOST_TRIES:
            self.display.message(f"{job.label}: its process {content}; tried once more")
            self.waiting.insert(0, job)
        else:
            if kind == "killed":
                fewer = f"; try fewer runs at a time: jobs={self.slots // 2}" if self.slots > 1 else ""
                content = f"its process {content}, {MOST_TRIES} times{fewer}"
                with contextlib.suppress(UserError):
                    if owner_of(job.path) is None:
                        keep_failure(job.path, content)
            self._end(job, content)

    def _end(self, job: Job, failure: str = "") -> None:
        job.images  # noqa: B018, still needed for the time left
        job.failure, job.trainer = failure, None  # frees its images
        self.ended.append(job)
        how = f"failed, {failure}" if failure else "done"
        self.display.message(f"{job.label}: {how} ({self._total()})", routine=not failure)

    def _total(self) -> str:
        failed = sum(bool(job.failure) for job in self.ended)
        count = len(self.ended) + len(self.waiting) + len(self.running)
        parts = [f"{len(self.ended) - failed} of {count} runs done"]
        parts += [f"{failed} failed"] if failed else []
        parts += [f"about {duration(left)} left"] if (left := self._seconds_left()) else []
        return ", ".join(parts)

    def _seconds_left(self) -> float:
        """By the images trained on so far; 0 before the first."""
        running = ((worker.job, worker.status) for worker in self.running if worker.status is not None)
        done = sum(job.images for job in self.ended) + sum(job.images * status.done for job, status in running)
        elapsed = time.monotonic() - self.started
        return elapsed * (self.total_images - done) / done if done else 0.0

    def _stop(self) -> None:
        """Ends all workers: SIGTERM first, SIGKILL soon after."""
        for worker in self.running:
            worker.process.terminate()
        until = time.monotonic() + SECONDS_TO_STOP
        for worker in self.running:
            worker.process.join(max(0.0, until - time.monotonic()))
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
        self.running = []


class _Pipe(Display):
    """The display of the parent process."""

    def __init__(self, messages: Connection, live: bool):
        self.messages, self.live = messages, live

    def update(self, name: str, status: Status | None) -> None:
        self.messages.send(("status", status))

    def message(self, line: str, routine: bool = False) -> None:
        self.messages.send(("line", (line, routine)))


def _work(
    trainer: Trainer,
    label: str,
    callbacks: Sequence[Callback],
    display: _Pipe,
    slot: str | None,
    threads: int,
    parent: int,
) -> None:
    """Executes one run in a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when to stop
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # SLURM's warning goes to every process; the parent handles it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if slot is not None:
        os.environ[VISIBLE] = slot
    torch.set_num_threads(threads)
    try:
        _redirect(trainer.path / LOG)
        trainer.execute(display, label, callbacks)
        outcome = "done", ""
    except Busy as error:
        outcome = "busy", str(error)
    except Exception as error:
        if not isinstance(error, UserError):
            traceback.print_exc()
        outcome = "failed", sentence(error)
    display.messages.send(outcome)


def _redirect(log: Path) -> None:
    """Redirects what libraries print into the run's log."""
    with os_errors(f"cannot write {log}"):
        log.parent.mkdir(parents=True, exist_ok=True)
        file = open_to_append(log)
    sys.stdout.flush()
    sys.stderr.flush()
    for number in (1, 2):
        os.dup2(file.fileno(), number)
    sys.stdout = sys.stderr = file


def _end_with(parent: int) -> None:
    """Ends this process when the one that started it is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def _cause(status: int | None) -> str:
    if status is not None and status < 0:
        name = signal.Signals(-status).name
        return f"was killed ({name}{', as a system out of memory does' if name == 'SIGKILL' else ''})"
    return f"exited with status {status} and no error message"

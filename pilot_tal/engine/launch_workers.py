"""Cells in processes of their own, as many at a time as there are places.

On Linux a worker is forked: images that this process has decoded, and the ViT, are then in memory once for all of
them. That is safe as long as this process has started neither threads of OpenMP nor CUDA, so it computes nothing.
Elsewhere a worker starts from the cell's command line and loads its own.
"""

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from data_lt.errors import UserError, sentence, terminate
from pilot_tal.engine.callbacks import Callback
from pilot_tal.engine.launch_cells import Cell, Cells, plan_of, run_arguments
from pilot_tal.engine.progress import Display, Status, duration
from pilot_tal.engine.trainer import Trainer
from pilot_tal.record.lock import Busy, owner_of
from pilot_tal.record.run_dir import LOG, is_finished
from pilot_tal.record.writer import keep_failure

SECONDS_TO_LOOK_AGAIN = 5.0
SECONDS_TO_STOP = 5.0
MOST_TRIES = 2


def can_fork() -> bool:
    """On Linux, unless CUDA is in use here or the GPUs are MIG slices, which torch counts by starting CUDA."""
    mig = "MIG-" in os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return sys.platform == "linux" and not mig and not torch.cuda.is_initialized()


@dataclass
class Worker:
    """A process and the cell that it works on."""

    cell: Cell
    place: str | None
    process: BaseProcess
    messages: Connection
    status: Status | None = None
    outcome: tuple[str, str] | None = None
    started: float = field(default_factory=time.monotonic)


class Workers:
    """Sends cells through processes.

    Args:
        cells: What the cells share.
        places: One for each process at a time: the GPU it is for, or None.
        threads: Of each process.
        display: Where progress is shown.
        callbacks: Called in the workers; needs `can_fork`.
    """

    def __init__(
        self,
        cells: Cells,
        places: Sequence[str | None],
        threads: int,
        display: Display,
        callbacks: Sequence[Callback] = (),
    ):
        self.cells, self.threads, self.display, self.callbacks = cells, threads, display, callbacks
        self.free, self.places = list(places), len(places)
        self.waiting: list[Cell] = []
        self.running: list[Worker] = []
        self.done: list[Cell] = []
        self.failed: list[Cell] = []
        self.pace: dict[tuple[str, str], float] = {}  # seconds an image, by method and dataset

    def work(self, todo: Sequence[Cell]) -> list[Cell]:
        """Works on all cells; gives those that failed. However this ends, no process is left."""
        order = {self._images(cell): place for place, cell in reversed(list(enumerate(todo)))}
        self.waiting = sorted(todo, key=lambda cell: order[self._images(cell)])  # one dataset's images at a time
        try:
            while self.waiting or self.running:
                self._start_some()
                ends = [end for worker in self.running for end in (worker.messages, worker.process.sentinel)]
                wait(ends, timeout=0.5) if ends else time.sleep(0.5)
                for worker in list(self.running):
                    self._look(worker)
        finally:
            self._stop()
        return self.failed

    def _images(self, cell: Cell) -> int:
        return id(self.cells.data_of(cell.config))

    def _start_some(self) -> None:
        while self.free:
            cell = next((cell for cell in self.waiting if cell.not_before <= time.monotonic()), None)
            if cell is None:
                return
            self.waiting.remove(cell)
            with contextlib.suppress(UserError):  # what is damaged is told by the worker
                if is_finished(cell.path):  # by another process
                    self._end(cell, "done")
                    continue
            self._start(cell)

    def _start(self, cell: Cell) -> None:
        if can_fork():
            self._decode(cell)
            cell.trainer = cell.trainer or self.cells.run(cell.config)
            make_run: Callable[[], Trainer] = functools.partial(_same, cell.trainer)
        else:
            arguments = run_arguments(cell.config, self.cells.plan.machine, self.cells.plan.plugins)
            make_run = functools.partial(run_of, arguments)
        receive, send = multiprocessing.Pipe(duplex=False)
        place = self.free.pop(0)
        order = (make_run, self.callbacks, send, place, self.threads, self.display.live, os.getpid(), cell.path / LOG)
        process = _processes().Process(target=_work, args=order, daemon=False)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the worker has learned to ignore it
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        send.close()
        cell.tries += 1
        self.running.append(Worker(cell, place, process, receive))
        self.display.update(cell.label, Status("begins"))

    def _decode(self, cell: Cell) -> None:
        """Loads what the cell shares before the fork; lets go of images that no waiting cell needs."""
        self.cells.forget_others([cell.config, *(other.config for other in self.waiting)])
        shared = self.cells.shared(cell.config)
        shared.backbone.checksum  # noqa: B018, computed once here instead of in every worker
        if shared.store.in_memory and not cell.config.quick:
            self.display.update(cell.label, Status("decoding images"))
            # What cannot be read is told by the worker.
            with ThreadPoolExecutor(os.cpu_count()) as pool, contextlib.suppress(UserError):
                for _ in pool.map(shared.store.__getitem__, range(len(shared.store.paths))):
                    pass

    def _look(self, worker: Worker) -> None:
        ended = worker.process.exitcode is not None
        with contextlib.suppress(EOFError, OSError):
            while worker.messages.poll():
                kind, content = worker.messages.recv()
                if kind == "status":
                    worker.status = content
                    self.display.update(worker.cell.label, content)
                elif kind == "line":
                    self.display.say(f"{worker.cell.label}: {content}")
                else:
                    worker.outcome = kind, content
        if ended:
            worker.process.join()
            worker.messages.close()
            self.running.remove(worker)
            self.free.append(worker.place)
            self.display.update(worker.cell.label, None)
            self._settle(worker)
        self.display.total = self._total()

    def _settle(self, worker: Worker) -> None:
        cell = worker.cell
        kind, content = worker.outcome or ("killed", _cause(worker.process.exitcode))
        if kind == "busy":
            if not cell.not_before:
                self.display.say(f"{cell.label}: {content.partition(';')[0]}; looked at again at the end")
            cell.tries -= 1
            cell.not_before = time.monotonic() + SECONDS_TO_LOOK_AGAIN
            self.waiting.append(cell)
        elif kind == "killed" and cell.tries < MOST_TRIES:
            self.display.say(f"{cell.label}: its process {content}; tried once more")
            self.waiting.insert(0, cell)
        else:
            if kind == "killed":
                fewer = f"; with less at a time, jobs={self.places // 2}, it may fit" if self.places > 1 else ""
                content = f"its process {content}, {MOST_TRIES} times{fewer}"
                with contextlib.suppress(UserError):
                    if owner_of(cell.path) is None:
                        keep_failure(cell.path, content)
            if kind == "done":
                self.pace[_kind(cell)] = (time.monotonic() - worker.started) / max(1, cell.images)
            self._end(cell, kind, content)

    def _end(self, cell: Cell, kind: str, content: str = "") -> None:
        cell.failure, cell.trainer = content, None  # lets go of its images
        (self.done if kind == "done" else self.failed).append(cell)
        self.display.say(f"{cell.label}: {'done' if kind == 'done' else f'failed, {content}'} ({self._total()})")

    def _total(self) -> str:
        cells = len(self.done) + len(self.failed) + len(self.waiting) + len(self.running)
        parts = [f"{len(self.done)} of {cells} runs done"]
        parts += [f"{len(self.failed)} failed"] if self.failed else []
        parts += [f"about {duration(left)} left"] if (left := self._left()) else []
        return ", ".join(parts)

    def _left(self) -> float:
        """Seconds for what is left, by the pace of those that have ended or are on their way; 0 if nothing is known."""
        pace, going = dict(self.pace), [0.0]
        for worker in self.running:
            if worker.status is not None and worker.status.left is not None:
                going.append(worker.status.left)
                whole = time.monotonic() - worker.started + worker.status.left
                pace.setdefault(_kind(worker.cell), whole / max(1, worker.cell.images))
        if not pace:
            return 0.0
        usual = sum(pace.values()) / len(pace)
        later = sum(cell.images * pace.get(_kind(cell), usual) for cell in self.waiting)
        return max((sum(going) + later) / self.places, *going)

    def _stop(self) -> None:
        """Ends all workers: asks first, and does not wait long."""
        for worker in self.running:
            worker.process.terminate()
        until = time.monotonic() + SECONDS_TO_STOP
        for worker in self.running:
            worker.process.join(max(0.0, until - time.monotonic()))
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
        self.running = []


def _processes() -> ForkContext | SpawnContext:
    return multiprocessing.get_context("fork") if can_fork() else multiprocessing.get_context("spawn")


class _Pipe:
    """A run's line at the other end of a pipe."""

    def __init__(self, messages: Connection, live: bool):
        self.messages, self.live = messages, live

    def update(self, status: Status) -> None:
        self.messages.send(("status", status))

    def say(self, line: str) -> None:
        self.messages.send(("line", line))


def _same(trainer: Trainer) -> Trainer:
    return trainer


def run_of(arguments: Sequence[str]) -> Trainer:
    """The run of a cell's command line."""
    plan = plan_of(arguments)
    return Cells(plan).run(plan.runs[0])


def _work(
    make_run: Callable[[], Trainer],
    callbacks: Sequence[Callback],
    messages: Connection,
    place: str | None,
    threads: int,
    live: bool,
    parent: int,
    log: Path,
) -> None:
    """What a worker does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it says when to stop
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # SLURM's warning, which goes to every process, is for that one too
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if place is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = place
    torch.set_num_threads(threads)
    try:
        _redirect(log)
        make_run().execute(_Pipe(messages, live), callbacks)
        outcome = "done", ""
    except Busy as error:
        outcome = "busy", str(error)
    except Exception as error:
        if not isinstance(error, UserError):
            traceback.print_exc()
        outcome = "failed", sentence(error)
    messages.send(outcome)


def _redirect(log: Path) -> None:
    """What libraries print goes into the run's log."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("a", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {log}: {error.strerror or error}") from error
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


def _kind(cell: Cell) -> tuple[str, str]:
    return cell.config.method, cell.config.dataset


def _cause(status: int | None) -> str:
    if status is not None and status < 0:
        name = signal.Signals(-status).name
        return f"was killed ({name}{', as a system out of memory does' if name == 'SIGKILL' else ''})"
    return f"exited with status {status} and no error message"

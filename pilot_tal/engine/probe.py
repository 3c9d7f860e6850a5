"""How long a run will take, from a few steps of it."""

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from pilot_tal.engine.loop import evaluate, sent, train_task
from pilot_tal.engine.trainer import Trainer
from pilot_tal.stream.task import TaskInfo

WARM_UP, TIMED = 1, 3


@dataclass(frozen=True)
class Pace:
    """Seconds of a training step and of an image that is evaluated."""

    step: float
    image: float

    def seconds(self, run: Trainer, tasks: Iterable[TaskInfo]) -> float:
        """What tasks of a run will take: training steps and evaluation, without statistics and alignment."""
        return sum(self.step * run.steps(task) + self.image * len(run.test_batches(task).indices) for task in tasks)


def measure(run: Trainer) -> Pace:
    """The pace of a run, from a few steps of its first task, if that trains at all, and two batches of test images."""
    task, settings, device = run.tasks[0], run.settings, run.shared.device
    learner = run.build()
    times: list[float] = []

    def on_step(info) -> None:
        float(info.loss)  # waits for the device
        times.append(time.perf_counter())

    def batches(_: int):
        every = run.train_batches(task).epochs(WARM_UP + TIMED + 1, 0)
        stream = itertools.chain.from_iterable(every(epoch) for epoch in range(WARM_UP + TIMED + 1))
        return itertools.islice(stream, WARM_UP + TIMED)

    with torch.random.fork_rng(devices=[]):
        train_task(
            learner,
            run.criterion(),
            task,
            batches,
            epochs=1,
            config=settings,
            device=device,
            precision=run.config.settings.precision,
            on_step=on_step,
        )
        learner.end_task(lambda: (sent(device, x, y) for x, y, _ in _few(run)))
        start = time.perf_counter()
        tested = len(evaluate(learner, _few(run), device, run.config.settings.precision)[0])
        an_image = (time.perf_counter() - start) / max(1, tested)
    return Pace((times[-1] - times[WARM_UP - 1]) / TIMED if times else 0.0, an_image)


def _few(run: Trainer):
    return itertools.islice(run.test_batches(run.tasks[0]).in_order(), 2)

"""How long a run will take, from a few steps of it."""

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from pilot_tal.engine.callbacks import StepInfo
from pilot_tal.engine.loop import evaluate, sent, train_task
from pilot_tal.engine.trainer import Trainer
from pilot_tal.stream.task import TaskInfo

STEPS = 4


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
    task, device, precision = run.tasks[0], run.shared.device, run.config.settings.precision
    learner, times = run.build(), [time.perf_counter()]

    def on_step(info: StepInfo) -> None:
        float(info.loss)  # waits for the device
        times.append(time.perf_counter())

    def few():
        return itertools.islice(run.test_batches(task).in_order(), 2)

    with torch.random.fork_rng(devices=[]):
        batches = run.train_batches(task).epochs(1, 0, run.settings.drop_last, STEPS)
        train_task(learner, run.criterion(), task, batches, epochs=1, config=run.settings, device=device,
                   precision=precision, on_step=on_step)  # fmt: skip
        times = times[1:] if len(times) > 2 else times  # without the first step, which is slower
        learner.end_task(lambda: (sent(device, x, y) for x, y, _ in few()))
        start = time.perf_counter()
        tested = len(evaluate(learner, few(), device, precision)[0])
        per_image = (time.perf_counter() - start) / max(1, tested)
    return Pace((times[-1] - times[0]) / max(1, len(times) - 1), per_image)

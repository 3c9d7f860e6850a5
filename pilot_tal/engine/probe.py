"""How long a run will take, from a few steps of it."""

import itertools
import time

import torch

from pilot_tal.engine.loop import evaluate, train_task
from pilot_tal.engine.run import Run

WARM_UP, TIMED = 1, 3


def estimate(run: Run) -> float:
    """Seconds a run will take: training steps and evaluation of all tasks, without statistics and alignment."""
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
        learner.end_task(lambda: ((x.to(device), y.to(device)) for x, y, _ in _few(run)))
        start = time.perf_counter()
        tested = len(evaluate(learner, _few(run), device, run.config.settings.precision)[0])
        an_image = (time.perf_counter() - start) / max(1, tested)
    a_step = (times[-1] - times[WARM_UP - 1]) / TIMED
    steps = sum(run.steps(task) for task in run.tasks)
    images = sum(len(run.test_batches(task).indices) for task in run.tasks)
    return a_step * steps + an_image * images


def _few(run: Run):
    return itertools.islice(run.test_batches(run.tasks[0]).in_order(), 2)

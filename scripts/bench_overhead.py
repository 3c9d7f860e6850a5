"""Measures what TAL adds to a whole run over cross-entropy.

    python scripts/bench_overhead.py [--method l2p] [--dataset demo_lt] [--rounds 4] [--control] [key=value ...]

In each round a run with CE and one with TAL go side by side in one process and take turns: after every batch, of
training and of evaluation, the other one goes on. Each has its own clock, which stands while it waits. So a slow
spell of the machine falls on both. Printed: each round, and the mean over the rounds with its standard error.
With --control both runs use CE: what the measurement itself gives where there is nothing to find.
"""

import argparse
import math
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

from pilot_tal.config.grid import run_config
from pilot_tal.engine.jobs import Jobs
from pilot_tal.engine.progress import Status
from pilot_tal.engine.shared import Shared
from pilot_tal.engine.trainer import Trainer


class Silence:
    """Where the runs tell how far they are: nowhere, so that telling costs neither of them anything."""

    live = False

    def update(self, status: Status) -> None: ...

    def say(self, line: str) -> None: ...


class Turns:
    """Lets threads run one at a time, in turn, and clocks each."""

    def __init__(self, names: tuple[str, ...]):
        self.waiting, self.turn = list(names), names[0]
        self.seconds = dict.fromkeys(names, 0.0)
        self.changed = threading.Condition()

    def begin(self, name: str) -> None:
        """Waits for one's turn."""
        with self.changed:
            self.changed.wait_for(lambda: self.turn == name)
        self.started = time.perf_counter()

    def end(self, name: str, for_good: bool = False) -> None:
        """Lets the next one go on."""
        self.seconds[name] += time.perf_counter() - self.started
        with self.changed:
            after = self.waiting[(self.waiting.index(name) + 1) % len(self.waiting)]
            if for_good:
                self.waiting.remove(name)
            self.turn = after
            self.changed.notify_all()


def side_by_side(runs: dict[str, Trainer], shared: Shared) -> dict[str, float]:
    """Seconds of each run."""
    turns = Turns(tuple(runs))
    failed: list[BaseException] = []

    def hand_over(*_: object) -> None:
        name = threading.current_thread().name
        turns.end(name)
        turns.begin(name)

    def execute(name: str) -> None:
        turns.begin(name)
        try:
            runs[name].execute(Silence())
        except BaseException as error:  # the other thread must not wait for ever
            failed.append(error)
        finally:
            turns.end(name, for_good=True)

    vit: Any = shared.backbone.vit
    hook = vit.patch_embed.register_forward_pre_hook(hand_over)  # called once for each batch
    try:
        threads = [threading.Thread(target=execute, args=(name,), name=name) for name in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        hook.remove()
    if failed:
        raise failed[0]
    return turns.seconds


def measure(method: str, dataset: str, rounds: int, settings: Sequence[str] = (), control: bool = False) -> list[float]:
    """By how many percent TAL takes longer than CE, in each round."""
    shared, overheads = None, []
    name = "again CE" if control else "TAL"
    for number in range(rounds + 1):
        with tempfile.TemporaryDirectory() as output:
            runs = {}
            for loss in ("ce", "tal") if number % 2 == 0 else ("tal", "ce"):
                used = "ce" if control else loss
                plan = run_config(method, dataset, [f"loss={used}", "seed=1993", f"output={output}/{loss}", *settings])
                jobs = Jobs(plan)
                trainer = jobs.trainer(jobs.all[0])
                shared = shared or trainer.shared
                trainer.shared, runs[loss] = shared, trainer
            assert shared is not None
            seconds = side_by_side(runs, shared)
        overhead = 100 * (seconds["tal"] / seconds["ce"] - 1)
        if number:  # the first round warms up
            overheads.append(overhead)
        title = f"round {number}" if number else "warm-up"
        print(f"{title}: CE {seconds['ce']:.2f} s, {name} {seconds['tal']:.2f} s, {overhead:+.2f} %", flush=True)
    return overheads


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; NaN of one value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="l2p")
    parser.add_argument("--dataset", default="demo_lt")
    parser.add_argument("--rounds", type=int, default=4, help="even, so that either goes first as often (default 4)")
    parser.add_argument("--control", action="store_true", help="CE against CE")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    given = parser.parse_args()
    overheads = measure(given.method, given.dataset, given.rounds, given.settings, given.control)
    print(
        f"overhead of {'again CE' if given.control else 'TAL'} over a whole {given.method} run on {given.dataset}: "
        f"{statistics.mean(overheads):+.2f} % (standard error {standard_error(overheads):.2f})"
    )


if __name__ == "__main__":
    main()

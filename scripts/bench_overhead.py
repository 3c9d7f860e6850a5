"""Measures what TAL adds to a whole run over cross-entropy.

    python scripts/bench_overhead.py [--method l2p] [--dataset demo_lt] [--rounds 4] [--control] [key=value ...]

In each round a run with CE and one with TAL take turns in one process: after every batch, of training and of
evaluation, the other one goes on, and each is timed while it runs. So other load slows both. Printed: each round, and
the mean over the rounds with its standard error. With --control both runs use CE, which measures the noise.
"""

import argparse
import statistics
import tempfile
import threading
import time
from typing import Any

from pilot_tal.config.grid import run_config
from pilot_tal.engine.jobs import Jobs
from pilot_tal.engine.trainer import Trainer


class Turns:
    """Runs threads one at a time, in turn, and adds up the seconds of each."""

    def __init__(self, names: tuple[str, ...]):
        self.waiting, self.turn = list(names), names[0]
        self.seconds = dict.fromkeys(names, 0.0)
        self.changed = threading.Condition()

    def begin(self, name: str) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.turn == name)
        self.started = time.perf_counter()

    def end(self, name: str, finished: bool = False) -> None:
        self.seconds[name] += time.perf_counter() - self.started
        with self.changed:
            self.turn = self.waiting[(self.waiting.index(name) + 1) % len(self.waiting)]
            if finished:
                self.waiting.remove(name)
            self.changed.notify_all()


def side_by_side(runs: dict[str, Trainer]) -> dict[str, float]:
    """Seconds of each run."""
    turns = Turns(tuple(runs))

    def hand_over(*_: object) -> None:
        turns.end(threading.current_thread().name)
        turns.begin(threading.current_thread().name)

    def execute(name: str) -> None:
        turns.begin(name)
        try:
            runs[name].execute()
        finally:
            turns.end(name, finished=True)

    vit: Any = runs["ce"].shared.backbone.vit
    hook = vit.patch_embed.register_forward_pre_hook(hand_over)  # called once for each batch
    threads = [threading.Thread(target=execute, args=(name,), name=name) for name in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hook.remove()
    return turns.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="l2p")
    parser.add_argument("--dataset", default="demo_lt")
    parser.add_argument("--rounds", type=int, default=4, help="even, so that either goes first as often (default 4)")
    parser.add_argument("--control", action="store_true", help="CE against CE")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    given = parser.parse_args()
    shared, overheads, other = None, [], "again CE" if given.control else "TAL"
    for number in range(given.rounds + 1):
        with tempfile.TemporaryDirectory() as output:
            runs = {}
            for loss in ("ce", "tal") if number % 2 == 0 else ("tal", "ce"):
                own = [f"loss={'ce' if given.control else loss}", "seed=1993", f"output={output}/{loss}"]
                jobs = Jobs(run_config(given.method, given.dataset, [*own, *given.settings]))
                runs[loss] = jobs.trainer(jobs.all[0])
                shared = runs[loss].shared = shared or runs[loss].shared
            seconds = side_by_side(runs)
        overheads.append(100 * (seconds["tal"] / seconds["ce"] - 1))
        title = f"round {number}" if number else "warm-up"
        print(f"{title}: CE {seconds['ce']:.2f} s, {other} {seconds['tal']:.2f} s, {overheads[-1]:+.2f} %", flush=True)
    found = overheads[1:]
    error = statistics.stdev(found) / len(found) ** 0.5 if len(found) > 1 else float("nan")
    print(
        f"overhead of {other} over a whole {given.method} run on {given.dataset}: "
        f"{statistics.mean(found):+.2f} % (standard error {error:.2f})"
    )


if __name__ == "__main__":
    main()

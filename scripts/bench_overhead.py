"""Measures what TAL adds to a whole run over cross-entropy, in alternating runs.

    python scripts/bench_overhead.py [--method l2p] [--dataset demo_lt] [--rounds 10] [key=value ...]

Each round runs both losses once, in alternating order, into fresh directories; the overhead is taken within a round,
so that a slow spell of the machine falls on both. Printed: each round; the mean over the rounds with its standard
error; and the fastest run of TAL against the fastest of CE, as what else the machine does can only slow a run.
"""

import argparse
import statistics
import tempfile
import time

from pilot_tal.config import make_plan
from pilot_tal.engine.run import Run, Shared, load_shared


def seconds(method: str, dataset: str, loss: str, settings: list[str], shared: Shared | None) -> tuple[float, Shared]:
    """Time of one whole run, without loading images and ViT."""
    with tempfile.TemporaryDirectory() as output:
        plan = make_plan(method, dataset, [f"loss={loss}", "seed=1993", f"output={output}", *settings])
        (config,) = plan.runs
        shared = shared or load_shared(config, plan.machine)
        run = Run(config, plan.machine, shared)
        start = time.perf_counter()
        run.execute()
        return time.perf_counter() - start, shared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="l2p")
    parser.add_argument("--dataset", default="demo_lt")
    parser.add_argument("--rounds", type=int, default=10, help="default 10")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    _, shared = seconds(arguments.method, arguments.dataset, "ce", arguments.settings, None)  # warms up
    times = {"ce": [], "tal": []}
    overheads = []
    for number in range(arguments.rounds):
        for loss in ("ce", "tal") if number % 2 == 0 else ("tal", "ce"):
            took, _ = seconds(arguments.method, arguments.dataset, loss, arguments.settings, shared)
            times[loss].append(took)
        ce, tal = times["ce"][-1], times["tal"][-1]
        overheads.append(100 * (tal / ce - 1))
        print(f"round {number + 1}: CE {ce:.2f} s, TAL {tal:.2f} s, {overheads[-1]:+.2f} %", flush=True)
    print(f"overhead of TAL over a whole {arguments.method} run on {arguments.dataset}:")
    if len(overheads) > 1:
        error = statistics.stdev(overheads) / len(overheads) ** 0.5
        print(f"  mean of the rounds {statistics.mean(overheads):+.2f} % (standard error {error:.2f})")
    print(f"  fastest against fastest {100 * (min(times['tal']) / min(times['ce']) - 1):+.2f} %")


if __name__ == "__main__":
    main()

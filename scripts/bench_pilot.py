"""Times whole runs of this engine and of LAMDA-PILOT side by side, at DeiT-Tiny.

    python scripts/bench_pilot.py --repo LAMDA-PILOT --data-root data [--methods l2p lae] [--precisions fp32 bf16]

Per method and round, one run of each engine in turn, each a process of its own, at two numbers of epochs. A run of e
epochs takes a + b·e, so two of them give the time at 20 (multiples of 5: LAE freezes three fifths of its epochs).
Printed: CPU minutes at 20 epochs, and how many times as fast as LAMDA-PILOT. Both engines get the same images, tasks,
batch sizes and threads, fidelity=pilot and TAL; start-up and evaluation are included.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from pilot_tal.config.settings import method_config

METHODS = ("l2p", "dualprompt", "coda_prompt", "lae", "mos")
ROOT = Path(__file__).resolve().parents[1]
TAL, FULL = "tal", 20
DEIT_TINY = "deit_tiny_patch16_224"


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo", required=True, help="checkout of LAMDA-PILOT")
    parser.add_argument("--python", default=ROOT / ".venv-upstream/bin/python", help="interpreter of its environment")
    parser.add_argument("--dataset", default="cub_lt")
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--data", nargs="*", default=[], metavar="key=value", help="settings of the dataset, for both")
    parser.add_argument("--classes", type=int, default=200, help="classes of the dataset")
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--img-size", type=int, default=224)
    parser.add_argument("--weights", default="random", help="random, or a file of DeiT-Tiny")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], help="of this engine")
    parser.add_argument("--epochs", nargs=2, type=int, default=[5, 10], metavar=("FEW", "MORE"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def ours(given: argparse.Namespace, method: str, epochs: int, output: str, precision: str) -> list[str]:
    """The command of a run of this engine."""
    settings = [f"tasks={given.tasks}", f"epochs={epochs}", f"img_size={given.img_size}", f"threads={given.threads}"]
    vit = [f"backbone={DEIT_TINY}", f"weights={given.weights}", f"precision={precision}", "normalize=none"]
    places = [f"data_root={given.data_root}", f"output={output}", "device=cpu"]
    run = ["run", method, given.dataset, f"loss={TAL}", f"batch_size={method_config(method).batch_size}"]
    return [sys.executable, "-m", "pilot_tal", *run, *settings, *vit, *places, *given.data]


def theirs(given: argparse.Namespace, method: str, epochs: int, output: str, _: str) -> list[str]:
    """The command of a run of LAMDA-PILOT with our dataset and loss."""
    share = given.classes // given.tasks
    settings = [f"init_cls={share}", f"increment={share}", f"tuned_epoch={epochs}"]
    settings += [f"batch_size={method_config(method).batch_size}", *(f"data.{item}" for item in given.data)]
    vit = ["vit.embed_dim=192", "vit.num_heads=3", f"vit.img_size={given.img_size}"]
    run = ["upstream", "--repo", given.repo, "--config", f"exps/{method}.json", "--loss", TAL, "--seed", "1993"]
    run += ["--dataset", given.dataset, "--data-root", given.data_root, "--output", output, "--device", "cpu"]
    return [sys.executable, "-m", "pilot_tal", *run, "--weights", given.weights, "--python", str(given.python),
            *settings, *vit]  # fmt: skip


def seconds(command: list[str], threads: int) -> float:
    """CPU time of a process and its children."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime


def at_full(times: dict[int, float]) -> float:
    """Seconds at 20 epochs, from two numbers of epochs."""
    (few, fast), (more, slow) = sorted(times.items())
    return slow + (FULL - more) * (slow - fast) / (more - few)


def main() -> None:
    """Measures and prints one line per method."""
    given = parse()
    engines = {"LAMDA-PILOT": (theirs, "fp32")} | {precision: (ours, precision) for precision in given.precisions}
    for method in given.methods:
        found: dict[str, list[float]] = {name: [] for name in engines}
        for number in range(given.rounds):
            times: dict[str, dict[int, float]] = {name: {} for name in engines}
            for epochs in given.epochs:
                for name in list(engines)[:: 1 if number % 2 == 0 else -1]:
                    make, precision = engines[name]
                    with tempfile.TemporaryDirectory() as output:
                        times[name][epochs] = seconds(make(given, method, epochs, output, precision), given.threads)
            for name in engines:
                found[name].append(at_full(times[name]))
        theirs_at = statistics.median(found["LAMDA-PILOT"])
        parts = [f"LAMDA-PILOT {theirs_at / 60:.1f} min"]
        for name in given.precisions:
            own = statistics.median(found[name])
            parts.append(f"{name} {own / 60:.1f} min ({theirs_at / own:.2f} times as fast)")
        print(f"{method:<12} {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()

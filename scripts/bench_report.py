"""Time and memory of a report: `python scripts/bench_report.py [--runs 500] [--groups 50] [--plots]`.

Writes synthetic runs (50 classes in 5 tasks, 20 test images per class, CE and TAL with step and state logs) into a
temporary folder, and builds the report in a process of its own.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from pilot_tal.record import run_record as record
from pilot_tal.record.writer import open_run

CLASSES, TASKS, TESTS, STEPS = 50, 5, 20, 100


def write_run(root: Path, method: int, loss: str, seed: int) -> None:
    """One run with random predictions that are right more often for frequent classes."""
    rng = np.random.default_rng([method, seed, len(loss)])
    order = rng.permutation(CLASSES)
    counts = np.geomspace(60, 3, CLASSES).round().astype(int)[order]
    stream = record.StreamRecord(
        "pilot", "none", "shuffled", (CLASSES // TASKS,) * TASKS,
        tuple(f"class {k}" for k in order), tuple(order.tolist()), tuple(counts.tolist()),
    )  # fmt: skip
    run = record.RunRecord(
        record.EngineRecord("native", "native"),
        record.MethodRecord(f"method{method}", f"Method {method}", "fixed", {"tuned_epoch": 20, "batch_size": 16}),
        record.LossRecord(loss, loss.upper()), seed, record.DataRecord("data_lt", "Data-LT", "0" * 64),
        record.BackboneRecord("vit", "hub"), stream,
    )  # fmt: skip
    with open_run(root / run.name) as writer:
        writer.write_record(run)
        for task in range(TASKS):
            seen = (task + 1) * CLASSES // TASKS
            true = np.repeat(np.arange(seen), TESTS)
            right = rng.random(true.size) < 0.3 + 0.5 * counts[true] / 60
            pred = np.where(right, true, rng.integers(0, seen, true.size))
            steps = [{"epoch": s // 5, "step": s, "loss": 2 / (s + 1)} for s in range(STEPS)]
            weights = [1.0] * (CLASSES // TASKS)
            states = [{"step": s, "Q": weights, "weights": weights} for s in range(STEPS if loss == "tal" else 0)]
            images = [f"{y}/{i}.png" for i, y in enumerate(true)]
            writer.write_task(task, images, true, pred, steps=steps, states=states)
        writer.commit(run, TASKS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--plots", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number in range(given.runs):
            group, place = number % given.groups, number // given.groups
            write_run(root / "runs", group, ("ce", "tal")[place % 2], 1993 + place // 2)
        options = ["--plots"] if given.plots else []
        command = [sys.executable, "-m", "pilot_tal", "report", str(root / "runs"), "-o", str(root / "report")]
        subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        pages = [page.stat().st_size for page in (root / "report").glob("*.html")]
        files = sum(path.is_file() for path in (root / "report").rglob("*"))
    print(f"{given.runs} runs in {given.groups} groups: {used.ru_utime + used.ru_stime:.1f} s CPU, "
          f"{used.ru_maxrss / 1024:.0f} MB, {files} files, largest page {max(pages) / 1e6:.2f} MB")  # fmt: skip


if __name__ == "__main__":
    main()

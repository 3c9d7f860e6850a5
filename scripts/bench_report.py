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

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "results"))
from synthetic_runs import write_run_directory  # type: ignore[import-not-found]

CODE = """
import sys
from pilot_tal.results import build_report
build_report([sys.argv[1]], sys.argv[2], plots=bool(sys.argv[3]))
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])  # ru_maxrss would include this process's parent
"""
LOSSES = [2 / (epoch + 1) for epoch in range(50)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--plots", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number in range(given.runs):
            place, group = divmod(number, given.groups)
            options = {"method": f"method{group}", "loss": ("ce", "tal")[place % 2], "seed": 1993 + place // 2}
            write_run_directory(root / "runs", steps_a_task=100, losses_by_epoch=LOSSES, **options)
        command = [sys.executable, "-c", CODE, str(root / "runs"), str(root / "report"), "plots" * given.plots]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        largest = max(page.stat().st_size for page in (root / "report").glob("*.html"))
    print(
        f"{given.runs} runs in {given.groups} groups: {used.ru_utime + used.ru_stime:.1f} s CPU, "
        f"{int(done.stdout) / 1024:.0f} MB, largest page {largest / 1e6:.2f} MB"
    )


if __name__ == "__main__":
    main()

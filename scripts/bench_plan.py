"""How much faster several runs at a time are, and how much memory they share.

    python scripts/bench_plan.py                         # the demo's comparison, six runs, in three ways
    python scripts/bench_plan.py epochs=2                # the same, shorter
    python scripts/bench_plan.py --memory [--workers 8]  # memory of eight workers on one dataset

Times are those of the whole command, report included: one run after the other on one thread (the same bytes as
jobs=auto), one after the other on all cores, and as many at a time as there are cores. Memory is the proportional set
size (PSS): a page that n processes share counts 1/n in each of them, so the sum counts it once. Leave the machine alone
meanwhile.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", help="key=value for the runs")
    parser.add_argument("--method", default="l2p")
    parser.add_argument("--dataset", default="demo_lt")
    parser.add_argument("--memory", action="store_true", help="measure memory instead of time")
    parser.add_argument("--workers", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (measure_memory if options.memory else measure_time)(options, Path(folder))


def measure_time(options: argparse.Namespace, folder: Path) -> None:
    # Not timed: the demo's images are drawn, and the libraries read from disk, by whoever comes first.
    if compare(options, folder / "none", "--dry-run", stdout=subprocess.DEVNULL).wait() != 0:
        sys.exit("the comparison cannot be planned")
    seconds = {}
    *others, auto = cases = ("jobs=1 threads=1", "jobs=1", "jobs=auto")
    for case in cases:
        start = time.perf_counter()
        if compare(options, folder / case.replace(" ", "-"), *case.split()).wait() != 0:
            sys.exit(f"the comparison with {case} failed")
        seconds[case] = time.perf_counter() - start
        print(f"{case}: {seconds[case]:.1f} s", flush=True)
    for case in others:
        print(f"{auto} is {seconds[case] / seconds[auto]:.2f} times as fast as {case} on {os.cpu_count()} cores")


def measure_memory(options: argparse.Namespace, folder: Path) -> None:
    """Looks at all processes when every worker has finished its first task."""
    seeds = ",".join(str(seed) for seed in range(1, options.workers + 1))
    extra = (f"jobs={options.workers}", "losses=tal", f"seeds={seeds}")
    started = compare(options, folder, *extra, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert started.stderr is not None
    trained: set[str] = set()
    for line in started.stderr:
        if "task 1/" in line and "done" in line:
            trained.add(line.split(":")[0])
        if len(trained) == options.workers:
            break
    processes = [started.pid, *children(started.pid)]
    rows = {pid: memory(pid) for pid in processes}
    started.send_signal(signal.SIGTERM)
    started.communicate()
    if len(rows) != options.workers + 1:
        sys.exit(f"expected {options.workers} workers, saw {len(rows) - 1}")
    for pid, row in rows.items():
        name = "parent" if pid == started.pid else "worker"
        pss, own, rss = (size / MIB for size in (row["Pss"], private(row), row["Rss"]))
        print(f"{name}: PSS {pss:7.0f} MiB, its own {own:7.0f} MiB, RSS {rss:7.0f} MiB")
    total, apart = (sum(row[key] for row in rows.values()) for key in ("Pss", "Rss"))
    print(f"{options.workers} workers take {total / MIB:.0f} MiB; counted apart it would be {apart / MIB:.0f} MiB")


def compare(options: argparse.Namespace, output: Path, *settings: str, **keywords) -> subprocess.Popen:
    command = [sys.executable, "-m", "pilot_tal", "compare", options.method, options.dataset]
    return subprocess.Popen([*command, *options.settings, f"output={output}", *settings], **keywords)


def children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def memory(pid: int) -> dict[str, int]:
    """Bytes by name, from the kernel's own account."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines}


def private(row: dict[str, int]) -> int:
    return row["Private_Clean"] + row["Private_Dirty"]


if __name__ == "__main__":
    main()

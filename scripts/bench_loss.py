"""Times TAL beside cross-entropy, forward and backward, as the paper's loss-only table does.

    python scripts/bench_loss.py [--repeats 30] [--calls 100] [--loss tal]

In each round the two losses take turns in every cell, a block of calls each, and the fastest block of either counts:
other load slows some blocks, never all. Only the ratio can be compared between machines.
"""

import argparse
import itertools
import time

import torch

from pilot_tal.losses import LOSSES, build_loss
from pilot_tal.stream.task import TaskInfo

BATCHES = (32, 64, 128, 256)
CLASSES = (5, 20, 100, 500)


def block_seconds(loss: torch.nn.Module, batch: int, classes: int, calls: int) -> float:
    """Seconds per call of forward and backward."""
    logits, targets = torch.randn(batch, classes, requires_grad=True), torch.randint(0, classes, (batch,))
    start = time.perf_counter()
    for _ in range(calls):
        logits.grad = None
        loss(logits, targets).backward()
    return (time.perf_counter() - start) / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loss", default="tal", choices=sorted(LOSSES))
    parser.add_argument("--repeats", type=int, default=30, help="rounds over all cells (default 30)")
    parser.add_argument("--calls", type=int, default=100, help="calls in a block (default 100)")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"microseconds per call, forward + backward, one thread; torch {torch.__version__}")
    print(f"{'batch':>5} {'classes':>7} {'CE':>9} {given.loss:>9} {'ratio':>6}")
    ratios = []
    for batch, classes in itertools.product(BATCHES, CLASSES):
        other = build_loss(given.loss)
        other.begin_task(TaskInfo(0, 1, 0, classes, (1,) * classes))
        losses = (torch.nn.CrossEntropyLoss(), other)
        rounds = [[block_seconds(loss, batch, classes, given.calls) for loss in losses] for _ in range(given.repeats)]
        ce, own = (min(times) for times in zip(*rounds, strict=True))
        ratios.append(own / ce)
        print(f"{batch:>5} {classes:>7} {1e6 * ce:>9.1f} {1e6 * own:>9.1f} {ratios[-1]:>6.2f}", flush=True)
    print(f"largest ratio {max(ratios):.2f}, at 256 x 500 {ratios[-1]:.2f}")


if __name__ == "__main__":
    main()

"""Times TAL beside cross-entropy, forward and backward, as the paper's loss-only table does.

    python scripts/bench_loss.py [--repeats 30] [--calls 100] [--device cpu] [--loss tal]

Each round runs the two losses in every cell in turn, a block of calls each, and the fastest block of either
counts: what else the machine does slows some blocks, never all. Only the ratio is meant to be compared between
machines.
"""

import argparse
import sys
import time

import torch

from pilot_tal.losses import LOSSES, build_loss
from pilot_tal.stream.task import TaskInfo

BATCHES = (32, 64, 128, 256)
CLASSES = (5, 20, 100, 500)


def block_seconds(loss, logits, targets, calls: int) -> float:
    """Seconds a call of forward and backward."""
    if logits.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        logits.grad = None
        loss(logits, targets).backward()
    if logits.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


class Pair:
    """Cross-entropy and the loss `name` on one batch, and the fastest seconds a call of either so far."""

    def __init__(self, name: str, batch: int, classes: int, device: str):
        self.logits = torch.randn(batch, classes, device=device, requires_grad=True)
        self.targets = torch.randint(0, classes, (batch,), device=device)
        rival = build_loss(name)
        rival.begin_task(TaskInfo(0, 1, 0, classes, (1,) * classes))
        self.losses = [torch.nn.CrossEntropyLoss(), rival.to(device)]
        self.fastest = [float("inf")] * 2

    def round(self, calls: int) -> None:
        """A block of either loss."""
        for place, loss in enumerate(self.losses):
            seconds = block_seconds(loss, self.logits, self.targets, calls)
            self.fastest[place] = min(self.fastest[place], seconds)


def measure(name: str, repeats: int, calls: int, device: str = "cpu") -> dict[tuple[int, int], Pair]:
    """Both losses on every batch size and number of classes, in turns."""
    torch.manual_seed(0)
    pairs = {(batch, classes): Pair(name, batch, classes, device) for batch in BATCHES for classes in CLASSES}
    for number in range(repeats):
        print(f"round {number + 1} of {repeats}", end="\r", file=sys.stderr, flush=True)
        for pair in pairs.values():
            pair.round(calls)
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loss", default="tal", choices=sorted(LOSSES))
    parser.add_argument("--repeats", type=int, default=30, help="rounds over all cells (default 30)")
    parser.add_argument("--calls", type=int, default=100, help="calls in a block (default 100)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"microseconds a call, forward + backward; torch {torch.__version__}, {arguments.device}")
    ratios = []
    found = measure(arguments.loss, arguments.repeats, arguments.calls, arguments.device)
    print(f"{'batch':>5} {'classes':>7} {'CE':>9} {arguments.loss:>9} {'ratio':>6}")
    for (batch, classes), pair in found.items():
        ce, other = pair.fastest
        ratios.append(other / ce)
        print(f"{batch:>5} {classes:>7} {1e6 * ce:>9.1f} {1e6 * other:>9.1f} {ratios[-1]:>6.2f}")
    print(f"largest ratio {max(ratios):.2f}, at 256 x 500 {ratios[-1]:.2f}")


if __name__ == "__main__":
    main()

"""Draw the simulations of docs/losses.md.

python scripts/figures.py tal_memory | back_loading
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from data_lt import load_manifest
from data_lt.files import write_text
from pilot_tal.losses import build_loss
from pilot_tal.losses.tal_math import (
    exponential_kernel,
    max_strength,
    negative_weight,
    supervision_strength,
    updated_strength,
)
from pilot_tal.results.drawing import figure, legend, style, to_svg
from pilot_tal.stream.task import TaskInfo

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
EPOCHS = 20
STEPS, POSITIVES, LAM = 800, 200, 0.995  # of the sequences in `back_loading`


def tal_memory() -> str:
    """α·w over one of ten tasks of CUB-LT, under two batch sizes: TAL as in the paper, and with a memory in epochs."""
    train = load_manifest("cub_lt").query("split == 'train'")
    counts = sorted(train["label"].value_counts(), reverse=True)[::10]  # a task of 20 classes, from head to tail
    third = len(counts) // 3
    groups = {"commonest third": (slice(third), "#0072b2"), "rarest third": (slice(-third, None), "#d55e00")}
    with style():
        shown, axes = figure(4.6, rows=2, sharex=True, sharey=True)
        titles = {"tal": "tal: λ = 0.995, Q from 0", "tal_auto": "tal_auto: λ from two epochs, Q from Q*"}
        for plot, (name, title) in zip(axes, titles.items(), strict=True):
            for batch, line in ((16, "-"), (128, "--")):
                epochs, weights = weights_over_a_task(name, counts, batch)
                for group, (members, colour) in groups.items():
                    label = f"{group}, batch {batch}"
                    plot.plot(epochs, weights[:, members].mean(1), line, color=colour, label=label, linewidth=1.4)
            plot.axhline(1.0, color="grey", linewidth=0.8, zorder=0)
            plot.set(title=title, ylabel="α·w", xlim=(0, EPOCHS), xticks=range(0, EPOCHS + 1, 5))
        axes[1].set(xlabel="epoch of the task", ylim=(0, 2.6))
        legend(shown, axes[0])
        return to_svg(shown, facecolor="white")


def weights_over_a_task(name: str, counts: list[int], batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The epoch of each step, and α·w of every class after it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    steps = -(-len(labels) // batch)
    loss: Any = build_loss(name)  # TAL or TAL-auto, which have weights
    loss.begin_task(TaskInfo(0, 1, 0, len(counts), tuple(counts), epoch_steps=steps))
    weights = [loss.negative_weights()]
    for _ in range(EPOCHS):
        for targets in labels[torch.randperm(len(labels), generator=generator)].split(batch):
            loss(torch.zeros(len(targets), len(counts)), targets)
            weights.append(loss.negative_weights())
    return torch.arange(len(weights)) / steps, torch.stack(weights)


def back_loading() -> str:
    """Sequences with as many positives, early, evenly and late: their count and the strengths it leads to."""
    looks = {"early": ("#0072b2", "-"), "even": ("#7f7f7f", "--"), "late": ("#d55e00", "-")}
    titles = {
        "count": "positives so far, S",
        "strength": "Q = f * a, the theorem's",
        "tal": "Q of TAL (Algorithm 1)",
    }
    with style():
        shown, axes = figure(5.6, rows=3, sharex=True)
        for name, (colour, line) in looks.items():
            values = strengths(positive_steps(name))
            for plot, what in zip(axes, titles, strict=True):
                plot.plot(range(STEPS + 1), values[what], line, color=colour, label=name, linewidth=1.6)
        for plot, title in zip(axes, titles.values(), strict=True):
            plot.set(title=title, xlim=(0, STEPS))
        axes[-1].set(xlabel="step")
        legend(shown, axes[0])
        return to_svg(shown, facecolor="white")


def positive_steps(order: str) -> torch.Tensor:
    """True at `POSITIVES` of `STEPS` steps: fewer and fewer of them (early), more and more (late), or evenly."""
    share = torch.arange(STEPS + 1, dtype=torch.float64) / STEPS
    so_far = {"early": 1 - (1 - share) ** 2, "even": share, "late": share**2}[order]
    return (POSITIVES * so_far).round().diff() > 0


def strengths(positive: torch.Tensor) -> dict[str, torch.Tensor]:
    """Count of positives, Q as a convolution (Eq. Q-def), and Q as TAL updates it, before and after every step."""
    top, q = max_strength(LAM), [torch.zeros(1, dtype=torch.float64)]
    for step in positive.double().unsqueeze(1):
        q.append(updated_strength(q[-1], negative_weight(q[-1], top), step, LAM))
    return {
        "count": torch.cat([torch.zeros(1, dtype=torch.long), positive.long().cumsum(0)]),
        "strength": supervision_strength(2 * positive.double() - 1, exponential_kernel(LAM, len(positive))),
        "tal": torch.cat(q),
    }


FIGURES: dict[str, Callable[[], str]] = {made.__name__: made for made in (tal_memory, back_loading)}


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in FIGURES:
        sys.exit(__doc__)
    write_text(IMAGES / f"{sys.argv[1]}.svg", FIGURES[sys.argv[1]]())

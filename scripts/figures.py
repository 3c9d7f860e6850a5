"""Draws the pictures of the documentation.

    python scripts/figures.py [tal_memory …]     # all of them without a name

Each is made from the code it explains, and comes out the same to the byte.
"""

import sys
from pathlib import Path

import torch

from data_lt import load_manifest
from pilot_tal.losses import build_loss
from pilot_tal.report.svg import figure, legend, standalone, style, to_svg
from pilot_tal.stream.task import TaskInfo

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
EPOCHS = 20


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
        return standalone(to_svg(shown))


def weights_over_a_task(name: str, counts: list[int], batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The epoch of each step, and α·w of every class after it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    steps = -(-len(labels) // batch)
    loss = build_loss(name)
    loss.begin_task(TaskInfo(0, 1, 0, len(counts), tuple(counts), epoch_steps=steps))
    weights = [loss.negative_weights()]
    for _ in range(EPOCHS):
        for targets in labels[torch.randperm(len(labels), generator=generator)].split(batch):
            loss(torch.zeros(len(targets), len(counts)), targets)
            weights.append(loss.negative_weights())
    return torch.arange(len(weights)) / steps, torch.stack(weights)


FIGURES = {made.__name__: made for made in (tal_memory,)}


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        sys.exit(f"unknown figure {unknown[0]}: there are {', '.join(FIGURES)}")
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name in names or FIGURES:
        path = IMAGES / f"{name}.svg"
        path.write_text(FIGURES[name](), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The sorted class counts of long-tailed sets as a plot."""

from collections.abc import Mapping
from pathlib import Path

from data_lt.manifest import Manifest

BAR, TAIL = "#3b6ea5", "#c8553d"


def draw_distributions(manifests: Mapping[str, Manifest], stem: Path) -> None:
    """Plots the sorted training counts of each set under its title, as `stem.png` and `stem.svg`."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 0.5 + 2.3 * len(manifests)), layout="constrained")
    panels = figure.subplots(len(manifests), 1, squeeze=False)[:, 0]
    for panel, (title, manifest) in zip(panels, manifests.items(), strict=True):
        counts = sorted(manifest.counts, reverse=True)
        classes, tail = len(counts), len(counts) // 2
        panel.set_yscale("log")
        panel.stairs(counts, [k + 0.5 for k in range(classes + 1)], baseline=0.5, fill=True, color=BAR)
        panel.axvspan(classes - tail + 0.5, classes + 0.5, color=TAIL, alpha=0.12, linewidth=0)
        text = f"tail: {tail} classes, {100 * manifest.tail_share:.0f} % of the images"
        panel.text(0.98, 0.93, text, transform=panel.transAxes, ha="right", va="top", fontsize=8.5, color=TAIL)
        panel.set(xlim=(0.5, classes + 0.5), ylim=(max(0.5, counts[-1] / 1.6), counts[0] * 1.6))
        panel.yaxis.set_major_formatter("{x:,.0f}")
        panel.spines[["top", "right"]].set_visible(False)
        label = f"{title}: {classes} classes, {sum(counts):,} images, ρ = {counts[0] / counts[-1]:.4g}"
        panel.set_title(label, fontsize=10, loc="left")
    panels[-1].set_xlabel("classes, by number of training images")
    figure.supylabel("training images (log scale)", fontsize=10)
    # Text stays text, and the same set gives the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pilot_tal"}):
        figure.savefig(f"{stem}.png", dpi=160, metadata={"Software": None})
        figure.savefig(f"{stem}.svg", metadata={"Date": None, "Creator": None})

"""What a long-tailed set looks like: its sizes, and its sorted class distribution as a picture."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from data_lt.files import atomic_path
from data_lt.manifest import Manifest

BAR, TAIL = "#3b6ea5", "#c8553d"


@dataclass(frozen=True)
class Facts:
    """Sizes of a set. The tail is the half of the classes (rounded down) with the fewest training images."""

    classes: int
    train: int
    test: int
    largest: int
    smallest: int
    tail_classes: int
    tail_share: float

    @property
    def rho(self) -> float:
        """Imbalance: largest over smallest training class."""
        return self.largest / self.smallest


def facts_of(manifest: Manifest) -> Facts:
    """The sizes of the set that a manifest lists."""
    counts = sorted(manifest.counts)
    tail = len(counts) // 2
    return Facts(
        classes=len(counts),
        train=sum(counts),
        test=manifest.header["test"],
        largest=counts[-1],
        smallest=counts[0],
        tail_classes=tail,
        tail_share=sum(counts[:tail]) / sum(counts),
    )


def draw_distributions(manifests: Mapping[str, Manifest], stem: str | Path) -> list[Path]:
    """Draws the sorted training counts of each set under its title, as `stem.png` and `stem.svg`."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 0.5 + 2.3 * len(manifests)), layout="constrained")
    panels = figure.subplots(len(manifests), 1, squeeze=False)[:, 0]
    for panel, (title, manifest) in zip(panels, manifests.items(), strict=True):
        _draw_panel(panel, title, manifest)
    panels[-1].set_xlabel("classes, by number of training images")
    figure.supylabel("training images (log scale)", fontsize=10)
    written = []
    # Text stays text, and the same set gives the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pilot_tal"}):
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            path = Path(f"{stem}.{kind}")
            with atomic_path(path) as temporary:
                figure.savefig(temporary, format=kind, dpi=160, metadata=metadata)
            written.append(path)
    return written


def _draw_panel(panel, title: str, manifest: Manifest) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    facts = facts_of(manifest)
    counts = sorted(manifest.counts, reverse=True)
    edges = [k + 0.5 for k in range(facts.classes + 1)]
    floor = max(0.5, facts.smallest / 1.6)
    border = facts.classes - facts.tail_classes + 0.5
    panel.set_yscale("log")
    if facts.tail_classes:
        panel.axvspan(border, edges[-1], color=TAIL, alpha=0.12, linewidth=0)
        panel.text(
            (border + edges[-1]) / 2,
            0.93,
            f"tail: {facts.tail_classes} classes, {100 * facts.tail_share:.0f} % of the images",
            transform=panel.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=8.5,
            color=TAIL,
        )
    panel.stairs(counts, edges, baseline=floor, fill=True, color=BAR, alpha=0.85)
    panel.set_ylim(floor, facts.largest * 1.6)
    panel.set_xlim(edges[0], edges[-1])
    ticks = sorted({facts.smallest, facts.largest} | {t for t in (10, 100, 1000) if _apart(t, facts)})
    panel.set_yticks(ticks)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_title(
        f"{title}: {facts.classes} classes, {facts.train:,} images, ρ = {facts.rho:.4g}",
        fontsize=10,
        loc="left",
    )


def _apart(tick: int, facts: Facts) -> bool:
    """Whether a tick between the smallest and the largest count leaves room for their own."""
    return facts.smallest * 1.5 < tick < facts.largest / 1.5

"""The sorted class counts of long-tailed sets as a plot."""

from collections.abc import Mapping
from pathlib import Path

from data_lt.files import atomic_path
from data_lt.manifest import Manifest

BAR, TAIL = "#3b6ea5", "#c8553d"


def draw_distributions(manifests: Mapping[str, Manifest], stem: str | Path) -> list[Path]:
    """Plots the sorted training counts of each set under its title, as `stem.png` and `stem.svg`."""
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
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    counts = sorted(manifest.counts, reverse=True)
    classes, tail, least, most = len(counts), len(counts) // 2, counts[-1], counts[0]
    floor, border, right = max(0.5, least / 1.6), classes - tail + 0.5, classes + 0.5
    panel.set_yscale("log")
    if tail:
        text = f"tail: {tail} classes, {100 * manifest.tail_share:.0f} % of the images"
        style = {"transform": panel.get_xaxis_transform(), "ha": "center", "va": "top", "fontsize": 8.5, "color": TAIL}
        panel.axvspan(border, right, color=TAIL, alpha=0.12, linewidth=0)
        panel.text((border + right) / 2, 0.93, text, **style)
    edges = [k + 0.5 for k in range(classes + 1)]
    panel.stairs(counts, edges, baseline=floor, fill=True, color=BAR, alpha=0.85)
    panel.set(xlim=(0.5, right), ylim=(floor, most * 1.6))
    panel.set_yticks(sorted({least, most} | {t for t in (10, 100, 1000) if least * 1.5 < t < most / 1.5}))
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.spines[["top", "right"]].set_visible(False)
    label = f"{title}: {classes} classes, {sum(counts):,} images, ρ = {most / least:.4g}"
    panel.set_title(label, fontsize=10, loc="left")

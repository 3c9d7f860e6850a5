"""The look of all plots, and figures as inline SVG (for light and dark pages) and as SVG, PDF and PNG files."""

import io
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH = 5.2  # inches; at 72 units per inch about as wide as a phone, so that text is never scaled down
INK = "#010203"  # also in plots.mplstyle; `inline` replaces it by the page's text colour
_METADATA: dict[str, dict[str, None]] = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "pdf": {"CreationDate": None},
    "png": {"Software": None},
}
FORMATS = tuple(_METADATA)


@dataclass(frozen=True)
class Plot:
    """A plot: file name, title, a caption that can be read without the picture, and the figure."""

    name: str
    title: str
    caption: str
    figure: Figure

    def inline(self, prefix: str) -> str:
        """SVG for a page: in its text colour and width, with ids that no other plot has."""
        svg = to_svg(self.figure)
        svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d+\.\d\d)\d+", r"\1", tag[0]), svg)  # coordinates, not texts
        svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
        svg = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", svg)
        end = svg.index(">")
        head = re.sub(r'\s(width|height)="[^"]*"', "", svg[:end])
        svg = f'{head} aria-hidden="true" focusable="false"{svg[end:]}'.strip()
        return svg.replace(INK, "currentColor").replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans', sans-serif")

    def save(self, folder: Path) -> None:
        """Write it as SVG, PDF and PNG, dark on white."""
        folder.mkdir(parents=True, exist_ok=True)
        for kind, metadata in _METADATA.items():
            self.figure.savefig(folder / f"{self.name}.{kind}", dpi=150, facecolor="white", metadata=metadata)


def style() -> AbstractContextManager:
    """The look of all plots, inside a `with` block."""
    return matplotlib.rc_context(fname=Path(__file__).with_name("plots.mplstyle"))


def figure(height: float, rows: int = 1, **options) -> tuple[Figure, list[Axes]]:
    """A figure of the common width and its axes from above; a legend makes it higher."""
    shown = Figure(figsize=(WIDTH, height), layout="constrained")
    return shown, list(shown.subplots(rows, squeeze=False, **options).flat)


def to_svg(shown: Figure, **options: Any) -> str:
    """The text of an SVG element; the same figure gives the same text."""
    buffer = io.StringIO()
    shown.savefig(buffer, format="svg", metadata=_METADATA["svg"], **options)
    text = buffer.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def legend(shown: Figure, axes: Axes) -> None:
    """The legend above the plot, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    columns = 3 if max(map(len, labels)) <= 14 else 2 if max(map(len, labels)) <= 24 else 1
    shown.set_figheight(shown.get_figheight() + 0.24 * -(-len(labels) // columns))
    shown.legend(handles, labels, loc="outside upper center", ncols=columns)

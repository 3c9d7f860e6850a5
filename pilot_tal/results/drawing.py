"""The look of all plots, and figures as inline SVG (for light and dark pages) and as SVG, PDF and PNG files."""

import io
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pilot_tal.results.groups import Variant

WIDTH = 5.2  # inches; at 72 units per inch about as wide as a phone, so that text is never scaled down
INK = "#010203"  # `inline` replaces it by the page's text colour
FORMATS = ("svg", "pdf", "png")
_METADATA = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "pdf": {"CreationDate": None},
    "png": {"Software": None},
}
_MARKERS, _LINES = "os^Dv", ("-", "--", ":", "-.")
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pilot_tal",
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 11,
    "lines.linewidth": 1.8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "text.parse_math": False,
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK
    ),
}


@dataclass(frozen=True)
class Panel:
    """Axes in which the page's script finds the class under the pointer.

    `columns`: the classes from many to few images, side by side. `cells`: true classes from above, predicted ones from
    the left.
    """

    kind: str
    axes: Axes

    def place(self) -> dict[str, Any]:
        """Its box in units of the SVG, after the figure was drawn."""
        shown = self.axes.figure
        assert isinstance(shown, Figure)
        width, height = (72 * inches for inches in shown.get_size_inches())
        box = self.axes.get_position()
        corner = (box.x0 * width, (1 - box.y1) * height, box.width * width, box.height * height)
        return {"kind": self.kind, "box": [round(float(value), 1) for value in corner]}


@dataclass(frozen=True)
class Plot:
    """A plot: file name, title, a caption that can be read without the picture, and the figure."""

    name: str
    title: str
    caption: str
    figure: Figure
    panels: Sequence[Panel] = ()

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
        for kind in FORMATS:
            file = folder / f"{self.name}.{kind}"
            self.figure.savefig(file, dpi=150, facecolor="white", metadata=_METADATA[kind])


def style() -> AbstractContextManager:
    """The look of all plots, inside a `with` block."""
    return matplotlib.rc_context(_STYLE)


def figure(height: float, rows: int = 1, columns: int = 1, **options) -> tuple[Figure, list[Axes]]:
    """A figure of the common width and its axes, row by row; a legend makes it higher."""
    shown = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = shown.subplots(rows, columns, squeeze=False, **options)
    return shown, list(axes.flat)


def to_svg(shown: Figure, **options: Any) -> str:
    """The text of an SVG element; the same figure gives the same text."""
    buffer = io.StringIO()
    shown.savefig(buffer, format="svg", metadata=_METADATA["svg"], **options)
    text = buffer.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def variant_style(variant: Variant, variants: Sequence[Variant]) -> dict[str, Any]:
    """Colour by loss; marker and line tell apart variants of one loss."""
    turn = next(i for i, mate in enumerate(a for a in variants if a.loss == variant.loss) if mate is variant)
    return {
        "color": variant.colour,
        "marker": _MARKERS[turn % len(_MARKERS)],
        "linestyle": _LINES[turn % len(_LINES)],
    }


def reference_style(turn: int) -> dict[str, Any]:
    """Thin grey lines, told apart by their dashes."""
    return {"color": "#7f7f7f", "linewidth": 1.2, "linestyle": ("--", "-.", ":")[turn % 3]}


def draw_cells(
    axes: Axes, matrix: np.ndarray, colours: str, limits: tuple[float, float], texts: list[list[str]]
) -> None:
    """A table of coloured cells from above, with their texts; NaN stays empty."""
    mesh = axes.pcolormesh(np.ma.masked_invalid(matrix), cmap=colours, vmin=limits[0], vmax=limits[1])
    for row, column in zip(*np.nonzero(~np.isnan(matrix)), strict=True) if texts else ():
        red, green, blue, _ = mesh.cmap(mesh.norm(matrix[row, column]))
        ink = "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "#ffffff"
        axes.text(column + 0.5, row + 0.5, texts[row][column], ha="center", va="center", color=ink, fontsize=10)
    axes.set_ylim(len(matrix), 0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def legend(shown: Figure, axes: Axes) -> None:
    """The legend above the plot, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    columns = 3 if max(map(len, labels)) <= 14 else 2 if max(map(len, labels)) <= 24 else 1
    shown.set_figheight(shown.get_figheight() + 0.24 * -(-len(labels) // columns))
    shown.legend(handles, labels, loc="outside upper center", ncols=columns)

"""Matplotlib figures as SVG: one look, the same bytes every time, and at home on a light or a dark page."""

import io
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pilot_tal.results.study import Variant

WIDTH = 5.2  # inches; at 72 units an inch about as wide as a phone, so that text is never shrunk below its size
INK = "#010203"  # stands for the page's text colour, which `inline` puts in its place
_PRINT_INK = "#1b1f24"

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


class Svg(str):
    """The text of an SVG element, with the figure that it was made of, for those who need pixels."""

    figure: Figure


@dataclass(frozen=True)
class Plot:
    """A plot: file name, title, a caption that can be read without the picture, and the SVG text.

    `panels` tell the page's script where the classes are: see `panel`.
    """

    name: str
    title: str
    caption: str
    svg: str
    panels: tuple[dict[str, Any], ...] = ()


def style() -> AbstractContextManager:
    """The look of all plots, for the time of a `with` block."""
    return matplotlib.rc_context(_STYLE)


def variant_style(variant: Variant, variants: list[Variant]) -> dict[str, Any]:
    """Colour by loss; marker and line tell apart variants of one loss."""
    turn = next(i for i, mate in enumerate(a for a in variants if a.loss == variant.loss) if mate is variant)
    return {
        "color": variant.colour,
        "marker": _MARKERS[turn % len(_MARKERS)],
        "linestyle": _LINES[turn % len(_LINES)],
    }


def figure(height: float, rows: int = 1, columns: int = 1, **options) -> tuple[Figure, list[Axes]]:
    """A figure of the common width and its axes, row by row; a legend makes it higher."""
    shown = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = shown.subplots(rows, columns, squeeze=False, **options)
    return shown, list(axes.flat)


def draw_cells(
    axes: Axes, matrix: np.ndarray, colours: str, limits: tuple[float, float], texts: list[list[str]]
) -> None:
    """A table of coloured cells from above, with their texts; those that are NaN stay empty."""
    mesh = axes.pcolormesh(np.ma.masked_invalid(matrix), cmap=colours, vmin=limits[0], vmax=limits[1])
    for row, column in zip(*np.nonzero(~np.isnan(matrix)), strict=True) if texts else ():
        red, green, blue, _ = mesh.cmap(mesh.norm(matrix[row, column]))
        ink = "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "#ffffff"
        place = (column + 0.5, row + 0.5)
        axes.text(*place, texts[row][column], ha="center", va="center", color=ink, fontsize=10)
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


def to_svg(shown: Figure) -> Svg:
    """The figure as the text of an SVG element, with `INK` where the text colour belongs."""
    buffer = io.StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    shown.savefig(buffer, format="svg", metadata=metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<[^>]*>", _shorter, text)
    svg = Svg(text.replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans', sans-serif"))
    svg.figure = shown
    return svg


def to_png(plot: Plot) -> bytes:
    """A plot as it was drawn, in pixels, on white."""
    assert isinstance(plot.svg, Svg)
    buffer = io.BytesIO()
    with style():
        plot.svg.figure.savefig(buffer, format="png", dpi=150, facecolor="white")
    return buffer.getvalue()


def _shorter(tag: re.Match) -> str:
    """A tag with its coordinates cut to hundredths of a point, finer than any screen; text lies between tags."""
    return re.sub(r"(\d+\.\d\d)\d+", r"\1", tag[0])


def panel(kind: str, axes: Axes, **more: Any) -> dict[str, Any]:
    """Where a drawn panel lies in the SVG, and how its classes are found.

    `columns`: the classes from many to few images side by side. `points`: recall and precision of each class under
    the `variant`, from `low` to `high` percent. `cells`: true classes from above, predicted ones from the left, in the
    `order` given (places among the classes from many to few images).
    """
    shown = axes.figure
    assert isinstance(shown, Figure)
    width, height = (72 * inches for inches in shown.get_size_inches())
    box = axes.get_position()
    corner = (box.x0 * width, (1 - box.y1) * height, box.width * width, box.height * height)
    return {"kind": kind, "box": [round(float(value), 1) for value in corner], **more}


def standalone(svg: str) -> str:
    """A file of its own: dark ink on white."""
    end = svg.index(">") + 1
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg[:end]}{ground}{svg[end:]}'.replace(INK, _PRINT_INK)


def inline(svg: str, prefix: str) -> str:
    """Part of a page: in the page's ink and width, and with ids that no other plot has."""
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", svg)
    end = svg.index(">")
    head = re.sub(r'\s(width|height)="[^"]*"', "", svg[:end])
    return f'{head} aria-hidden="true" focusable="false"{svg[end:]}'.replace(INK, "currentColor").strip()

"""A table of the report: a DataFrame of cells, written as CSV (unrounded), Markdown and LaTeX."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pandas as pd

from data_lt.files import guarded
from pilot_tal.metrics import Difference, Spread
from pilot_tal.results.display import clean, interval, percent, points

_LATEX = str.maketrans(
    {
        **{c: f"\\{c}" for c in "{}$&#_%"},
        **{c: f"{{{c}}}" for c in "[]*"},  # after `\\` LaTeX would read them as arguments
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "…": r"\ldots{}"},
        **{"−": "$-$", "±": r"$\pm$", "α": r"$\alpha$", "·": r"$\cdot$", "×": r"$\times$"},
    }
)
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~$-])")
_SUBSCRIPTS = ("A_Mean", "A_Tail", "A_Head", "A_Last", "A_Avg")


@dataclass(frozen=True)
class Cell:
    """What is printed, a smaller detail behind it, and the unrounded values by name (percent)."""

    text: str
    detail: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    bold: bool = False
    underlined: bool = False


@dataclass
class Table:
    """A table.

    Attributes:
        frame: A `Cell` in every place; columns may have several levels of titles.
        labels: Number of leading columns that hold names.
        blocks: Number of leading columns whose change starts a new block of rows.
        conditions: What was run, for the caption in LaTeX.
        formats: What it is written as.
    """

    name: str
    title: str
    frame: pd.DataFrame
    labels: int = 1
    blocks: int = 1
    conditions: str = ""
    formats: tuple[str, ...] = ("csv", "md", "tex")

    @property
    def rows(self) -> list[list[Cell]]:
        """The cells, row by row."""
        return self.frame.to_numpy().tolist()

    @property
    def rules(self) -> set[int]:
        """Rows that start a new block."""
        keys = [tuple(cell.text for cell in row[: self.blocks]) for row in self.rows]
        return {i for i in range(1, len(keys)) if keys[i] != keys[i - 1]} if self.blocks else set()

    def header(self) -> Iterator[list[tuple[str, int]]]:
        """For each level, the titles from left to right with the number of columns that each spans."""
        titles = [column if isinstance(column, tuple) else (column,) for column in self.frame.columns]
        for level in range(self.frame.columns.nlevels):
            last = level == self.frame.columns.nlevels - 1
            keys = [(i if last or i < self.labels else -1, *title[: level + 1]) for i, title in enumerate(titles)]
            yield [(key[-1], len(list(group))) for key, group in groupby(keys)]

    def to_csv(self) -> str:
        """CSV with a column for each value behind a cell; texts that a spreadsheet would execute are guarded."""
        columns: dict[str, list[Any]] = {}
        for column, cells in self.frame.items():
            title = " ".join(filter(None, column)) if isinstance(column, tuple) else str(column)
            for key in dict.fromkeys(key for cell in cells for key in cell.values) or [None]:
                name = title if key is None else f"{title} {key}".strip()
                columns[guarded(name)] = [guarded(c.text) if key is None else c.values.get(key) for c in cells]
        table = pd.DataFrame(columns)
        return table.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")

    def to_markdown(self) -> str:
        """A Markdown table with its title; winners in bold."""
        titles = [markdown(" ".join(filter(None, c)) if isinstance(c, tuple) else str(c)) for c in self.frame.columns]
        lines = [titles, [":--" if i < self.labels else "--:" for i in range(len(titles))]]
        lines += [[_markdown_cell(cell) for cell in row] for row in self.rows]
        return f"**{markdown(self.title)}**\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def to_latex(self) -> str:
        """A LaTeX table (package booktabs); winners in bold, the conditions in its caption."""
        frame = self.frame.map(_latex_cell)
        levels = [[_latex_title(title) for title in level] for level in zip(*_tuples(frame.columns), strict=True)]
        frame.columns = pd.MultiIndex.from_arrays(levels) if len(levels) > 1 else pd.Index(levels[0])
        caption = latex(f"{self.title}. {self.conditions}" if self.conditions else self.title)
        align = "l" * self.labels + "c" * (len(frame.columns) - self.labels)
        options = {"caption": caption, "column_format": align, "multicolumn_format": "c"}
        return "% needs \\usepackage{booktabs}\n" + frame.to_latex(index=False, escape=False, **options)

    def texts(self) -> Iterator[tuple[str, str]]:
        """File extension and text of every format."""
        writers = {"csv": self.to_csv, "md": self.to_markdown, "tex": self.to_latex}
        for extension in self.formats:
            yield extension, writers[extension]()


def make_frame(columns: Sequence[str | tuple[str, ...]], rows: Sequence[Sequence[Any]]) -> pd.DataFrame:
    """A frame of cells; texts and whole numbers become cells, short titles get empty upper levels."""
    cells = [[cell if isinstance(cell, Cell) else name_cell(cell) for cell in row] for row in rows]
    depth = max(len(column) if isinstance(column, tuple) else 1 for column in columns)
    if depth == 1:
        return pd.DataFrame(cells, columns=pd.Index(columns), dtype=object)
    padded = [c + ("",) * (depth - len(c)) if isinstance(c, tuple) else (c, *[""] * (depth - 1)) for c in columns]
    return pd.DataFrame(cells, columns=pd.MultiIndex.from_tuples(padded), dtype=object)


def name_cell(name: Any) -> Cell:
    """A name, or a whole number that is printed as it is."""
    return Cell(name) if isinstance(name, str) else Cell(str(name), values={"": int(name)})


def spread_cell(spread: Spread | None, bold: bool = False) -> Cell:
    """Mean ± deviation; a dash where there is none."""
    if spread is None:
        return Cell("–", values={"mean": None, "std": None})
    detail = f"± {percent(spread.std)}" if spread.std is not None else ""
    return Cell(percent(spread.mean), detail, {"mean": _percent(spread.mean), "std": _percent(spread.std)}, bold)


def difference_cell(difference: Difference | None) -> Cell:
    """Paired difference with its interval."""
    if difference is None:
        return Cell("–", values=dict.fromkeys(("mean", "low", "high", "seeds")))
    values = {key: _percent(getattr(difference, key)) for key in ("mean", "low", "high")}
    detail = f"({interval(difference) or 'one seed'})"
    return Cell(points(difference.mean), detail, {**values, "seeds": difference.n})


def percent_cell(value: float | None, digits: int = 2, bold: bool = False, underlined: bool = False) -> Cell:
    """One fraction in percent."""
    return Cell(percent(value, digits), "", {"": _percent(value)}, bold, underlined)


def points_cell(value: float | None, digits: int = 2) -> Cell:
    """One difference of fractions in points, with its sign."""
    return Cell("–" if value is None else points(value, digits), values={"": _percent(value)})


def latex(text: str) -> str:
    """`text` as LaTeX prints it literally."""
    return clean(text).translate(_LATEX)


def markdown(text: str) -> str:
    """`text` as Markdown prints it literally, also inside a table."""
    plain = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", plain)


def _tuples(columns: pd.Index) -> list[tuple[str, ...]]:
    return [column if isinstance(column, tuple) else (column,) for column in columns]


def _latex_title(title: str) -> str:
    """`A_Tail` as the paper prints it."""
    return f"$A_{{\\mathrm{{{title[2:]}}}}}$" if title in _SUBSCRIPTS else latex(title)


def _latex_cell(cell: Cell) -> str:
    text = rf"\textbf{{{latex(cell.text)}}}" if cell.bold else latex(cell.text)
    text = rf"\underline{{{text}}}" if cell.underlined else text
    return f"{text} {latex(cell.detail)}" if cell.detail else text


def _markdown_cell(cell: Cell) -> str:
    text = f"**{markdown(cell.text)}**" if cell.bold else markdown(cell.text)
    return f"{text} {markdown(cell.detail)}" if cell.detail else text


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value

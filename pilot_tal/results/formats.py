"""Names, numbers and tables as the report prints them; a table is written as CSV (unrounded), Markdown and LaTeX.

Names of classes, datasets and losses come from outside; `clean` makes them printable, and each format escapes them
in one place: HTML in the template engine, the others here.
"""

import csv
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from data_lt.files import guarded
from pilot_tal.metrics import Difference, Spread

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


def clean(name: object) -> str:
    """One printable line: control characters and line breaks become spaces, broken Unicode a "?"."""
    text = str(name).encode("utf-8", "replace").decode("utf-8")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def shorten(text: str, limit: int = 36) -> str:
    """`text`, cut with an ellipsis where it is longer than `limit`."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def slug(text: str) -> str:
    """A safe file name; a long one is cut, with a hash of all of `text` at its end."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
    return name if len(name) <= 60 else f"{name[:60].rstrip('-')}-{digest}"


def exact(value: float) -> float:
    """Without the last bits, so that 2.75 computed in two ways is one number."""
    return round(value, 9)


def percent(value: float | None, digits: int = 2, sign: str = "") -> str:
    """A fraction in percent; a dash when there is none."""
    if value is None:
        return "–"
    shown = f"{exact(100 * value):{sign}.{digits}f}"
    return shown.replace("-", "−") if float(shown) else f"{0:.{digits}f}"


def points(value: float | None, digits: int = 2) -> str:
    """A difference of fractions in percentage points, with its sign; a dash when there is none."""
    return percent(value, digits, "+")


def interval(difference: Difference, digits: int = 2) -> str:
    """`−0.52 to +6.91`; empty for one seed. An end that rounds to 0 keeps its sign."""
    if difference.low is None or difference.high is None:
        return ""
    ends = (exact(100 * end) for end in (difference.low, difference.high))
    return " to ".join(f"{end:+.{digits}f}".replace("-", "−") if end else points(0, digits) for end in ends)


def number(count: int, noun: str, plural: str | None = None) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


@dataclass(frozen=True)
class Cell:
    """What is printed, a smaller detail behind it, and the unrounded values by name (percent)."""

    text: str
    detail: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    bold: bool = False


@dataclass
class Table:
    """A table: a `Cell` in every place; columns may have several levels of titles, the first `labels` hold names.

    `conditions` is what was run, for the caption in LaTeX, and `formats` what the table is written as.
    """

    name: str
    title: str
    frame: pd.DataFrame
    labels: int = 1
    conditions: str = ""
    formats: tuple[str, ...] = ("csv", "md", "tex")

    @property
    def rows(self) -> list[list[Cell]]:
        """The cells, row by row."""
        return self.frame.to_numpy().tolist()

    @property
    def titles(self) -> list[tuple[str, ...]]:
        """The titles of each column, from above."""
        return [column if isinstance(column, tuple) else (column,) for column in self.frame.columns]

    def header(self) -> Iterator[list[tuple[str, int]]]:
        """For each level, the titles from left to right with the number of columns that each spans."""
        for level in range(1, self.frame.columns.nlevels + 1):
            last = level == self.frame.columns.nlevels
            keys = [(i if last or i < self.labels else -1, title[:level]) for i, title in enumerate(self.titles)]
            yield [(title[-1], len(list(group))) for (_, title), group in groupby(keys)]

    def to_csv(self) -> str:
        """CSV with a column for each value behind a cell; texts that a spreadsheet would execute are guarded."""
        columns: dict[str, list[Any]] = {}
        for title, (_, cells) in zip(self.titles, self.frame.items(), strict=True):
            for key in dict.fromkeys(key for cell in cells for key in cell.values) or [None]:
                name = guarded(" ".join(filter(None, (*title, key))))
                columns[name] = [guarded(cell.text) if key is None else cell.values.get(key) for cell in cells]
        return pd.DataFrame(columns).to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")

    def to_markdown(self) -> str:
        """A Markdown table with its title; winners in bold."""
        lines = [[markdown(" ".join(filter(None, title))) for title in self.titles]]
        lines += [[":--" if i < self.labels else "--:" for i in range(len(self.titles))]]
        lines += [[_marked(cell, markdown, "**{}**") for cell in row] for row in self.rows]
        return f"**{markdown(self.title)}**\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def to_latex(self) -> str:
        """A LaTeX table (package booktabs); winners in bold, the conditions in its caption."""
        frame = self.frame.map(lambda cell: _marked(cell, latex, r"\textbf{{{}}}"))
        levels = [[_latex_title(title) for title in level] for level in zip(*self.titles, strict=True)]
        frame.columns = pd.MultiIndex.from_arrays(levels) if len(levels) > 1 else pd.Index(levels[0])
        caption = latex(f"{self.title}. {self.conditions}" if self.conditions else self.title)
        align = "l" * self.labels + "c" * (len(frame.columns) - self.labels)
        options = {"caption": caption, "column_format": align, "multicolumn_format": "c"}
        return "% needs \\usepackage{booktabs}\n" + frame.to_latex(index=False, escape=False, **options)

    def write(self, folder: Path) -> None:
        """Write every format."""
        writers = {"csv": self.to_csv, "md": self.to_markdown, "tex": self.to_latex}
        for extension in self.formats:
            write_text(folder / f"{self.name}.{extension}", writers[extension]())


def write_text(path: Path, text: str) -> None:
    """Write a file and its folder, the same on every platform."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))


def make_frame(columns: Sequence[str | tuple[str, ...]], rows: Sequence[Sequence[Any]]) -> pd.DataFrame:
    """A frame of cells; texts and whole numbers become cells, short titles get empty lower levels."""
    titles = [column if isinstance(column, tuple) else (column,) for column in columns]
    depth = max(map(len, titles))
    index = pd.MultiIndex.from_tuples([title + ("",) * (depth - len(title)) for title in titles])
    cells = [[cell if isinstance(cell, Cell) else _name_cell(cell) for cell in row] for row in rows]
    return pd.DataFrame(cells, columns=index if depth > 1 else index.get_level_values(0), dtype=object)


def _name_cell(name: Any) -> Cell:
    return Cell(name) if isinstance(name, str) else Cell(str(name), values={"": int(name)})


def spread_cell(spread: Spread | None, bold: bool = False, digits: int = 2) -> Cell:
    """Mean ± deviation; a dash where there is none."""
    mean, std = (spread.mean, spread.std) if spread else (None, None)
    detail = "" if std is None else f"± {percent(std, digits)}"
    return Cell(percent(mean, digits), detail, {"mean": _percent(mean), "std": _percent(std)}, bold)


def difference_cell(difference: Difference | None, digits: int = 2) -> Cell:
    """Paired difference with its interval; a dash where there is none."""
    if difference is None:
        return Cell("–", values=dict.fromkeys(("mean", "low", "high", "seeds")))
    values = {key: _percent(getattr(difference, key)) for key in ("mean", "low", "high")}
    detail = f"({interval(difference, digits) or 'one seed'})"
    return Cell(points(difference.mean, digits), detail, {**values, "seeds": difference.n})


def percent_cell(value: float | None, digits: int = 2, bold: bool = False, sign: str = "") -> Cell:
    """One fraction in percent; a dash for none or NaN."""
    known = None if value is None or np.isnan(value) else float(value)
    return Cell(percent(known, digits, sign), "", {"": _percent(known)}, bold)


def latex(text: str) -> str:
    """`text` as LaTeX prints it literally."""
    return clean(text).translate(_LATEX)


def markdown(text: str) -> str:
    """`text` as Markdown prints it literally, also inside a table."""
    plain = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", plain)


def _latex_title(title: str) -> str:
    return f"$A_{{\\mathrm{{{title[2:]}}}}}$" if re.fullmatch("A_[A-Z][a-z]+", title) else latex(title)


def _marked(cell: Cell, escape: Callable[[str], str], bold: str) -> str:
    text = bold.format(escape(cell.text)) if cell.bold else escape(cell.text)
    return f"{text} {escape(cell.detail)}" if cell.detail else text


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value

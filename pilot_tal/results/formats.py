"""A table, and the same table as CSV (unrounded), Markdown and LaTeX. The page renders it as HTML."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, SupportsInt

from data_lt.files import guarded
from pilot_tal.metrics import Difference, Spread
from pilot_tal.results.display import clean, interval, percent, points

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "−": "$-$",
    "±": r"$\pm$",
    "α": r"$\alpha$",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "…": r"\ldots{}",
}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~$-])")


@dataclass(frozen=True)
class Entry:
    """What is printed, with a smaller detail behind it, and the unrounded values by name (percent)."""

    text: str
    detail: str = ""
    values: tuple[tuple[str, Any], ...] = ()
    best: bool = False
    top: bool = False


@dataclass
class Table:
    """Columns have one or more levels of titles; the first `labels` columns hold names, the rest numbers."""

    name: str
    title: str
    columns: Sequence[tuple[str, ...]]
    labels: int
    rows: list[list[Entry]] = field(default_factory=list)
    rules: set[int] = field(default_factory=set)
    """Rows above which a rule is drawn."""

    def spans(self, level: int) -> Iterator[tuple[str, int]]:
        """Titles of one level from left to right, with the number of columns each one spans."""
        for key, group in groupby(range(len(self.columns)), key=lambda i: self._span_key(i, level)):
            yield key[-1], len(list(group))

    @property
    def levels(self) -> int:
        """Rows of the header."""
        return max(len(column) for column in self.columns)

    def _span_key(self, column: int, level: int) -> tuple:
        titles = self.columns[column]
        padded = titles + ("",) * (self.levels - len(titles))
        own = (column,) if column < self.labels or level == self.levels - 1 else ()
        return (*own, *padded[: level + 1])


def name_cell(name: str | SupportsInt) -> Entry:
    """A name or a whole number that is printed as it is."""
    return Entry(str(name), values=() if isinstance(name, str) else (("", int(name)),))


def spread_cell(spread: Spread | None, best: bool = False) -> Entry:
    """Mean ± deviation; a dash where there is none."""
    if spread is None:
        return Entry("–", values=(("mean", None), ("std", None)))
    values = (("mean", _percent(spread.mean)), ("std", _percent(spread.std)))
    detail = f"± {percent(spread.std)}" if spread.std is not None else ""
    return Entry(percent(spread.mean), detail, values, best)


def difference_cell(difference: Difference | None) -> Entry:
    """Paired difference with its interval."""
    if difference is None:
        return Entry("–", values=tuple((key, None) for key in ("mean", "low", "high", "seeds")))
    found = {key: _percent(getattr(difference, key)) for key in ("mean", "low", "high")}
    detail = f"({interval(difference) or 'one seed'})"
    return Entry(points(difference.mean), detail, (*found.items(), ("seeds", difference.n)))


def percent_cell(value: float | None, digits: int = 2, best: bool = False, top: bool = False) -> Entry:
    """One fraction in percent."""
    return Entry(percent(value, digits), values=(("", _percent(value)),), best=best, top=top)


def points_cell(value: float | None, digits: int = 2) -> Entry:
    """One difference of fractions in points, with its sign."""
    return Entry("–" if value is None else points(value, digits), values=(("", _percent(value)),))


def to_csv(table: Table) -> str:
    """CSV with a column for each value behind a cell."""
    parts = [list(dict.fromkeys(key for row in table.rows for key, _ in row[i].values)) for i in _columns(table)]
    titles = [" ".join(filter(None, column)) for column in table.columns]
    lines: list[list[Any]] = [[f"{titles[i]} {key}".strip() for i in _columns(table) for key in parts[i] or [""]]]
    for row in table.rows:
        lines.append([])
        for i in _columns(table):
            values = dict(row[i].values)
            lines[-1] += [values.get(key) for key in parts[i]] if parts[i] else [row[i].text]
    return "".join(",".join(map(_csv_field, line)) + "\n" for line in lines)


def to_markdown(table: Table) -> str:
    """A Markdown table with its title; the best in bold."""
    titles = [markdown(" ".join(filter(None, column))) for column in table.columns]
    align = [":--" if i < table.labels else "--:" for i in _columns(table)]
    lines = [f"**{markdown(table.title)}**", "", _line(titles), _line(align)]
    for row in table.rows:
        lines.append(_line(list(map(_markdown_cell, row))))
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """A LaTeX table (package booktabs); the best in bold, the best of a whole column underlined too."""
    align = "l" * table.labels + "c" * (len(table.columns) - table.labels)
    lines = ["% needs \\usepackage{booktabs}"]
    lines += [r"\begin{table}", r"\centering", rf"\caption{{{latex(table.title)}}}"]
    lines += [rf"\begin{{tabular}}{{{align}}}", r"\toprule"]
    for level in range(table.levels):
        lines += _latex_header(table, level)
    lines.append(r"\midrule")
    for index, row in enumerate(table.rows):
        if index and index in table.rules:
            lines.append(r"\midrule")
        lines.append(" & ".join(map(_latex_cell, row)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def latex(text: str) -> str:
    """`text` as LaTeX prints it literally."""
    return "".join(_LATEX.get(c, c) for c in clean(text))


def markdown(text: str) -> str:
    """`text` as Markdown prints it literally, also inside a table."""
    plain = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", plain)


def _csv_field(value: Any) -> str:
    """Numbers bare; texts in quotes, with an apostrophe before what a spreadsheet would take for a formula."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value)
    return f'"{guarded(value).replace(chr(34), 2 * chr(34))}"'


def _latex_header(table: Table, level: int) -> list[str]:
    """One row of the header, and the partial rules under titles that span columns."""
    cells, rules, start = [], [], 1
    for title, width in table.spans(level):
        shown = _latex_title(title)
        cells.append(shown if width == 1 else rf"\multicolumn{{{width}}}{{c}}{{{shown}}}")
        if width > 1 and title:
            rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    return [" & ".join(cells) + r" \\", *([" ".join(rules)] if rules else [])]


def _latex_title(title: str) -> str:
    """`A_Tail` is printed as the paper prints it."""
    for metric in ("A_Mean", "A_Tail", "A_Head", "A_Last", "A_Avg"):
        if title == metric:
            return f"$A_{{\\mathrm{{{metric[2:]}}}}}$"
    return _latex_start(latex(title))


def _latex_cell(cell: Entry) -> str:
    text = _latex_start(latex(cell.text))
    text = rf"\textbf{{{text}}}" if cell.best else text
    text = rf"\underline{{{text}}}" if cell.top else text
    return f"{text} {latex(cell.detail)}" if cell.detail else text


def _latex_start(text: str) -> str:
    r"""Keeps the `\\` of the row before from taking a `[` or `*` for its own argument."""
    return f"{{{text[0]}}}{text[1:]}" if text.startswith(("[", "*")) else text


def _markdown_cell(cell: Entry) -> str:
    text = f"**{markdown(cell.text)}**" if cell.best else markdown(cell.text)
    return f"{text} {markdown(cell.detail)}" if cell.detail else text


def _columns(table: Table) -> range:
    return range(len(table.columns))


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value

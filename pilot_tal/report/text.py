"""Names and numbers as the report prints them, and the escapes of its formats.

Names of classes, datasets and losses come from outside; `clean` makes them printable, and each format
escapes them in one place: HTML in the template engine, Markdown and LaTeX here.
"""

import hashlib
import re

from pilot_tal.metrics import Difference, Spread

DATASETS = {
    "cub_lt": "CUB-LT",
    "imagenetr_lt": "ImageNetR-LT",
    "food101_lt": "Food101-LT",
    "demo_lt": "Demo-LT",
    "folder_lt": "Folder-LT",
}
METHODS = {
    "l2p": "L2P",
    "dualprompt": "DualPrompt",
    "coda_prompt": "CODA-Prompt",
    "lae": "LAE",
    "mos": "MOS",
}
LOSSES = {
    "ce": "CE",
    "tal": "TAL",
    "balanced_softmax": "Balanced softmax",
    "logit_adjustment": "Logit adjustment",
    "focal": "Focal",
    "class_balanced": "Class-balanced",
    "ldam": "LDAM",
}
ENGINES = {"native": "native", "lamda-pilot": "LAMDA-PILOT", "pycil": "PyCIL"}

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
_LONGEST_SLUG = 60
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~$-])")


def clean(name: object) -> str:
    """One printable line: control characters and line breaks become spaces, broken Unicode a "?"."""
    text = str(name).encode("utf-8", "replace").decode("utf-8")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def shorten(text: str, limit: int = 40) -> str:
    """`text`, cut with an ellipsis where it is longer than `limit`."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def latex(text: str) -> str:
    """`text` as LaTeX prints it literally."""
    return "".join(_LATEX.get(c, c) for c in clean(text))


def markdown(text: str) -> str:
    """`text` as Markdown prints it literally, also inside a table."""
    plain = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", plain)


def slug(text: str) -> str:
    """A safe file name; a long one is cut, with a hash of all of `text` at its end."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"
    if len(name) <= _LONGEST_SLUG:
        return name
    return f"{name[:_LONGEST_SLUG].rstrip('-')}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


def percent(value: float | None, digits: int = 2) -> str:
    """A fraction in percent; a dash when there is none."""
    return "–" if value is None else _minus(f"{exact(100 * value):.{digits}f}")


def points(value: float, digits: int = 2) -> str:
    """A difference of fractions in percentage points, with its sign."""
    shown = f"{exact(100 * value):+.{digits}f}"
    return _minus(shown) if float(shown) else f"{0:.{digits}f}"


def exact(value: float) -> float:
    """Without the last bits, so that 2.75 reached in two ways is shown as one number."""
    return round(value, 9)


def with_deviation(spread: Spread, digits: int = 2) -> str:
    """`61.19 ± 0.42`; without deviation for one seed."""
    shown = percent(spread.mean, digits)
    return shown if spread.std is None else f"{shown} ± {percent(spread.std, digits)}"


def interval(difference: Difference, digits: int = 2) -> str:
    """`−0.52 to +6.91`; empty when there is no interval."""
    if difference.low is None or difference.high is None:
        return ""
    return f"{points(difference.low, digits)} to {points(difference.high, digits)}"


def with_interval(difference: Difference, digits: int = 2) -> str:
    """`+3.20 (−0.52 to +6.91)`."""
    return f"{points(difference.mean, digits)} ({interval(difference, digits) or 'one seed'})"


def number(count: int, noun: str, plural: str | None = None) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def _minus(text: str) -> str:
    return text.replace("-", "−")

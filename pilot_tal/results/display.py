"""Names and numbers as the report prints them.

Names of classes, datasets and losses come from outside; `clean` makes them printable, and each format escapes them
in one place: HTML in the template engine, the others in `formats`.
"""

import hashlib
import re
from collections.abc import Sequence

from pilot_tal.metrics import Difference

_LONGEST_SLUG = 60


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
    if len(name) <= _LONGEST_SLUG:
        return name
    return f"{name[:_LONGEST_SLUG].rstrip('-')}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


def exact(value: float) -> float:
    """Without the last bits, so that 2.75 computed in two ways is one number."""
    return round(value, 9)


def percent(value: float | None, digits: int = 2) -> str:
    """A fraction in percent; a dash when there is none."""
    return "–" if value is None else f"{exact(100 * value):.{digits}f}".replace("-", "−")


def points(value: float | None, digits: int = 2) -> str:
    """A difference of fractions in percentage points, with its sign; a dash when there is none."""
    if value is None:
        return "–"
    shown = f"{exact(100 * value):+.{digits}f}"
    return shown.replace("-", "−") if float(shown) else f"{0:.{digits}f}"


def interval(difference: Difference, digits: int = 2) -> str:
    """`−0.52 to +6.91`; empty for one seed. An end that rounds to 0 keeps its sign."""
    if difference.low is None or difference.high is None:
        return ""
    ends = (exact(100 * end) for end in (difference.low, difference.high))
    return " to ".join(f"{end:+.{digits}f}".replace("-", "−") if end else points(0, digits) for end in ends)


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def number(count: int, noun: str, plural: str | None = None) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def seed_list(seeds: Sequence[int]) -> str:
    """`seed 1` or `seeds 1, 2`."""
    return ("seed " if len(seeds) == 1 else "seeds ") + ", ".join(map(str, seeds))

"""`key=value` as it is typed."""

from collections.abc import Iterable, Mapping
from typing import Any

from data_lt.errors import UserError

ALIASES = {"epochs": "tuned_epoch", "loss": "losses", "seed": "seeds"}
"""Other words for a key: `epochs` is LAMDA-PILOT's `tuned_epoch`, one loss is a list of one."""


def parse_items(items: Iterable[str], aliases: Mapping[str, str] = ALIASES) -> dict[str, str]:
    """The values by key, aliases resolved.

    Raises:
        UserError: an item that is no `key=value`, or a key given twice.
    """
    values: dict[str, str] = {}
    written: dict[str, str] = {}
    for item in items:
        word, sign, text = item.partition("=")
        if not sign or not word:
            raise UserError(f"settings are written key=value, got {item[:60]!r}")
        key = aliases.get(word, word)
        if key in values:
            both = f"{written[key]} and {word} are one setting" if written[key] != word else f"{word} is given twice"
            raise UserError(f"{both}; give it once")
        values[key], written[key] = text, word
    return values


def split_values(text: str) -> list[str]:
    """`5,10` → two values; commas inside brackets do not count, and neither do spaces around a value."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def as_typed(value: Any) -> str:
    """A value as it is typed after `key=`."""
    if isinstance(value, tuple):
        return f"[{','.join(map(as_typed, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)

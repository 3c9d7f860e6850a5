"""The schema of everything a user can set: type, range, default and help, read off signatures.

    def __init__(self, gamma: Annotated[float, Rule("how much easy samples fade", 0, 100)] = 2.0): ...

A parameter of a class, or a field of a dataclass, that is annotated with a `Rule` is a setting. `settings_of` lists
them, `Option.parse` reads one from the command line, `Option.check` takes one from YAML, JSON or Python, and
`build` makes the object from checked values. Dataclasses may nest; that is how a run's record is read back.
"""

import contextlib
import dataclasses
import inspect
import json
import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from data_lt.errors import UserError, unknown_name
from data_lt.options import Rule as Rule

REQUIRED = inspect.Parameter.empty
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_LARGEST = {int: 10**9, float: 1e12}  # where a rule gives no bound: nothing that makes sense is larger
_LONGEST_TEXT = 4096
_SHOWN = 60
_NOTHING = ("null", "none")
_FREE = Rule()

Made = TypeVar("Made")


@dataclass(frozen=True)
class Option:
    """One setting: `kind` is int, float, bool, str, dict or a dataclass; `many` says that it is a list of them."""

    name: str
    kind: type
    default: Any = REQUIRED
    rule: Rule = _FREE
    many: bool = False
    optional: bool = False

    def parse(self, text: str) -> Any:
        """The value written on a command line."""
        if not text:
            raise UserError(f"{self.name} has no value; write {self.name}=VALUE or leave it out")
        if self.optional and text.lower() in _NOTHING and text not in self.rule.choices:  # law=none is a profile
            return None
        if not self.many:
            return self.check(self._scalar(text))
        if text.startswith("[") != text.endswith("]"):
            raise self._wrong(text)
        inner = text.removeprefix("[").removesuffix("]").strip()
        return self.check([self._scalar(part.strip()) for part in inner.split(",")] if inner else [])

    def check(self, value: Any) -> Any:
        """`value` in the setting's own type (lists as tuples), if it is of that type and in range."""
        if value is None and self.optional:
            return None
        if not self.many:
            return self._one(value)
        if not isinstance(value, (list, tuple)) or len(value) < self.rule.shortest:
            raise self._wrong(value)
        values = tuple(self._one(item) for item in value)
        if self.rule.unique and len(set(values)) != len(values):
            raise UserError(f"{self.name} must not name a value twice, got {_shown(value)}")
        return values

    @property
    def allowed(self) -> str:
        """`a whole number from 1 to 100`, `one of adam, sgd`, …"""
        rule = self.rule
        if rule.choices:
            text = f"one of {', '.join(rule.choices)}"
        elif rule.pattern:
            text = rule.help
        else:
            text = _KINDS.get(self.kind, "a table of values")
            text += _range(rule) if self.kind in _LARGEST else ""
        if rule.words:
            text += f", or {', '.join(rule.words)}"
        if self.many:
            text = f"a list such as [1,2] of {text.removeprefix('a ')}"
            text += f", at least {rule.shortest} long" if rule.shortest else ""
        return text + (", or null" if self.optional else "")

    def _scalar(self, text: str) -> Any:
        """The text as the setting's kind; what cannot be read so stays text and is refused by `check`."""
        if text in self.rule.words:
            return text
        if self.kind is bool:
            return {"true": True, "false": False}.get(text.lower(), text)
        if self.kind in (int, float) and len(text) <= _SHOWN and text.isascii():
            with contextlib.suppress(ValueError):
                return self.kind(text.replace("_", "x"))  # Python would read 1_000
        return text

    def _one(self, value: Any) -> Any:
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            if dataclasses.is_dataclass(self.kind):
                return build(self.kind, value)
            if self.kind is dict:
                return dict(value)
        if isinstance(value, str) and value in self.rule.words:
            return value
        if self.kind is float and type(value) is int and abs(value) < 1 << 60:
            value = float(value)
        if type(value) is not self.kind or self.kind is dict or not self._fits(value):
            raise self._wrong(value)
        return value

    def _fits(self, value: Any) -> bool:
        rule = self.rule
        if rule == _FREE:  # a field of a record, which no user sets: names of classes and seeds have no range
            return not isinstance(value, float) or math.isfinite(value)
        if isinstance(value, str):
            fits = value in rule.choices if rule.choices else re.fullmatch(rule.pattern or ".*", value, re.ASCII)
            return bool(fits) and len(value) <= _LONGEST_TEXT and value.isprintable()
        if isinstance(value, bool):
            return True
        limit = _LARGEST[self.kind]
        low, high = (sign * limit if end is None else end for sign, end in ((-1, rule.low), (1, rule.high)))
        inside = low <= value <= high  # which NaN is not
        return inside and (rule.above is None or value > rule.above) and (rule.below is None or value < rule.below)

    def _wrong(self, value: Any) -> UserError:
        return UserError(f"{self.name} must be {self.allowed}, got {_shown(value)}")


def _settings_of(made: Any) -> Mapping[str, Option]:
    """The settings of a class: its parameters with a `Rule`, and all fields of a dataclass."""
    fields = dataclasses.is_dataclass(made)
    hints = get_type_hints(made if fields else made.__init__, include_extras=True)
    found = {}
    for name, parameter in inspect.signature(made).parameters.items():
        hint, *extras = get_args(hints[name]) if get_origin(hints.get(name)) is Annotated else (hints.get(name, Any),)
        rule = next((extra for extra in extras if isinstance(extra, Rule)), None)
        if rule or fields:
            kind, many, optional = _kind(hint)
            found[name] = Option(name, kind, parameter.default, rule or _FREE, many, optional)
    return types.MappingProxyType(found)


settings_of: Callable[[Any], Mapping[str, Option]] = cache(_settings_of)


def defaults_of(made: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of a class's settings that have one."""
    return {name: s.default for name, s in settings_of(made).items() if s.default is not REQUIRED}


def build(made: Callable[..., Made], values: Mapping[str, Any], of: str = "") -> Made:
    """Makes the object from plain values by name, each checked; `of` says whose settings they are, for errors."""
    known = settings_of(made)
    for name in values:
        if name not in known:
            raise unknown_setting(name, known, of)
    for name, setting in known.items():
        if setting.default is REQUIRED and name not in values:
            raise UserError(f"{name} is missing{f' from {of}' if of else ''}")
    return made(**{name: known[name].check(value) for name, value in values.items()})


def unknown_setting(name: str, known: Mapping[str, Option], of: str) -> UserError:
    """The error for a setting that does not exist."""
    if not known:
        return UserError(f"{of or 'this'} has no settings, got {_shown(name)}")
    return unknown_name(f"setting of {of}" if of else "setting", name, known)


def _kind(hint: Any) -> tuple[type, bool, bool]:
    """Kind, whether a list, whether None is allowed; `float | str` is a number or one of the rule's words."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    inner = [option for option in options if option is not type(None)]
    optional = len(inner) < len(options)
    chosen = next((option for option in inner if option in (int, float)), inner[0])
    many = get_origin(chosen) is tuple
    chosen = get_args(chosen)[0] if many else chosen
    chosen = dict if get_origin(chosen) in (dict, Mapping) or chosen is Any else chosen
    return chosen, many, optional


def _range(rule: Rule) -> str:
    bounds = (rule.low, rule.high, rule.above, rule.below)
    low, high, above, below = ("" if value is None else f"{value:.15g}" for value in bounds)
    lower = f"from {low}" if low else f"above {above}" if above else ""
    upper = f"to {high}" if high else f"below {below}" if below else ""
    if low and not upper:
        lower = f"of at least {low}"
    elif high and not low:
        upper = f"up {upper}"
    joined = (" and " if above else " ").join(part for part in (lower, upper) if part)
    return joined and f" {joined}"


def _shown(value: Any) -> str:
    """A value as an error shows it: short, on one line."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=True, default=repr)
    except (ValueError, RecursionError):
        text = type(value).__name__
    text = repr(text) if isinstance(value, str) else text
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"

"""Names for what a report compares: short, and enough to tell apart what differs."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from pilot_tal.results.display import clean, slug
from pilot_tal.results.study import Arm, Setting, Values

_CHECKSUM = "data.checksum"
_DIGEST = re.compile(r"(?:^|(?<=@))([0-9a-f]{8})[0-9a-f]{8,}$")  # a checksum, or one behind a file's name


def label_arms(arms: list[Arm], kin: list[Arm]) -> None:
    """Names each arm of a setting by its loss and whatever else tells it from its kin: all of dataset and method."""
    engines = {arm.engine for arm in arms}
    for arm in arms:
        # What counts is not named after quick runs beside it.
        mates, others = (
            [a for a in group if a.engine == arm.engine and a.counts >= arm.counts] for group in (arms, kin)
        )
        variant = _distinct([a.shared for a in mates], [a.shared for a in others], arm.shared)
        named = arm.counts or "quick=true" in variant
        arm.variant = ", ".join(variant if named else [*variant, "quick=true"])
        own = [[a.own for a in group if a.loss == arm.loss] for group in (mates, others)]
        arm.own_variant = ", ".join(_distinct(own[0], own[1], arm.own))
        engine = arm.record.engine.title if len(engines) > 1 else ""
        extra = [text for text in (engine, arm.variant, arm.own_variant) if text]
        arm.label = clean(f"{arm.loss_title} ({', '.join(extra)})" if extra else arm.loss_title)
    name_files(arms, lambda arm: arm.label)


def note_data(settings: Sequence[Setting]) -> None:
    """Notes what tells apart the data of settings that have one dataset and equally many classes."""
    kinds: dict[tuple[str, int], dict[tuple, list[Setting]]] = {}
    for setting in settings:
        kinds.setdefault((setting.dataset, len(setting.data)), {}).setdefault(setting.data, []).append(setting)
    for kind in kinds.values():
        for note, alike in zip(_notes(list(kind)), kind.values(), strict=True):
            for setting in alike:
                setting.data_note = note


def name_files(items: Sequence[Any], name: Callable[[Any], str]) -> None:
    """Gives each item a file name that no other has."""
    taken: set[str] = set()
    for item in items:
        base = slug(name(item))
        candidates = (base, *(f"{base}-{i}" for i in range(2, len(items) + 1)))
        item.slug = next(c for c in candidates if c not in taken)
        taken.add(item.slug)


def _notes(data: list[tuple]) -> list[str]:
    """A short note on each, by the first of its features that differs between any two."""
    if len(data) == 1:
        return [""]
    counts = [[count for *_, count in classes] for classes in data]
    ranges = [f"{min(c)}–{max(c)} images a class" for c in counts]
    sums = [f"{sum(c)} training images" for c in counts]
    numbers = [f"data {i}" for i in range(1, len(data) + 1)]
    return next(notes for notes in (ranges, sums, numbers) if len(set(notes)) == len(data))


def _distinct(mates: list[Values], kin: list[Values], values: Values) -> list[str]:
    """`key=value` for each key on which the kin do not agree; those of the data count among mates only."""
    here, everywhere = (set.intersection(*(set(v) for v in group)) for group in (mates, kin))
    found = []
    for key, value in values:
        known = here if key.startswith("data.") else everywhere
        if (key, value) not in known and not (key == _CHECKSUM and _is_told(mates)):
            shown = _DIGEST.sub(r"\1", value)
            found.append(f"{key.split('.')[-1]}={shown}")
    return found


def _is_told(mates: list[Values]) -> bool:
    """Whether the other keys of the data tell the arms' checksums apart."""
    checksums: dict[Values, set[str | None]] = {}
    for values in mates:
        others = tuple((key, value) for key, value in values if key.startswith("data.") and key != _CHECKSUM)
        checksums.setdefault(others, set()).add(dict(values).get(_CHECKSUM))
    return all(len(found) == 1 for found in checksums.values())

"""Names of groups and variants: short, and enough to tell them apart."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from pilot_tal.results.display import clean, slug
from pilot_tal.results.groups import Group, Values, Variant

_CHECKSUM = "data.checksum"
_DIGEST = re.compile(r"(?:^|(?<=@))([0-9a-f]{8})[0-9a-f]{8,}$")  # a checksum, or one behind a file's name


def label_variants(variants: list[Variant], kin: list[Variant]) -> None:
    """Name each variant by its loss and the settings that tell it from its `kin`: those of its dataset and method."""
    engines = {variant.engine for variant in variants}
    for variant in variants:
        # Settings in which only quick runs differ are not named.
        mates, others = (
            [a for a in group if a.engine == variant.engine and a.counts >= variant.counts] for group in (variants, kin)
        )
        options_label = _distinct([a.shared for a in mates], [a.shared for a in others], variant.shared)
        named = variant.counts or "quick=true" in options_label
        variant.options_label = ", ".join(options_label if named else [*options_label, "quick=true"])
        own = [[a.own for a in group if a.loss == variant.loss] for group in (mates, others)]
        variant.own_options_label = ", ".join(_distinct(own[0], own[1], variant.own))
        engine = variant.record.engine.title if len(engines) > 1 else ""
        extra = [text for text in (engine, variant.options_label, variant.own_options_label) if text]
        variant.label = clean(f"{variant.loss_title} ({', '.join(extra)})" if extra else variant.loss_title)
    name_files(variants, lambda variant: variant.label)


def note_data(groups: Sequence[Group]) -> None:
    """Note what tells apart the data of groups with the same dataset and number of classes."""
    kinds: dict[tuple[str, int], dict[tuple, list[Group]]] = {}
    for group in groups:
        kinds.setdefault((group.dataset, len(group.data)), {}).setdefault(group.data, []).append(group)
    for kind in kinds.values():
        for note, alike in zip(_notes(list(kind)), kind.values(), strict=True):
            for group in alike:
                group.data_note = note


def name_files(items: Sequence[Any], name: Callable[[Any], str]) -> None:
    """Give each item a unique file name."""
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
    ranges = [f"{min(c)}–{max(c)} images per class" for c in counts]
    sums = [f"{sum(c)} training images" for c in counts]
    numbers = [f"data {i}" for i in range(1, len(data) + 1)]
    return next(notes for notes in (ranges, sums, numbers) if len(set(notes)) == len(data))


def _distinct(mates: list[Values], kin: list[Values], values: Values) -> list[str]:
    """`key=value` for each key on which the kin do not agree; those of the data count among mates only."""
    here, everywhere = (set.intersection(*(set(v) for v in group)) for group in (mates, kin))
    found = []
    for key, value in values:
        known = here if key.startswith("data.") else everywhere
        if (key, value) not in known and not (key == _CHECKSUM and _is_known(mates)):
            shown = _DIGEST.sub(r"\1", value)
            found.append(f"{key.split('.')[-1]}={shown}")
    return found


def _is_known(mates: list[Values]) -> bool:
    """Whether the other keys of the data tell the variants' checksums apart."""
    checksums: dict[Values, set[str | None]] = {}
    for values in mates:
        others = tuple((key, value) for key, value in values if key.startswith("data.") and key != _CHECKSUM)
        checksums.setdefault(others, set()).add(dict(values).get(_CHECKSUM))
    return all(len(found) == 1 for found in checksums.values())

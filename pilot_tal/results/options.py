"""One loss with several values of its options: a grid of variants."""

from dataclasses import dataclass

import pandas as pd

from pilot_tal.results.groups import Group, Variant

_MOST_SHOWN = 6  # variants in plots of single variants; above, a grid is shown by one of its variants there


@dataclass(frozen=True)
class Grid:
    """Variants that differ in options of their loss only; `options` are the names of those that vary."""

    variants: list[Variant]
    options: list[str]


def grids(group: Group) -> list[Grid]:
    """The grids among the finished variants of a group."""
    alike: dict[tuple, list[Variant]] = {}
    for variant in group.finished_variants():
        alike.setdefault((variant.engine, variant.shared, variant.loss), []).append(variant)
    found = []
    for variants in (variants for variants in alike.values() if len(variants) > 1):
        names = dict.fromkeys(name for variant in variants for name, _ in variant.own)
        options = [name for name in names if len({option(variant, name) for variant in variants}) > 1]
        order = {variant: [_value_order(option(variant, name)) for name in options] for variant in variants}
        found.append(Grid(sorted(variants, key=lambda variant: order[variant]), options))
    return found


def option(variant: Variant, name: str) -> str:
    """The value of an option of the variant's loss; a dash where it has none."""
    return dict(variant.own).get(name, "–")


def featured_variants(group: Group) -> list[Variant]:
    """The finished variants; of many, one per grid only: that with the default options, or else the first."""
    variants = group.finished_variants()
    if len(variants) <= _MOST_SHOWN:
        return variants
    hidden: set[Variant] = set()
    for grid in grids(group):
        usual = (variant for variant in grid.variants if not variant.record.changed.keys() & {*grid.options})
        hidden |= {*grid.variants} - {next(usual, grid.variants[0])}
    return [variant for variant in variants if variant not in hidden]


def _value_order(text: str) -> tuple:
    """Numbers by size, then words."""
    number = pd.to_numeric(text, errors="coerce")
    return (pd.isna(number), 0.0 if pd.isna(number) else number, text)

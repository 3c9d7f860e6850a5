"""One loss with several values of its options: a grid of variants."""

from dataclasses import dataclass

from pilot_tal.results.display import exact
from pilot_tal.results.groups import Group, Variant

_MOST_SHOWN = 6  # variants in plots of single variants; above, a grid is shown by one of its variants there


@dataclass(frozen=True)
class Grid:
    """Variants that differ in options of their loss only; `values` of each option that varies, fewest values first."""

    variants: list[Variant]
    values: dict[str, list[str]]

    def best(self, metric: str) -> Variant | None:
        """The variant with the highest mean: chosen after the fact, on the test images."""
        means = {i: exact(found.mean) for i, variant in enumerate(self.variants) if (found := variant.spread(metric))}
        return self.variants[max(means, key=lambda i: (means[i], -i))] if means else None

    def variant(self, **wanted: str) -> Variant | None:
        """The variant with these values of the options."""
        return next((variant for variant in self.variants if wanted.items() <= dict(variant.own).items()), None)


def grids(group: Group) -> list[Grid]:
    """The grids among the finished variants of a group."""
    alike: dict[tuple, list[Variant]] = {}
    for variant in group.finished_variants():
        alike.setdefault((variant.engine, variant.shared, variant.loss), []).append(variant)
    found = []
    for variants in (variants for variants in alike.values() if len(variants) > 1):
        values: dict[str, set[str]] = {}
        for name in (name for variant in variants for name, _ in variant.own):
            values[name] = {dict(variant.own).get(name, "null") for variant in variants}
        varied = {name: sorted(texts, key=_value_order) for name, texts in values.items() if len(texts) > 1}
        found.append(Grid(variants, dict(sorted(varied.items(), key=lambda item: len(item[1])))))
    return found


def featured_variants(group: Group) -> list[Variant]:
    """The finished variants; of many, one per grid only: that with the default options, or else the first."""
    variants = group.finished_variants()
    if len(variants) <= _MOST_SHOWN:
        return variants
    hidden: set[Variant] = set()
    for grid in grids(group):
        usual = (variant for variant in grid.variants if not variant.record.changed.keys() & grid.values.keys())
        hidden |= {*grid.variants} - {next(usual, grid.variants[0])}
    return [variant for variant in variants if variant not in hidden]


def _value_order(text: str) -> tuple:
    """Numbers by size, then words."""
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)

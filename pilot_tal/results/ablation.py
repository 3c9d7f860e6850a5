"""One loss with several values of its options: a grid of variants."""

from dataclasses import dataclass
from itertools import product

from pilot_tal.results.display import exact
from pilot_tal.results.study import Group, Variant

_MOST_SHOWN = 6  # variants in plots of single variants; above, a grid is shown by one of its variants there


@dataclass(frozen=True)
class Grid:
    """Variants of a group that differ in options of their loss alone; `values` of each option that varies, in order."""

    variants: list[Variant]
    values: dict[str, list[str]]

    def best(self, metric: str) -> Variant | None:
        """The variant with the highest mean: chosen after the fact, by the test images it is judged by."""
        means = {i: exact(found.mean) for i, variant in enumerate(self.variants) if (found := variant.spread(metric))}
        return self.variants[max(means, key=lambda i: (means[i], -i))] if means else None

    def planes(self) -> list[tuple[str, list[list[Variant | None]]]]:
        """The variants by the values of the last option (rows) and of the one before it (columns), which have the most.

        Each combination of further options that was run gives a plane of its own, whose name says which.
        """
        *others, across, down = self.values
        found = []
        for rest in product(*(self.values[name] for name in others)):
            fixed = dict(zip(others, rest, strict=True))
            rows = [
                [self._variant({**fixed, across: x, down: y}) for x in self.values[across]] for y in self.values[down]
            ]
            if any(variant for row in rows for variant in row):
                found.append((", ".join(f"{name}={value}" for name, value in fixed.items()), rows))
        return found

    def curve(self) -> list[Variant]:
        """With one option: the variants in the order of its values."""
        ((option, values),) = self.values.items()
        return [variant for value in values if (variant := self._variant({option: value}))]

    def _variant(self, wanted: dict[str, str]) -> Variant | None:
        return next((variant for variant in self.variants if wanted.items() <= dict(variant.own).items()), None)


def grids(group: Group) -> list[Grid]:
    """The grids among the finished variants of a group."""
    alike: dict[tuple, list[Variant]] = {}
    for variant in group.finished_variants():
        alike.setdefault((variant.engine, variant.shared, variant.loss), []).append(variant)
    found = []
    for variants in (variants for variants in alike.values() if len(variants) > 1):
        names = dict.fromkeys(name for variant in variants for name, _ in variant.own)
        values = {
            name: sorted({dict(variant.own).get(name, "null") for variant in variants}, key=_value_order)
            for name in names
        }
        varied = {name: texts for name, texts in values.items() if len(texts) > 1}
        found.append(Grid(variants, dict(sorted(varied.items(), key=lambda item: len(item[1])))))
    return found


def featured_variants(group: Group) -> list[Variant]:
    """The finished variants; of a large comparison one a grid only, that with the default options or else the first."""
    variants = group.finished_variants()
    if len(variants) <= _MOST_SHOWN:
        return variants
    hidden: set[Variant] = set()
    for grid in grids(group):
        usual = next(
            (variant for variant in grid.variants if not variant.changes().keys() & grid.values.keys()),
            grid.variants[0],
        )
        hidden |= {*grid.variants} - {usual}
    return [variant for variant in variants if variant not in hidden]


def _value_order(text: str) -> tuple:
    """Numbers by size, then words."""
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)

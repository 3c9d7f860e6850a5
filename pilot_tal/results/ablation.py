"""One loss with several values of its options: a grid of arms."""

from dataclasses import dataclass
from itertools import product

from pilot_tal.results.display import exact
from pilot_tal.results.study import Arm, Setting

_MOST_SHOWN = 6  # arms in plots of single arms; above, a grid is shown by one of its arms there


@dataclass(frozen=True)
class Grid:
    """Arms of a setting that differ in options of their loss alone; `values` of each option that varies, in order."""

    arms: list[Arm]
    values: dict[str, list[str]]

    def best(self, metric: str) -> Arm | None:
        """The arm with the highest mean: chosen after the fact, by the test images it is judged by."""
        means = {i: exact(found.mean) for i, arm in enumerate(self.arms) if (found := arm.spread(metric))}
        return self.arms[max(means, key=lambda i: (means[i], -i))] if means else None

    def planes(self) -> list[tuple[str, list[list[Arm | None]]]]:
        """The arms by the values of the last option (rows) and of the one before it (columns), which have the most.

        Each combination of further options that was run gives a plane of its own, whose name says which.
        """
        *others, across, down = self.values
        found = []
        for rest in product(*(self.values[name] for name in others)):
            fixed = dict(zip(others, rest, strict=True))
            rows = [[self._arm({**fixed, across: x, down: y}) for x in self.values[across]] for y in self.values[down]]
            if any(arm for row in rows for arm in row):
                found.append((", ".join(f"{name}={value}" for name, value in fixed.items()), rows))
        return found

    def curve(self) -> list[Arm]:
        """With one option: the arms in the order of its values."""
        ((option, values),) = self.values.items()
        return [arm for value in values if (arm := self._arm({option: value}))]

    def _arm(self, wanted: dict[str, str]) -> Arm | None:
        return next((arm for arm in self.arms if wanted.items() <= dict(arm.own).items()), None)


def grids(setting: Setting) -> list[Grid]:
    """The grids among the finished arms of a setting."""
    alike: dict[tuple, list[Arm]] = {}
    for arm in setting.finished_arms():
        alike.setdefault((arm.engine, arm.shared, arm.loss), []).append(arm)
    found = []
    for arms in (arms for arms in alike.values() if len(arms) > 1):
        names = dict.fromkeys(name for arm in arms for name, _ in arm.own)
        values = {name: sorted({dict(arm.own).get(name, "null") for arm in arms}, key=_value_order) for name in names}
        varied = {name: texts for name, texts in values.items() if len(texts) > 1}
        found.append(Grid(arms, dict(sorted(varied.items(), key=lambda item: len(item[1])))))
    return found


def featured_arms(setting: Setting) -> list[Arm]:
    """The finished arms; of a large comparison one a grid only, that with the default options or else the first."""
    arms = setting.finished_arms()
    if len(arms) <= _MOST_SHOWN:
        return arms
    hidden: set[Arm] = set()
    for grid in grids(setting):
        usual = next((arm for arm in grid.arms if not arm.changes().keys() & grid.values.keys()), grid.arms[0])
        hidden |= {*grid.arms} - {usual}
    return [arm for arm in arms if arm not in hidden]


def _value_order(text: str) -> tuple:
    """Numbers by size, then words."""
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)

"""The tables of results/ as docs/results.md needs them: arms of runs, their means and differences, as texts."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
from results_studies import read_studies

from data_lt.files import write_text
from pilot_tal.learners import LEARNERS
from pilot_tal.metrics import Difference, mean_interval, paired_difference, spread
from pilot_tal.results.display import end, points

PHOTOS = ("cub", "flowers", "pets")
SHOWN = {"a_tail": "A_Tail", "a_mean": "A_Mean", "a_head": "A_Head"}
BASELINES = {"simplecil": "none", "ranpac": "ce", "ease": "ce"}  # what compares with class prototypes, with its loss
TRAINED = tuple(method for method in LEARNERS if method not in BASELINES)
TIE = 1e-3  # points: above the rounding of results/*.csv, below one test image
ARM = ("study", "method", "loss", "options", "engine")
WORDS = (
    "Dataset",
    "Method",
    "Engine",
    "Loss",
    "Against",
    "Metric",
    "Setting",
    "It knows",
    "Classes",
    "Set",
    "Batch × classes",
    "Study",
    "Command",
)
TEXTS = (*ARM, "fidelity", "commit", "run", "settings", "dataset", "name", "class")


class Evidence:
    """All runs, and the studies they belong to."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.studies = read_studies(folder)
        self.runs = read(folder / "runs.csv")
        self._arms = {arm: runs.set_index("seed") for arm, runs in self.runs.groupby(list(ARM))}

    def table(self, name: str) -> pd.DataFrame | None:
        """Another table of results/, if it is there."""
        path = self.folder / f"{name}.csv"
        return read(path) if path.is_file() else None

    def short_title(self, study: str) -> str:
        """A study's title as tables and pictures have room for it: `CUB-LT (40)`."""
        return self.studies[study]["title"].replace(" classes)", ")")

    def values(self, metric: str, **where: str) -> dict[int, float]:
        """A metric of the runs of an arm in percent, by seed; empty if there are none."""
        arm = {"options": "", "engine": "native", **where}
        runs = self._arms.get(tuple(arm[column] for column in ARM))
        return {} if runs is None else (100 * runs[metric]).to_dict()

    def pair(self, metric: str, loss: str, base: str = "ce", **where) -> tuple[dict[int, float], dict[int, float]]:
        """A loss and CE, or another, on the seeds that both have."""
        return shared(*(self.values(metric, loss=name, **where) for name in (loss, base)))

    def difference(self, metric: str, loss: str, base: str = "ce", **where) -> Difference | None:
        """A loss minus CE, or minus another, paired by seed, in points."""
        return paired_difference(*self.pair(metric, loss, base, **where))

    def cells(
        self, loss: str, names: Iterable[str] = PHOTOS, base: str = "ce", methods: Sequence[str] = TRAINED
    ) -> list[tuple[str, str]]:
        """Study and method of all comparisons of a loss with CE, or with another."""
        found = [(s, m) for s in names for m in methods]
        return [(s, m) for s, m in found if self.difference("a_tail", loss, base, study=s, method=m)]

    def pooled(
        self,
        metric: str,
        loss: str,
        names: Iterable[str] = PHOTOS,
        base: str = "ce",
        methods: Sequence[str] = TRAINED,
    ) -> tuple[Difference | None, list[float]]:
        """A loss minus CE, or minus another, pooled over cells; and the means of the cells."""
        return pool(self.changes(metric, loss, self.cells(loss, names, base, methods), base))

    def changes(
        self, metric: str, loss: str, cells: Iterable[tuple[str, str]], base: str = "ce"
    ) -> list[dict[int, float]]:
        """A loss minus CE, or minus another, in each of some cells, by seed."""
        return [minus(*self.pair(metric, loss, base, study=s, method=m)) for s, m in cells]


def pool(cells: list[dict[int, float]]) -> tuple[Difference | None, list[float]]:
    """The mean over cells of their means over seeds, with its interval; and those means.

    The interval is the wider of two of Student's: over the cells, and over the seeds that all cells have.
    """
    if not cells:
        return None, []
    means = [average(cell) for cell in cells]
    found = [mean_interval(values) for values in (means, list(over_cells(cells).values())) if values]
    halves = [interval.high - interval.mean for interval in found if interval.high is not None]
    centre = found[0].mean
    low, high = (centre - max(halves), centre + max(halves)) if halves else (None, None)
    return Difference(centre, low, high, len(cells)), means


def over_cells(cells: list[dict[int, float]]) -> dict[int, float]:
    """The mean over cells on each seed that all of them have."""
    seeds = [seed for seed in cells[0] if all(seed in cell for cell in cells)]
    return {seed: sum(cell[seed] for cell in cells) / len(cells) for seed in seeds}


def minus(ours: dict[int, float], theirs: dict[int, float]) -> dict[int, float]:
    """The differences on the seeds that both have."""
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def shared(ours: dict[int, float], theirs: dict[int, float]) -> tuple[dict[int, float], dict[int, float]]:
    """Both arms on the seeds that both have."""
    seeds = [seed for seed in ours if seed in theirs]
    return {seed: ours[seed] for seed in seeds}, {seed: theirs[seed] for seed in seeds}


def read(path: Path) -> pd.DataFrame:
    """A table of results/; empty cells of text are empty texts."""
    return pd.read_csv(path, dtype=dict.fromkeys(TEXTS, str)).fillna(dict.fromkeys(TEXTS, ""))


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; what follows the names is right-aligned."""
    words = sum(name in WORDS for name in names)
    rule = ["---"] * words + ["---:"] * (len(names) - words)
    return "\n".join("| " + " | ".join(row) + " |" for row in (names, rule, *rows))


def average(values: dict[int, float]) -> float:
    return sum(values.values()) / len(values)


def mean(values: dict[int, float]) -> str:
    return f"{average(values):.1f}" if values else "–"


def mean_of(column: pd.Series, digits: int) -> str:
    """The mean of a column of runs, if there are any."""
    return f"{column.astype(float).mean():.{digits}f}" if len(column) else "–"


def mean_spread(values: dict[int, float]) -> str:
    values = {seed: value for seed, value in values.items() if not math.isnan(value)}
    if not values:
        return "–"
    found = spread(list(values.values()))
    return f"{found.mean:.1f}" + ("" if found.std is None else f" ± {found.std:.1f}")


def change(difference: Difference | None) -> str:
    """`+4.3 [−2.9, +11.6]`; without an interval where there is one value."""
    if difference is None:
        return "–"
    return " ".join(filter(None, (points(difference.mean / 100, 1), ends(difference))))


def ends(difference: Difference) -> str:
    """`[−2.9, +11.6]`; nothing where there is one value."""
    if difference.low is None or difference.high is None:
        return ""
    return f"[{end(difference.low / 100, 1)}, {end(difference.high / 100, 1)}]"


def direction(difference: Difference) -> str:
    """`higher` or `lower` where the interval leaves out 0; else nothing."""
    if difference.low is None or difference.high is None:
        return ""
    return "higher" if difference.low > 0 else "lower" if difference.high < 0 else ""


def sides(values: Iterable[float]) -> tuple[int, int, int]:
    """How many are higher, how many lower, and how many there are."""
    found = list(values)
    return sum(v > TIE for v in found), sum(v < -TIE for v in found), len(found)


def directions(values: Iterable[float]) -> str:
    """`higher in 3, lower in 1 of 5`."""
    return "higher in {}, lower in {} of {}".format(*sides(values))


def ups_and_downs(values: Iterable[float]) -> str:
    """`3 up, 1 down`, for a table."""
    return "{} up, {} down".format(*sides(values))


def write_table(path: Path, rows: list[dict], columns: Sequence[str] = ()) -> None:
    """A CSV with these columns, or with those of the first row."""
    text = io.StringIO()
    names = columns or list(rows[0])
    writer = csv.DictWriter(text, fieldnames=names, lineterminator="\n", restval="", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())

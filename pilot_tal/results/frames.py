"""Runs as pandas DataFrames: one row per run, per class, and per paired difference."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from pilot_tal.metrics import DEFINITIONS, tail_classes
from pilot_tal.record.run_dir import ERROR, Run

if TYPE_CHECKING:
    from pilot_tal.results.groups import Group

ALWAYS = ("method", "dataset", "loss", "seed")


def run_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run; settings that all runs share are left out."""
    rows = []
    for run in runs:
        record = run.record
        settings = {
            "engine": record.engine.name,
            "fidelity": record.method.fidelity,
            "task_sizes": "+".join(map(str, record.stream.task_sizes)),
            **record.conditions(),
            **{f"{record.loss.name}.{key}": value for key, value in record.loss.options.items()},
        }
        names = {"method": record.method.name, "dataset": record.data.name, "loss": record.loss.name}
        metrics = {key: run.metrics.get(key) for key in DEFINITIONS}
        rows.append((names | {"seed": record.seed}, settings, metrics, run.path.name))
    varying = _varying([(names, settings) for names, settings, _, _ in rows])
    table = [
        {**names, **{key: settings.get(key) for key in varying}, **metrics, "run": path}
        for names, settings, metrics, path in rows
    ]
    return pd.DataFrame(table)


def _varying(rows: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    """Settings with several values among the runs that have them and share their method, dataset and loss."""
    found: dict[str, dict[tuple, set[str]]] = {}
    for names, settings in rows:
        for key, value in settings.items():
            # An option of a loss or method exists in its own runs only; what all runs have is compared across them.
            shared = all(key in others for _, others in rows)
            kind = () if shared else (names["method"], names["loss"])
            found.setdefault(key, {}).setdefault(kind, set()).add(repr(value))
    return [key for key, kinds in found.items() if any(len(values) > 1 for values in kinds.values())]


def class_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run and class, in the order in which the run learned the classes."""
    tables = []
    for run in runs:
        record, stream = run.record, run.record.stream
        tail = set(tail_classes(stream.train_counts, stream.class_order).tolist())
        table = pd.DataFrame(
            {
                "class": stream.class_names,
                "training_images": stream.train_counts,
                "part": ["tail" if label in tail else "head" for label in range(len(stream.class_order))],
                "accuracy": run.metrics["per_class"]["accuracy"],
                "precision": run.metrics["per_class"]["precision"],
            }
        )
        values = (record.method.name, record.data.name, record.loss.name, record.seed)
        for place, (key, value) in enumerate(zip(ALWAYS, values, strict=True)):
            table.insert(place, key, value)
        tables.append(table.assign(run=run.path.name))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def difference_frame(groups: "Iterable[Group]") -> pd.DataFrame:
    """One row per group, variant and metric, paired by seed with the baseline of otherwise the same settings."""
    columns = ["dataset", "method", "tasks", "fidelity", "loss", "options", "baseline"]
    columns += ["metric", "mean", "low", "high", "n"]
    rows = []
    for group in groups:
        for variant in group.compared_variants():
            where = (group.dataset, group.method, len(group.task_sizes), group.fidelity)
            names = (*where, variant.loss, variant.label, group.baseline_loss)
            for metric in DEFINITIONS:
                found = group.difference(variant, metric)
                if found is not None:
                    rows.append((*names, metric, found.mean, found.low, found.high, found.n))
    return pd.DataFrame(rows, columns=columns)


def failures(runs: Iterable[Run]) -> dict[str, str]:
    """The first line of `error.txt` of each run that has one."""
    found = {}
    for run in runs:
        file = run.path / ERROR
        if file.is_file():
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            found[run.path.name] = lines[0][:400] if lines else "failed"
    return found

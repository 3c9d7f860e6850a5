"""The paper's numbers with pretrained models, and what differs from its setting."""

import json
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files

import pandas as pd

from data_lt import CARDS, read_manifest
from data_lt.options import DataOptions
from pilot_tal.results.formats import number
from pilot_tal.results.groups import Group, Variant

EPOCHS = 20
BACKBONE = "vit_base_patch16_224"
_OF_GROUP = ("tasks", "init_cls", "increment", "fidelity")  # changed settings that make another group
_OF_DATA = {field.name for field in fields(DataOptions)}


@dataclass(frozen=True)
class PaperNumbers:
    """A_Mean and A_Tail as fractions."""

    a_mean: float
    a_tail: float


@cache
def paper_table() -> dict[tuple[str, str, int, str], PaperNumbers]:
    """(method, dataset, tasks, loss) → the paper's numbers."""
    with (files("pilot_tal.results") / "paper_ptm_table.csv").open(encoding="utf-8") as file:
        table = pd.read_csv(file, comment="#").set_index(["method", "dataset", "tasks", "loss"])
    return {key: PaperNumbers(a_mean / 100, a_tail / 100) for key, a_mean, a_tail in table.itertuples()}


def method_place(group: Group) -> tuple:
    """Sorts the paper's methods in its order, and others behind them by title."""
    known = list(dict.fromkeys(method for method, *_ in paper_table()))
    place = known.index(group.method) if group.method in known else len(known)
    return (place, group.method_title, group.method)


def departures(group: Group, variant: Variant) -> list[str]:
    """What differs from the paper's setting, for a dataset and method of the paper."""
    record, card = variant.record, CARDS[group.dataset]
    found = ["a quick run of a few steps"] if record.quick else []
    classes = sum(group.task_sizes)
    if classes != card.classes:
        found.append(f"{number(classes, 'class', 'classes')} instead of {card.classes}")
    elif max(group.task_sizes) - min(group.task_sizes) > 1:
        found.append(f"tasks of {' + '.join(map(str, group.task_sizes))} classes instead of equal ones")
    if group.fidelity != "pilot":
        found.append(f"fidelity {group.fidelity} instead of pilot")
    epochs = record.method.settings.get("tuned_epoch")
    if epochs != EPOCHS:
        found.append(f"{epochs or 'an unknown number of'} epochs instead of {EPOCHS}")
    if not record.backbone.name.removeprefix("pretrained_").startswith(BACKBONE):
        found.append(f"backbone {record.backbone.name} instead of {BACKBONE}")
    return found + _other_settings(group, variant)


def _other_settings(group: Group, variant: Variant) -> list[str]:
    """Settings that are not the defaults of method, dataset and loss, apart from those `departures` looks at."""
    changed, checksum = variant.record.changed, variant.record.data.checksum
    other_split = checksum is not None and checksum != _shipped_checksum(group.dataset)
    skipped = {*_OF_GROUP, "tuned_epoch", "backbone", *(() if other_split else _OF_DATA)}
    found = [
        f"{name} {_plain(value)}" + ("" if default is None else f" instead of {_plain(default)}")
        for name, (value, default) in changed.items()
        if name not in skipped
    ]
    named = changed.keys() & _OF_DATA or sum(group.task_sizes) != CARDS[group.dataset].classes
    return [*found, "another split of the images"] if other_split and not named else found


@cache
def _shipped_checksum(dataset: str) -> str:
    return read_manifest(dataset).checksum


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def table_numbers(group: Group, variant: Variant) -> PaperNumbers | None:
    """The paper's numbers for this dataset, method, number of tasks and loss, whatever the other settings."""
    return paper_table().get((group.method, group.dataset, len(group.task_sizes), variant.loss))


def paper_numbers(group: Group, variant: Variant) -> PaperNumbers | None:
    """The paper's numbers for this variant; None where it has none or the setting is not the paper's."""
    found = table_numbers(group, variant)
    return found if found and not departures(group, variant) else None

"""The paper's numbers with pretrained models, and where ours may stand beside them."""

import csv
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pilot_tal.report.defaults import DATA, changes
from pilot_tal.report.study import Arm, Setting
from pilot_tal.report.text import number

CLASSES = {"cub_lt": 200, "imagenetr_lt": 200, "food101_lt": 101}
EPOCHS = 20
BACKBONE = "vit_base_patch16_224"


@dataclass(frozen=True)
class PaperNumbers:
    """A_Mean and A_Tail as fractions."""

    a_mean: float
    a_tail: float


@cache
def paper_table() -> dict[tuple[str, str, int, str], PaperNumbers]:
    """(method, dataset, tasks, loss) → the paper's numbers."""
    text = (files("pilot_tal.report") / "paper_ptm_table.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {
        (row["method"], row["dataset"], int(row["tasks"]), row["loss"]): PaperNumbers(
            float(row["a_mean"]) / 100, float(row["a_tail"]) / 100
        )
        for row in rows
    }


def departures(setting: Setting, arm: Arm) -> list[str]:
    """What keeps an arm from being the paper's setting, where the paper has the dataset and the method."""
    shared = dict(arm.shared)
    found = ["a quick run of a few steps"] if arm.quick else []
    classes = sum(setting.task_sizes)
    if classes != CLASSES[setting.dataset]:
        found.append(f"{number(classes, 'class', 'classes')} instead of {CLASSES[setting.dataset]}")
    elif max(setting.task_sizes) - min(setting.task_sizes) > 1:
        found.append(f"tasks of {' + '.join(map(str, setting.task_sizes))} classes instead of equal ones")
    if setting.fidelity != "pilot":
        found.append(f"fidelity {setting.fidelity} instead of pilot")
    epochs = _value(shared, "tuned_epoch", "epochs")
    if epochs != str(EPOCHS):
        found.append(f"{epochs or 'an unknown number of'} epochs instead of {EPOCHS}")
    backbone = _value(shared, "backbone", "backbone.name", "backbone_type")
    if backbone is not None and not backbone.removeprefix("pretrained_").startswith(BACKBONE):
        found.append(f"backbone {backbone} instead of {BACKBONE}")
    elif any(key.startswith("vit.") for key in shared):
        found.append("another ViT")
    return found + _other_settings(setting, arm)


def _other_settings(setting: Setting, arm: Arm) -> list[str]:
    """Settings that are not the defaults of method, dataset and loss, apart from those `departures` looks at."""
    changed = changes(setting, arm) or {}
    same_split = _has_paper_split(setting, arm)
    skipped = {"quick", "tuned_epoch", "backbone", *(DATA if same_split else ())}
    found = [
        f"{name} {value}" + ("" if default is None else f" instead of {_shown(default)}")
        for name, (value, default) in changed.items()
        if name not in skipped
    ]
    named = changed.keys() & {*DATA} or sum(setting.task_sizes) != CLASSES[setting.dataset]
    return [*found, "another split of the images"] if same_split is False and not named else found


def _has_paper_split(setting: Setting, arm: Arm) -> bool | None:
    """Whether the images are those of the shipped manifest; None where the config has no checksum."""
    config = dict(arm.shared)
    checksum = config.get("data.checksum", config.get("manifest", "null"))
    return None if checksum == "null" else _shipped_checksum(setting.dataset).startswith(checksum)


@cache
def _shipped_checksum(dataset: str) -> str:
    from data_lt.manifest import read_manifest

    return read_manifest(dataset).checksum


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def in_paper(setting: Setting) -> bool:
    """Whether the paper's table has this dataset, method and number of tasks."""
    return (setting.method, setting.dataset, len(setting.task_sizes), "ce") in paper_table()


def paper_numbers(setting: Setting, arm: Arm) -> PaperNumbers | None:
    """The paper's numbers for this arm; None where it has none or the setting is not the paper's."""
    return _table_numbers(setting, arm) if in_paper(setting) and not departures(setting, arm) else None


def paper_arms(setting: Setting) -> list[Arm]:
    """The finished arms for whose loss the paper has numbers in this dataset, method and number of tasks."""
    return [arm for arm in setting.finished_arms() if in_paper(setting) and _table_numbers(setting, arm)]


def _table_numbers(setting: Setting, arm: Arm) -> PaperNumbers | None:
    return paper_table().get((setting.method, setting.dataset, len(setting.task_sizes), arm.loss))


def _value(config: dict[str, str], *names: str) -> str | None:
    """The first set value among the keys that end in one of `names`."""
    found = (value for name in names for key, value in config.items() if f".{key}".endswith(f".{name}"))
    return next((value for value in found if value != "null"), None)

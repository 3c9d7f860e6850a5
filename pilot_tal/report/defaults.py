"""Where an arm's settings are not the defaults of its method and dataset."""

import json
from functools import cache
from typing import Any

from pilot_tal.errors import PilotTalError
from pilot_tal.report.study import Arm, Setting

_RUN = ("backbone", "weights", "img_size", "transform", "precision", "quick")
DATA = ("classes", "manifest", "folder", "law", "shape", "n_max", "n_min", "test_per_class", "split_seed")


def changes(setting: Setting, arm: Arm) -> dict[str, tuple[str, Any]] | None:
    """Name → (the arm's value, the default) where they differ; None where we have no defaults.

    A setting that the arm's config does not name counts as the default.
    """
    defaults = _defaults(setting.method, setting.dataset, arm.loss)
    if defaults is None:
        return None
    config = dict(arm.shared + arm.own)
    found = {}
    for name, (keys, default) in defaults.items():
        value = next((config[key] for key in keys if config.get(key, "null") != "null"), None)
        if value is not None and _plain(value) != default:
            found[name] = (value, default)
    return found


@cache
def _defaults(method: str, dataset: str, loss: str) -> dict[str, tuple[tuple[str, ...], Any]] | None:
    """Name → the keys under which a config of any engine has it, and its default."""
    from data_lt import CARDS
    from pilot_tal.config import make_plan  # takes torch along

    try:
        record = make_plan(method, dataset, [f"loss={loss}", "seed=0"]).runs[0].record()
    except PilotTalError:
        return None
    card = CARDS[dataset]
    own = {"split_seed": card.seed} | {key: getattr(card, key) for key in DATA[3:-1]}
    found = {key: ((key,), record[key]) for key in _RUN}
    found |= {key: ((f"data.{key}",), own.get(key, record["data"][key])) for key in DATA}
    for key, value in record["settings"].items():
        found[key] = ((f"settings.{key}", f"upstream.{key}", *(("epochs",) if key == "tuned_epoch" else ())), value)
    found |= {key: ((f"loss.{key}", f"{loss}.{key}"), value) for key, value in record["loss"].items() if key != "name"}
    return found


def _plain(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value

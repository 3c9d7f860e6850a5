"""Default settings of a method, of a dataset, and of both together."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from data_lt import CARDS
from data_lt.errors import UserError
from pilot_tal.backbone.load import default_weights
from pilot_tal.config.parse import ALIASES
from pilot_tal.config.settings import RunSettings
from pilot_tal.learners import LEARNERS, MethodConfig
from pilot_tal.schema import build, defaults_of, settings_of


def defaults(method: str, dataset: str, backbone: str | None = None) -> dict[str, Any]:
    """Run settings and the method's own, by name: those of the method, then the dataset's, then of both together.

    Args:
        method: A registered method.
        dataset: A registered dataset.
        backbone: The backbone the user asked for; weights and image size of another default backbone do not apply.
    """
    known = {**settings_of(RunSettings), **settings_of(LEARNERS[method].config_class)}
    by_dataset = {ALIASES.get(key, key): value for key, value in CARDS[dataset].defaults.items()}
    values = {**defaults_of(RunSettings), **defaults_of(LEARNERS[method].config_class), **_method_values(method)}
    values |= {key: value for key, value in by_dataset.items() if key in known}
    values |= _method_values(method, dataset)
    if backbone not in (None, values["backbone"]):
        values |= {"weights": default_weights(backbone), "img_size": None}
    return {key: known[key].check(value) for key, value in values.items()}


def method_config(method: str, dataset: str | None = None, **changes: Any) -> MethodConfig:
    """The method's settings with some changed."""
    values = {**_method_values(method), **(_method_values(method, dataset) if dataset else {}), **changes}
    own = settings_of(LEARNERS[method].config_class)
    return build(LEARNERS[method].config_class, {k: v for k, v in values.items() if k in own or k in changes}, method)


def _method_values(method: str, dataset: str | None = None) -> dict[str, Any]:
    """What a method's YAML file says: for all datasets, or its section for one."""
    values = dict(_read(_config_file(method)))
    sections = values.pop("datasets", None) or {}
    return values if dataset is None else dict(sections.get(dataset) or {})


@cache
def _read(path: Path) -> dict[str, Any]:
    values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold settings, one a line")
    return values


def _config_file(method: str) -> Path:
    """`configs/methods/` beside the package in a checkout, inside it when installed, or beside a plugin's module."""
    import sys

    package = Path(__file__).resolve().parents[1]
    module = sys.modules[LEARNERS[method].__module__]
    roots = [package / "configs" / "methods", package.parent / "configs" / "methods"]
    if getattr(module, "__file__", None):
        roots.append(Path(str(module.__file__)).parent)
    for root in roots:
        if (root / f"{method}.yaml").is_file():
            return root / f"{method}.yaml"
    raise UserError(f"{method} has no settings: {method}.yaml is neither in configs/methods nor beside its module")

"""Long-tailed class-incremental learning on a frozen pretrained ViT, with the Temporal-Adjusted Loss."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pilot_tal.version import __version__

if TYPE_CHECKING:
    from data_lt.errors import UserError
    from pilot_tal.api import (
        compare,
        create_learner,
        create_loss,
        list_datasets,
        list_losses,
        list_methods,
        load_runs,
        report,
        run,
    )
    from pilot_tal.backbone.load import register_backbone
    from pilot_tal.engine.callbacks import Callback
    from pilot_tal.losses.tal import TAL
    from pilot_tal.model.export import export_model
    from pilot_tal.model.load import load_model
    from pilot_tal.model.model import Model
    from pilot_tal.record.run_dir import Run
    from pilot_tal.results.study import Study

__all__ = [
    "TAL",
    "Callback",
    "Model",
    "Run",
    "Study",
    "UserError",
    "__version__",
    "compare",
    "create_learner",
    "create_loss",
    "export_model",
    "list_datasets",
    "list_losses",
    "list_methods",
    "load_model",
    "load_runs",
    "register_backbone",
    "report",
    "run",
]

_ELSEWHERE = {
    "TAL": "pilot_tal.losses.tal",
    "Callback": "pilot_tal.engine.callbacks",
    "Model": "pilot_tal.model.model",
    "Run": "pilot_tal.record.run_dir",
    "Study": "pilot_tal.results.study",
    "UserError": "data_lt.errors",
    "export_model": "pilot_tal.model.export",
    "load_model": "pilot_tal.model.load",
    "register_backbone": "pilot_tal.backbone.load",
}


def __getattr__(name: str) -> Any:
    # Lazy: the command line and light modules must not pay for importing torch.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE.get(name, "pilot_tal.api")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

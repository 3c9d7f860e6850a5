"""Long-tailed class-incremental learning on a frozen pretrained ViT, with the Temporal-Adjusted Loss."""

from typing import TYPE_CHECKING

from pilot_tal.version import __version__

if TYPE_CHECKING:
    from pilot_tal.losses.tal import TAL
    from pilot_tal.model.load import load_model

__all__ = ["TAL", "__version__", "load_model"]


def __getattr__(name: str):
    # Lazy, so that the command line and light modules (errors, files) do not pay for importing torch.
    if name == "TAL":
        from pilot_tal.losses.tal import TAL

        return TAL
    if name == "load_model":
        from pilot_tal.model.load import load_model

        return load_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Long-tailed class-incremental learning on a frozen pretrained ViT, with the Temporal-Adjusted Loss."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pilot_tal.tal import TAL

__version__ = "0.1.0"
__all__ = ["TAL", "__version__"]


def __getattr__(name: str):
    # Lazy, so that the command line and light modules (errors, files) do not pay for importing torch.
    if name == "TAL":
        from pilot_tal.tal import TAL

        return TAL
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""ViT weights from a file, into a ViT of the checkout or of its timm."""

import sys
import zipfile
from pathlib import Path
from typing import Any

from data_lt.errors import UserError
from pilot_tal.backbone.weights import read_state

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".npz")
_BACKBONE = ("patch_embed.", "cls_token", "pos_embed", "blocks.", "norm.")


def load_vit_weights(model: Any, path: str | Path) -> None:
    """Fills a ViT as its own module would after a download; heads and prompts stay as they are.

    Args:
        model: A ViT of the checkout, or of timm 0.6.
        path: `.npz` in Google's JAX names, or a state dict (`.pth`, `.safetensors`) in timm's names.
    """
    path = Path(path)
    if path.suffix == ".npz":
        try:
            model.load_pretrained(str(path))
        except (OSError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
            raise UserError(f"the weights {path} do not fit {type(model).__name__}: {error}") from error
        return
    state = read_state(path)
    prepare = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if prepare is not None:  # resamples the positions, and repeats the first for prompt tokens
        state = prepare(state, model)
    own = model.state_dict()
    fitting = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    wanted = (name for name in own if name.startswith(_BACKBONE) and "ssf_" not in name)  # SSF trains its own
    missing = [name for name in wanted if name not in fitting]
    if missing:
        raise UserError(
            f"the weights {path} do not fit the ViT: {missing[0]} is missing or of another shape, "
            f"and so are {len(missing) - 1} more"
        )
    model.load_state_dict(fitting, strict=False)

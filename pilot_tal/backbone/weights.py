"""Weights of the frozen ViT: from timm's hub, from a file, or random."""

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import pilot_tal._torchvision  # noqa: F401
from pilot_tal.backbone.vit import FrozenViT
from pilot_tal.errors import PilotTalError, nearest

DEFAULT_BACKBONE = "vit_base_patch16_224.augreg_in21k_ft_in1k"
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".npz")
RANDOM_SEED = 0
# Parts of a checkpoint that are no part of the frozen network: classifiers and the mask token of DINOv2.
_NOT_LOADED = ("head.", "head_dist.", "fc.", "pre_logits.", "mask_token")


def build_backbone(
    name: str = DEFAULT_BACKBONE,
    weights: str | Path | None = None,
    img_size: int | tuple[int, int] | None = None,
) -> FrozenViT:
    """Builds the frozen ViT.

    Args:
        name: A timm model name, with its tag when the weights come from the hub.
        weights: None or "hub" (timm's hub, by tag), "random" (always the same random weights), or a file
            (`.safetensors`, `.pth`, `.npz` in timm's names or in Google's JAX names).
        img_size: Side of the images if it is not the model's own; position embeddings are resampled to it.

    Raises:
        PilotTalError: For an unknown or unfitting model, an unreachable hub, or weights that do not fit.
    """
    if weights is None or str(weights) == "hub":
        vit = _create(name, img_size, pretrained=True)
    elif str(weights) == "random":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(RANDOM_SEED)
            vit = _create(name, img_size)
    else:
        vit = _create(name, img_size)
        load_weights(vit, weights)
    return FrozenViT(vit, name)


def build_from_state(state: dict[str, Tensor], num_heads: int, name: str = "vit") -> FrozenViT:
    """Builds a plain ViT whose shape is read off its tensors (timm names); the number of heads is not in them."""
    from timm.models.vision_transformer import VisionTransformer

    try:
        dim, channels, patch, _ = state["patch_embed.proj.weight"].shape
        grid = round((state["pos_embed"].shape[1] - 1) ** 0.5)
        hidden = state["blocks.0.mlp.fc1.weight"].shape[0]
    except (KeyError, ValueError) as error:
        raise PilotTalError(f"{name}: the ViT's tensors are incomplete or misshapen: {error}") from error
    if num_heads < 1 or dim % num_heads:
        raise PilotTalError(f"{name}: {num_heads} heads do not divide the width {dim}")
    depth = 1 + max(int(key.split(".")[1]) for key in state if key.startswith("blocks."))
    vit = VisionTransformer(
        img_size=grid * patch,
        patch_size=patch,
        in_chans=channels,
        num_classes=0,
        embed_dim=dim,
        depth=depth,
        num_heads=num_heads,
        mlp_ratio=hidden / dim,
        qkv_bias="blocks.0.attn.qkv.bias" in state,
        init_values=1.0 if "blocks.0.ls1.gamma" in state else None,
        weight_init="skip",
    )
    _fill(vit, state, name)
    return FrozenViT(vit, name)


def load_weights(vit: nn.Module, path: str | Path) -> None:
    """Fills a timm ViT from a file; classifier heads are ignored, positions resampled to the ViT's grid."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise PilotTalError(f"weights must be a {', '.join(SUFFIXES)} file, 'hub' or 'random', got {path}")
    if not path.is_file():
        raise PilotTalError(f"weights file {path} does not exist")
    state = _read(vit, path)
    if state is not None:
        _fill(vit, _to_grid(vit, state, path), str(path))


def _create(name: str, img_size: int | tuple[int, int] | None, pretrained: bool = False) -> nn.Module:
    import timm

    if not timm.is_model(name):
        guess = nearest(name.split(".")[0], timm.list_models("*vit*") + timm.list_models("deit*"))
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise PilotTalError(f"backbone {name!r} is not a model of timm{hint}")
    options = {} if img_size is None else {"img_size": img_size}
    try:
        return timm.create_model(name, pretrained=pretrained, num_classes=0, global_pool="token", **options)
    except (TypeError, AssertionError) as error:
        raise PilotTalError(
            f"{name} does not fit: the backbone must be a timm VisionTransformer with a CLS token ({error})"
        ) from error
    except Exception as error:
        if not pretrained:
            raise PilotTalError(f"cannot build {name} for img_size={img_size}: {error}") from error
        raise PilotTalError(
            f"cannot load the weights of {name} from timm's hub ({type(error).__name__}); "
            "connect to the network once, or give weights=FILE"
        ) from error


def _read(vit: nn.Module, path: Path) -> dict[str, Tensor] | None:
    """Reads a file's tensors under timm's names; None when timm's own JAX reader has filled the model."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        if path.suffix == ".npz":
            return _read_npz(vit, path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except PilotTalError:
        raise
    except (OSError, zipfile.BadZipFile, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise PilotTalError(f"cannot read weights from {path}: {_first_line(error)}") from error
    except Exception as error:  # safetensors and pickle raise classes of their own
        raise PilotTalError(f"{path} is not a file of plain tensors: {_first_line(error)}") from error
    for wrapper in ("model", "state_dict"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise PilotTalError(f"{path} does not hold a state dict (names with tensors)")
    return {name.removeprefix("module."): value for name, value in state.items()}


def _read_npz(vit: nn.Module, path: Path) -> dict[str, Tensor] | None:
    with np.load(path, allow_pickle=False) as arrays:
        if not any(name.endswith("embedding/kernel") for name in arrays.files):
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    try:
        vit.load_pretrained(str(path))
    except KeyError as error:
        raise PilotTalError(f"{path} lacks {error} of the JAX checkpoint") from error
    except (RuntimeError, ValueError, AssertionError) as error:
        raise PilotTalError(f"{path} does not fit the model: {_first_line(error)}") from error
    return None


def _to_grid(vit: nn.Module, state: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Other authors' names to timm's, and position embeddings to the model's grid, by timm's own filter."""
    from timm.models.vision_transformer import checkpoint_filter_fn

    patch = state.get("patch_embed.proj.weight")
    expected = vit.patch_embed.proj.weight.shape
    if patch is not None and patch.shape != expected:
        raise PilotTalError(f"{path}: patch_embed.proj.weight is {list(patch.shape)}, the model needs {list(expected)}")
    try:
        return checkpoint_filter_fn({name: value.float() for name, value in state.items()}, vit)
    except Exception as error:
        raise PilotTalError(f"{path} does not fit the model: {_first_line(error)}") from error


@torch.no_grad()
def _fill(vit: nn.Module, state: dict[str, Tensor], source: str) -> None:
    own = vit.state_dict()
    given = {name: value for name, value in state.items() if not name.startswith(_NOT_LOADED)}
    missing = sorted(own.keys() - given.keys())
    if missing:
        raise PilotTalError(f"{source} lacks {len(missing)} of the model's tensors, first {missing[0]!r}")
    unknown = sorted(given.keys() - own.keys())
    if unknown:
        raise PilotTalError(f"{source} has {len(unknown)} tensors the model does not know, first {unknown[0]!r}")
    for name, tensor in own.items():
        if tensor.shape != given[name].shape:
            raise PilotTalError(f"{source}: {name} is {list(given[name].shape)}, the model needs {list(tensor.shape)}")
        tensor.copy_(given[name])


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

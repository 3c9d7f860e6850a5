"""Weights of the frozen ViT: from timm's hub, from a file, or random."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pilot_tal._torchvision  # noqa: F401
from data_lt.errors import UserError, nearest
from data_lt.files import given_path
from pilot_tal.backbone.hub import hub_options, unreachable
from pilot_tal.backbone.vit import FrozenViT

DEFAULT_BACKBONE = "vit_base_patch16_224.augreg_in21k_ft_in1k"
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".npz")
RANDOM_SEED = 0
LARGEST_IMAGE = 4096  # pixels a side: 65,536 patches of 16 pixels
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
        UserError: For an unknown or unfitting model, an unreachable hub, or weights that do not fit.
    """
    options = _image_options(name, img_size)
    if weights is None or str(weights) == "hub":
        vit = _create(name, **options, **hub_options(name))
        _check_values(vit.state_dict(), f"the hub's {name}")
    elif str(weights) == "random":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(RANDOM_SEED)
            vit = _create(name, **options)
    else:
        path = _weights_file(weights)
        vit = _create(name, **options)
        load_weights(vit, path)
    return FrozenViT(vit, name)


def build_from_state(state: dict[str, Tensor], num_heads: int, name: str = "vit") -> FrozenViT:
    """Builds a plain ViT whose shape is read off its tensors (timm names); the number of heads is not in them."""
    from timm.models.vision_transformer import VisionTransformer

    try:
        dim, channels, patch, _ = state["patch_embed.proj.weight"].shape
        grid = round((state["pos_embed"].shape[1] - 1) ** 0.5)
        hidden = state["blocks.0.mlp.fc1.weight"].shape[0]
    except (KeyError, ValueError) as error:
        raise UserError(f"{name}: the ViT's tensors are incomplete or misshapen: {error}") from error
    if num_heads < 1 or dim % num_heads:
        raise UserError(f"{name}: {num_heads} heads do not divide the width {dim}")
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


def load_weights(vit: Any, path: str | Path) -> None:
    """Fills a timm ViT from a file; classifier heads are ignored, positions resampled to the ViT's grid."""
    path = _weights_file(path)
    state = _read(path)
    if not any(name.endswith("embedding/kernel") for name in state):
        _fill(vit, _to_grid(vit, state, path), str(path))
        return
    _check_values(state, str(path))
    try:
        vit.load_pretrained(str(path))  # timm's own reader of Google's layout
    except KeyError as error:
        raise UserError(f"{path} lacks {error} of the JAX checkpoint") from error
    except Exception as error:
        raise UserError(f"{path} does not fit the model: {_first_line(error)}") from error


def _weights_file(path: str | Path) -> Path:
    path = given_path(path, "weights")
    if path.suffix not in SUFFIXES:
        raise UserError(f"weights must be a {', '.join(SUFFIXES)} file, 'hub' or 'random', got {path}")
    if not path.is_file():
        raise UserError(f"weights file {path} does not exist")
    return path


def _image_options(name: str, img_size: int | tuple[int, int] | None) -> dict[str, Any]:
    """The image size for timm, if the model's patches tile it."""
    import timm

    if not timm.is_model(name):
        guess = nearest(name.split(".")[0], timm.list_models("*vit*") + timm.list_models("deit*"))
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise UserError(f"backbone {name[:60]!r} is not a model of timm{hint}")
    if img_size is None:
        return {}
    with torch.device("meta"):  # its shape alone, without memory
        patches = getattr(_create(name), "patch_embed", None)
    sides = img_size if isinstance(img_size, tuple) else (img_size, img_size)
    for side, patch in zip(sides, getattr(patches, "patch_size", (1, 1)), strict=True):
        if not patch <= side <= LARGEST_IMAGE or side % patch:
            near = min(max(round(side / patch), 1), LARGEST_IMAGE // patch) * patch
            raise UserError(
                f"img_size must be a multiple of {patch}, the patch size of {name}, up to {LARGEST_IMAGE}: "
                f"got {side}, the nearest is {near}"
            )
    return {"img_size": img_size}


def _create(name: str, **options: Any) -> Any:
    import timm

    try:
        return timm.create_model(name, num_classes=0, global_pool="token", **options)
    except (TypeError, AssertionError) as error:
        raise UserError(
            f"{name} does not fit: the backbone must be a timm VisionTransformer with a CLS token"
        ) from error
    except Exception as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise UserError(f"{name} does not fit into memory; choose a smaller backbone or img_size") from error
        if "pretrained" in options:
            raise unreachable(name) from error
        raise UserError(f"cannot build {name}: {_first_line(error)}") from error


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name. Nothing but tensors is ever made of its bytes."""
    try:
        state = _READERS.get(path.suffix, _read_torch)(path)
    except OSError as error:
        raise UserError(f"cannot read the weights {path}: {error.strerror or 'it is damaged'}") from error
    except Exception as error:  # each library has errors of its own, and some of their words advise the unsafe
        problem = "it is empty" if not path.stat().st_size else _CONTENT.get(path.suffix, _CONTENT[".pth"])
        raise UserError(f"cannot read the weights {path}: {problem}") from error
    for wrapper in ("model", "state_dict"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    plain = isinstance(state, dict) and all(isinstance(name, str) for name in state)
    if not plain or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{path} does not hold a state dict (names with tensors)")
    return {name.removeprefix("module."): value for name, value in state.items()}


def _read_torch(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def _read_npz(path: Path) -> dict[str, Tensor]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


_READERS = {".safetensors": _read_safetensors, ".npz": _read_npz}
_CONTENT = {
    ".safetensors": "it is damaged, or no safetensors file",
    ".npz": "it is damaged, or holds something else than arrays of numbers",
    ".pth": "it is damaged, or holds Python objects beside its tensors; where it was made, save the state_dict() alone",
}


def _to_grid(vit: Any, state: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Other authors' names to timm's, and position embeddings to the model's grid, by timm's own filter."""
    from timm.models.vision_transformer import checkpoint_filter_fn

    patch = state.get("patch_embed.proj.weight")
    expected = vit.patch_embed.proj.weight.shape
    if patch is not None and patch.shape != expected:
        raise UserError(f"{path}: patch_embed.proj.weight is {list(patch.shape)}, the model needs {list(expected)}")
    try:
        floats = {name: value.float() if value.is_floating_point() else value for name, value in state.items()}
        return checkpoint_filter_fn(floats, vit)
    except Exception as error:
        raise UserError(f"{path} does not fit the model: {_first_line(error)}") from error


@torch.no_grad()
def _fill(vit: Any, state: dict[str, Tensor], source: str) -> None:
    own = vit.state_dict()
    given = {name: value for name, value in state.items() if not name.startswith(_NOT_LOADED)}
    missing = sorted(own.keys() - given.keys())
    if missing:
        raise UserError(f"{source} lacks {len(missing)} of the model's tensors, first {missing[0]!r}")
    unknown = sorted(given.keys() - own.keys())
    if unknown:
        raise UserError(f"{source} has {len(unknown)} tensors the model does not know, first {unknown[0]!r}")
    for name, tensor in own.items():
        if tensor.shape != given[name].shape:
            raise UserError(f"{source}: {name} is {list(given[name].shape)}, the model needs {list(tensor.shape)}")
    _check_values(given, source)
    for name, tensor in own.items():
        tensor.copy_(given[name])


def _check_values(state: dict[str, Tensor], source: str) -> None:
    """Refuses what no network can be made of: whole numbers, NaN, infinity."""
    for name, tensor in state.items():
        if not tensor.is_floating_point() or tensor.layout is not torch.strided or tensor.is_meta:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UserError(f"{source}: {name} holds {kind} values; weights must be plain floating-point numbers")
        if not torch.isfinite(tensor.float()).all():
            raise UserError(f"{source}: {name} holds NaN or infinite values; the file is damaged, get it anew")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

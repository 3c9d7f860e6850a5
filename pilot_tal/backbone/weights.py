"""Builds timm models with weights from timm's hub, from a file, or random."""

import contextlib
import logging
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pilot_tal._torchvision  # noqa: F401
from data_lt.errors import UserError, nearest, one_line
from data_lt.files import check_regular, given_path, os_errors
from pilot_tal.backbone.vit import FrozenBackbone, FrozenViT, takes_prompts

DEFAULT_BACKBONE = "vit_base_patch16_224.augreg_in21k_ft_in1k"
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".npz")
RANDOM_SEED = 0
SECONDS = 2.5  # to wait for the hub's first answer
LARGEST_IMAGE = 4096  # pixels a side: 65,536 patches of 16 pixels
# Parts of a checkpoint that a frozen network may lack: classifiers and the mask token of DINOv2.
_NOT_LOADED = ("head.", "head_dist.", "fc.", "classifier.", "pre_logits.", "mask_token")


def build_backbone(
    name: str = DEFAULT_BACKBONE,
    weights: str | Path | None = None,
    img_size: int | tuple[int, int] | None = None,
) -> FrozenBackbone:
    """Builds a frozen timm model.

    Args:
        name: A timm model name, with its tag when the weights come from the hub.
        weights: None or "hub" (timm's hub, by tag), "random" (always the same random weights), or a file
            (`.safetensors`, `.pth`, `.npz` in timm's names or in Google's JAX names).
        img_size: Side of the images if it is not the model's own; position embeddings are resampled to it.

    Returns:
        A `FrozenViT` if the model is a plain ViT with a CLS token, which all methods can use; otherwise a
        `FrozenBackbone`, for methods that need features alone.

    Raises:
        UserError: For an unknown model, an unreachable hub, or weights that do not fit.
    """
    import timm

    if not timm.is_model(name):
        guess = nearest(name.split(".")[0], timm.list_models())
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise UserError(f"backbone {name[:60]!r} is neither a model of timm nor registered{hint}")
    source = "hub" if weights is None else str(weights)
    from_hub = hub_options(name) if source == "hub" else {}
    options, side = _image_options(name, img_size)
    if source == "hub":
        model = _create(name, **options, **from_hub)
        _check_values(model.state_dict(), f"the hub's {name}")
    elif source == "random":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(RANDOM_SEED)
            model = _create(name, **options)
    else:
        path = weights_file(source)
        model = _create(name, **options)
        load_weights(model, path)
    return FrozenViT(model, name) if takes_prompts(model) else FrozenBackbone(model, name, side)


def build_from_state(state: dict[str, Tensor], num_heads: int, name: str = "vit") -> FrozenViT:
    """Builds a plain ViT whose shape is read off its tensors (timm names); the number of heads is not in them."""
    from timm.models.vision_transformer import VisionTransformer

    try:
        dim, _, patch, _ = state["patch_embed.proj.weight"].shape
        side = patch * round((state["pos_embed"].shape[1] - 1) ** 0.5)
        ratio = state["blocks.0.mlp.fc1.weight"].shape[0] / dim
    except (KeyError, ValueError, IndexError) as error:
        raise UserError(f"{name}: the ViT's tensors are incomplete or misshapen: {error}") from error
    if num_heads < 1 or dim % num_heads:
        raise UserError(f"{name}: {num_heads} heads do not divide the width {dim}")
    depth = 1 + max(int(key.split(".")[1]) for key in state if key.startswith("blocks."))
    shape = {"img_size": side, "patch_size": patch, "embed_dim": dim, "depth": depth, "num_heads": num_heads}
    vit = VisionTransformer(**shape, mlp_ratio=ratio, num_classes=0, weight_init="skip")
    _fill(vit, state, name)
    return FrozenViT(vit, name)


def load_weights(model: Any, path: str | Path) -> None:
    """Fills a model from a file; classifiers are ignored.

    timm's filter for the model translates other authors' names and resamples position embeddings to its grid.
    """
    path = weights_file(path)
    state = read_state(path)
    patch, own = state.get("patch_embed.proj.weight"), model.state_dict().get("patch_embed.proj.weight")
    if patch is not None and own is not None and patch.shape != own.shape:
        raise UserError(f"{path}: patch_embed.proj.weight is {list(patch.shape)}, the model needs {list(own.shape)}")
    jax = any(name.endswith("embedding/kernel") for name in state)
    if jax:
        _check_values(state, str(path))
    module = sys.modules[type(model).__module__]
    convert = getattr(module, "checkpoint_filter_fn", None) if module.__name__.startswith("timm.") else None
    try:
        if jax:
            return model.load_pretrained(str(path))  # timm's own reader of Google's layout
        state = {name: value.float() if value.is_floating_point() else value for name, value in state.items()}
        state = convert(state, model) if convert else state
    except Exception as error:
        cause = "lacks" if isinstance(error, KeyError) else "does not fit the model:"
        raise UserError(f"{path} {cause} {one_line(str(error))[:200]}") from error
    _fill(model, state, str(path))


def weights_file(path: str | Path) -> Path:
    """The path of a weights file that exists, by its suffix one that can be read."""
    path = given_path(path, "weights")
    if path.suffix not in SUFFIXES:
        raise UserError(f"weights must be a {', '.join(SUFFIXES)} file, 'hub' or 'random', got {path}")
    if not path.is_file():
        raise UserError(f"weights file {path} does not exist")
    return path


def _image_options(name: str, img_size: int | tuple[int, int] | None) -> tuple[dict[str, Any], tuple[int, int]]:
    """Options for timm that fix the image size, and that size; a CNN takes images of any size without options."""
    with torch.device("meta"):  # its shape alone, without memory
        model = _create(name)
    options = {"dynamic_img_size": False} if getattr(model, "dynamic_img_size", False) else {}
    patches = getattr(model, "patch_embed", None)
    fixed = getattr(patches, "img_size", None)
    if img_size is None:
        height, width = fixed or model.pretrained_cfg["input_size"][1:]
        return options, (height, width)
    sides = img_size if isinstance(img_size, tuple) else (img_size, img_size)
    for side, patch in zip(sides, getattr(patches, "patch_size", (1, 1)), strict=True):
        if not patch <= side <= LARGEST_IMAGE or side % patch:
            near = min(max(round(side / patch), 1), LARGEST_IMAGE // patch) * patch
            raise UserError(
                f"img_size must be a multiple of {patch}, the patch size of {name}, up to {LARGEST_IMAGE}: "
                f"got {side}, the nearest is {near}"
            )
    if not fixed:  # the model may still be built for one image size; timm has no list of those
        try:
            with torch.device("meta"):
                _create(name, img_size=img_size)
        except UserError:
            return options, sides
    return options | {"img_size": img_size}, sides


def _create(name: str, **options: Any) -> Any:
    import timm

    try:
        return timm.create_model(name, num_classes=0, **options)
    except Exception as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise UserError(f"{name} does not fit into memory; choose a smaller backbone or img_size") from error
        if "pretrained" in options:
            raise unreachable(name) from error
        raise UserError(f"cannot build {name}: {one_line(str(error))[:200]}") from error


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name. Nothing but tensors is ever made of its bytes."""
    check_regular(path, "the weights")
    try:
        with os_errors(f"cannot read the weights {path}"):
            state = _read(path)
    except UserError:
        raise
    except Exception as error:  # each library has errors of its own, and some of their words advise the unsafe
        raise UserError(
            f"cannot read the weights {path}: it is empty, damaged, or holds other things than tensors; "
            "where it was made, save the state_dict() alone"
        ) from error
    for wrapper in ("model", "state_dict"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    plain = isinstance(state, dict) and all(isinstance(name, str) for name in state)
    if not plain or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{path} does not hold a state dict (names with tensors)")
    for name, value in state.items():
        if value.layout is not torch.strided or value.is_nested or value.is_quantized or value.is_meta:
            raise UserError(f"cannot read the weights {path}: {name[:60]} is not a dense tensor")
    return {name.removeprefix("module."): value for name, value in state.items()}


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    return torch.load(path, map_location="cpu", weights_only=True)


def _fill(model: Any, state: dict[str, Tensor], source: str) -> None:
    own = model.state_dict()
    given = {name: value for name, value in state.items() if name in own or not name.startswith(_NOT_LOADED)}
    missing, unknown = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
    if missing:
        raise UserError(f"{source} lacks {len(missing)} of the model's tensors, first {missing[0]!r}")
    if unknown:
        raise UserError(f"{source} has {len(unknown)} tensors the model does not know, first {unknown[0]!r}")
    for name, tensor in own.items():
        if tensor.shape != given[name].shape:
            raise UserError(f"{source}: {name} is {list(given[name].shape)}, the model needs {list(tensor.shape)}")
    _check_values(given, source)
    model.load_state_dict(given)


def _check_values(state: dict[str, Tensor], source: str) -> None:
    """Raises a UserError for integers, NaN and infinity; the step counts of batch norms are integers."""
    for name, tensor in state.items():
        if name.endswith("num_batches_tracked"):
            continue
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UserError(f"{source}: {name} holds {kind} values; weights must be plain floating-point numbers")
        if not torch.isfinite(tensor.float()).all():
            raise UserError(f"{source}: {name} holds NaN or infinite values; the file is damaged, get it anew")


def hub_options(name: str) -> dict[str, Any]:
    """What `timm.create_model` needs to load a model's pretrained weights.

    Raises:
        UserError: timm has none of that name, or they are neither in the cache nor to be had; within seconds.
    """
    import timm
    from huggingface_hub import constants, try_to_load_from_cache

    arch, _, tag = name.partition(".")
    known = timm.list_pretrained(f"{arch}.*")
    if not known or (tag and name not in known):
        tags = f"; it has {', '.join(known)}" if known else ""
        raise UserError(f"timm has no weights of the name {name!r}{tags}; name others, or give weights=FILE")
    card = timm.get_pretrained_cfg(name)
    if not card.hf_hub_id:
        return {"pretrained": True}
    file = card.hf_hub_filename or "model.safetensors"
    cached = try_to_load_from_cache(card.hf_hub_id, file)
    if isinstance(cached, str) and file.endswith(".safetensors"):
        return {"pretrained": True, "pretrained_cfg_overlay": {"file": cached, "custom_load": False}}
    if constants.HF_HUB_OFFLINE or not _answers(constants.ENDPOINT):
        raise unreachable(name)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # errors are raised as one sentence
    return {"pretrained": True}


def unreachable(name: str) -> UserError:
    """The one sentence for weights that cannot be had."""
    return UserError(
        f"cannot get the weights of {name} from timm's hub: it does not answer, and they are not in its cache on this "
        "machine; connect to the network once, or give weights=FILE"
    )


def _answers(url: str) -> bool:
    """Whether a server answers at all, asked once; even a name server that keeps silent costs `SECONDS` only."""
    import requests

    answers: list[Any] = []

    def ask() -> None:
        with contextlib.suppress(Exception):  # whatever it is, there was no answer
            answers.append(requests.head(url, timeout=SECONDS))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SECONDS)
    return bool(answers)

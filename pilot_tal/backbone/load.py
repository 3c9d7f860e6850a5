"""The frozen backbone of a run: the demo's, one of timm's, or a user's; its weights and the pixels they expect."""

import contextlib
import copy
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from torch import nn

from data_lt.errors import UserError
from data_lt.files import checksum
from pilot_tal.backbone.vit import FrozenBackbone, FrozenViT, state_checksum, takes_prompts
from pilot_tal.backbone.weights import DEFAULT_BACKBONE, build_backbone, load_weights

DEMO, BUNDLED = "demo_vit", "bundled"
# The demo's ViT as arguments of timm's VisionTransformer; pixels are in [0, 1]. `assets/demo_vit.log.json`
# says how the weights were made, and how good they are.
DEMO_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 5, "num_heads": 2}
DEMO_WEIGHTS = Path(__file__).parent / "assets" / "demo_vit.safetensors"
# The two ViTs of LAMDA-PILOT, to which it feeds pixels in [0, 1] whatever they were trained with.
_PILOTS_OWN = (DEFAULT_BACKBONE, "vit_base_patch16_224.augreg_in21k")
_checksum = cache(lambda path, size, changed: checksum(path))  # a file is read again when it has changed
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


def _demo_vit() -> nn.Module:
    """Without its weights, so that an exported model with its own copy of them needs no other."""
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(**DEMO_VIT, num_classes=0, weight_init="skip")


_REGISTERED: dict[str, Callable[[], nn.Module]] = {DEMO: _demo_vit}


def register_backbone(module: nn.Module | Callable[[], nn.Module], name: str | None = None) -> str:
    """Makes a network available as `backbone=NAME`; it must map images [B, 3, H, W] to features [B, dim].

    Args:
        module: The network, of which a copy is taken; or a function that builds it, as a plugin should give.
        name: Without it a module is named by its class and the checksum of its tensors.

    Returns:
        The name, for `backbone=`.
    """
    if not isinstance(module, nn.Module):
        if not callable(module) or not name:
            raise UserError("register_backbone takes an nn.Module, or a function that builds one and a name")
        make = module
    else:
        name = name or f"{type(module).__name__}@{state_checksum(module.state_dict())[:8]}"
        make = partial(copy.deepcopy, module)
    _REGISTERED[name] = make
    return name


def load_backbone(name: str, weights: str, img_size: int | None = None) -> FrozenBackbone:
    """Loads a frozen backbone: a registered one, as that of the demo, or one of timm's.

    Args:
        name: A registered name, or a timm model.
        weights: `bundled` for those that come with the backbone, `hub`, `random`, or a file.
        img_size: Side of the images, if not the backbone's own.
    """
    if name not in _REGISTERED:
        if "@" in name:
            raise UserError(
                f"backbone {name[:60]} was given as a Python object, which another process cannot load: pass it again "
                "from Python, or register it by a function in a plugin"
            )
        return build_backbone(name, weights, img_size)
    if weights in ("hub", "random"):
        raise UserError(f"backbone={name} comes with its weights: leave weights={weights} out")
    module = _REGISTERED[name]()
    file = _weights_file(name, weights)
    if file != BUNDLED:
        load_weights(module, file)
    if takes_prompts(module):
        vit = FrozenViT(module, name)
        if img_size not in (None, *vit.img_size):
            raise UserError(f"backbone={name} takes images of {vit.img_size[0]} pixels: leave img_size={img_size} out")
        return vit
    side = img_size or _card(module).get("input_size", (0, 0, 224))[-1]
    return FrozenBackbone(module, name, (side, side))


def _weights_file(name: str, weights: str) -> str:
    """`bundled` as a file for the demo's ViT; other registered networks are built with their weights."""
    return str(DEMO_WEIGHTS) if weights == BUNDLED and name == DEMO else weights


def default_weights(name: str | None) -> str:
    """The weights of a backbone where none are named: its own (the demo's and registered ones), or timm's hub."""
    return BUNDLED if name in _REGISTERED else "hub"


def file_fingerprint(weights: str, name: str = DEMO) -> str:
    """A file's name and checksum, so that a run's name depends on its content; `hub` and `random` as they are."""
    path = Path(_weights_file(name, weights))
    if not path.is_file():
        return weights
    known = path.stat()
    return f"{path.name}@{_checksum(path, known.st_size, known.st_mtime_ns)[:16]}"


def pixel_statistics(choice: str, name: str, fidelity: str) -> Statistics | None:
    """Mean and deviation by which pixels are normalised; None leaves them in [0, 1].

    Args:
        choice: `none`; `weights`, what the ViT's weights were trained with; `auto`, the same but for LAMDA-PILOT's
            own ViTs with fidelity pilot, which get what they get there; or `MEAN/STD`.
        name: The ViT.
        fidelity: Of the run.
    """
    if choice == "auto" and fidelity == "pilot" and name in _PILOTS_OWN:
        return None
    return _expected(name) if choice in ("auto", "weights") else given_statistics(choice)


def raw_pixels_note(statistics: Statistics | None, name: str, weights: str, fidelity: str) -> str | None:
    """The sentence for the report on a run whose weights expect normalised pixels and do not get them, or None."""
    expected = None if weights == "random" else _expected(name)
    if statistics is not None or expected is None:
        return None
    mean, _, std = statistics_text(expected).partition("/")
    as_there = fidelity == "pilot" and name in _PILOTS_OWN
    return (
        f"Pixels are not normalised (normalize=none), although the weights of {name} expect mean {mean} and deviation "
        f"{std}{', as in LAMDA-PILOT' if as_there else '; normalize=auto would do so'}."
    )


def given_statistics(choice: str) -> Statistics | None:
    """The numbers of `MEAN/STD`, each one or three, as a record has them; None for `none`."""
    if choice == "none":
        return None
    with contextlib.suppress(ValueError):  # of a record that was not written here; settings are checked before
        mean, std = (tuple(float(part) for part in side.strip("[]").split(",")) for side in choice.split("/"))
        in_range = all(0 <= value <= 1 for value in mean) and all(0.001 <= value <= 1000 for value in std)
        if {len(mean), len(std)} <= {1, 3} and in_range:
            return mean * (3 // len(mean)), std * (3 // len(std))
    raise UserError(
        "normalize takes pixels from 0 to 1: a mean from 0 to 1 and a deviation from 0.001 to 1000, each one "
        f"number or three, got {choice[:60]}"
    )


def statistics_text(statistics: Statistics | None) -> str:
    """Text for the run's record: `none` or `MEAN/STD`."""
    if statistics is None:
        return "none"
    return "/".join(",".join(f"{value:.9g}" for value in side) for side in statistics)


def _expected(name: str) -> Statistics | None:
    """What the weights were trained with; None: pixels in [0, 1], or unknown."""
    if name in _REGISTERED:
        card = _card(_REGISTERED[name]())
        return (tuple(card["mean"]), tuple(card["std"])) if "mean" in card and "std" in card else None
    from timm.models import get_pretrained_cfg

    card = get_pretrained_cfg(name) or get_pretrained_cfg(name.split(".")[0])
    return None if card is None else (tuple(card.mean), tuple(card.std))


def _card(module: nn.Module) -> Mapping[str, Any]:
    """timm's facts about a model: image size, mean and standard deviation of pixels; empty for other modules."""
    card = getattr(module, "pretrained_cfg", None)
    return card if isinstance(card, Mapping) else {}

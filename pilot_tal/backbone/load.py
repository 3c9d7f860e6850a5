"""The frozen ViT of a run: the demo's own, or one of timm's; what its weights are, and what pixels they expect."""

from functools import cache
from pathlib import Path

from data_lt.errors import UserError
from data_lt.files import checksum
from pilot_tal.backbone.demo_vit import DEMO_VIT, demo_vit_path
from pilot_tal.backbone.vit import FrozenViT
from pilot_tal.backbone.weights import DEFAULT_BACKBONE, build_backbone, build_from_state

DEMO, BUNDLED = "demo_vit", "bundled"
# The two ViTs of LAMDA-PILOT, to which it feeds pixels in [0, 1] whatever they were trained with.
_PILOTS_OWN = (DEFAULT_BACKBONE, "vit_base_patch16_224.augreg_in21k")
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


def load_backbone(name: str, weights: str, img_size: int | None = None) -> FrozenViT:
    """The frozen ViT."""
    if name != DEMO:
        return build_backbone(name, weights, img_size)
    from safetensors.torch import load_file

    if weights != BUNDLED or img_size is not None:
        raise UserError(
            "backbone=demo_vit comes with its weights and its image size: give weights=bundled and no img_size"
        )
    return build_from_state(load_file(demo_vit_path()), DEMO_VIT["num_heads"], DEMO)


def default_weights(name: str | None) -> str:
    """The weights of a backbone where none are named: the demo's are bundled, all others come from timm's hub."""
    return BUNDLED if name == DEMO else "hub"


def file_fingerprint(weights: str) -> str:
    """A file's name and checksum, so that a run's name follows what is in it; `hub` and `random` as they are."""
    path = demo_vit_path() if weights == BUNDLED else Path(weights)
    if not path.is_file():
        return weights
    known = path.stat()
    return f"{path.name}@{_checksum(path, known.st_size, known.st_mtime_ns)[:16]}"


@cache
def _checksum(path: Path, size: int, changed: int) -> str:
    """Of a file that many runs of a plan name; read again when it has changed."""
    return checksum(path)


def pixel_statistics(choice: str, name: str, fidelity: str) -> Statistics | None:
    """Mean and deviation by which pixels are normalised; None leaves them in [0, 1].

    Args:
        choice: `none`; `weights`, what the ViT's weights were trained with; `auto`, the same but for LAMDA-PILOT's
            own ViTs with fidelity pilot, which get what they get there; or `MEAN/STD`.
        name: The ViT.
        fidelity: Of the run.
    """
    if choice == "none" or (choice == "auto" and fidelity == "pilot" and name in _PILOTS_OWN):
        return None
    if choice in ("auto", "weights"):
        return _expected(name)
    return given_statistics(choice)


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


def given_statistics(choice: str) -> Statistics:
    """The numbers of `MEAN/STD`, each one or three."""
    try:
        mean, std = (tuple(float(part) for part in side.strip("[]").split(",")) for side in choice.split("/"))
        fits = {len(mean), len(std)} <= {1, 3}
    except ValueError:  # of a record that was not written here; settings are checked before
        fits = False
    if not (fits and all(0 <= value <= 1 for value in mean) and all(0.001 <= value <= 1000 for value in std)):
        raise UserError(
            "normalize takes pixels from 0 to 1: a mean from 0 to 1 and a deviation from 0.001 to 1000, each one "
            f"number or three, got {choice[:60]}"
        )
    return mean * (3 // len(mean)), std * (3 // len(std))


def statistics_text(statistics: Statistics | None) -> str:
    """As it stands in a record: `none` or `MEAN/STD`."""
    if statistics is None:
        return "none"
    return "/".join(",".join(f"{value:.9g}" for value in side) for side in statistics)


def _expected(name: str) -> Statistics | None:
    if name == DEMO:
        return None  # trained on pixels in [0, 1]
    from timm.models import get_pretrained_cfg

    card = get_pretrained_cfg(name) or get_pretrained_cfg(name.split(".")[0])
    return None if card is None else (tuple(card.mean), tuple(card.std))

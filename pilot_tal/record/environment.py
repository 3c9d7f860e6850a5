"""What is needed to repeat a run, beside its config."""

import contextlib
import hashlib
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from data_lt.files import checksum, read_bytes
from pilot_tal.version import __version__

_ROOT = Path(__file__).resolve().parents[2]
_SAMPLED = 1000  # images whose content is compared when a run resumes
PACKAGES = ("torch", "torchvision", "timm", "numpy", "scipy", "pandas", "pillow", "safetensors")


def describe(device: str) -> dict[str, Any]:
    """Versions, command line, commit, device and threads."""
    import torch

    return {
        "pilot_tal": __version__,
        "commit": git("rev-parse", "HEAD"),
        "changed_since_commit": bool(git("status", "--porcelain", "--untracked-files=no")),
        "command": sys.argv,
        "working_directory": str(Path.cwd()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "device": device,
        "device_name": torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine(),
        "threads": torch.get_num_threads(),
    }


def hub_source(name: str) -> dict[str, Any]:
    """Returns revision and SHA-256 of a ViT's file in the cache of the Hugging Face hub; empty if it is not there."""
    import pilot_tal._torchvision  # noqa: F401, I001, before timm
    import timm
    from huggingface_hub import try_to_load_from_cache

    card = timm.get_pretrained_cfg(name)
    if card is None or not card.hf_hub_id:
        return {}
    file = try_to_load_from_cache(card.hf_hub_id, card.hf_hub_filename or "model.safetensors")
    if not isinstance(file, str):
        return {}
    return {"repository": card.hf_hub_id, "revision": Path(file).parent.name, "sha256": checksum(file)}


def image_fingerprint(root: Path, paths: Sequence[str]) -> str:
    """SHA-256 over the sizes of all images and the content of at least `_SAMPLED` evenly spaced ones.

    Modification times are left out: a copy of the images on another host is the same data.
    """
    digest = hashlib.sha256()
    for path in paths:
        with contextlib.suppress(OSError):  # a missing image is reported when it is read
            digest.update(f"{path}\0{(root / path).stat().st_size}\0".encode("utf-8", "surrogateescape"))
    stride = max(1, len(paths) // _SAMPLED)
    for path in paths[::stride]:
        with contextlib.suppress(OSError):
            digest.update(hashlib.sha256(read_bytes(root / path)).digest())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git(*arguments: str, root: Path | None = None) -> str | None:
    """What git says of a checkout, by default this one; None for an installed package."""
    root = root or _ROOT
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None

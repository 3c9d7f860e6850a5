"""What is needed to repeat a run, beside its config."""

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pilot_tal.version import __version__

PACKAGES = ("torch", "torchvision", "timm", "numpy", "scipy", "pandas", "pillow", "safetensors")


def describe(device: str) -> dict[str, Any]:
    """Versions, command line, commit, device and threads."""
    import torch

    return {
        "pilot_tal": __version__,
        "commit": _git("rev-parse", "HEAD"),
        "changed_since_commit": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "command": sys.argv,
        "working_directory": str(Path.cwd()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "device": device,
        "device_name": torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine(),
        "threads": torch.get_num_threads(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """What git says of this checkout; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None

"""A tiny image folder, the settings of a tiny ViT, and the command line on them."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from pilot_tal import cli

CLASSES = 6
TINY = [
    "backbone=vit_tiny_patch16_224",
    "weights=random",
    "img_size=32",
    "n_max=6",
    "n_min=2",
    "test_per_class=2",
    "tasks=2",
    "device=cpu",
]


def make_images(root: Path, classes: int = CLASSES, images: int = 9) -> Path:
    """Noise around a colour of the class; names with a space and a letter that is not ASCII."""
    generator = np.random.RandomState(0)
    for label in range(classes):
        folder = root / f"class {label} é"
        folder.mkdir(parents=True)
        colour = generator.uniform(40, 215, 3)
        for number in range(images):
            pixels = np.clip(colour + generator.normal(0, 25, (36, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return root


def settings(root: Path, output: Path, *more: str) -> list[str]:
    """The tiny settings with others in place of theirs."""
    given = {item.split("=")[0] for item in more}
    given |= {"tasks"} if "init_cls" in given else set()
    return [
        *(item for item in TINY if item.split("=")[0] not in given),
        f"data_root={root}",
        f"output={output}",
        *more,
    ]


def command(*arguments: str) -> tuple[int, str]:
    """Runs `pilot-tal` in this process: exit status, and everything printed."""
    printed, before = io.StringIO(), sys.argv
    sys.argv = ["pilot-tal", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            cli.main()
        status = 0
    except SystemExit as stop:
        status = stop.code or 0
    finally:
        sys.argv = before
    return status, printed.getvalue()


def process(*arguments: str, **options) -> subprocess.Popen:
    """Starts `pilot-tal` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "pilot_tal", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **options.pop("env", {})},
        **options,
    )


def result_files(run: Path) -> dict[str, bytes]:
    """What a finished run must hold whatever interrupted it: results, logs and the learned tensors."""
    files = [*run.glob("predictions/*.csv"), *run.glob("*.jsonl"), run / "result.json", run / "config.json"]
    files += [*run.glob("checkpoint/*.learner.safetensors"), run / "run.json"]
    return {str(file.relative_to(run)): file.read_bytes() for file in files}

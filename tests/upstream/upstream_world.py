"""A small toolbox to drive, small images to train on, and the command line."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CLASSES, IMAGES = 6, 9
DATA_SETTINGS = ("data.n_max=6", "data.n_min=2", "data.test_per_class=3")


def make_standin(path: Path, kind: str) -> Path:
    """Copies the stand-in toolbox; PyCIL's data sources are asked for by name alone."""
    for part in ("common", kind):
        shutil.copytree(HERE / "standin" / part, path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    if kind == "pycil":
        edit(path / "utils/data_manager.py", "(dataset_name, args):", "(dataset_name):")
        edit(path / "utils/data_manager.py", "(dataset_name, self.args)", "(dataset_name)")
    return path


def edit(path: Path, old: str, new: str) -> None:
    """Changes a file of the stand-in, which must hold `old`."""
    text = path.read_text()
    assert old in text, f"{path} has no {old!r}"
    path.write_text(text.replace(old, new))


def make_images(path: Path, classes: int = CLASSES, images: int = IMAGES) -> Path:
    """Pictures of a colour a class, with noise."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        (path / f"class{label}").mkdir(parents=True)
        colour = rng.integers(40, 216, 3)
        for number in range(images):
            pixels = np.clip(colour + rng.normal(0, 25, (10, 12, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(path / f"class{label}" / f"{number:02d}.png")
    return path


def snapshot(path: Path) -> dict[str, str]:
    """Every file below `path` with its checksum."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def pilot_tal(*arguments: object, cwd: Path) -> subprocess.CompletedProcess:
    """Runs the command line as a user would, in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    command = [sys.executable, "-m", "pilot_tal", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def run_command(*arguments: object, cwd: Path) -> Result:
    """Runs the command line in this process; what the driver says goes to the process's own streams."""
    from pilot_tal.cli import app

    before = Path.cwd()
    os.chdir(cwd)
    try:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])
    finally:
        os.chdir(before)

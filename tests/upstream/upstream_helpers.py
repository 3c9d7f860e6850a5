"""A small toolbox to drive, and the command line."""

import hashlib
import os
import shutil
from pathlib import Path

from helpers.cli import Answer, ask

HERE = Path(__file__).parent
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


def snapshot(path: Path) -> dict[str, str]:
    """Every file below `path` with its checksum."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def run_command(*arguments: object, cwd: Path) -> Answer:
    """Runs the command line in this process; what the driver says goes to the process's own streams."""
    before = Path.cwd()
    os.chdir(cwd)
    try:
        return ask(*arguments)
    finally:
        os.chdir(before)

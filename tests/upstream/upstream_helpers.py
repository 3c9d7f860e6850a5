"""A small toolbox to drive, and the command line."""

import hashlib
import os
import shutil
from pathlib import Path
from types import ModuleType

from helpers.cli import Answer, ask

from pilot_tal.upstream import workarounds
from pilot_tal.upstream.job import Data, Job
from pilot_tal.upstream.sites import LAMDA_PILOT, Toolbox, vit_module
from pilot_tal.upstream.swap import Patches

HERE = Path(__file__).parent
DATA = Data("/images", "a", "cub", ["x", "y"], [("x/1.png", 0), ("y/2.png", 1)], [("x/3.png", 0)])
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


def context(toolbox: Toolbox, method: str, kind: type = object, on_cpu=True, args=None, **job) -> workarounds.Context:
    """A context with empty modules; `kind` is the class of the learner."""
    vit = {"backbone_type": f"vit_base_patch16_224_{method}"} if toolbox is LAMDA_PILOT else {}
    args = {"init_cls": 10, **vit, **(args or {})}
    job = {"workers": 0, "data": DATA, **job}
    made = Job("repo", "run", args, {"method": {"name": method}, "loss": {"name": "ce"}, "seed": 1}, **job)
    learner = toolbox.learners[method]
    names = ("models.base", "utils.data_manager", learner.module, vit_module(args.get("backbone_type", "")))
    modules = {name: ModuleType(name) for name in names}
    setattr(modules[learner.module], learner.cls, kind)
    return workarounds.Context(made, learner, Patches(), modules, on_cpu)


def needed(made: workarounds.Context) -> set[str]:
    return {name for name, (test, _) in workarounds.WORKAROUNDS.items() if test(made)}

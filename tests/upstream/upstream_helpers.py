"""A small stand-in for LAMDA-PILOT, and the command line."""

import hashlib
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

from helpers.cli import ROOT, Answer, ask

from data_lt.files import read_json
from pilot_tal.record.run_dir import load_run
from pilot_tal.upstream import driver, workarounds
from pilot_tal.upstream.driver import Job
from pilot_tal.upstream.swap import Patches

HERE = Path(__file__).parent
DATA = {
    "root": "/images",
    "class_names": ["x", "y"],
    "train": [("x/1.png", 0), ("y/2.png", 1)],
    "test": [("x/3.png", 0)],
}
DATA_SETTINGS = ("data.n_max=6", "data.n_min=2", "data.test_per_class=3")
PYTHON = """#!{python}
import runpy, sys

sys.path.insert(0, {root!r})
from pilot_tal.upstream import checkout

checkout.check_environment = lambda: {{"torch": "any"}}
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def make_standin(path: Path) -> Path:
    """Copies the stand-in."""
    return shutil.copytree(HERE / "standin", path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def make_python(path: Path) -> Path:
    """An interpreter for the stand-in, which needs none of LAMDA-PILOT's packages."""
    path.write_text(PYTHON.format(python=sys.executable, root=str(ROOT)))
    path.chmod(0o755)
    return path


def run_job(job: Job):
    """Runs a job in this process."""
    job.write()
    driver.run(Job(**read_json(job.file)), {"torch": "any"})
    return load_run(job.run_dir)


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


def context(method: str, kind: type = object, on_cpu=True, args=None, **job) -> workarounds.Context:
    """A context with empty modules; `kind` is the class of the learner."""
    args = {"init_cls": 10, "tuned_epoch": 5, "dataset": "a", **(args or {})}
    made = Job("repo", "run", args, {"method": {"name": method}}, **{"workers": 0, **job})
    own = ModuleType("own")
    own.Learner = kind
    return workarounds.Context(made, Patches(), own, ModuleType("manager"), on_cpu)


def needed(made: workarounds.Context) -> set[str]:
    return {function.__name__ for function in workarounds.needed_workarounds(made)}

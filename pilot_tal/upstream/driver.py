"""Runs one job inside the environment of the checkout."""

import importlib
import importlib.metadata
import logging
import os
import platform
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from data_lt.errors import UserError
from pilot_tal.upstream.job import Job
from pilot_tal.upstream.seams import check_seams, find_toolbox
from pilot_tal.upstream.sites import LAMDA_PILOT, LearnerSites, Toolbox, vit_module

SETUP = "make its environment with: bash scripts/setup_upstream.sh"
_NEEDED = ("torch", "torchvision", "scipy", "tqdm", "numpy")
_TOP_LEVEL = ("trainer", "utils", "models", "backbone", "convs")


def check_environment(toolbox: Toolbox, repo: Path, learners: Iterable[LearnerSites]) -> dict[str, str]:
    """The versions of what the toolbox and these learners of it need.

    Raises:
        UserError: A package is missing or of a version the toolbox cannot use.
    """
    versions = {"python": platform.python_version()}
    own = ("timm", "easydict") if toolbox is LAMDA_PILOT else ()
    for package in (*_NEEDED, *own, *(package for learner in learners for package in learner.packages)):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as error:
            raise UserError(f"{sys.executable} lacks {package}, which {toolbox.title} needs; {SETUP} {repo}") from error
    if _release(versions["torch"]) < (2, 4):
        raise UserError(f"torch must be 2.4 or newer, but {sys.executable} has {versions['torch']}")
    if toolbox is LAMDA_PILOT and _release(versions["timm"]) != (0, 6):
        raise UserError(
            f"LAMDA-PILOT needs timm 0.6 (0.6.13 on Python 3.11 and newer), but {sys.executable} has "
            f"{versions['timm']}; {SETUP} {repo}"
        )
    return versions


def run(job: Job) -> None:
    """Checks the checkout and its environment, then trains and writes the run directory."""
    repo = Path(job.repo)
    toolbox = find_toolbox(repo)
    learner = toolbox.learner(job.method)
    located = check_seams(repo, toolbox, learner)
    versions = check_environment(toolbox, repo, [learner])

    import numpy as np

    import pilot_tal._torchvision  # noqa: F401
    from pilot_tal.config.parse import load_plugins
    from pilot_tal.losses import build_loss
    from pilot_tal.record.writer import open_run
    from pilot_tal.upstream.source import VIT_SIDE, register_source
    from pilot_tal.upstream.swap import Patches, Supervision, swap
    from pilot_tal.upstream.workarounds import Context, apply_workarounds
    from pilot_tal.upstream.writer import RunRecorder

    load_plugins(tuple(job.plugins))
    # A learner that trains nothing never asks for its loss.
    criterion = build_loss(job.loss, **job.record["loss"]["options"]) if learner.trains else build_loss("ce")
    environment = _environment(job, toolbox, versions)
    args = {**job.args, "seed": [job.seed], "device": _device(job)}
    with open_run(Path(job.run_dir)) as files, Patches() as patches, opened(repo), _working_in(job, repo):
        context = Context(job, learner, patches, import_modules(job, learner), on_cpu=-1 in args["device"])
        recorder = RunRecorder(job, criterion, environment, files)
        supervision = Supervision(criterion, learner, _epochs(job, learner, context.own), recorder.step)
        swap(patches, context.own, located, supervision)
        for lines, site in located:
            fate = f"swapped for {job.loss}" if site.swap else "stays"
            logging.getLogger("pilot_tal").warning(f"{learner.file}:{lines.start}: {fate}")
        for name, value in job.constants.items():
            patches.set(context.own, name, value)
        if job.data is not None:
            args["dataset"] = job.data.alias
            side = job.vit.get("img_size", VIT_SIDE)
            register_source(patches, context.modules["utils.data_manager"], job.data, side)
        environment["workarounds"] = apply_workarounds(context)
        recorder.follow(patches, context.kind, supervision)
        random.seed(job.seed)
        np.random.seed(job.seed)
        context.modules["trainer"].train(args)


def import_modules(job: Job, learner: LearnerSites) -> dict[str, ModuleType]:
    """The modules of the checkout that are patched or called, by name."""
    names = ["trainer", "utils.data_manager", "models.base", learner.module]
    names += [vit_module(job.args["backbone_type"])] if "backbone_type" in job.args else []
    return {name: importlib.import_module(name) for name in names}


def _device(job: Job) -> list[int | str]:
    """The devices of the job or of the checkout's settings; the CPU where there is no GPU."""
    import torch

    if job.device is not None:
        return job.device
    return job.args["device"] if torch.cuda.is_available() else [-1]


def _epochs(job: Job, learner: LearnerSites, module: ModuleType) -> Callable[[int], int]:
    """How many epochs a task has: in the checkout's settings, or in numbers that the learner's file sets."""
    first, _, later = learner.epochs.partition(" ")
    if job.method == "ease" and job.args["init_cls"] == job.args["increment"]:
        later = first  # EASE's own rule

    def of_task(index: int) -> int:
        names = (later or first if index else first).split("+")
        return sum(int(getattr(module, name, job.args.get(name, 0))) for name in names)

    return of_task


@contextmanager
def opened(repo: Path) -> Iterator[None]:
    """Makes the checkout's modules importable; removes them from `sys.modules` afterwards."""
    for name in _TOP_LEVEL:
        if name in sys.modules:
            raise UserError(f"a module named {name!r} is imported already; the driver needs a process of its own")
    before, writes = set(sys.modules), sys.dont_write_bytecode
    sys.path.insert(0, str(repo))
    sys.dont_write_bytecode = True  # nothing is written into the checkout
    try:
        yield
    finally:
        sys.path.remove(str(repo))
        sys.dont_write_bytecode = writes
        for name in set(sys.modules) - before:
            if name.split(".")[0] in _TOP_LEVEL:
                del sys.modules[name]


@contextmanager
def _working_in(job: Job, repo: Path) -> Iterator[None]:
    """Works in the run directory, where the checkout's logs land; `./data` is there for its own datasets."""
    job.work_dir.mkdir(parents=True, exist_ok=True)
    if job.data is None:
        data = repo / "data" if (repo / "data").is_dir() else Path(job.data_root)
        data.mkdir(parents=True, exist_ok=True)
        link = job.work_dir / "data"
        link.unlink(missing_ok=True)
        link.symlink_to(data, target_is_directory=True)
    before = Path.cwd()
    os.chdir(job.work_dir)
    try:
        yield
    finally:
        os.chdir(before)


def _environment(job: Job, toolbox: Toolbox, versions: dict[str, str]) -> dict[str, Any]:
    """What is needed to repeat the run."""
    from pilot_tal.record.writer import describe, git

    repo, devices = Path(job.repo), _device(job)
    commit, changed = git("rev-parse", "HEAD", root=repo), bool(git("status", "--porcelain", root=repo))
    here = describe("cpu" if -1 in devices else f"cuda:{devices[0]}")
    return {
        **here,
        "packages": {**here["packages"], **versions},
        "checkout": {"commit": commit, "changed": changed, "tested_commit": toolbox.tested_commit},
    }


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)

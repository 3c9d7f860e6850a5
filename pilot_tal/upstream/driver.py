"""Runs one job inside the environment of the checkout, and writes what our own engine would write."""

import importlib
import logging
import os
import random
import re
import sys
from dataclasses import asdict, dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pilot_tal._torchvision  # noqa: F401
from data_lt.errors import UserError, foreign_code
from data_lt.files import write_json
from pilot_tal.config.parse import load_plugins
from pilot_tal.losses import TaskLoss, build_loss
from pilot_tal.record.run_record import RunRecord
from pilot_tal.record.step_log import StepLog
from pilot_tal.record.writer import RunWriter, describe, git, open_run
from pilot_tal.schema import build
from pilot_tal.upstream.checkout import TESTED_COMMIT, TITLE, known_learner, locate
from pilot_tal.upstream.swap import Patches, Supervision, swap
from pilot_tal.upstream.workarounds import WIDTH, Context, apply_workarounds

_TOP_LEVEL = ("trainer", "utils", "models", "backbone")


@dataclass(frozen=True)
class Job:
    """One run as a file: written by the command line, read by the driver.

    Attributes:
        args: The checkout's own settings.
        record: The `RunRecord` as plain values, but for what only the checkout knows: its order of the classes.
        data: A long-tailed set (root, class names, (path below root, label) pairs of train and test), or None for a
            dataset of the checkout's own, which is in its data folder or is downloaded to `data_root`.
        device: Devices as the checkout counts them ([-1] is the CPU), or None for its own choice.
        workers: Processes that load images, or None for the checkout's own number.
        weights: A file of ViT weights, "random", or None for the checkout's own download.
        vit: What of the shape of the ViT in `weights` is not that of ViT-B/16, as arguments of timm's ViT.
        plugins: Modules or files that register losses of the user's own.
    """

    repo: str
    run_dir: str
    args: dict[str, Any]
    record: dict[str, Any]
    data: dict[str, Any] | None = None
    data_root: str = "data"
    device: list[int | str] | None = None
    workers: int | None = None
    weights: str | None = None
    vit: dict[str, Any] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """Name of the learner."""
        return self.record["method"]["name"]

    @property
    def work_dir(self) -> Path:
        """Where the checkout runs: its own logs land here, never in the checkout."""
        return Path(self.run_dir) / "upstream"

    @property
    def file(self) -> Path:
        """The job's own file."""
        return self.work_dir / "job.json"

    def write(self) -> None:
        """Writes the job's file."""
        write_json(self.file, asdict(self))

    def epochs(self, task: int) -> int:
        """The epochs of a task; EASE trains all tasks as the first one if they are of equal size."""
        names = known_learner(self.method).epochs
        equal = self.method == "ease" and self.args["init_cls"] == self.args["increment"]
        return int(self.args[names[0 if task == 0 or equal else -1]])


def run(job: Job, versions: dict[str, str]) -> None:
    """Trains and writes the run directory; `versions` are those of the environment."""
    repo, learner, loss, seed = Path(job.repo), known_learner(job.method), job.record["loss"], job.record["seed"]
    located = locate(repo, learner)
    load_plugins(tuple(job.plugins))
    criterion = build_loss(loss["name"], **loss["options"]) if learner.trains else build_loss("ce")
    devices = job.device
    if devices is None:
        devices = job.args["device"] if torch.cuda.is_available() else [-1]
    with open_run(Path(job.run_dir)) as files, Patches() as patches:
        here = describe("cpu" if -1 in devices else f"cuda:{devices[0]}")
        commit, changed = git("rev-parse", "HEAD", root=repo), bool(git("status", "--porcelain", root=repo))
        checkout = {"commit": commit, "changed": changed, "tested_commit": TESTED_COMMIT}
        environment = {**here, "packages": {**here["packages"], **versions}, "checkout": checkout}
        recorder = RunRecorder(job, criterion, environment, files)
        supervision = Supervision(criterion, learner.masked, job.epochs, recorder.step)
        with foreign_code(f"{repo} has changed since commit {TESTED_COMMIT} of {TITLE}, for which the driver is made"):
            context = opened(job, patches, on_cpu=-1 in devices)
            swap(patches, context.own, located, supervision)
            for lines, site in located:
                fate = f"swapped for {loss['name']}" if site.swap else "stays"
                logging.getLogger("pilot_tal").warning(f"{learner.file}:{lines.start}: {fate}")
            environment["workarounds"] = apply_workarounds(context)
            recorder.follow(patches, context.own.Learner, supervision)
        _work_in_run_dir(job, patches)
        random.seed(seed)
        np.random.seed(seed)
        importlib.import_module("trainer").train({**job.args, "seed": [seed], "device": devices})


def opened(job: Job, patches: Patches, on_cpu: bool) -> Context:
    """Imports modules of the checkout, with the shape of the job's ViT; unloads them when `patches` ends."""
    repo, read = f"{job.repo}{os.sep}", SourceFileLoader.get_data
    numbers = {rf"\b{name}=\d+\.?\d*": f"{name}={value}" for name, value in job.vit.items()}
    numbers[rf"\b{WIDTH}\b"] = str(job.vit.get("embed_dim", WIDTH))  # stands for the width and for nothing else

    def get_data(loader: SourceFileLoader, path: str) -> bytes:
        if not path.startswith(repo):
            return read(loader, path)
        if path.endswith(".pyc"):
            raise FileNotFoundError(path)  # bytecode of the numbers as they were
        source = read(loader, path).decode()
        for pattern, number in numbers.items():
            source = re.sub(pattern, number, source)
        return source.encode()

    def unload() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] in _TOP_LEVEL]:
            del sys.modules[name]

    patches.callback(unload)
    patches.set(sys, "path", [job.repo, *sys.path])
    patches.set(sys, "dont_write_bytecode", True)  # nothing is written into the checkout
    patches.set(SourceFileLoader, "get_data", get_data)
    own, manager = (importlib.import_module(name) for name in (f"models.{job.method}", "utils.data_manager"))
    return Context(job, patches, own, manager, on_cpu)


def _work_in_run_dir(job: Job, patches: Patches) -> None:
    """The checkout's logs land in the run directory; `./data` is there for its own datasets."""
    job.work_dir.mkdir(parents=True, exist_ok=True)
    if job.data is None:
        data = Path(job.repo) / "data"
        data = data if data.is_dir() else Path(job.data_root)
        data.mkdir(parents=True, exist_ok=True)
        link = job.work_dir / "data"
        link.unlink(missing_ok=True)
        link.symlink_to(data, target_is_directory=True)
    patches.callback(os.chdir, os.getcwd())
    os.chdir(job.work_dir)


class RunRecorder:
    """Follows a learner through its tasks and writes the run directory."""

    def __init__(self, job: Job, criterion: TaskLoss, environment: dict[str, Any], writer: RunWriter):
        self.job, self.criterion, self.environment, self.writer = job, criterion, environment, writer
        self.record: RunRecord | None = None
        self._log = StepLog(criterion)

    def follow(self, patches: Patches, kind: Any, supervision: Supervision) -> None:
        """Hooks into the class of a learner: the start, and the predictions after each task."""
        evaluate, train = kind._eval_cnn, kind.incremental_train

        def then_write(learner: Any, loader: Any) -> Any:
            best, true = evaluate(learner, loader)
            self.end_task(learner, best[:, 0], true)
            return best, true

        def start_first(learner: Any, data_manager: Any) -> None:
            if self.record is None:
                supervision.learner, supervision.num_tasks = learner, data_manager.nb_tasks
                self.start(data_manager)
            train(learner, data_manager)

        patches.set(kind, "_eval_cnn", then_write)
        patches.set(kind, "incremental_train", start_first)

    def start(self, data_manager: Any) -> None:
        """Writes what is run, now that the checkout has split the classes."""
        job, order = self.job, [int(label) for label in data_manager._class_order]
        counts = np.bincount(data_manager._train_targets, minlength=len(order))
        names = job.data["class_names"] if job.data else [f"class {label}" for label in range(len(order))]
        stream = {
            "task_sizes": [int(data_manager.get_task_size(t)) for t in range(data_manager.nb_tasks)],
            "class_names": [names[label] for label in order],
            "class_order": order,
            "train_counts": counts.tolist(),
        }
        parts = {**job.record, "stream": {**job.record["stream"], **stream}, "environment": [self.environment]}
        self.record = build(RunRecord, parts)
        self.writer.write_record(self.record)
        self.writer.commit(self.record, 0, restart=True)  # a checkout cannot resume

    def step(self, epoch: int, loss: Tensor) -> None:
        """Notes a training step."""
        self._log.add(loss, epoch=epoch)

    def end_task(self, learner: Any, pred: np.ndarray, true: np.ndarray) -> None:
        """Writes the predictions and the logs after a task."""
        task, dataset = learner._cur_task, learner.test_loader.dataset
        if not np.array_equal(np.asarray(dataset.labels), true):
            raise UserError("the checkout's test loader no longer keeps the order of its dataset")
        assert self.record is not None  # written before the first task
        root = self.job.data["root"] if self.job.data else "."
        names = [f"test/{index}" for index in range(len(true))]
        if dataset.use_path:
            paths = (Path(str(path)) for path in dataset.images)
            names = [(path.relative_to(root) if path.is_relative_to(root) else path).as_posix() for path in paths]
        self.writer.write_task(task, names, true, pred, steps=self._log.steps(), states=self._log.states())
        self._log = StepLog(self.criterion)
        self.writer.commit(self.record, task + 1)

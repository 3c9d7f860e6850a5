"""One run: a learner over the tasks of a stream, with a checkpoint after each task."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_lt import LongTailedSet, prepare
from pilot_tal import rundir
from pilot_tal.backbone import FrozenViT, build_backbone, build_from_state
from pilot_tal.config import QUICK_STEPS, QUICK_TEST_IMAGES, Machine, RunConfig
from pilot_tal.demo_vit import DEMO_VIT, demo_vit_path
from pilot_tal.engine.checkpoint import Checkpoint, drop_cache, load_checkpoint, save_checkpoint
from pilot_tal.engine.environment import describe
from pilot_tal.engine.lock import only_process
from pilot_tal.engine.progress import Progress
from pilot_tal.engine.record import StepLog, extend_lines
from pilot_tal.errors import PilotTalError
from pilot_tal.images import Batches, ImageStore, build_transforms, derive_seed
from pilot_tal.learners import Learner, build_learner, make_config
from pilot_tal.losses import build_loss
from pilot_tal.metrics import summarize
from pilot_tal.rundir import RunInfo
from pilot_tal.stream import class_order, equal_tasks, incremental_tasks, make_tasks
from pilot_tal.task import TaskInfo
from pilot_tal.training import StepInfo, evaluate, train_task


@dataclass(frozen=True)
class Shared:
    """What the runs of a comparison share: loaded once."""

    data: LongTailedSet
    backbone: FrozenViT
    store: ImageStore
    device: torch.device
    workers: int


def resolved(config: RunConfig, data: LongTailedSet) -> dict[str, Any]:
    """Everything that shapes a run's result, its data's checksum included: what the run's name stands for."""
    record = config.record()
    record["data"]["checksum"] = data.checksum
    return record


def run_path(config: RunConfig, machine: Machine, data: LongTailedSet) -> Path:
    """The directory of a run."""
    name = rundir.run_name(config.dataset, config.method, config.loss, config.seed, resolved(config, data))
    return Path(machine.output) / name


def is_finished(path: Path) -> bool:
    """Whether a run is complete."""
    return (path / "result.json").is_file() and rundir.load_run(path).finished


def find_data(config: RunConfig, machine: Machine) -> LongTailedSet:
    """Finds the images; says what is missing."""
    options = config.data
    return prepare(
        config.dataset,
        machine.data_root,
        seed=options.split_seed,
        law=options.law,
        shape=options.shape,
        n_max=options.n_max,
        n_min=options.n_min,
        test_per_class=options.test_per_class,
        classes=options.classes,
        manifest=options.manifest,
        folder=options.folder,
    )


def load_shared(config: RunConfig, machine: Machine, data: LongTailedSet | None = None) -> Shared:
    """Finds the images, loads the frozen ViT and chooses the device."""
    data = data or find_data(config, machine)
    device = choose_device(machine.device)
    backbone = load_backbone(config).to(device)
    store = ImageStore(data.root, data.frame["path"].tolist(), machine.cache)
    workers = machine.workers
    if workers is None:  # a CPU is busy with the ViT; a GPU waits for images
        workers = min(8, torch.get_num_threads()) if device.type == "cuda" else 0
    return Shared(data, backbone, store, device, workers)


def load_backbone(config: RunConfig) -> FrozenViT:
    """The frozen ViT; the demo's own ships with the project."""
    if config.backbone != "demo_vit":
        return build_backbone(config.backbone, config.weights or None, config.img_size)
    from safetensors.torch import load_file

    if config.weights != "bundled" or config.img_size is not None:
        raise PilotTalError(
            "backbone=demo_vit comes with its weights and its image size: give weights=bundled and no img_size"
        )
    return build_from_state(load_file(demo_vit_path()), DEMO_VIT["num_heads"], "demo_vit")


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA, then Apple's MPS, then the CPU."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    device = torch.device(name)
    if not available[device.type] or (device.index or 0) >= max(1, torch.cuda.device_count()):
        raise PilotTalError(f"device={name}: this machine has no {name}; use device=cpu or device=auto")
    return device


class Run:
    """One run on what it shares with others."""

    def __init__(self, config: RunConfig, machine: Machine, shared: Shared):
        self.config, self.shared = config, shared
        self.path = run_path(config, machine, shared.data)
        frame, names = shared.data.frame, shared.data.class_names
        self.order = class_order(len(names), config.seed)
        new_label = np.argsort(self.order)
        labels = new_label[frame["label"].to_numpy()]
        training = (frame["split"] == "train").to_numpy()
        self.sizes = self._task_sizes(len(names))
        counts = np.bincount(labels[training], minlength=len(names)).tolist()
        self.tasks = make_tasks(self.sizes, counts)
        self.info = RunInfo(
            dataset=config.dataset,
            method=config.method,
            loss=config.loss,
            seed=config.seed,
            fidelity=config.fidelity,
            task_sizes=tuple(self.sizes),
            class_names=tuple(names[original] for original in self.order),
            class_order=tuple(self.order),
            train_counts=tuple(counts),
            notes=("A quick run of a few steps: its numbers mean nothing.",) if config.quick else (),
        )
        self.settings = make_config(config.method, config.settings)
        self.limit = QUICK_STEPS if config.quick else None
        # By new label, within a class in the order of the list: as LAMDA-PILOT serves its test images.
        self.train = _by_label(labels, training)
        self.test = _by_label(labels, ~training, QUICK_TEST_IMAGES if config.quick else None)
        size = shared.backbone.img_size
        size = size if isinstance(size, int) else size[0]
        self.train_transform, self.test_transform = build_transforms(config.transform, size)

    def execute(self) -> Path:
        """Trains what is left; does nothing for a finished run."""
        with only_process(self.path):
            if is_finished(self.path):
                return self.path
            for left in self.path.rglob(".*.tmp"):  # of a process that was killed while writing
                if left.is_file():
                    left.unlink()
            rundir.write_run(self.path, self.info, resolved(self.config, self.shared.data), self._environment())
            torch.manual_seed(derive_seed("build", self.config.seed))
            learner = self.build()
            checkpoint = load_checkpoint(self.path / "checkpoint")
            done = 0
            if checkpoint is not None:
                done = checkpoint.tasks_done
                for name in ("steps.jsonl", "tal.jsonl"):
                    rundir.read_lines(self.path / name)  # a damaged log is better found now than after the next task
                learner.load_checkpoint_state(checkpoint.learner)
                learner.cache.load_state(checkpoint.cache)
            self._train(learner, done)
            self._write_result(len(self.tasks))
            drop_cache(self.path / "checkpoint")
        return self.path

    def _environment(self) -> dict[str, Any]:
        """Where the run happens; a resumed run keeps where it began and adds where it went on."""
        shared = self.shared
        here = describe(str(shared.device), shared.backbone.checksum, shared.data.checksum, shared.data.law)
        file = self.path / "environment.json"
        if not file.is_file():
            return {**here, "resumed": []}
        began = rundir.read_record(file)
        return {**began, "resumed": [*(began.get("resumed") or []), here]}

    def train_batches(self, task: TaskInfo) -> Batches:
        """Training images of a task, with random crops."""
        return self._batches(self.train, task.first, task.stop, self.train_transform)

    def test_batches(self, task: TaskInfo) -> Batches:
        """Test images of all classes seen after a task."""
        return self._batches(self.test, 0, task.stop, self.test_transform)

    def steps(self, task: TaskInfo) -> int:
        """Training steps of a task."""
        settings = self.settings
        return settings.tuned_epoch * self.train_batches(task).steps(settings.drop_last, self.limit)

    def build(self) -> Learner:
        """A new learner for this run."""
        config = self.config
        return build_learner(
            config.method,
            self.shared.backbone,
            self.settings,
            len(self.order),
            len(self.tasks),
            config.fidelity,
        ).to(self.shared.device)

    def _train(self, learner: Learner, done: int) -> None:
        title = f"{self.config.method} {self.config.dataset} {self.config.loss} seed {self.config.seed}"
        left = sum(self.steps(task) for task in self.tasks[done:])
        with Progress(title, self.path / "log.txt", left) as progress:
            if done:
                progress.say(f"resumed after task {done} of {len(self.tasks)}")
            for task in self.tasks[done:]:
                self._one_task(learner, task, progress)

    def _one_task(self, learner: Learner, task: TaskInfo, progress: Progress) -> None:
        config, settings, device = self.config, self.settings, self.shared.device
        # Seeded anew in every task, so that going on after a checkpoint needs no state of a generator.
        torch.manual_seed(derive_seed("task", config.seed, task.index))
        criterion = build_loss(config.loss, **config.loss_options).to(device)
        batches = self.train_batches(task)
        log = StepLog(task.index, self.steps(task), criterion)
        place = f"task {task.index + 1}/{len(self.tasks)}"
        images_a_step = len(batches.indices) / batches.steps()

        def on_step(info: StepInfo) -> None:
            log.add(info)
            epoch = f"epoch {info.epoch + 1}/{settings.tuned_epoch}"
            progress.step(f"{place}, {epoch}", info.loss, images_a_step)

        progress.begin_steps()
        train_task(
            learner,
            criterion,
            task,
            batches.epochs(settings.tuned_epoch, derive_seed(config.seed, task.index), settings.drop_last, self.limit),
            epochs=settings.tuned_epoch,
            config=settings,
            device=device,
            precision=config.precision,
            on_step=on_step,
        )
        progress.doing(f"{place}, statistics")
        statistics = self._batches(self.train, task.first, task.stop, self.test_transform)
        learner.end_task(lambda: ((x.to(device), y.to(device)) for x, y, _ in statistics.in_order()))
        progress.doing(f"{place}, evaluation")
        true, pred = evaluate(learner, self.test_batches(task).in_order(), device, config.precision)
        self._save_task(learner, task, log, true.numpy(), pred.numpy())
        correct = float((true == pred).float().mean()) if len(true) else 0.0
        progress.say(f"{place} done, {task.stop} classes seen, accuracy {100 * correct:.2f} %")

    def _save_task(self, learner: Learner, task: TaskInfo, log: StepLog, true: np.ndarray, pred: np.ndarray) -> None:
        paths = self.shared.store.paths
        images = [paths[index] for label in range(task.stop) for index in self.test[label]]
        rundir.write_predictions(self.path, task.index, images, true, pred)
        steps = log.step_lines()
        _refuse_divergence(steps)
        extend_lines(self.path / "steps.jsonl", task.index, steps)
        states = log.tal_lines()
        if states:
            extend_lines(self.path / "tal.jsonl", task.index, states)
        save_checkpoint(
            self.path / "checkpoint",
            Checkpoint(task.index + 1, learner.checkpoint_state(), learner.cache.state()),
        )
        if task.index + 1 < len(self.tasks):
            self._write_result(task.index + 1)

    def _write_result(self, done: int) -> None:
        """Metrics of the tasks done, from what was predicted after each."""
        rundir.write_result(self.path, done, False, {})
        run = rundir.load_run(self.path)
        metrics = summarize(run.predictions, self.info.task_sizes, self.info.train_counts, self.info.class_order)
        rundir.write_result(self.path, done, done == len(self.tasks), metrics)

    def _task_sizes(self, classes: int) -> list[int]:
        if self.config.init_cls is not None:
            return incremental_tasks(classes, self.config.init_cls, self.config.increment)
        return equal_tasks(classes, self.config.tasks)

    def _batches(self, images: list[list[int]], first: int, stop: int, transform) -> Batches:
        indices = [index for label in range(first, stop) for index in images[label]]
        labels = [label for label in range(first, stop) for _ in images[label]]
        shared = self.shared
        return Batches(shared.store, indices, labels, transform, self.settings.batch_size, shared.workers)


def _by_label(labels: np.ndarray, chosen: np.ndarray, limit: int | None = None) -> list[list[int]]:
    """Indices of the chosen images of each label, in the order of the list."""
    classes = int(labels.max()) + 1
    return [np.flatnonzero(chosen & (labels == label)).tolist()[:limit] for label in range(classes)]


def _refuse_divergence(steps: list[dict[str, Any]]) -> None:
    """A loss that is no number would only spoil the later tasks."""
    wrong = next((s for s in steps if not np.isfinite(s["loss"] + s["aux"])), None)
    if wrong is not None:
        raise PilotTalError(
            f"the loss became {wrong['loss']} in task {wrong['task'] + 1}, epoch {wrong['epoch'] + 1}, step "
            f"{wrong['step']}; lower init_lr, or use precision=fp32"
        )

"""What is trained, and what is evaluated, seen through a learner and a loss that write down all they are given.

The images carry their own numbers in their pixels, and the run is one of the command line with a plugin.
"""

import json
import math
from pathlib import Path

import helpers
import numpy as np
import pytest
from helpers.cli import process
from helpers.images import make_numbered_images

from pilot_tal.record.run_dir import find_runs, load_run
from pilot_tal.stream.batches import derive_seed

CLASSES, IMAGES, TEST = 5, 9, 3
PLUGIN = Path(helpers.__file__).with_name("spy.py")
BASE = [
    *("backbone=vit_tiny_patch16_224", "weights=random", "img_size=32", "normalize=none", "device=cpu"),
    *(f"test_per_class={TEST}", "n_max=6", "n_min=2", "init_cls=3", "increment=2", f"plugins={PLUGIN}"),
]


class Seen:
    """A finished run of the spy, and its notes."""

    def __init__(self, folder: Path, images: Path, *more: str):
        log = folder / "spy.jsonl"
        given = {item.partition("=")[0] for item in more}
        usual = [item for item in BASE if item.partition("=")[0] not in given]
        wanted = [*usual, f"data_root={images}", f"output={folder}", *more]
        done = process("run", "spy", "folder_lt", *wanted, env={"SPY_LOG": str(log)})
        self.printed = done.communicate()[0]
        assert done.returncode == 0, self.printed
        self.notes = [json.loads(line) for line in log.read_text().splitlines()]
        (path,) = find_runs([folder])
        self.run = load_run(path)
        self.record = self.run.record
        self.class_of = {  # number of an image → its label in the run
            label * IMAGES + place: self.record.stream.class_names.index(f"c{label}")
            for label in range(CLASSES)
            for place in range(IMAGES)
        }

    def all(self, what: str) -> list[dict]:
        return [entry for entry in self.notes if entry["what"] == what]

    def numbers_of(self, images: list[str]) -> list[int]:
        return [int(name.split("/")[0][1:]) * IMAGES + int(Path(name).stem) for name in images]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_numbered_images(tmp_path_factory.mktemp("images"), CLASSES, IMAGES)


@pytest.fixture(scope="module")
def seen(images, tmp_path_factory):
    return Seen(
        tmp_path_factory.mktemp("run"), images, "loss=spy_loss", "spy_loss.slope=2.5", "seed=7", "fidelity=fixed"
    )


def split_of(seen: Seen) -> tuple[set[int], set[int]]:
    """Numbers of the training and test images, from the list that the run's data are built from."""
    from data_lt import prepare

    root = next(Path(part.partition("=")[2]) for part in seen.record.environment[0]["command"] if "data_root=" in part)
    frame = prepare("folder_lt", root, n_max=6, n_min=2, test_per_class=TEST).frame
    return tuple(set(seen.numbers_of(frame["path"][frame["split"] == split])) for split in ("train", "test"))


def test_class_order_is_lamda_pilots_permutation_of_the_seed(seen):
    order = np.random.RandomState(7).permutation(CLASSES).tolist()
    assert list(seen.record.stream.class_order) == order
    assert list(seen.record.stream.class_names) == [f"c{label}" for label in order]


def test_only_training_images_are_trained_on_each_once_an_epoch(seen):
    train, test = split_of(seen)
    assert not train & test and len(test) == CLASSES * TEST
    observed = iter(seen.all("observe"))
    for first, stop in ((0, 3), (3, 5)):
        wanted = sorted(n for n in train if first <= seen.class_of[n] < stop)
        steps = math.ceil(len(wanted) / 4)
        for _ in range(3):
            batches = [next(observed)["images"] for _ in range(steps)]
            assert [len(batch) for batch in batches[:-1]] == [4] * (steps - 1)
            assert sorted(n for batch in batches for n in batch) == wanted
    assert next(observed, None) is None


def test_task_rho_leaves_out_images_of_later_tasks(seen, images, tmp_path):
    rare = Seen(tmp_path, images, "loss=spy_loss", "task_rho=3", "seed=7")
    train, _ = split_of(seen)
    kept = {n for entry in rare.all("observe") for n in entry["images"]}
    counts = [sum(rare.class_of[n] == label for n in kept) for label in range(CLASSES)]
    whole = seen.record.stream.train_counts
    assert counts == list(rare.record.stream.train_counts) == [*whole[:3], *(max(1, n // 3) for n in whole[3:])]
    assert kept < train and rare.record.name != seen.record.name


def test_every_epoch_has_new_batches_and_crops(seen):
    first, second = seen.all("observe")[:3], seen.all("observe")[3:6]
    assert [b["images"] for b in first] != [b["images"] for b in second]
    rows = [tuple(row) for entry in seen.all("observe") for row in entry["blue"]]
    assert len(set(rows)) > len(rows) / 2  # random crops; a test transform would give one row for all
    assert any(row[0] > row[-1] for row in rows) and any(row[0] < row[-1] for row in rows)  # mirrored and not


def test_loss_receives_labels_relative_to_the_task(seen):
    losses = seen.all("loss")
    observed = seen.all("observe")
    assert len(losses) == len(observed)
    task_one = sum(entry["steps"] for entry in seen.all("begin_task")[:1]) * 3
    for step, (loss, batch) in enumerate(zip(losses, observed, strict=True)):
        first = 0 if step < task_one else 3
        assert loss["targets"] == [seen.class_of[n] - first for n in batch["images"]]
        assert loss["slope"] == 2.5 and loss["training"]
        counts = seen.record.stream.train_counts
        assert loss["counts"] == list(counts[:3] if first == 0 else counts[3:])


def test_tasks_epochs_and_steps_are_announced(seen):
    counts = seen.record.stream.train_counts
    begins = seen.all("begin_task")
    assert [entry["task"] for entry in begins] == [[0, 3, *counts[:3]], [3, 5, *counts[3:]]]
    assert [entry["steps"] for entry in begins] == [math.ceil(sum(counts[:3]) / 4), math.ceil(sum(counts[3:]) / 4)]
    for who in ("begin_epoch", "loss_epoch"):
        assert [(e["epoch"], e["epochs"]) for e in seen.all(who)] == 2 * [(0, 3), (1, 3), (2, 3)]


def test_learning_rate_is_applied_and_logged(seen):
    """d loss / d weight is the slope, so an SGD step moves the weight by rate · slope (and momentum 0.9)."""
    steps = seen.run.step_log()
    assert len(steps) == len(seen.all("after_step"))
    weight = speed = 0.0
    task = 0
    for line, after in zip(steps, seen.all("after_step"), strict=True):
        rate = 0.5 * (0.1 if line["epoch"] >= 2 else 1.0)
        speed = 0.0 if line["task"] != task else speed  # a new optimizer in every task
        task = line["task"]
        assert line["lr"] == pytest.approx(rate)
        assert line["loss"] == pytest.approx(2.5 * weight + 40, rel=1e-5) and line["aux"] == 7
        speed = 0.9 * speed + 2.5
        weight -= rate * speed
        assert after["weight"] == pytest.approx(weight, rel=1e-5)


def test_only_test_images_are_evaluated_under_the_test_transform(seen):
    _, test = split_of(seen)
    # Resize(36) of 40 pixels, then the middle 32: a rising row that is the same for all.
    rows = {tuple(row) for entry in [*seen.all("scores"), *seen.all("end_task")] for row in entry["blue"]}
    assert len(rows) == 1
    (row,) = rows
    assert list(row) == sorted(row) and row[0] == pytest.approx(2 * 40 / 36 * 5 + 0.3, abs=2) and len(row) == 32
    scored = [n for entry in seen.all("scores") for n in entry["images"]]
    first = [n for n in test if seen.class_of[n] < 3]
    assert sorted(scored) == sorted([*first, *test])
    assert not any(entry["grad"] for entry in seen.all("scores"))


def test_statistics_use_training_images_with_the_test_transform(seen):
    train, _ = split_of(seen)
    ended = [(n, y) for entry in seen.all("end_task") for n, y in zip(entry["images"], entry["labels"], strict=True)]
    assert sorted(n for n, _ in ended) == sorted(train)
    assert all(seen.class_of[n] == y for n, y in ended)


def test_predictions_are_those_of_the_learner_for_these_images(seen):
    for task, classes in enumerate((3, 5)):
        lines = (seen.run.path / "predictions" / f"task{task:02d}.csv").read_text().splitlines()[1:]
        rows = [line.rsplit(",", 2) for line in lines]
        numbers = seen.numbers_of([image for image, _, _ in rows])
        assert [int(true) for _, true, _ in rows] == [seen.class_of[n] for n in numbers]
        assert [int(pred) for _, _, pred in rows] == [n % classes for n in numbers]
        assert [seen.class_of[n] for n in numbers] == sorted(seen.class_of[n] for n in numbers)  # class by class
    right = np.mean([seen.class_of[n] == n % 5 for n in numbers])
    assert seen.run.metrics["a_last"] == pytest.approx(right)
    ids = [i for entry in seen.all("scores")[-4:] for i in entry["ids"]]
    assert ids == list(range(15))


def test_learner_is_built_and_seeded_as_recorded(seen):
    import torch

    (built,) = seen.all("build")
    assert (built["fidelity"], built["tasks"], built["classes"]) == (
        "fixed",
        2,
        5,
    ) and seen.record.method.fidelity == "fixed"
    torch.manual_seed(derive_seed("build", 7))
    assert built["draw"] == float(torch.rand(1))
    for task, begin in enumerate(seen.all("begin_task")):
        torch.manual_seed(derive_seed("task", 7, task))
        assert begin["draw"] == float(torch.rand(1))


def test_record_contains_the_settings(seen):
    record = seen.record
    assert (record.loss.name, record.loss.title, record.loss.options) == ("spy_loss", "Spy's loss", {"slope": 2.5})
    assert (record.method.name, record.method.title, record.seed) == ("spy", "Spy", 7)
    assert record.method.settings["init_lr"] == 0.5 and record.method.settings["init_milestones"] == [2]
    assert record.changed["slope"] == [2.5, 1.0] and record.changed["fidelity"] == ["fixed", "pilot"]
    assert "init_lr" not in record.changed and record.stream.normalize == "none"
    assert record.stream.task_sizes == (3, 2) and record.backbone.weights == "random"


def test_other_settings_reach_the_run(images, tmp_path):
    more = ("loss=ce", "seed=8", "epochs=1", "batch_size=3", "drop_last=true", "init_lr=0.25", "normalize=0.25/0.5")
    seen = Seen(tmp_path, images, *more, "order=tail_first")
    counts = seen.record.stream.train_counts
    assert list(counts) == sorted(counts)
    assert all(len(entry["images"]) == 3 for entry in seen.all("observe"))
    assert len(seen.all("observe")) == sum(counts[:3]) // 3 + sum(counts[3:]) // 3
    assert not seen.all("loss") and {line["lr"] for line in seen.run.step_log()} == {0.25}
    assert seen.run.step_log()[0]["loss"] == pytest.approx(math.log(3), rel=1e-5)
    row = seen.all("scores")[0]["blue"][0]
    assert row[0] < 0  # (pixel / 255 − 0.25) / 0.5 is negative on the left
    assert seen.record.stream.normalize == "0.25,0.25,0.25/0.5,0.5,0.5"


def test_quick_run_takes_two_steps_of_two_epochs_and_two_test_images(images, tmp_path):
    seen = Seen(tmp_path, images, "loss=spy_loss", "--quick")
    assert len(seen.all("observe")) == 2 * 2 * 2 and seen.record.quick
    assert len(seen.run.labels[-1][0]) == 2 * CLASSES

"""TensorBoard's own reader and W&B's own file hold what the run directory holds; a logger that fails stops nothing."""

import sys
import time
import types

import pytest
from helpers.cli import command
from helpers.images import make_images
from helpers.tiny import result_files
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb_file import history, records

from pilot_tal.engine.loggers import group_name
from pilot_tal.metrics import summarize, tail_classes
from pilot_tal.record.run_dir import find_runs, load_run

SETTINGS = [
    *("backbone=demo_vit", "weights=bundled", "n_max=6", "n_min=2", "test_per_class=2", "tasks=3", "device=cpu"),
    *("batch_size=5", "epochs=2", "loss=tal"),
]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))


def train(images, output, *more):
    status, printed = command("run", "lae", "folder_lt", *SETTINGS, f"data_root={images}", f"output={output}", *more)
    assert status == 0, printed
    (path,) = find_runs([output])
    return load_run(path), printed


@pytest.fixture(scope="module")
def logged(images, tmp_path_factory):
    run, printed = train(images, tmp_path_factory.mktemp("logged"), "log=tensorboard")
    assert "warning" not in printed
    return run


def expected_steps(run):
    """What must be logged at each step of the run, from its own files."""
    lines, sizes = run.step_log(), [0]
    for task in range(run.tasks_done):
        sizes.append(sizes[-1] + sum(line["task"] == task for line in lines))
    steps = {
        sizes[line["task"]] + line["step"]: {
            "train/loss": line["loss"],
            "train/accuracy": line["accuracy"],
            "train/learning rate": line["lr"],
        }
        for line in lines
    }
    stream = run.record.stream
    tail = set(tail_classes(stream.train_counts, stream.class_order).tolist())
    firsts = [sum(stream.task_sizes[:task]) for task in range(len(stream.task_sizes))]
    for line in run.state_log():
        for part, wanted in (("tail", True), ("head", False)):
            for name, key in (("Q", "Q"), ("α·w", "weights")):
                own = [v for i, v in enumerate(line[key]) if (firsts[line["task"]] + i in tail) == wanted]
                if own:
                    steps[sizes[line["task"]] + line["step"]][f"tal/{name} {part}"] = sum(own) / len(own)
    return steps


def expected_after(run):
    stream = run.record.stream
    counts = (stream.task_sizes, stream.train_counts, stream.class_order)
    return [summarize(run.labels[: task + 1], *counts) for task in range(run.tasks_done)]


def test_tensorboard_reads_every_step_and_task(logged):
    folder = logged.path.parent / "tensorboard" / group_name(logged.record) / logged.path.name
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    steps = expected_steps(logged)
    names = {name for values in steps.values() for name in values}
    assert {"tal/Q head", "tal/α·w tail", "train/loss", "train/learning rate"} <= names
    for name in names:
        given = {event.step: event.value for event in found.Scalars(name)}
        wanted = {step: values[name] for step, values in steps.items() if name in values}
        assert given == pytest.approx(wanted, rel=1e-5), name
    for name, key in {"accuracy": "a_last", "A_Mean": "a_mean", "A_Tail": "a_tail", "A_Head": "a_head"}.items():
        given = {event.step: event.value for event in found.Scalars(f"after task/{name}")}
        wanted = {task + 1: m[key] for task, m in enumerate(expected_after(logged)) if m[key] is not None}
        assert given == pytest.approx(wanted, rel=1e-5), name
    assert len(list(folder.iterdir())) == logged.tasks_done


def test_wandb_offline_holds_every_step_and_task_once(images, logged, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    run, printed = train(images, tmp_path, "log=wandb")
    assert "warning" not in printed
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    steps = expected_steps(run)
    until = time.monotonic() + 60  # W&B's own process may still write on busy hardware
    while len(rows := history(file)) < len(steps) + run.tasks_done and time.monotonic() < until:
        time.sleep(0.1)
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert losses == pytest.approx([steps[step]["train/loss"] for step in sorted(steps)])
    after = {row["task"]: row["after task/A_Mean"] for row in rows if "after task/A_Mean" in row}
    assert after == pytest.approx({task + 1: metrics["a_mean"] for task, metrics in enumerate(expected_after(run))})
    numbers = [row["_step"] for row in rows]
    assert numbers == sorted(set(numbers))
    (entry,) = [record.run for record in records(file) if record.WhichOneof("record_type") == "run"][:1]
    assert (entry.run_id, entry.run_group, entry.project) == (run.path.name, group_name(run.record), "pilot-tal")
    assert result_files(run.path) == result_files(logged.path)


def test_trackio_gets_every_step_and_task_once(images, logged, tmp_path, monkeypatch, capsys):
    given, rows, ended = {}, [], []

    def init(**settings):
        print("* Trackio project initialized")
        given.update(settings)
        return types.SimpleNamespace(log=lambda row, step: rows.append((step, row)), finish=lambda: ended.append(1))

    fake = types.ModuleType("trackio")
    fake.__spec__ = types.SimpleNamespace()
    fake.init = init
    monkeypatch.setitem(sys.modules, "trackio", fake)
    run, printed = train(images, tmp_path, "log=trackio")
    assert "warning" not in printed and "initialized" not in printed + capsys.readouterr().out
    assert (given["name"], given["group"], given["resume"]) == (run.path.name, group_name(run.record), "allow")
    steps = expected_steps(run)
    losses = [row["train/loss"] for _, row in rows if "train/loss" in row]
    assert losses == pytest.approx([steps[step]["train/loss"] for step in sorted(steps)])
    assert [step for step, _ in rows] == [*range(len(steps) + run.tasks_done)] and ended == [1]
    assert result_files(run.path) == result_files(logged.path)


@pytest.mark.parametrize("where", ["init", "log"])
def test_logger_that_fails_warns_once_and_changes_nothing(where, images, logged, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no key")

    opened = types.SimpleNamespace(define_metric=lambda *_, **__: None, log=fail, finish=lambda: None)
    fake = types.ModuleType("wandb")
    fake.__spec__ = types.SimpleNamespace()
    fake.Settings = dict
    fake.init = fail if where == "init" else lambda **_: opened
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run, printed = train(images, tmp_path, "log=wandb")
    assert " ".join(printed.split()).count("warning: log=wandb failed") == 1
    assert "RuntimeError: no key" in " ".join(printed.split())
    assert result_files(run.path) == result_files(logged.path)


def test_missing_package_raises_user_error_before_anything_starts(images, tmp_path, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "wandb" else find(name, *rest))
    items = [*SETTINGS, f"data_root={images}", f"output={tmp_path / 'runs'}", "log=wandb"]
    status, printed = command("run", "lae", "folder_lt", *items)
    assert status == 2 and "log=wandb needs the package wandb" in printed and "'.[wandb]'" in printed
    assert not list(tmp_path.glob("runs/*/run.json"))

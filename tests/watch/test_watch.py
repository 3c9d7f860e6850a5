"""TensorBoard's own reader, and W&B's own file, hold what the run directory holds; a log that fails stops nothing."""

import io
import os
import shutil
from dataclasses import replace

import pytest
from helpers.cli import ROOT, command
from helpers.tiny import result_files
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb_file import history, records

from data_lt.errors import UserError
from pilot_tal.metrics import summarize, tail_classes
from pilot_tal.record.run_dir import find_runs, load_run
from pilot_tal.watch.values import comparison, task_values

SETTINGS = [
    *("backbone=demo_vit", "weights=bundled", "n_max=6", "n_min=2", "test_per_class=2", "tasks=3", "device=cpu"),
    *("batch_size=5", "epochs=2"),
]


def train(images, output, *more):
    given = {item.split("=")[0] for item in more}
    usual = [item for item in (*SETTINGS, "loss=tal") if item.split("=")[0] not in given]
    status, printed = command("run", "lae", "folder_lt", *usual, f"data_root={images}", f"output={output}", *more)
    assert status == 0, printed
    (path,) = find_runs([output])
    return path, printed


@pytest.fixture(scope="module")
def logged(images, tmp_path_factory):
    """A run that was logged to TensorBoard while it ran."""
    path, printed = train(images, tmp_path_factory.mktemp("logged"), "log=tensorboard")
    assert "left alone" not in printed
    return load_run(path)


def events(run):
    folder = run.path.parent / "tensorboard" / comparison(run) / run.path.name
    return folder, EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0}).Reload()


def expected_steps(run):
    """What is to be logged at each step over all tasks, written down from the run's own files."""
    lines, sizes = run.step_log(), [0]
    for task in range(run.tasks_done):
        sizes.append(sizes[-1] + sum(line["task"] == task for line in lines))
    steps = {
        sizes[line["task"]] + line["step"]: {"train/loss": line["loss"], "train/learning rate": line["lr"]}
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
    return steps, sizes


def expected_after(run):
    stream = run.record.stream
    return [
        summarize(run.predictions[: task + 1], stream.task_sizes, stream.train_counts, stream.class_order)
        for task in range(run.tasks_done)
    ]


def test_tensorboards_reader_finds_every_step_and_task(logged):
    _, found = events(logged)
    steps, _ = expected_steps(logged)
    names = {name for values in steps.values() for name in values}
    assert {"tal/Q head", "tal/α·w tail", "train/loss", "train/learning rate"} <= names
    for name in names:
        given = {event.step: event.value for event in found.Scalars(name)}
        wanted = {step: values[name] for step, values in steps.items() if name in values}
        assert given == pytest.approx(wanted, rel=1e-5), name
    for name, key in {"accuracy": "a_last", "A_Mean": "a_mean", "A_Tail": "a_tail", "A_Head": "a_head"}.items():
        given = {event.step: event.value for event in found.Scalars(f"after task/{name}")}
        wanted = {
            task + 1: metrics[key] for task, metrics in enumerate(expected_after(logged)) if metrics[key] is not None
        }
        assert given == pytest.approx(wanted, rel=1e-5), name


def test_the_reports_pictures_are_there_at_the_end(logged):
    _, found = events(logged)
    names = found.Tags()["images"]
    assert {"accuracy-by-class", "class-distribution", "accuracy-after-task"} <= set(names)
    for name in names:
        (event,) = found.Images(name)
        picture = Image.open(io.BytesIO(event.encoded_image_string)).convert("RGB")
        assert picture.width > 500 and picture.getpixel((0, 0)) == (255, 255, 255)
        assert len(picture.getcolors(1 << 24)) > 2


def test_nothing_is_logged_twice_and_a_run_that_goes_on_gets_more(logged, tmp_path):
    from pilot_tal.watch.tensorboard import follow

    folder, _ = events(logged)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert len(before) == logged.tasks_done + 1
    follow(logged)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    part = replace(logged, path=tmp_path / logged.path.name, predictions=logged.predictions[:1], finished=False)
    tmp_path.joinpath(logged.path.name).symlink_to(logged.path)
    follow(part)
    folder, found = events(part)
    (first,) = folder.iterdir()
    seen = len(found.Scalars("train/loss"))
    follow(replace(logged, path=part.path))
    assert first.exists() and len(list(folder.iterdir())) == logged.tasks_done + 1
    assert len(events(part)[1].Scalars("train/loss")) == len(logged.step_log()) > seen


def test_a_task_that_was_trained_anew_takes_the_place_of_the_old_one(logged, tmp_path, monkeypatch):
    from pilot_tal.watch import tensorboard

    run = replace(logged, path=tmp_path / logged.path.name, finished=False)
    run.path.symlink_to(logged.path)
    tensorboard.follow(run)
    anew = list(tensorboard.task_values(run))
    anew[1] = replace(anew[1], mark="another")
    monkeypatch.setattr(tensorboard, "task_values", lambda _: anew)
    folder, _ = events(run)
    before = {file.name for file in folder.iterdir()}
    tensorboard.follow(run)
    after = {file.name for file in folder.iterdir()}
    assert len(after) == len(before) == 3 and after - before == {"events.out.tfevents.00001.task.another"}


def test_files_sort_as_their_tasks_come_and_events_have_a_time(logged, tmp_path, monkeypatch):
    """TensorBoard drops what comes after a later step; twelve tasks logged at once must all be seen."""
    from pilot_tal.watch import tensorboard

    first = next(iter(tensorboard.task_values(logged)))
    many = [replace(first, task=task, mark=f"m{12 - task}", time=1e9 + task) for task in range(12)]
    monkeypatch.setattr(tensorboard, "task_values", lambda _: many)
    run = replace(logged, path=tmp_path / logged.path.name, predictions=logged.predictions * 4)
    run.path.symlink_to(logged.path)
    tensorboard.follow(run)
    folder, found = events(run)
    names = sorted(file.name for file in folder.iterdir())
    assert [name.split(".")[3:] for name in names[:12]] == [[f"{t:05d}", "task", f"m{12 - t}"] for t in range(12)]
    assert names[12].endswith(".pictures.m1")  # is read last, and so also while TensorBoard watches
    assert [event.step for event in found.Scalars("train/loss")] == list(range(12 * len(first.steps)))
    assert [event.wall_time for event in found.Scalars("after task/accuracy")] == [1e9 + task for task in range(12)]
    assert first.time == max(file.stat().st_mtime for file in logged.path.glob("*/task00.[cj]s*"))


def test_groups_are_comparisons(images, logged, tmp_path):
    ce, _ = train(images, tmp_path / "ce", "loss=ce", "seed=7")
    epochs, _ = train(images, tmp_path / "epochs", "epochs=1")
    assert comparison(load_run(ce)) == comparison(logged) != comparison(load_run(epochs))


def test_wandb_offline_holds_the_run_and_goes_on_where_it_was(logged, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    from pilot_tal.watch.wandb import follow

    path = tmp_path / logged.path.name
    path.symlink_to(logged.path)
    part = replace(logged, path=path, predictions=logged.predictions[:1], finished=False)
    whole = replace(logged, path=path)
    files = lambda: sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"), key=os.path.getmtime)  # noqa: E731
    follow(part)
    (first,) = files()
    follow(part)
    assert files() == [first]
    follow(whole)
    second = next(file for file in files() if file != first)
    follow(whole)
    assert len(files()) == 2
    rows = history(first) + history(second)
    steps, sizes = expected_steps(logged)
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert losses == pytest.approx([steps[step]["train/loss"] for step in sorted(steps)])
    assert sum("train/loss" in row for row in history(first)) == sizes[1]
    after = {row["task"]: row["after task/A_Mean"] for row in rows if "after task/A_Mean" in row}
    assert after == pytest.approx({task + 1: metrics["a_mean"] for task, metrics in enumerate(expected_after(logged))})
    numbers = [row["_step"] for row in rows]
    assert numbers == sorted(set(numbers))
    assert rows[-1]["accuracy-by-class/_type"] == "image-file"
    for file in (first, second):
        (run,) = [record.run for record in records(file) if record.WhichOneof("record_type") == "run"][:1]
        assert (run.run_id, run.run_group, run.project) == (logged.path.name, comparison(logged), "pilot-tal")


def fake_package(folder, name, code):
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    return os.pathsep.join((str(folder), str(ROOT)))


def test_a_log_that_fails_says_so_once_and_changes_nothing(images, logged, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", fake_package(tmp_path / "fake", "wandb", "raise RuntimeError('no key, no log')"))
    path, printed = train(images, tmp_path / "runs", "log=wandb")
    said = "log=wandb has failed and is left alone; the training goes on: RuntimeError: no key, no log"
    assert printed.replace("\n", " ").count(said) == 1 and printed.count("left alone") == 1
    assert result_files(path) == result_files(logged.path)  # those of the run that was logged elsewhere


def test_a_log_that_hangs_is_left_alone(images, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", fake_package(tmp_path / "fake", "wandb", "import time; time.sleep(600)"))
    monkeypatch.setattr("pilot_tal.engine.follower.SECONDS", 2.0)
    _, printed = train(images, tmp_path / "runs", "log=wandb")
    assert printed.replace("\n", " ").count("it took more than 2 seconds") == 1


def test_a_missing_package_is_one_sentence_before_anything_starts(images, tmp_path, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "wandb" else find(name, *rest))
    items = [*SETTINGS, f"data_root={images}", f"output={tmp_path / 'runs'}", "log=wandb"]
    status, printed = command("run", "lae", "folder_lt", *items)
    assert (
        status == 2
        and "log=wandb needs the package wandb; install it in a clone of pilot_tal: pip install '.[wandb]'" in printed
    )
    assert not list(tmp_path.glob("runs/*/run.json"))
    status, printed = command("run", "lae", "folder_lt", *items[:-1], "log=wanbd")
    assert status == 2 and "log must be one of none, tensorboard, wandb" in printed


def test_runs_of_before_can_be_logged_later(images, tmp_path):
    from pilot_tal.watch.__main__ import main

    items = [item for item in SETTINGS if not item.startswith("epochs")]
    status, printed = command("run", "simplecil", "folder_lt", *items, f"data_root={images}", f"output={tmp_path}")
    assert status == 0, printed
    (path,) = find_runs([tmp_path])
    main(["tensorboard", str(tmp_path)])
    _, found = events(load_run(path))
    assert sorted(event.step for event in found.Scalars("after task/A_Mean")) == [1, 2, 3]
    assert "train/loss" not in found.Tags()["scalars"]


def test_runs_of_before_are_logged_whatever_is_wrong_with_one(logged, tmp_path, monkeypatch, capsys):
    from pilot_tal.watch.__main__ import main

    for name in ("a", "b"):
        shutil.copytree(logged.path, tmp_path / name / logged.path.name)
    (tmp_path / "a" / logged.path.name / "result.json").write_text("{}")
    assert main(["tensorboard", str(tmp_path)]) == 1
    assert "result.json is damaged" in capsys.readouterr().err
    assert (tmp_path / "b" / "tensorboard").is_dir() and not (tmp_path / "a" / "tensorboard").exists()


def test_a_place_that_cannot_be_written_stops_no_other_log(logged, tmp_path, capsys):
    from pilot_tal.watch.__main__ import main

    for name in ("a", "b"):
        shutil.copytree(logged.path, tmp_path / name / logged.path.name)
    (tmp_path / "a" / "tensorboard").write_text("a file where the folder belongs")
    assert main(["tensorboard", str(tmp_path)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: cannot write the log of {tmp_path / 'a'}") and printed.count("\n") == 1
    assert (tmp_path / "b" / "tensorboard").is_dir()


def test_steps_that_no_run_writes_are_damage(logged, tmp_path, monkeypatch):
    for line in ({"step": 0, "task": 1}, {"step": 0, "task": 1, "loss": "low", "aux": None, "lr": None}):
        monkeypatch.setattr(type(logged), "step_log", lambda _, line=line: [line])
        with pytest.raises(UserError, match=r"steps/task01\.jsonl is damaged \(each line needs step, loss, aux, lr\)"):
            list(task_values(logged))


def test_a_linked_run_has_a_log_of_its_own(logged, tmp_path):
    from pilot_tal.watch.__main__ import main

    kept = shutil.copytree(logged.path, tmp_path / "kept" / logged.path.name)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "mine").symlink_to(kept)
    assert main(["tensorboard", str(tmp_path / "links" / "mine")]) == 0
    assert list((tmp_path / "links" / "tensorboard").glob("*/mine")) and not (tmp_path / "kept/tensorboard").exists()


def test_what_wandb_does_not_send_is_not_noted_as_sent(logged, tmp_path, monkeypatch):
    import wandb

    from pilot_tal.watch.__main__ import main

    run = shutil.copytree(logged.path, tmp_path / logged.path.name)
    opened = wandb.init  # which reads WANDB_MODE once a process
    monkeypatch.setattr(wandb, "init", lambda **given: opened(**given, mode="disabled"))
    assert main(["wandb", str(run)]) == 0
    assert not (tmp_path / "wandb" / f"{run.name}.json").exists()


def test_the_working_directory_is_a_run_like_others(logged, tmp_path, monkeypatch):
    from pilot_tal.watch.__main__ import main

    run = shutil.copytree(logged.path, tmp_path / logged.path.name)
    monkeypatch.chdir(run)
    assert main(["tensorboard", "."]) == 0
    assert (tmp_path / "tensorboard").is_dir() and not (run / "tensorboard").exists()


def test_what_keeps_a_log_from_being_written_is_one_sentence(logged, tmp_path, monkeypatch, capsys):
    import wandb

    from pilot_tal.watch.__main__ import main

    def no_key(**_):
        raise wandb.errors.UsageError("No API key configured.\nUse `wandb login`")

    run = shutil.copytree(logged.path, tmp_path / logged.path.name)
    monkeypatch.setattr(wandb, "init", no_key)
    assert main(["wandb", str(run)]) == 1
    assert capsys.readouterr().err == "error: Weights & Biases: No API key configured. Use `wandb login`\n"
    monkeypatch.setattr(wandb, "init", lambda **_: wandb.Settings(mode="nonsense"))
    assert main(["wandb", str(run)]) == 1
    assert capsys.readouterr().err.startswith("error: Weights & Biases: 1 validation error for Settings mode Input")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(
        UserError, match=r"needs the package tensorboard; install it in a clone of pilot_tal: pip install"
    ):
        main(["tensorboard", str(run)])

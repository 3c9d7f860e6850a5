"""The Python API: same validation as the command line, callbacks, and use from scripts and threads."""

import os
import re
import subprocess
import sys
import threading

import pytest
from helpers.cli import ROOT
from helpers.images import make_images

import pilot_tal as pt
from pilot_tal.record.run_dir import find_runs, load_run

TINY = {
    "backbone": "vit_tiny_patch16_224",
    "weights": "random",
    "img_size": 32,
    "n_max": 6,
    "n_min": 2,
    "test_per_class": 2,
    "tasks": 2,
    "device": "cpu",
    "references": "none",
}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))


class Recorder(pt.Callback):
    def __init__(self):
        self.calls, self.losses, self.metrics = [], [], []

    def on_run_start(self, run):
        self.calls.append("run")

    def on_task_start(self, run, task):
        self.calls.append(f"task {task.index}")

    def on_step(self, run, task, step):
        self.losses.append(float(step.loss))

    def on_task_end(self, run, task, result):
        self.calls.append(f"end {task.index}")
        self.metrics.append(result.metrics["a_last"])

    def on_run_end(self, run):
        self.calls.append("done")

    def on_message(self, run, text):
        self.calls.append("message")


def test_every_exported_name_exists_and_is_listed():
    names = {"run", "compare", "load_runs", "load_model", "report", "TAL", "create_learner", "create_loss", "Callback"}
    names |= {"export_model"}
    names |= {"list_methods", "list_losses", "list_datasets", "UserError", "Study", "Run", "Model", "__version__"}
    names |= {"register_backbone"}
    assert names <= set(dir(pt)) and names == set(pt.__all__)
    assert all(getattr(pt, name) is not None for name in names)
    with pytest.raises(AttributeError):
        _ = pt.nothing


def test_callbacks_see_every_task_and_step_of_a_run(images, tmp_path):
    seen = Recorder()
    given = {**TINY, "loss": "tal", "data_root": images, "output": tmp_path, "quick": True}
    run = pt.run("l2p", "folder_lt", callbacks=[seen], **given)
    order = [call for call in seen.calls if call != "message"]
    assert order == ["run", "task 0", "end 0", "task 1", "end 1", "done"]
    assert seen.calls.count("message") == 0 and len((run.path / "log.txt").read_text().splitlines()) == 2
    assert seen.losses == pytest.approx([line["loss"] for line in run.step_log()], rel=1e-6)
    assert seen.metrics[-1] == run.metrics["a_last"]
    again = Recorder()
    pt.run("l2p", "folder_lt", callbacks=[again], **given)
    assert again.calls == []


def test_callback_that_raises_ends_the_run(images, tmp_path):
    class Broken(pt.Callback):
        def on_task_end(self, run, task, result):
            raise KeyError("mine")

    with pytest.raises(KeyError):
        pt.run("l2p", "folder_lt", data_root=images, output=tmp_path, callbacks=[Broken()], quick=True, **TINY)


def test_lists_are_grids_and_tuples_are_values(images, tmp_path):
    grid = {**TINY, "tasks": [2, 3], "tal.lam": [0.9, 0.99], "init_milestones": (1, 2), "jobs": 1}
    grid |= {"data_root": images, "output": tmp_path, "quick": True}
    study = pt.compare("l2p", "folder_lt", losses=["tal"], seeds=[1], **grid)
    assert isinstance(study, pt.Study)
    records = [load_run(path).record for path in find_runs([tmp_path])]
    found = {(len(record.stream.task_sizes), record.loss.options["lam"]) for record in records}
    assert found == {(2, 0.9), (2, 0.99), (3, 0.9), (3, 0.99)} and len(records) == 4
    assert all(list(record.method.settings["init_milestones"]) == [1, 2] for record in records)
    assert pt.report(study, tmp_path / "page").is_file()
    assert isinstance(pt.load_runs(tmp_path), pt.Study)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"taks": 5}, "did you mean 'tasks'"),
        ({"tal.lam": 1.5}, "tal.lam must be"),
        ({"tasks": [2, 3]}, "run takes one value of each setting"),
        ({"loss": "tall"}, "unknown loss 'tall'"),
        ({"seed": "x"}, "seeds must be a whole number"),
    ],
)
def test_wrong_settings_raise_a_user_error(settings, words):
    with pytest.raises(pt.UserError, match=words.replace(".", r"\.")):
        pt.run("l2p", "demo_lt", **settings)


def test_names_and_factories():
    assert (
        {"l2p", "simplecil"} <= set(pt.list_methods()) and "tal" in pt.list_losses() and "demo_lt" in pt.list_datasets()
    )
    assert pt.create_loss("tal", lam=0.9).lam == 0.9
    with pytest.raises(pt.UserError, match="lamb"):
        pt.create_loss("tal", lamb=0.9)


SCRIPT = """
import pilot_tal as pt
study = pt.compare("l2p", "folder_lt", losses=["ce"], seeds=[1, 2], quick=True, jobs=2, **{settings!r})
print("finished", len(pt.load_runs({output!r}).finished))
"""


def test_script_without_a_main_guard_trains_in_several_processes(images, tmp_path):
    settings = {**TINY, "data_root": str(images), "output": str(tmp_path / "runs")}
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(settings=settings, output=str(tmp_path / "runs")))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "finished 1"
    assert "2 of 2 runs done" in done.stderr


def test_study_runs_from_another_thread(images, tmp_path):
    found = []

    def work():
        found.append(pt.compare("l2p", "folder_lt", losses=["ce"], seeds=[1, 2], data_root=images,
                                output=tmp_path, quick=True, jobs=2, **TINY))  # fmt: skip

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(timeout=300)
    assert len(found) == 1 and len(list(tmp_path.glob("*/result.json"))) == 2


def test_reference_page_documents_every_exported_name():
    page = (ROOT / "docs" / "python.md").read_text()
    for name in set(pt.__all__) - {"__version__"}:
        assert re.search(rf"^::: .*\b{name}$", page, re.MULTILINE), name
        assert getattr(pt, name).__doc__

"""Whole runs of a stand-in checkout: results, the untouched checkout, and the ways it can go wrong."""

import importlib
import py_compile
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.cli import process
from upstream_helpers import DATA_SETTINGS, edit, make_python, make_standin, run_command, run_job, snapshot

from data_lt.errors import UserError
from pilot_tal.losses import LOSSES
from pilot_tal.record.lock import locked
from pilot_tal.record.run_dir import find_runs, load_run
from pilot_tal.record.states import run_states
from pilot_tal.schema import defaults_of
from pilot_tal.upstream import driver
from pilot_tal.upstream.checkout import check_environment
from pilot_tal.upstream.driver import Job
from pilot_tal.upstream.plan import make_jobs
from pilot_tal.upstream.swap import Patches


def run_jobs(repo, images, output, config, losses, *settings, **options):
    """Runs jobs in this process, whose timm is not the one LAMDA-PILOT needs: the stand-in needs none."""
    jobs = make_jobs(repo, config, (*DATA_SETTINGS, *settings), losses=losses, dataset="folder_lt", data_root=images,
                     output=output, workers=0, **options)  # fmt: skip
    return [run_job(job) for job in jobs]


@pytest.fixture(scope="module")
def pilot_runs(pilot, images, tmp_path_factory):
    return run_jobs(pilot, images, tmp_path_factory.mktemp("runs"), "exps/l2p.json", ["ce", "tal"])


def test_run_directory_has_the_native_format(pilot_runs, images):
    for run, loss in zip(pilot_runs, ("ce", "tal"), strict=True):
        record, stream = run.record, run.record.stream
        assert (record.engine.name, record.engine.title) == ("lamda-pilot", "LAMDA-PILOT")
        assert (record.method.name, record.method.title, record.method.fidelity) == ("l2p", "L2P", "pilot")
        assert (record.loss.name, record.seed, record.data.title) == (loss, 1993, images.name)
        assert record.loss.options == defaults_of(LOSSES[loss])
        assert record.data.checksum and record.data.recipe
        assert stream.task_sizes == (4, 2) and run.finished
        assert sorted(stream.class_order) == list(range(6))
        assert stream.class_names == tuple(f"class {label} é" for label in stream.class_order)
        assert max(stream.train_counts) == 6 and min(stream.train_counts) == 2
        assert [len(true) for true, _ in run.labels] == [4 * 3, 6 * 3]
        assert "checkout" in record.environment[0] and record.environment[0]["packages"]["torch"]
        assert record.method.settings["tuned_epoch"] == 5
        image = (run.path / "predictions/task01.csv").read_text().splitlines()[1].split(",")[0]
        assert (images / image).is_file()
    true, pred = pilot_runs[0].labels[-1]
    assert pilot_runs[0].metrics["a_last"] == pytest.approx(np.mean(true == pred))


def test_every_step_is_logged_and_tal_shows_its_state(pilot_runs):
    ce, tal = pilot_runs
    first = sum(ce.record.stream.train_counts[:4])
    expected = 5 * -(-first // 8)
    assert [line["step"] for line in ce.step_log() if line["task"] == 0] == list(range(expected))
    assert {line["epoch"] for line in ce.step_log()} == set(range(5))
    assert ce.state_log() == []
    states = tal.state_log()
    assert len(states) == len(tal.step_log())
    assert {len(line["Q"]) for line in states if line["task"] == 0} == {4}
    assert {len(line["Q"]) for line in states if line["task"] == 1} == {2}
    assert tal.step_log()[0]["loss"] < ce.step_log()[0]["loss"]  # Q starts at 0


def test_cross_entropy_through_the_swap_is_the_original(pilot_runs, pilot, images, tmp_path, monkeypatch):
    """Without any swap the stand-in's own cross-entropy gives the same predictions."""
    monkeypatch.setattr("pilot_tal.upstream.driver.swap", lambda *_: None)
    plain = run_jobs(pilot, images, tmp_path, "exps/l2p.json", ["ce"])[0]
    assert plain.step_log() == []
    for (true, pred), (same_true, same_pred) in zip(plain.labels, pilot_runs[0].labels, strict=True):
        assert np.array_equal(true, same_true) and np.array_equal(pred, same_pred)
    both = zip(plain.labels, pilot_runs[1].labels, strict=True)
    assert any(not np.array_equal(ce[1], tal[1]) for ce, tal in both)  # and another loss gives others


def test_task_logits_are_not_sliced_twice(pilot, images, tmp_path, monkeypatch):
    ce, tal = run_jobs(pilot, images, tmp_path / "a", "exps/finetune.json", ["ce", "tal"])
    assert {line["task"]: len(line["Q"]) for line in tal.state_log()} == {0: 4, 1: 2}
    assert {(line["task"], line["epoch"]) for line in ce.step_log()} == {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)}
    monkeypatch.setattr("pilot_tal.upstream.driver.swap", lambda *_: None)
    plain = run_jobs(pilot, images, tmp_path / "b", "exps/finetune.json", ["ce"])[0]
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(ce.labels, plain.labels, strict=True))


def test_learner_that_trains_nothing_is_run_once_without_a_loss(pilot, images, tmp_path):
    (run,) = run_jobs(pilot, images, tmp_path, "exps/simplecil.json", [])
    assert run.finished and (run.record.loss.name, run.record.loss.title) == ("none", "no loss")
    assert run.step_log() == run.state_log() == [] and "-simplecil-none-s1993-" in run.path.name
    with pytest.raises(UserError, match="SimpleCIL trains nothing, so it takes no loss; leave --loss ce out"):
        run_jobs(pilot, images, tmp_path, "exps/simplecil.json", ["ce"])


def test_two_processes_do_not_share_a_run(pilot, images, tmp_path):
    job = make_jobs(pilot, "exps/l2p.json", DATA_SETTINGS, losses=["ce"], dataset="folder_lt", data_root=images,
                    output=tmp_path)[0]  # fmt: skip
    with locked(Path(job.run_dir)), pytest.raises(UserError, match="another process is working in"):
        driver.run(job, {})


def test_epochs_are_found_in_the_settings():
    def epochs(name, args):
        job = Job("repo", "run", {"init_cls": 4, "increment": 2, **args}, {"method": {"name": name}})
        return job.epochs(0), job.epochs(1), job.epochs(2)

    assert epochs("l2p", {"tuned_epoch": 7}) == (7, 7, 7)
    assert epochs("finetune", {"init_epoch": 7, "epochs": 5}) == (7, 5, 5)
    ease = {"init_epochs": 3, "later_epochs": 8}
    assert epochs("ease", ease) == (3, 8, 8)
    assert epochs("ease", {**ease, "increment": 4}) == (3, 3, 3)


def test_other_cross_entropies_stay(pilot, images, tmp_path):
    run = run_jobs(pilot, images, tmp_path, "exps/mos.json", ["tal"])[0]
    batches = [-(-sum(run.record.stream.train_counts[a:b]) // 8) for a, b in ((0, 4), (4, 6))]
    assert len(run.step_log()) == sum(batches)  # neither the alignment nor the rows' loss is counted


def test_checkout_is_not_touched(pilot, pilot_runs):
    names = snapshot(pilot)
    assert not any("__pycache__" in name or "logs" in name for name in names)
    assert "models" not in sys.modules and "trainer" not in sys.modules
    assert str(pilot) not in sys.path


@pytest.mark.parametrize("inside", [True, False])
def test_runs_on_a_dataset_of_the_checkout(inside, pilot, images, tmp_path):
    """`./data` is the checkout's data folder, or the data root if it has none."""
    repo = shutil.copytree(pilot, tmp_path / "repo")
    data = shutil.copytree(images, repo / "data" if inside else tmp_path / "elsewhere")
    before = snapshot(repo)
    job = make_jobs(repo, "exps/l2p.json", ("dataset=own", "tuned_epoch=1"), losses=["tal"], seeds=(7,),
                    data_root=data, output=tmp_path / "runs", workers=0)[0]  # fmt: skip
    run = run_job(job)
    assert run.finished and run.record.data.name == "own" and run.record.seed == 7
    assert set(run.record.stream.class_names) == {f"class {label}" for label in range(6)}
    assert run.record.data.checksum is None and run.record.changed == {"dataset": ["own", "cub"], "tuned_epoch": [1, 5]}
    assert (run.path / "predictions/task00.csv").read_text().splitlines()[1].startswith("data/class")
    assert snapshot(repo) == before


HALF = """
from pilot_tal.losses import LOSSES, TaskLoss
import torch.nn.functional as F

@LOSSES.register
class Half(TaskLoss):
    name, title = "half", "Half of CE"

    def batch_loss(self, logits, targets, values):
        return F.cross_entropy(logits, targets) / 2
"""


def test_command_line_from_settings_to_report(pilot, images, tmp_path):
    before = snapshot(pilot)
    command = ("upstream", "--repo", pilot, "--config", "exps/finetune.json", "--loss", "ce", "--loss", "tal",
               "--loss", "half", "--plugins", "half", "--dataset", "folder_lt", "--data-root", images,
               "--python", make_python(tmp_path / "python"), "--workers", 0,
               "init_epoch=2", "epochs=1", "init_cls=3", "increment=3", "tal.lam=0.9", *DATA_SETTINGS)  # fmt: skip
    (tmp_path / "half.py").write_text(HALF)
    done = process(*command, cwd=tmp_path)
    printed = done.communicate()[0]
    assert done.returncode == 0, printed
    assert "standin: task 1" in printed
    assert "workaround our_data" in printed and "workaround few_classes" in printed
    assert snapshot(pilot) == before
    ce, half, tal = (load_run(path) for path in find_runs([tmp_path / "runs"]))
    assert half.record.loss.title == "Half of CE" and half.finished
    assert half.step_log()[0]["loss"] == pytest.approx(ce.step_log()[0]["loss"] / 2)
    assert ce.record.engine.name == tal.record.engine.name == "lamda-pilot"
    assert ce.record.conditions() == tal.record.conditions()  # told apart by their loss and nothing else
    assert [{len(line["Q"]) for line in tal.state_log() if line["task"] == t} for t in (0, 1)] == [{3}, {3}]
    assert tal.record.loss.options["lam"] == 0.9
    assert {name: tal.record.changed[name] for name in ("init_epoch", "lam")} == {
        "init_epoch": [2, 3],
        "lam": [0.9, 0.995],
    }
    again = run_command(*command, cwd=tmp_path)
    assert again.status == 0 and (again.out + again.err).count("done already") == 3
    assert run_command("report", "runs", cwd=tmp_path).status == 0
    assert (tmp_path / "runs/report/index.html").is_file()


UPSTREAM = ("upstream", "--dataset", "folder_lt", "--workers", 0, *DATA_SETTINGS)


def test_wrong_environment_raises_user_error(pilot, images, tmp_path, capfd):
    command = (*UPSTREAM, "--repo", pilot, "--config", "exps/l2p.json", "--data-root", images)
    done = run_command(*command, "--python", sys.executable, cwd=tmp_path)
    said = capfd.readouterr().err
    assert done.status == 2
    assert said.startswith("error: ") and "bash scripts/setup_upstream.sh" in said and "Traceback" not in said
    done = run_command(*command, "--python", "nowhere/python", cwd=tmp_path)
    assert "nowhere/python does not exist; make it with: bash scripts/setup_upstream.sh" in done.err.replace("\n", " ")


def test_versions_of_the_environment_are_checked(monkeypatch):
    versions = {"torch": "2.13.0+cpu", "timm": "0.6.13"}
    monkeypatch.setattr("importlib.metadata.version", lambda name: versions.get(name, "1.0"))
    assert check_environment()["timm"] == "0.6.13" and check_environment()["torch"] == "2.13.0+cpu"
    versions["timm"] = "1.0.30"
    with pytest.raises(UserError, match=r"LAMDA-PILOT needs timm 0\.6 .* has 1\.0\.30; make"):
        check_environment()
    versions["torch"] = "2.0.1"
    with pytest.raises(UserError, match=r"torch must be 2\.4 or newer, but .* has 2\.0\.1"):
        check_environment()


def test_changed_call_site_stops_before_anything_is_written(images, tmp_path):
    repo = make_standin(tmp_path / "repo")
    edit(repo / "models/l2p.py", "F.cross_entropy(logits, targets.long())", "logits.sum()")
    command = (*UPSTREAM, "--repo", repo, "--config", "exps/l2p.json", "--data-root", images)
    done = run_command(*command, "--python", sys.executable, cwd=tmp_path)
    assert "models/l2p.py of the LAMDA-PILOT checkout has changed" in done.err.replace("\n", " ")
    assert not (tmp_path / "runs").exists()


CHANGES = {
    "start": ("models/l2p.py", "incremental_train", "train_task", "has no attribute 'incremental_train'"),
    "evaluation": ("models/base.py", "_eval_cnn", "_predict", "has no attribute '_eval_cnn'"),
    "data": ("utils/data_manager.py", "_get_idata", "get_source", "has no attribute '_get_idata'"),
    "module": ("models/l2p.py", "from models.base", "from models.bases", "No module named 'models.bases'"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_checkout_stops_before_training(name, images, tmp_path):
    file, old, new, message = CHANGES[name]
    repo = make_standin(tmp_path / "repo")
    edit(repo / file, old, new)
    with pytest.raises(UserError, match=rf"has changed since commit 5240714 of LAMDA-PILOT.*{message}"):
        run_jobs(repo, images, tmp_path / "runs", "exps/l2p.json", ["ce"])
    assert not list((tmp_path / "runs").rglob("predictions"))


def test_failed_run_is_not_marked_finished(images, tmp_path, capfd):
    repo = make_standin(tmp_path / "repo")
    edit(repo / "models/finetune.py", "self.step(optimizer, loss_clf)", "1 / 0")
    command = (*UPSTREAM, "--repo", repo, "--config", "exps/finetune.json", "--data-root", images)
    done = run_command(*command, "--python", make_python(tmp_path / "python"), "init_epoch=1", cwd=tmp_path)
    assert done.status == 1
    assert "ZeroDivisionError" in capfd.readouterr().err and "stopped with status 1" in done.out + done.err
    run = load_run(find_runs([tmp_path / "runs"])[0])
    assert not run.finished and len(run.labels) == 1
    (state,) = run_states(tmp_path / "runs")
    assert (state.state, state.detail) == ("failed", "ZeroDivisionError: division by zero")


def test_run_without_any_evaluation_is_reported(images, tmp_path):
    repo = make_standin(tmp_path / "repo")
    edit(repo / "trainer.py", "model.eval_task()", '{"top1": 0, "top5": 0}, None')
    command = (*UPSTREAM, "--repo", repo, "--config", "exps/l2p.json", "--data-root", images)
    done = run_command(*command, "--python", make_python(tmp_path / "python"), "tuned_epoch=1", cwd=tmp_path)
    assert done.status == 1 and "stopped with status 0" in done.out + done.err


def test_numbers_of_the_vit_are_replaced_as_the_source_is_read(pilot, tmp_path):
    repo = make_standin(tmp_path / "repo")
    (repo / "backbone/vit_small.py").write_text(
        "def vit(embed_dim=768, depth=12, num_heads=12, mlp_ratio=4., *, img_size=224, d=7680):\n"
        "    return embed_dim, depth, num_heads, mlp_ratio, img_size, d, [0] * 768 * 2\n"
    )
    before = snapshot(repo)
    compiled = repo / "backbone/__pycache__"
    job = Job(str(repo), str(tmp_path), {}, {"method": {"name": "l2p"}},
              vit={"embed_dim": 192, "num_heads": 3, "depth": 5, "mlp_ratio": 0.25, "img_size": 32})  # fmt: skip
    with Patches() as patches:
        driver.opened(job, patches, on_cpu=True)
        made = importlib.import_module("backbone.vit_small").vit()
        assert made == (192, 5, 3, 0.25, 32, 7680, [0] * 384)
    assert snapshot(repo) == before and not compiled.exists()
    py_compile.compile(str(repo / "backbone/vit_small.py"))  # bytecode of the user's own runs is not read
    assert compiled.exists()
    with Patches() as patches:
        driver.opened(job, patches, on_cpu=True)
        assert importlib.import_module("backbone.vit_small").vit()[0] == 192
    assert "backbone" not in sys.modules and sys.path[0] != str(repo)

"""Whole runs through the command line: complete results, and nothing done twice."""

import json

import pytest
from tiny import CLASSES, command, make_images, result_files, settings

from pilot_tal.engine.lock import only_process
from pilot_tal.rundir import find_runs, load_run


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images") / "my photos")


@pytest.mark.parametrize("fidelity", ["pilot", "fixed"])
@pytest.mark.parametrize("method", ["l2p", "dualprompt", "coda_prompt", "lae", "mos"])
def test_every_method_loss_and_fidelity_gives_complete_results(method, fidelity, images, tmp_path):
    wanted = settings(images, tmp_path, "seeds=1993", f"fidelity={fidelity}")
    status, printed = command("compare", method, "folder_lt", *wanted, "--quick")
    assert status == 0, printed
    (page,) = (tmp_path / "report").glob(f"folder_lt-{method}-*/index.html")
    assert f"report: {page}" in printed
    runs = [load_run(path) for path in find_runs([tmp_path])]
    assert sorted(run.info.loss for run in runs) == ["ce", "tal"]
    for run in runs:
        assert run.finished and len(run.predictions) == 2
        assert run.info.class_order == runs[0].info.class_order
        assert sum(run.info.train_counts) > CLASSES and run.info.fidelity == fidelity
        assert [len(true) for true, _ in run.predictions] == [6, 12]
        assert {line["task"] for line in run.step_log()} == {0, 1}
        assert bool(run.tal_log()) == (run.info.loss == "tal")
        assert len(run.environment["weights_checksum"]) >= 32 and run.environment["manifest_checksum"]
        metrics = json.loads((run.path / "result.json").read_text())["metrics"]
        assert 0 <= metrics["a_tail"] <= 1
        assert (run.path / "log.txt").read_text().count("done") == 2


@pytest.mark.parametrize("loss", ["balanced_softmax", "logit_adjustment", "focal", "class_balanced", "ldam"])
def test_every_other_loss_runs_too(loss, images, tmp_path):
    status, printed = command("run", "lae", "folder_lt", *settings(images, tmp_path, f"loss={loss}"), "--quick")
    assert status == 0, printed
    assert load_run(find_runs([tmp_path])[0]).finished


def test_a_finished_run_is_not_run_again(images, tmp_path):
    wanted = settings(images, tmp_path, "loss=tal")
    assert command("run", "l2p", "folder_lt", *wanted, "--quick")[0] == 0
    (run,) = find_runs([tmp_path])
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    status, printed = command("run", "l2p", "folder_lt", *wanted, "--quick")
    assert status == 0 and "is done" in printed
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}


def test_another_comparison_gets_another_report(images, tmp_path):
    for losses in ("ce,tal", "ce,focal"):
        wanted = settings(images, tmp_path, "seeds=1993", f"losses={losses}")
        assert command("compare", "lae", "folder_lt", *wanted, "--quick")[0] == 0
    assert len(list((tmp_path / "report").glob("folder_lt-lae-*/index.html"))) == 2


@pytest.mark.parametrize(
    ("method", "setting"),
    [("lae", "adapt_blocks=[12]"), ("lae", "adapt_blocks=[]"), ("dualprompt", "e_prompt_layer_idx=[-1]")],
)
def test_blocks_that_the_vit_does_not_have_are_refused(method, setting, images, tmp_path):
    status, printed = command("run", method, "folder_lt", *settings(images, tmp_path, setting, "loss=ce"), "--quick")
    assert status == 2 and "must name at least one of the ViT's blocks 0 … 11" in printed


def test_the_same_command_elsewhere_gives_the_same_bytes(images, tmp_path):
    for place in ("a", "b"):
        wanted = settings(images, tmp_path / place, "seed=5")
        assert command("run", "mos", "folder_lt", *wanted, "--quick")[0] == 0
    (one,), (other,) = find_runs([tmp_path / "a"]), find_runs([tmp_path / "b"])
    assert one.name == other.name and result_files(one) == result_files(other)


@pytest.mark.parametrize(
    "sizes", [["tasks=1"], ["tasks=6"], ["init_cls=4", "increment=1"], ["tasks=4"]], ids=lambda s: "-".join(s)
)
def test_one_task_one_class_a_task_and_unequal_tasks(sizes, images, tmp_path):
    wanted = settings(images, tmp_path, "batch_size=1", *sizes)
    for method in ("l2p", "mos"):
        status, printed = command("run", method, "folder_lt", *wanted, "--quick")
        assert status == 0, printed


def test_other_images_are_another_run(images, tmp_path):
    other = make_images(tmp_path / "other photos", images=12)
    for root in (images, other):
        assert command("run", "lae", "folder_lt", *settings(root, tmp_path / "runs"), "--quick")[0] == 0
    assert len(find_runs([tmp_path / "runs"])) == 2


def test_dry_run_prints_the_plan_and_writes_nothing(images, tmp_path):
    wanted = settings(images, tmp_path / "runs", "seeds=1,2")
    status, printed = command("compare", "l2p", "folder_lt", *wanted, "--dry-run")
    assert status == 0, printed
    assert "tasks: 3 + 3 classes" in printed and "4 of 4 runs to do, about" in printed
    assert not (tmp_path / "runs").exists()


def test_a_second_process_on_a_run_directory_says_so_and_stops(images, tmp_path):
    wanted = settings(images, tmp_path, "loss=ce")
    status, printed = command("run", "l2p", "folder_lt", *wanted, "--quick")
    (run,) = find_runs([tmp_path])
    (run / "result.json").unlink()
    with only_process(run):
        status, printed = command("run", "l2p", "folder_lt", *wanted, "--quick")
    assert status == 2 and f"error: another process is working in {run}" in printed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compare", "l3p", "demo_lt"], "unknown method 'l3p'"),
        (
            ["compare", "l2p", "cub_lt", "data_root=/nowhere"],
            "pilot-tal build cub_lt --download --data-root /nowhere",
        ),
        (["run", "l2p", "folder_lt", "seeds=1,2"], "run takes one loss and one seed, got 2 runs"),
        (
            ["run", "l2p", "folder_lt", "device=cuda:0", "data_root={images}", "n_max=6", "test_per_class=2"],
            "no cuda",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_a_status(arguments, sentence, images, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    status, printed = command(*(text.format(images=images) for text in arguments))
    assert status == 2 and sentence in printed and "Traceback" not in printed


def test_list_names_everything():
    status, printed = command("list")
    assert status == 0
    for name in ("l2p", "coda_prompt", "imagenetr_lt", "balanced_softmax", "tal.lam=0.995"):
        assert name in printed
    status, printed = command("list", "mos")
    assert status == 0 and "crct_epochs=30" in printed and "epochs=20" in printed

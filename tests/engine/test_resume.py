"""Broken off at any moment and started again, a run ends as if nothing had happened, in every one of its files."""

import errno
import os
import random
import signal
import time

import pytest
from helpers.cli import command, process
from helpers.images import make_images
from helpers.tiny import result_files, settings

from pilot_tal.config.settings import method_config
from pilot_tal.learners import FIDELITIES, LEARNERS
from pilot_tal.record.run_dir import find_runs, load_run


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))


class Broken(BaseException):
    """Stands for a power cut."""


CASES = [(method, FIDELITIES[number % 2]) for number, method in enumerate(LEARNERS)] + [("mos", "pilot")]


@pytest.mark.parametrize(("method", "fidelity"), dict.fromkeys(CASES))
def test_resumed_equals_uninterrupted(method, fidelity, images, tmp_path, monkeypatch):
    """Breaks before one file after the other is put in its place, removed or written."""
    trained = LEARNERS[method].trains(method_config(method))
    wanted = ["tasks=3", "batch_size=5", f"fidelity={fidelity}", *["loss=tal"] * trained]
    wanted += ["sampler=balanced", "posthoc=tau_norm"] * (method == "coda_prompt")
    arguments = ("run", method, "folder_lt")
    status, printed = command(*arguments, *settings(images, tmp_path / "whole", *wanted), "--quick")
    assert status == 0, printed
    (whole,) = find_runs([tmp_path / "whole"])

    count = {"left": 0}
    replace, unlink = os.replace, os.unlink

    def moment():
        count["left"] -= 1
        if count["left"] < 0:
            raise Broken

    def breaking_replace(self, target):
        moment()
        return replace(self, target)

    def breaking_unlink(self, missing_ok=False):
        if self.suffix == ".safetensors":
            moment()
        if self.exists() or not missing_ok:
            unlink(self)

    broken_settings = settings(images, tmp_path / "broken", *wanted)
    starts, moments = 0, iter(range(1, 1000, 3))
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", breaking_replace)
        patch.setattr("pathlib.Path.unlink", breaking_unlink)
        while True:
            starts, count["left"] = starts + 1, next(moments)
            try:
                status, printed = command(*arguments, *broken_settings, "--quick")
                assert status == 0, printed
                break
            except Broken:
                continue
    (broken,) = find_runs([tmp_path / "broken"])
    assert starts > 3
    assert result_files(broken) == result_files(whole)


def test_killed_at_random_moments(images, tmp_path):
    """A real process under SIGKILL, with workers; the next one starts at once."""
    wanted = ["tasks=3", "loss=tal", "epochs=4", "workers=1"]
    arguments = ("run", "l2p", "folder_lt")
    assert command(*arguments, *settings(images, tmp_path / "whole", *wanted))[0] == 0
    (whole,) = find_runs([tmp_path / "whole"])
    moments = random.Random(0)
    for done in (1, 2):
        started = process(*arguments, *settings(images, tmp_path / "killed", *wanted))
        for line in started.stdout:
            if f"task {done}/3 done" in line:
                break
        time.sleep(moments.uniform(0.0, 0.2))
        started.send_signal(signal.SIGKILL)
        started.wait()
        started.stdout.close()
    finished = process(*arguments, *settings(images, tmp_path / "killed", *wanted))
    printed = finished.communicate()[0]
    assert finished.returncode == 0, printed
    (killed,) = find_runs([tmp_path / "killed"])
    assert result_files(killed) == result_files(whole)
    assert "resumed after task" in (killed / "log.txt").read_text()
    assert len(load_run(killed).record.environment) == 3


def stopped_after_one_task(images, output, monkeypatch, *more):
    """A run that was broken off in its second task."""
    wanted = settings(images, output, "loss=tal", *more)
    evaluate, calls = __import__("pilot_tal.engine.trainer", fromlist=["evaluate"]).evaluate, []

    def breaking(*arguments):
        calls.append(1)
        if len(calls) > 1:
            raise Broken
        return evaluate(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("pilot_tal.engine.trainer.evaluate", breaking)
        with pytest.raises(Broken):
            command("run", "l2p", "folder_lt", *wanted, "--quick")
    (run,) = find_runs([output])
    return run, wanted


@pytest.mark.parametrize(
    "name", ["steps/task00.jsonl", "states/task00.jsonl", "predictions/task00.csv", "result.json", "run.json"]
)
@pytest.mark.parametrize("damage", ["cut", "removed"])
def test_damage_raises_before_training_resumes(name, damage, images, tmp_path, monkeypatch):
    run, wanted = stopped_after_one_task(images, tmp_path, monkeypatch)
    lines = (run / name).read_bytes().splitlines(keepends=True)
    (run / name).write_bytes(b"".join(lines[:-1]))
    if damage == "removed":
        (run / name).unlink()
    status, printed = command("run", "l2p", "folder_lt", *wanted, "--quick")
    if (name, damage) == ("run.json", "removed"):
        assert status == 2 and "is not a run directory" in printed
    else:
        assert status == 2 and f"remove {run} to start over" in printed.replace("\n", " "), printed


def test_uncommitted_files_do_not_count_as_a_finished_task(images, tmp_path, monkeypatch):
    """On a GPU, training again gives other bits; `result.json` must not list files of an uncommitted task."""
    run, wanted = stopped_after_one_task(images, tmp_path, monkeypatch, "tasks=3")
    again = ("run", "l2p", "folder_lt", *wanted, "--quick")
    (run / "predictions" / "task01.csv").write_text("of an attempt that was never committed")
    assert load_run(run).tasks_done == 1
    status, printed = command(*again)
    assert status == 0 and "resumed after task 1 of 3" in printed.replace("\n", " "), printed
    assert load_run(run).finished


def test_lost_checkpoint_is_reported_and_the_result_kept(images, tmp_path, monkeypatch):
    """It may lie elsewhere; without it the run would silently start over."""
    run, wanted = stopped_after_one_task(images, tmp_path, monkeypatch, "tasks=3")
    (run / "checkpoint").rename(tmp_path / "moved")
    before = (run / "result.json").read_bytes()
    status, printed = command("run", "l2p", "folder_lt", *wanted, "--quick")
    assert status == 2 and "it is missing, and the result has 1 finished tasks" in " ".join(printed.split()), printed
    assert (run / "result.json").read_bytes() == before


@pytest.mark.parametrize("changed", ["weights", "images"])
def test_resume_with_another_vit_or_other_images_is_refused(changed, images, tmp_path, monkeypatch):
    own = make_images(tmp_path / "images")
    run, wanted = stopped_after_one_task(own, tmp_path / "runs", monkeypatch)
    before = result_files(run)
    if changed == "images":
        file = next(own.rglob("*.png"))
        content = bytearray(file.read_bytes())
        content[-1] ^= 1  # of the same size, under the same name
        file.write_bytes(content)
    else:
        monkeypatch.setattr("pilot_tal.backbone.vit.FrozenViT.checksum", "0" * 64)
    status, printed = command("run", "l2p", "folder_lt", *wanted, "--quick")
    assert status == 2 and "began with another" in " ".join(printed.split()), printed
    after = result_files(run)
    assert {name: after[name] for name in before} == before


def test_resume_with_other_threads_warns(images, tmp_path, monkeypatch):
    _, wanted = stopped_after_one_task(images, tmp_path, monkeypatch)
    status, printed = command("run", "l2p", "folder_lt", *wanted, "--quick", "threads=2")
    assert status == 0 and "began with 1 threads and goes on with 2" in printed.replace("\n", " ")


def test_partial_files_of_a_killed_process_are_removed(images, tmp_path, monkeypatch):
    run, wanted = stopped_after_one_task(images, tmp_path, monkeypatch)
    for name in (".result.json.x.tmp", "checkpoint/.task01.x.tmp", "predictions/.task01.csv.y.tmp"):
        (run / name).write_bytes(b"half")
    (run / ".folder.tmp").mkdir()
    assert command("run", "l2p", "folder_lt", *wanted, "--quick")[0] == 0
    assert not [file for file in run.rglob("*.tmp") if file.is_file()]
    (run / ".late.tmp").write_bytes(b"left in the last moment")
    assert command("run", "l2p", "folder_lt", *wanted, "--quick")[0] == 0
    assert not (run / ".late.tmp").exists()


def test_finished_run_on_a_read_only_disk_is_returned(images, tmp_path, monkeypatch):
    wanted = settings(images, tmp_path, "loss=tal")
    assert command("run", "l2p", "folder_lt", *wanted, "--quick")[0] == 0
    (run,) = find_runs([tmp_path])
    (run / ".lock-000001").write_text("free")  # a process was killed in its last moment

    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(run))

    for name in ("os.mkdir", "os.link", "os.unlink", "os.replace", "tempfile.mkstemp"):
        monkeypatch.setattr(name, refuse)
    monkeypatch.setattr("os.access", lambda *_: False)
    status, printed = command("run", "l2p", "folder_lt", *wanted, "--quick")
    assert status == 0 and f"results: {run}" in printed.replace("\n", ""), printed


def test_unwritable_output_raises(images, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    status, printed = command("run", "l2p", "folder_lt", *settings(images, blocked), "--quick")
    assert status == 2 and f"error: cannot write to {blocked}" in printed

"""Broken off at any moment and started again, a run ends as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file
from tiny import command, make_images, process, result_files, settings

from pilot_tal.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pilot_tal.errors import PilotTalError
from pilot_tal.rundir import find_runs, load_run


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))


class Broken(Exception):
    """Stands for a power cut."""


METHODS = [
    ("l2p", "pilot"),
    ("dualprompt", "fixed"),
    ("coda_prompt", "pilot"),
    ("lae", "fixed"),
    ("mos", "fixed"),
    ("mos", "pilot"),
]


@pytest.mark.parametrize(("method", "fidelity"), METHODS)
def test_resumed_equals_uninterrupted(method, fidelity, images, tmp_path, monkeypatch):
    """Breaks before one file after the other is put in its place."""
    wanted = ["tasks=3", "batch_size=5", "loss=tal", f"fidelity={fidelity}"]
    arguments = ("run", method, "folder_lt")
    assert command(*arguments, *settings(images, tmp_path / "whole", *wanted), "--quick")[0] == 0
    (whole,) = find_runs([tmp_path / "whole"])

    replace = os.replace
    moments = iter(range(1, 1000, 3))
    count = {"left": next(moments)}

    def breaking(self, target):
        count["left"] -= 1
        if count["left"] < 0:
            raise Broken
        return replace(self, target)

    broken_settings = settings(images, tmp_path / "broken", *wanted)
    starts = 0
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", breaking)
        while True:
            starts += 1
            try:
                assert command(*arguments, *broken_settings, "--quick")[0] == 0
                break
            except Broken:
                count["left"] = next(moments)
    (broken,) = find_runs([tmp_path / "broken"])
    assert starts > 3
    assert result_files(broken) == result_files(whole)


def test_killed_at_random_moments(images, tmp_path):
    """A real process under SIGKILL."""
    wanted = ["tasks=3", "loss=tal", "epochs=4"]
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
    assert len(load_run(killed).environment["resumed"]) == 2


def some_state(value):
    return Checkpoint(int(value), {"a": torch.full((3,), value)}, {"b": torch.full((2,), value)})


NO_ROOM = """
import resource, signal, sys
from pathlib import Path
import torch
from pilot_tal.engine.checkpoint import Checkpoint, save_checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
save_checkpoint(Path(sys.argv[1]), Checkpoint(2, {"a": torch.zeros(5000)}, {}))
"""


def test_a_full_disk_is_said_and_the_last_checkpoint_still_loads(tmp_path):
    """A real limit on what may be written, in a process of its own."""
    save_checkpoint(tmp_path, some_state(1.0))
    done = subprocess.run([sys.executable, "-c", NO_ROOM, str(tmp_path)], capture_output=True, text=True)
    assert "PilotTalError: cannot write" in done.stderr.splitlines()[-1] and "task01" in done.stderr
    assert load_checkpoint(tmp_path).tasks_done == 1
    assert load_checkpoint(tmp_path).learner["a"].tolist() == [1.0] * 3
    assert not list(tmp_path.glob(".*tmp"))
    save_checkpoint(tmp_path, some_state(2.0))
    assert load_checkpoint(tmp_path).tasks_done == 2
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [("steps.jsonl", b"{"), ("tal.jsonl", b"\xff\xfe"), ("tal.jsonl", b"[1]"), ("environment.json", b"[]")],
)
def test_a_damaged_log_is_said_before_training_goes_on(name, content, images, tmp_path, monkeypatch):
    wanted = settings(images, tmp_path, "loss=tal")
    with monkeypatch.context() as patch:
        patch.setattr("pilot_tal.engine.run.Run._write_result", lambda self, done: (_ for _ in ()).throw(Broken))
        with pytest.raises(Broken):
            command("run", "l2p", "folder_lt", *wanted, "--quick")
    (run,) = find_runs([tmp_path])
    (run / name).write_bytes(content)
    (run / ".folder.tmp").mkdir()
    status, printed = command("run", "l2p", "folder_lt", *wanted, "--quick")
    assert status == 2 and f"remove {run} to start this run anew" in printed.replace("\n", " "), printed


def test_an_output_that_cannot_be_written_is_said(images, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    status, printed = command("run", "l2p", "folder_lt", *settings(images, blocked), "--quick")
    assert status == 2 and f"error: cannot write to {blocked}" in printed


def test_a_damaged_or_escaping_checkpoint_is_refused(tmp_path):
    folder = tmp_path / "checkpoint"
    save_checkpoint(folder, some_state(1.0))
    file = folder / "task00.learner.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")
    with pytest.raises(PilotTalError, match=r"task00.learner.safetensors is missing or damaged; remove"):
        load_checkpoint(folder)
    (folder / "latest.json").write_text('{"format": 1, "tasks_done": 1, "files": 5}')
    with pytest.raises(PilotTalError, match=r"latest\.json is damaged"):
        load_checkpoint(folder)
    outside = tmp_path / "task00.learner.safetensors"
    outside.write_bytes(b"secret")
    (folder / "latest.json").write_text(
        '{"format": 1, "tasks_done": 1, "files": {"learner": {"file": "../task00.learner.safetensors", '
        '"sha256": "x"}, "cache": {"file": "../x", "sha256": "x"}}}'
    )
    with pytest.raises(PilotTalError, match=r"checkpoint/task00.learner.safetensors is missing or damaged"):
        load_checkpoint(folder)


def test_the_finished_checkpoint_holds_the_learned_tensors_and_no_cache(images, tmp_path):
    assert command("run", "l2p", "folder_lt", *settings(images, tmp_path), "--quick")[0] == 0
    (run,) = find_runs([tmp_path])
    assert load_file(run / "checkpoint" / "task01.cache.safetensors") == {}
    assert "stops" in load_file(run / "checkpoint" / "task01.learner.safetensors")

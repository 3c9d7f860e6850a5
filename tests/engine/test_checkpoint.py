"""Checkpoints: whole or not at all, untrusted when read, one learner for every task."""

import json
import subprocess
import sys

import pytest
import torch

from data_lt.errors import UserError
from pilot_tal.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint


def some_state(done: int, cached: bool = True) -> Checkpoint:
    cache = {"b": torch.full((2,), float(done))} if cached else {}
    return Checkpoint(done, {"a": torch.full((3,), float(done))}, cache)


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def test_the_learner_of_every_task_stays_and_the_cache_of_the_last(tmp_path):
    assert load_checkpoint(tmp_path) is None
    for done in (1, 2):
        save_checkpoint(tmp_path, some_state(done))
    save_checkpoint(tmp_path, some_state(3, cached=False))
    assert names(tmp_path) == ["latest.json", *(f"task0{t}.learner.safetensors" for t in range(3))]
    last = load_checkpoint(tmp_path)
    assert (last.tasks_done, last.learner["a"].tolist(), last.cache) == (3, [3.0] * 3, {})
    assert [load_checkpoint(tmp_path, task).learner["a"][0] for task in (1, 2, 3)] == [1, 2, 3]
    for task in (0, 4):
        with pytest.raises(UserError, match=f"has no model after task {task}; it has been through 3"):
            load_checkpoint(tmp_path, task)


def test_a_broken_checkpoint_leaves_the_one_before(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, some_state(1))
    with monkeypatch.context() as patch:
        patch.setattr("pilot_tal.engine.checkpoint.write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(tmp_path, some_state(2))
    loaded = load_checkpoint(tmp_path)
    assert loaded.tasks_done == 1 and loaded.cache["b"].tolist() == [1.0, 1.0]
    save_checkpoint(tmp_path, some_state(2))
    assert load_checkpoint(tmp_path).cache["b"].tolist() == [2.0, 2.0]
    assert [name for name in names(tmp_path) if "cache" in name] == ["task01.cache.safetensors"]


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
    save_checkpoint(tmp_path, some_state(1))
    done = subprocess.run([sys.executable, "-c", NO_ROOM, str(tmp_path)], capture_output=True, text=True)
    assert "UserError: cannot write" in done.stderr.splitlines()[-1] and "task01" in done.stderr
    assert load_checkpoint(tmp_path).tasks_done == 1
    assert not list(tmp_path.glob(".*tmp"))


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "null", "{}", '{"format": 2, "tasks_done": 1, "files": 5}', "[" * 100_000,
     '{"format": 2, "tasks_done": true, "files": {}}', '{"format": 2, "tasks_done": 0, "files": {}}',
     '{"format": 1, "tasks_done": 1, "files": {}}', '{"format": 2, "tasks_done": 1, "files": {"a": 1}}'],
)  # fmt: skip
def test_a_damaged_list_is_said_with_the_way_out(content, tmp_path):
    folder = tmp_path / "checkpoint"
    save_checkpoint(folder, some_state(1))
    (tmp_path / "run.json").write_text("{}")
    (folder / "latest.json").write_text(content)
    with pytest.raises(UserError, match=rf"latest.json is damaged \(.*; remove {tmp_path} to start this run anew"):
        load_checkpoint(folder)


def test_another_number_of_tasks_is_damage(tmp_path):
    """Or predict would take the model of an earlier task."""
    for done in (1, 2, 3):
        save_checkpoint(tmp_path, some_state(done))
    whole = (tmp_path / "latest.json").read_text()
    for wrong in (1, 2, 4):
        (tmp_path / "latest.json").write_text(whole.replace('"tasks_done": 3', f'"tasks_done": {wrong}'))
        with pytest.raises(UserError, match=r"latest\.json is damaged"):
            load_checkpoint(tmp_path)


def test_the_learners_of_more_than_a_hundred_tasks_stay(tmp_path):
    for done in range(1, 103):
        save_checkpoint(tmp_path, some_state(done))
    assert load_checkpoint(tmp_path).tasks_done == 102
    assert [load_checkpoint(tmp_path, task).learner["a"][0] for task in (1, 99, 100, 101)] == [1, 99, 100, 101]


def test_damaged_and_escaping_tensors_are_refused(tmp_path):
    folder = tmp_path / "checkpoint"
    save_checkpoint(folder, some_state(1))
    file = folder / "task00.learner.safetensors"
    whole = file.read_bytes()
    for damage in (whole[:-1] + b"\x07", whole[:-1], b""):
        file.write_bytes(damage)
        with pytest.raises(UserError, match=r"task00.learner.safetensors is damaged \(it is missing, or its checksum"):
            load_checkpoint(folder)
    (tmp_path / "task00.learner.safetensors").write_bytes(whole)
    known = json.loads((folder / "latest.json").read_text())
    known["files"] = {f"../{name}": seal for name, seal in known["files"].items()}
    (folder / "latest.json").write_text(json.dumps(known))
    with pytest.raises(UserError, match=r"latest\.json is damaged"):
        load_checkpoint(folder)

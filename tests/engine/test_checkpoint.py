"""Checkpoints: committed with their task, verified when read; one learner per task."""

import subprocess
import sys
from dataclasses import replace

import pytest
from helpers.written import RECORD, add_task, make_record, some_state, write_tasks

from data_lt.errors import UserError
from pilot_tal.engine.checkpoint import load_checkpoint, resume, save_checkpoint
from pilot_tal.record.run_dir import read_sealed, write_sealed
from pilot_tal.record.writer import open_run


def names(path):
    return sorted(file.name for file in (path / "checkpoint").iterdir())


def test_learner_of_every_task_is_kept_and_cache_of_the_last(tmp_path):
    assert load_checkpoint(tmp_path) is None
    write_tasks(tmp_path, 1, 2)
    write_tasks(tmp_path, 3, 3)
    assert names(tmp_path) == ["task00.learner.safetensors", "task01.learner.safetensors",
                               "task02.cache.safetensors", "task02.learner.safetensors"]  # fmt: skip
    last = load_checkpoint(tmp_path)
    assert (last.tasks_done, last.learner["a"].tolist(), last.cache["b"].tolist()) == (3, [3.0] * 3, [3.0] * 2)
    assert [load_checkpoint(tmp_path, task).learner["a"][0] for task in (1, 2, 3)] == [1, 2, 3]
    for task in (0, 4):
        with pytest.raises(UserError, match=f"has no model after task {task}; it has been through 3"):
            load_checkpoint(tmp_path, task)
    write_tasks(tmp_path, 4, 4)
    assert names(tmp_path) == [f"task0{task}.learner.safetensors" for task in range(4)]


def test_uncommitted_checkpoint_leaves_the_one_before(tmp_path):
    write_tasks(tmp_path, 1, 1)
    with pytest.raises(KeyError), open_run(tmp_path) as writer:
        resume(writer)
        save_checkpoint(writer, some_state(2))
        raise KeyError
    loaded = load_checkpoint(tmp_path)
    assert loaded.tasks_done == 1 and loaded.cache["b"].tolist() == [1.0, 1.0]
    write_tasks(tmp_path, 2, 2)
    assert load_checkpoint(tmp_path).cache["b"].tolist() == [2.0, 2.0]
    assert [name for name in names(tmp_path) if "cache" in name] == ["task01.cache.safetensors"]


def test_tasks_done_is_never_lowered(tmp_path):
    write_tasks(tmp_path, 1, 3)
    before = (tmp_path / "result.json").read_bytes()
    with pytest.raises(UserError, match="has 3 finished tasks already"), open_run(tmp_path) as writer:
        add_task(writer, 2)
    assert (tmp_path / "result.json").read_bytes() == before


NO_SPACE = """
import resource, signal, sys
from pathlib import Path
import torch
from pilot_tal.engine.checkpoint import Checkpoint, save_checkpoint
from pilot_tal.record.writer import open_run
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with open_run(Path(sys.argv[1])) as writer:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    save_checkpoint(writer, Checkpoint(2, {"a": torch.zeros(5000)}, {}))
"""


def test_full_disk_keeps_the_last_checkpoint(tmp_path):
    write_tasks(tmp_path, 1, 1)
    done = subprocess.run([sys.executable, "-c", NO_SPACE, str(tmp_path)], capture_output=True, text=True)
    assert "UserError: cannot write" in done.stderr.splitlines()[-1] and "checkpoint" in done.stderr
    assert load_checkpoint(tmp_path).tasks_done == 1
    assert not list((tmp_path / "checkpoint").glob(".*tmp"))


def test_more_than_a_hundred_tasks(tmp_path):
    write_tasks(tmp_path, 1, 102, make_record(102))
    assert load_checkpoint(tmp_path).tasks_done == 102
    assert [load_checkpoint(tmp_path, task).learner["a"][0] for task in (1, 99, 100, 101)] == [1, 99, 100, 101]


def test_damaged_tensors_are_refused(tmp_path):
    write_tasks(tmp_path, 1, 1)
    file = tmp_path / "checkpoint" / "task00.learner.safetensors"
    whole = file.read_bytes()
    for damage, reason in ((whole[:-1] + b"\x07", "checksum mismatch"), (whole[:-1], "bytes instead"), (b"", "bytes")):
        file.write_bytes(damage)
        with pytest.raises(UserError, match=rf"task00.learner.safetensors is damaged \(.*{reason}"):
            load_checkpoint(tmp_path)
    file.unlink()
    with pytest.raises(UserError, match="cannot read it"):
        load_checkpoint(tmp_path)


def test_result_without_the_checkpoint_of_its_last_task_is_damaged(tmp_path):
    write_tasks(tmp_path, 1, 2)
    result = read_sealed(tmp_path / "result.json")
    del result["files"]["checkpoint/task01.learner.safetensors"]
    write_sealed(tmp_path / "result.json", result)
    with pytest.raises(UserError, match="it has no checkpoint of task 2"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("changed", ["backbone", "data"])
def test_resume_with_another_vit_or_other_images_is_refused(changed, tmp_path):
    record = replace(RECORD, backbone=replace(RECORD.backbone, checksum="one"), data=replace(RECORD.data, images="one"))
    write_tasks(tmp_path, 1, 1, record)
    before = (tmp_path / "run.json").read_bytes()
    key = {"backbone": "checksum", "data": "images"}[changed]
    other = replace(record, **{changed: replace(getattr(record, changed), **{key: "two"})})
    with pytest.raises(UserError, match="began with another"), open_run(tmp_path) as writer:
        writer.write_record(other, resumed=True)
    assert (tmp_path / "run.json").read_bytes() == before

"""What `pilot-tal status` says of every state a run can be in."""

import getpass
import json
import os
import subprocess
import sys

import pytest
from helpers.cli import command
from helpers.images import make_images
from helpers.tiny import settings

from data_lt.errors import UserError
from pilot_tal.record import states
from pilot_tal.record.lock import locked
from pilot_tal.record.run_dir import find_runs
from pilot_tal.record.states import PLANS, note_plan, planned, run_states


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    output = tmp_path_factory.mktemp("runs")
    images = make_images(tmp_path_factory.mktemp("images"))
    status, printed = command("run", "l2p", "folder_lt", *settings(images, output, "seed=1"), "--quick")
    assert status == 0, printed
    return output


def seen(folder, monkeypatch, queue: dict | None = None) -> dict[str, tuple]:
    monkeypatch.setattr(states, "queued_jobs", lambda: queue)
    return {state.name: (state.state, state.where, state.detail) for state in run_states(folder)}


def test_every_state(folder, tmp_path, monkeypatch):
    (done,) = find_runs([folder])
    names = ["a-fresh", "b-queued", "c-failed", "d-again", "e-ended", "f-begun", "g-failed-in-job"]
    jobs = {"b-queued": "7_0", "d-again": "7_1", "e-ended": "7_2", "g-failed-in-job": "7_3"}
    note_plan(folder, [done.name, *names], jobs)
    for name in ("c-failed", "d-again", "g-failed-in-job"):
        (folder / name).mkdir()
        (folder / name / "error.txt").write_text("it was too much\n")
    (folder / "f-begun").mkdir()
    queue = {"7_0": ("PENDING", "Resources"), "7_1": ("PENDING", "Priority")}
    queue |= {"7_3": ("RUNNING", "None")}
    assert seen(folder, monkeypatch, queue) == {
        "a-fresh": ("not started", "", ""),
        "b-queued": ("queued", "job 7_0", "Resources"),
        "c-failed": ("failed", "", "it was too much"),
        "d-again": ("queued", "job 7_1", "Priority"),
        "e-ended": ("stopped", "job 7_2 ended", states.NEVER_BEGUN),
        "f-begun": ("stopped", "", ""),
        "g-failed-in-job": ("failed", "job 7_3", "it was too much"),
        done.name: ("done", "", ""),
    }
    assert seen(folder, monkeypatch, None)["b-queued"] == ("queued", "job 7_0", "squeue does not answer")
    with locked(folder / "f-begun") as lock:
        lock.doing = {"position": "task 2/5", "left": 61.0}
        monkeypatch.setattr("pilot_tal.record.lock.RENEW_SECONDS", 0.01)
        state = next(state for state in run_states(folder) if state.name == "f-begun")
        assert state.state == "running" and "process" in state.where

    monkeypatch.setattr(states, "queued_jobs", dict)
    status, printed = command("status", folder)
    assert status == 0 and "8 runs: 1 done, 3 failed, 3 stopped, 1 not started" in printed
    content = json.loads(command("status", folder, "--json")[1])
    assert content["total"]["failed"] == 3 and len(content["runs"]) == 8
    assert "it was too much" in printed
    assert command("status", folder, "--watch")[0] == 0


def answer(folder, monkeypatch, script: str) -> dict | None:
    """What a `squeue` that is this shell script makes of the queue."""
    program = folder / "squeue"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return states.queued_jobs()


def test_queue_equals_squeue(tmp_path, monkeypatch):
    lines = r"12_3|RUNNING|None\n12_4|PENDING|Priority\n12_1|COMPLETED|None\n13|slurm_load_jobs error\n"
    asked = tmp_path / "asked"
    assert answer(tmp_path, monkeypatch, f"echo $* > {asked}; printf '{lines}'") == {
        "12_3": ("RUNNING", "None"),
        "12_4": ("PENDING", "Priority"),
    }
    assert asked.read_text() == f"--noheader --array --user={getpass.getuser()} --format=%i|%T|%r\n"
    assert answer(tmp_path, monkeypatch, "printf ''") == {}
    assert answer(tmp_path, monkeypatch, f"printf '{lines}'; exit 1") is None


def test_without_an_answer_of_squeue_nothing_is_known(tmp_path, monkeypatch):
    real = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda *given, **more: real(*given, **{**more, "timeout": more["timeout"] / 300})
    )
    assert answer(tmp_path, monkeypatch, "exec sleep 5") is None  # one that hangs
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert states.queued_jobs() is None


def test_running_run_shows_its_process_and_job(folder, tmp_path, monkeypatch):
    note_plan(tmp_path, ["alone", "in-job"], {"in-job": "7_5"})
    with locked(tmp_path / "alone"), locked(tmp_path / "in-job"):
        found = seen(tmp_path, monkeypatch, {"7_5": ("RUNNING", "None")})
        assert found["in-job"][0] == found["alone"][0] == "running"
        assert found["in-job"][1].endswith(", job 7_5") and "job" not in found["alone"][1]
        assert states.state_of(tmp_path / "alone").state == "running"
        monkeypatch.setattr(states, "SILENT_SECONDS", -1.0)
        assert "silent for 0 min" in seen(tmp_path, monkeypatch, {})["alone"][1]
    (done,) = find_runs([folder])
    assert states.state_of(done) == states.RunState(done.name, "done")


def test_run_killed_with_its_node_is_shown_as_stopped(tmp_path, monkeypatch):
    """Its lock stays, and no other machine sees that its process is gone: the queue and the silence tell."""
    note_plan(tmp_path, ["in-job", "alone"], {"in-job": "7_5"})
    owner = {"host": "node17", "space": "node17 a b", "pid": 4, "started": "1", "beat": 9}
    for name in ("in-job", "alone"):
        (tmp_path / name).mkdir()
        lock = tmp_path / name / ".lock-000001"
        lock.write_text(json.dumps(owner).ljust(1024))
    assert seen(tmp_path, monkeypatch, {})["in-job"][0] == "running"  # it may have begun just now, in another job
    for name in ("in-job", "alone"):
        lock = tmp_path / name / ".lock-000001"
        os.utime(lock, (lock.stat().st_mtime - 600,) * 2)
    assert seen(tmp_path, monkeypatch, {})["in-job"] == ("stopped", "job 7_5 ended", states.NEVER_BEGUN)
    assert seen(tmp_path, monkeypatch, None)["in-job"][0] == "running"  # squeue does not answer
    alive = {"7_5": ("RUNNING", "None")}
    assert seen(tmp_path, monkeypatch, alive)["in-job"][1].endswith(", job 7_5, silent for 10 min")
    assert seen(tmp_path, monkeypatch, {})["alone"][1].endswith(", silent for 10 min")


def test_time_left_is_shown(folder, monkeypatch):
    monkeypatch.setattr(states, "queued_jobs", lambda: {})
    monkeypatch.setattr("pilot_tal.record.lock.RENEW_SECONDS", 0.01)
    with locked(folder / "z") as lock:
        lock.doing = {"position": "task 2/5, epoch 1/3", "left": 3700.0}
        lock._stop.wait(0.3)
        printed = command("status", folder)[1]
    assert "task 2/5, epoch 1/3, 1 h 01 min of training left" in printed.replace("│\n", "")


def test_damaged_run_is_shown_as_failed(folder, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    (tmp_path / "broken" / "result.json").write_text("{")
    (state,) = run_states(tmp_path)
    assert state.state == "failed" and "is damaged" in state.detail


def test_plans_are_joined_and_the_last_job_counts(tmp_path):
    note_plan(tmp_path, ["a", "b"], {"a": "1_0", "b": "1_1"})
    note_plan(tmp_path, ["b", "c"])
    note_plan(tmp_path, ["a", "b"], {"b": "2"})
    assert len(list((tmp_path / PLANS).iterdir())) == 2
    note_plan(tmp_path, ["c", "a"])  # known already
    assert len(list((tmp_path / PLANS).iterdir())) == 2
    (tmp_path / PLANS / "zz.json").write_text("[1")
    (tmp_path / PLANS / "zzz.json").write_text(json.dumps({"x" * 400: "", "../a": "9", "": ""}))
    assert planned(tmp_path)[0] == {"a": "1_0", "b": "2", "c": ""}


@pytest.mark.parametrize("name", ["", "nothing", "file"])
def test_non_run_folder_raises(name, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="is not a directory"):
        run_states(tmp_path / name if name else tmp_path / "file")
    with pytest.raises(UserError, match="no runs found"):
        run_states(tmp_path / "empty")


def test_status_needs_no_torch():
    code = "import sys; import pilot_tal.cli.app, pilot_tal.record.states; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


BAD_LOCKS = {
    "infinite": b'{"doing": {"left": 1e999}}',
    "nan": b'{"doing": {"left": NaN}}',
    "digits": b'{"doing": {"left": ' + b"9" * 401 + b"}}",
    "large": b'{"doing": {"left": 1e300}}',
    "odd": b'{"doing": [1], "host": {}, "pid": []}',
    "binary": bytes(range(256)),
    "deep": b"[" * 1000,
}


def test_bad_lock_and_plan_files_have_a_line_of_their_own(folder, tmp_path):
    for name, content in BAD_LOCKS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / ".lock-000001").write_bytes(content)
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo" / ".lock-000001")
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / ".lock-000001").symlink_to(tmp_path / "loop" / ".lock-000001")
    (tmp_path / PLANS).mkdir()
    os.mkfifo(tmp_path / PLANS / "fifo.json")
    (tmp_path / PLANS / "dangling.json").symlink_to(tmp_path / "nothing")
    (tmp_path / PLANS / "good.json").write_text(json.dumps({"later": ""}))
    states = {state.name: state for state in run_states(tmp_path)}
    bad = {f"{PLANS}/{name}.json" for name in ("fifo", "dangling")}
    assert states.keys() == {*BAD_LOCKS, "fifo", "loop", "later", *bad}
    assert states["later"].state == "not started"
    assert all(
        states[name].state == "failed" and "cannot read" in states[name].detail for name in ("fifo", "loop", *bad)
    )
    assert all(states[name].seconds_left is None for name in BAD_LOCKS)
    for options in ([], ["--json"]):
        status, printed = command("status", tmp_path, *options)
        assert status == 0 and "not started" in printed


def test_json_is_valid_for_names_with_control_characters(tmp_path):
    (tmp_path / PLANS).mkdir()
    (tmp_path / PLANS / "plan.json").write_text(json.dumps({"run\x9b2J": ""}))
    (state,) = json.loads(command("status", tmp_path, "--json")[1])["runs"]
    assert state["name"] == "run\x9b2J"

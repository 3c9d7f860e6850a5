"""Several runs at a time on one machine give the same bytes as one after the other, also when some fail."""

import gc
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.cli import ROOT, command, process
from helpers.images import make_images
from helpers.tiny import result_files, settings

from pilot_tal.config.grid import run_config, study_config
from pilot_tal.engine import hardware
from pilot_tal.engine import launch as launching
from pilot_tal.engine.jobs import Jobs, run_arguments
from pilot_tal.record.lock import locked
from pilot_tal.record.run_dir import find_runs, load_run

TWO = "losses=ce,tal"
FAULTY = f"plugins={Path(__file__).parent / 'faulty.py'}"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def undisturbed(images, tmp_path_factory):
    """The plan one after the other, with one thread."""
    output = tmp_path_factory.mktemp("undisturbed")
    status, printed = command(
        "compare", "l2p", "folder_lt", *settings(images, output, TWO, "jobs=1", "threads=1"), "--quick"
    )
    assert status == 0, printed
    return contents(output)


def contents(output: Path) -> dict[str, dict[str, bytes]]:
    return {run.name: result_files(run) for run in find_runs([output])}


def said(output: Path) -> list[str]:
    """What the logs of all runs say."""
    return [f"{run.name} {line}" for run in find_runs([output]) for line in (run / "log.txt").read_text().splitlines()]


def trained_twice(output: Path) -> list[str]:
    done = [line for line in said(output) if re.search(r"task \d/\d done", line)]
    places = [" ".join(line.split()[:3]) for line in done]
    return [place for place in set(places) if places.count(place) > 1]


def test_jobs_do_not_change_a_byte(images, undisturbed, tmp_path):
    compare = ("compare", "l2p", "folder_lt", *settings(images, tmp_path, TWO, "jobs=3"), "--quick")
    status, printed = command(*compare)
    assert status == 0, printed
    assert "6 of 6 runs done" in printed and "report:" in printed
    assert contents(tmp_path) == undisturbed
    assert all(load_run(run).record.environment[0]["threads"] == 1 for run in find_runs([tmp_path]))
    assert trained_twice(tmp_path) == []
    status, printed = command(*compare)
    assert status == 0 and "6 of 6 runs are done already" in printed


def test_runs_go_one_after_the_other_where_processes_cannot_be_forked(images, undisturbed, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1a2b")  # parts of a GPU, which torch counts by starting CUDA
    assert not hardware.can_fork()
    ways = ("losses=tal,faulty", "faulty.way=sentence", FAULTY)
    given = settings(images, tmp_path, *ways, "seeds=1994,1995", "jobs=2", "threads=1")
    started = process("compare", "l2p", "folder_lt", *given, "--quick")  # its plugin is not registered in this process
    printed = started.communicate(timeout=300)[0]
    assert started.returncode == 1 and "one run at a time" in printed and "2 of 4 runs failed:" in printed, printed
    found = {run.name: result_files(run) for run in find_runs([tmp_path]) if load_run(run).finished}
    assert len(found) == 2 and found == {name: undisturbed[name] for name in found}


def test_failures_are_listed_and_other_runs_continue(images, tmp_path):
    """A sentence, a bug, a process killed once and one killed always, among runs that succeed."""
    ways = "faulty.way=never,sentence,bug,killed,killed_once"
    wanted = settings(images, tmp_path / "runs", "losses=ce,faulty", "seeds=1", ways, FAULTY, "jobs=2")
    started = process("compare", "l2p", "folder_lt", *wanted, "--quick", env={"FAULTY": str(tmp_path)})
    printed = started.communicate(timeout=300)[0]
    assert started.returncode == 1, printed
    states = {run.name: load_run(run).finished for run in find_runs([tmp_path / "runs"])}
    assert sorted(states.values()) == [False] * 3 + [True] * 3
    assert "faulty.way=killed_once: its process was killed (SIGKILL, as a system out of memory does); tried" in printed
    ending = printed[printed.index("3 of 6 runs failed:") :]
    assert "faulty.way=sentence: this loss has had enough\n" in ending
    assert "faulty.way=bug: RuntimeError: nobody has thought of this\n" in ending
    assert "faulty.way=killed: its process was killed (SIGKILL, as a system out of memory does), 2 times" in ending
    logs = [Path(line.split("log: ")[1]) for line in ending.splitlines() if "log: " in line]
    assert len(logs) == 3 and any("Traceback" in log.read_text() for log in logs)
    errors = {log.with_name("error.txt").read_text().split()[0] for log in logs}
    assert errors == {"this", "RuntimeError:", "its"}
    assert "report:" in printed

    again = next(line.split("again: ")[1] for line in ending.splitlines() if "again: " in line and "sentence" in line)
    assert "threads=1" in again
    done = subprocess.run(
        shlex.split(again), capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 2 and "error: this loss has had enough" in done.stderr

    printed = command("status", tmp_path / "runs", "--json")[1]
    assert '"this loss has had enough"' in printed and '"failed": 3' in printed and '"done": 3' in printed


@pytest.mark.parametrize(("sent", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_all_end_within_seconds(sent, expected, images, tmp_path):
    wanted = settings(images, tmp_path / "runs", "losses=faulty", "faulty.way=sleeps", FAULTY, "jobs=2", "seeds=1,2,3")
    started = process("compare", "l2p", "folder_lt", *wanted, "--quick", env={"FAULTY": str(tmp_path)})
    lines = iter(started.stdout)
    seen = [next(lines)]
    while sum("task 1/2 done" in line for line in seen) < 2:
        seen.append(next(lines))
    time.sleep(0.2)
    children = children_of(started.pid)
    assert len(children) == 2
    before = time.monotonic()
    started.send_signal(sent)
    rest = started.communicate(timeout=60)[0]
    assert time.monotonic() - before < 40  # 5 seconds and what a busy machine adds; the runs would sleep for minutes
    assert started.returncode == expected, rest
    assert "stopped; the same command resumes after the last finished task" in rest
    assert "Traceback" not in rest + "".join(said(tmp_path / "runs"))
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    shown = command("status", tmp_path / "runs")[1]  # those that nobody has begun included
    assert "3 runs: 2 stopped, 1 not started" in shown


def children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        if int(text.rpartition(")")[2].split()[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def test_workers_end_with_the_process_that_started_them(images, tmp_path):
    wanted = settings(images, tmp_path / "runs", "losses=faulty", "faulty.way=sleeps", FAULTY, "jobs=2", "seeds=1,2")
    started = process("compare", "l2p", "folder_lt", *wanted, "--quick", env={"FAULTY": str(tmp_path)})
    seen = ""
    while seen.count("task 1/2 done") < 2:
        seen += started.stdout.readline()
    children = children_of(started.pid)
    started.kill()
    started.wait()
    started.stdout.close()
    until = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_run_of_another_process_is_skipped_and_checked_again(images, undisturbed, tmp_path):
    wanted = settings(images, tmp_path, "jobs=2", "threads=1", "losses=tal", "seeds=1993,1994")
    plan = study_config("l2p", "folder_lt", wanted, quick=True)
    busy = Jobs(plan).all[0].path
    with pytest.raises(KeyError), locked(busy):
        started = process("compare", "l2p", "folder_lt", *wanted, "--quick")
        seen = ""
        while "1 of 2 runs done" not in seen:
            line = started.stdout.readline()
            assert line, seen
            seen += line
        assert f"process {os.getpid()})" in seen and "looked at again at the end" in seen
        raise KeyError
    rest = started.communicate(timeout=120)[0]
    assert started.returncode == 0, rest
    assert (
        contents(tmp_path) == {name: undisturbed[name] for name in contents(tmp_path)} and len(contents(tmp_path)) == 2
    )


def test_two_comparisons_side_by_side_finish_together(images, undisturbed, tmp_path):
    wanted = settings(images, tmp_path, TWO, "jobs=2")
    both = [process("compare", "l2p", "folder_lt", *wanted, "--quick") for _ in range(2)]
    printed = [started.communicate(timeout=300)[0] for started in both]
    assert [started.returncode for started in both] == [0, 0], printed
    assert contents(tmp_path) == undisturbed
    assert trained_twice(tmp_path) == []
    assert all(len(load_run(run).record.environment) == 1 for run in find_runs([tmp_path]))


GRID = ["tasks=2,3", "losses=ce,tal", "tal.lam=0.9,0.99", "seeds=1,2", "batch_size=5", "init_lr=1e-05", "workers=0"]


def from_arguments(arguments):
    """The study, of one run, that `run_arguments` describe."""
    _, method, dataset, *rest = arguments
    return run_config(method, dataset, [item for item in rest if item != "--quick"], "--quick" in rest)


@pytest.mark.parametrize("more", [[], ["init_cls=2", "increment=2"], ["epochs=3", "n_max=5", "order=tail_first"]])
def test_commands_make_the_same_runs(more, images, tmp_path, monkeypatch):
    grid = GRID if "init_cls=2" not in more else GRID[1:]
    wanted = [item for item in settings(images, tmp_path / "a b", *grid, *more) if item not in ("n_max=6",) or not more]
    plan = study_config("l2p,mos", "folder_lt", wanted, quick=not more)
    here = ["jobs=3"]  # is for this machine, and not for whoever takes the commands
    quick = [] if more else ["--quick"]
    status, printed = command("compare", "l2p,mos", "folder_lt", *wanted, *here, "--commands", *quick)
    lines = printed.splitlines()
    assert status == 0 and len(lines) == len(plan.runs) == len({job.label for job in Jobs(plan).all})
    for line, job in zip(lines, Jobs(plan).all, strict=True):
        words = shlex.split(line)
        again = from_arguments(words[words.index("run") :])
        assert Jobs(again).all[0].path == job.path
        assert again.hardware == plan.hardware
    assert not (tmp_path / "a b").exists()


def test_dry_run_is_a_table(images, tmp_path):
    wanted = settings(images, tmp_path, "seeds=1", "losses=ce,tal", "tal.r=0.5,1")
    assert command("run", "l2p", "folder_lt", *settings(images, tmp_path, "seeds=1", "loss=ce"), "--quick")[0] == 0
    status, printed = command("compare", "l2p", "folder_lt", *wanted, "--dry-run", "--quick")
    assert status == 0, printed
    rows = [line for line in printed.splitlines() if " seed 1" in line]
    assert [re.search(r"\d/2", row).group() for row in rows] == ["2/2", "0/2", "0/2"]
    assert "tal.r=0.5" in rows[1] and "2 of 3 runs to do, 2 at a time, about" in printed


BAD = [
    ("jobs=0", "jobs must be a whole number from 1"),
    ("jobs=2,3", "jobs must be"),
    ("jobs=many", "jobs must be"),
    ("threads=0", "threads must be"),
    ("gpus=0", "gpus=0: there is no CUDA device"),
    ("gpus=0,0", "gpus must not name a value twice"),
    ("jobs_per_gpu=0", "jobs_per_gpu must be"),
    ("device=cpu,cuda", "device must be"),
    ("precision=tf32", "precision=tf32 needs a CUDA device"),
]


@pytest.mark.parametrize(("item", "words"), BAD)
def test_bad_input_raises_before_any_start(item, words, images, tmp_path):
    given = settings(images, tmp_path / "runs", item)
    status, printed = command("compare", "l2p", "folder_lt", *given, "--quick")
    assert status == 2 and words in printed and len(printed.splitlines()) == 1, printed
    assert not list(tmp_path.glob("runs/folder*"))


def test_unwritable_output_raises(images, tmp_path):
    (tmp_path / "file").write_text("")
    status, printed = command("compare", "l2p", "folder_lt", *settings(images, tmp_path / "file"), "--quick")
    assert status == 2 and "error: cannot write" in printed and len(printed.splitlines()) == 1


def test_threads_follow_the_plan_and_jobs_the_memory(images, tmp_path, monkeypatch):
    def plan(*items: str):
        return study_config(
            "l2p", "folder_lt", settings(images, tmp_path, *items, *[TWO] * ("losses=tal" not in items))
        )

    assert hardware.find_threads(plan()) == 1
    assert hardware.find_threads(plan("threads=3")) == 3
    assert hardware.find_threads(plan("jobs=1")) is None
    assert hardware.find_threads(plan("losses=tal", "seeds=1")) is None
    monkeypatch.setattr(launching, "cores", lambda: 64)
    every = Jobs(plan())

    def slots(free: int, jobs: Jobs = every) -> int:
        monkeypatch.setattr(launching, "free_memory", lambda: free)
        return len(launching.find_slots(jobs, jobs.all, []))

    one = launching.run_bytes(every.trainer(every.all[0]))
    assert slots(1 << 50) == 6 and slots(0) == 1 and slots(1 << 50, Jobs(plan("threads=16"))) == 4
    assert slots(int(3.5 * one / launching.MEMORY_SHARE)) == 3


def test_images_are_kept_as_long_as_a_run_needs_them(images, tmp_path):
    jobs = Jobs(study_config("l2p", "folder_lt", settings(images, tmp_path, "losses=ce", "seeds=1", "n_max=4,5")))
    few, many = jobs.all
    again = replace(few, trainer=None)
    kept, gone = jobs.trainer(few).shared, weakref.ref(jobs.trainer(many).shared)
    assert kept is not gone() and kept.backbone is gone().backbone
    many.trainer = None
    gc.collect()
    assert gone() is None and jobs.trainer(again).shared is kept
    assert jobs.trainer(many).shared.backbone is kept.backbone


def test_label_has_the_name_of_an_own_dataset(images, tmp_path):
    study = study_config("l2p", "folder_lt", settings(images, tmp_path, "losses=ce", "seeds=1", "name=My Birds"))
    assert Jobs(study).all[0].label == "l2p my_birds ce seed 1"


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 8}, raising=False)
    assert hardware.cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS
    assert hardware.cores() == 64


def test_time_left_counts_the_images_that_runs_show(images, tmp_path, monkeypatch):
    """So the time left holds for methods with other batches: LAE's has 128 images, L2P's 16."""
    seen = {}

    class Spy:
        def __init__(self, *_):
            pass

        def work(self, todo):
            seen.update({job.config.method: job.images for job in todo})

    monkeypatch.setattr(launching, "Workers", Spy)
    wanted = settings(images, tmp_path, "losses=ce", "seeds=1", "epochs=3")
    launching.launch(study_config("l2p,lae", "folder_lt", wanted))
    tasks, epochs = 2, 3
    assert seen == {"l2p": tasks * epochs * 16, "lae": tasks * epochs * 128}


def test_run_arguments_repeat_a_plan_of_every_method(images, tmp_path):
    plan = study_config("all", "folder_lt", settings(images, tmp_path))
    for config in plan.runs:
        assert from_arguments(run_arguments(config, plan.hardware)).runs == (config,)


def test_reproduce_table_is_one_call(images, tmp_path):
    """The script as it stands, in a project that is set up already."""
    project = tmp_path / "project"
    (project / "scripts").mkdir(parents=True)
    (project / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "reproduce_table.sh", project / "scripts")
    (project / "scripts" / "setup.sh").write_text("exit 0\n")
    python = project / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    given = [item for item in settings(images, tmp_path / "runs", "losses=tal", "seeds=1") if item != "tasks=2"]
    environment = {"METHODS": "l2p lae", "DATASETS": "folder_lt", "TASKS": "2 3", "PYTHONPATH": str(ROOT)}
    command = ["bash", str(project / "scripts" / "reproduce_table.sh"), *given, "--quick"]
    done = subprocess.run(command, env=os.environ | environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [load_run(run).record for run in find_runs([tmp_path / "runs"])]
    assert {(record.method.name, record.num_tasks) for record in records} == {
        (method, tasks) for method in ("l2p", "lae") for tasks in (2, 3)
    }
    assert "report:" in done.stdout

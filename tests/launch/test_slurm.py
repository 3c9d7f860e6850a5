"""Runs as SLURM jobs. What is marked `slurm` runs on a real cluster of one node, started here."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from cluster import Cluster, why_not
from helpers.cli import ROOT, command, process
from helpers.images import make_images
from helpers.tiny import result_files, settings
from test_launch import FAULTY

from data_lt.errors import UserError
from pilot_tal.cli.compare import mark_slurm
from pilot_tal.engine import slurm
from pilot_tal.engine.slurm import SlurmConfig, _parse
from pilot_tal.record.run_dir import find_runs, is_finished
from pilot_tal.record.states import planned
from pilot_tal.schema import build

MISSING = why_not()


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))


BAD = [
    ("partiton=gpu", "unknown setting of SLURM 'partiton': did you mean 'partition'?"),
    ("time=4h", "time must be a time of 3 minutes or more such as"),
    ("time=2", "time must be a time of 3 minutes or more"),
    ("time=2:59", "time must be a time of 3 minutes or more"),
    ("time=0:02:30", "time must be a time of 3 minutes or more"),
    ("gpus=two", "gpus must be"),
    ("cpus=0", "cpus must be"),
    ("mem=32 G", "mem must be"),
    ("array=0", "array must be"),
    ("runs_per_job=0", "runs_per_job must be"),
    ("account=", "account has no value"),
    ("partition=a b", "partition must be"),
]


@pytest.mark.parametrize(("item", "words"), BAD)
def test_bad_options_raise(item, words):
    with pytest.raises(UserError, match=re.escape(words)):
        build(SlurmConfig, _parse([item]), "SLURM")


@pytest.mark.parametrize("text", ["3", "10", "3:00", "20:00", "0:03:00", "1:00:00", "2-0", "0-12:00"])
def test_times_of_three_minutes_or_more_are_accepted(text):
    assert build(SlurmConfig, _parse([f"time={text}"]), "SLURM").time == text


def test_arguments_after_slurm_are_slurm_options():
    typed = "compare l2p demo_lt gpus=0 --slurm gpus=1 mem=4G --quick tasks=2 slurm.cpus=2"
    marked = "compare l2p demo_lt gpus=0 --slurm slurm.gpus=1 slurm.mem=4G --quick tasks=2 slurm.cpus=2"
    assert mark_slurm(typed.split(" ")) == marked.split(" ")


def test_dry_run_prints_the_script(images, tmp_path):
    options = "partition=gpu time=4:00:00 gpus=a100:1 cpus=8 mem=32G array=4 account=me constraint=a&b qos=low"
    given = settings(images, tmp_path / "runs", "losses=ce,tal")
    compare = ("compare", "l2p", "folder_lt", *given, "--quick", "--dry-run", "--slurm")
    status, printed = command(*compare, *options.split(" "))
    assert status == 0, printed
    lines = set(printed.splitlines())
    wanted = "partition=gpu time=4:00:00 gres=gpu:a100:1 cpus-per-task=8 mem=32G array=0-5%4 account=me qos=low requeue"
    assert {f"#SBATCH --{option}" for option in wanted.split()} <= lines and "#SBATCH --constraint='a&b'" in lines
    assert "6 of 6 runs to submit, in 6 jobs" in printed
    runs = [line for line in printed.splitlines() if line.startswith("run ")]
    assert len(runs) == 6 and all(" -m pilot_tal run l2p folder_lt loss=" in run for run in runs)
    assert not (tmp_path / "runs").exists()
    status, printed = command(*compare, "cells_per_job=4")  # its name in earlier versions
    assert "#SBATCH --array=0-1%2" in printed and "gres" not in printed and "in 2 jobs" in printed


@pytest.mark.parametrize(
    ("items", "options", "words"),
    [
        (["precision=tf32", "device=auto"], ["gpus=1"], ""),
        (["device=cuda"], ["gpus=nvidia_a100-pcie-40gb:1"], ""),
        (["device=cuda:0", "precision=tf32"], ["gpus=1g.5gb:1"], ""),
        (["precision=tf32", "device=auto"], [], "precision=tf32 needs a CUDA device, and this run is on cpu"),
        (["precision=tf32", "device=auto"], ["gpus=0"], "precision=tf32 needs a CUDA device, and this run is on cpu"),
    ],
)
def test_runs_are_checked_for_the_node_and_not_for_the_machine_that_submits_them(
    items, options, words, images, tmp_path, monkeypatch
):
    """The machine here has no GPU, as many from which jobs are submitted."""
    handed = []
    monkeypatch.setattr(slurm, "_submit", lambda *given: handed.append(given) or "1")
    given = settings(images, tmp_path / "runs", "losses=ce", "seeds=1", *items)
    status, printed = command("compare", "l2p", "folder_lt", *given, "--slurm", *options)
    assert (status, bool(handed)) == ((2, False) if words else (0, True)), printed
    assert words in printed


def test_jobs_of_runs_are_noted(images, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "_submit", lambda *_: "7")
    given = settings(images, tmp_path / "runs", "losses=ce,tal")
    status, printed = command("compare", "l2p", "folder_lt", *given, "--slurm", "time=5", "runs_per_job=4")
    assert status == 0, printed
    assert sorted(planned(tmp_path / "runs")[0].values()) == ["7_0"] * 4 + ["7_1"] * 2


def test_more_jobs_than_an_array_takes_are_refused_with_the_way_out(images, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "MOST_JOBS", 4)
    given = settings(images, tmp_path / "runs", "losses=ce,tal")
    status, printed = command("compare", "l2p", "folder_lt", *given, "--slurm", "time=5")
    assert status == 2 and "add --slurm runs_per_job=2" in printed and not (tmp_path / "runs").exists()


def test_plan_that_cannot_be_saved_is_not_submitted(images, tmp_path, monkeypatch):
    handed = []
    monkeypatch.setattr(slurm, "_submit", lambda *given: handed.append(given) or "1")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".plans").write_text("a file where the folder belongs")
    given = settings(images, tmp_path / "runs", "losses=ce", "seeds=1")
    status, printed = command("compare", "l2p", "folder_lt", *given, "--slurm", "time=5")
    assert status == 2 and not handed and "accepted" not in printed, printed


def test_refused_report_is_not_promised(images, tmp_path, monkeypatch):
    def no_last_job(output, script):
        if "--dependency" in script:
            raise UserError("SLURM refuses: too many jobs")
        return "7"

    monkeypatch.setattr(slurm, "_submit", no_last_job)
    given = settings(images, tmp_path / "runs", "losses=ce", "seeds=1")
    status, printed = command("compare", "l2p", "folder_lt", *given, "--slurm", "time=5")
    said = " ".join(printed.split())
    assert status == 0 and "the report will not be written: SLURM refuses: too many jobs" in said
    assert "the report will be " not in said and f"pilot-tal report {tmp_path / 'runs'}" in said


def test_unrequested_gpu_is_reported(images, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "_submit", lambda *given: "1")
    given = settings(images, tmp_path / "runs", "losses=ce", "seeds=1", "device=cuda")
    status, printed = command("compare", "l2p", "folder_lt", *given, "--slurm", "time=5")
    assert status == 0 and "the jobs ask SLURM for no GPU" in printed
    given = settings(images, tmp_path / "more", "losses=ce", "seeds=1", "device=cuda")
    assert "ask SLURM for no GPU" not in command("compare", "l2p", "folder_lt", *given, "--slurm", "gpus=1")[1]


def test_report_waits_when_squeue_does_not_answer(images, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(slurm, "queued_jobs", lambda: None)
    monkeypatch.setattr(slurm, "_submit", lambda output, script: asked.append(script) or "7")
    given = settings(images, tmp_path / "runs", "losses=ce", "seeds=1")
    status, printed = command("compare", "l2p", "folder_lt", *given, "--slurm", "time=5")
    assert status == 0 and f"the report will be {tmp_path / 'runs' / 'report'}" in "".join(printed.split("\n"))
    assert "dependency" not in asked[0] and "#SBATCH --dependency=afterany:7\n" in asked[1]


def test_missing_sbatch_raises(images, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    status, printed = command("compare", "l2p", "folder_lt", *settings(images, tmp_path / "runs"), "--slurm", "time=5")
    assert status == 2 and "error: this machine has no sbatch" in printed, printed


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as running:
        yield running


@pytest.fixture
def pilot(cluster, monkeypatch):
    """The command line, beside the cluster."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    for name, value in {**cluster.environment, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)

    def run(*arguments) -> tuple[int, str]:
        started = process(*arguments)
        printed = started.communicate(timeout=600)[0]
        return started.returncode, printed

    return run


def running(output: Path) -> dict[str, dict]:
    found = json.loads(command("status", output, "--json")[1])
    return {run["name"]: run for run in found["runs"]}


def finished(output: Path) -> dict[str, dict[str, bytes]]:
    return {run.name: result_files(run) for run in find_runs([output]) if is_finished(run)}


def wait_for(condition, seconds: float = 600):
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until
        time.sleep(0.3)
    return value


@pytest.mark.slurm
@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
class TestCluster:
    """A study of nine runs: three fail, one job is cancelled, one killed, one told that its time is over."""

    GRID = ("seeds=1,2,3", "losses=ce,faulty", "faulty.way=sleeps,sentence", FAULTY)

    def test_slurm_runs_every_job_and_the_report(self, cluster, pilot, images, tmp_path, monkeypatch):
        monkeypatch.setenv("FAULTY", str(tmp_path))
        output = tmp_path / "slurm"
        given = settings(images, output, *self.GRID, "jobs=1")
        compare = ("compare", "l2p", "folder_lt", *given, "--quick", "--slurm", "time=30", "runs_per_job=3")
        status, printed = pilot(*compare)
        assert status == 0 and "submitted 9 of 9 runs in 3 jobs" in printed, printed
        assert pilot(*compare)[1].startswith("nothing to submit")
        requeued = self._disturb(cluster, output)
        (tmp_path / "wake").touch()
        cluster.command("scontrol", "update", f"JobId={requeued}", "StartTime=now")  # SLURM lets it wait two minutes
        wait_for(lambda: not any(run["state"] in ("queued", "running") for run in running(output).values()))
        cluster.wait()

        states = running(output)
        failed = [run for run in states.values() if run["state"] == "failed"]
        assert len(failed) == 2 and {run["detail"] for run in failed} == {"this loss has had enough"}
        report = next((output / "report").glob("*/index.html"))
        before = report.stat().st_mtime_ns
        status, printed = pilot(*compare)  # what was cancelled or killed, and what failed
        assert status == 0 and "submitted 4 of 9 runs in 2 jobs" in printed, printed
        cluster.wait()
        newest = max(file.stat().st_mtime_ns for file in output.glob("*-l2p-*/*"))
        assert report.stat().st_mtime_ns > max(before, newest)  # the report comes last

        whole = settings(images, tmp_path / "here", *self.GRID, "threads=1", "jobs=2")
        status, printed = pilot("compare", "l2p", "folder_lt", *whole, "--quick")
        assert status == 1, printed
        assert finished(output) == finished(tmp_path / "here") and len(finished(output)) == 6
        assert sorted(run["state"] for run in running(output).values()) == ["done"] * 6 + ["failed"] * 3

    def _disturb(self, cluster, output: Path) -> str:
        """Both running jobs sleep in the second task of a run; the third job comes when there is room.

        Gives the job that is requeued.
        """

        def asleep() -> list[dict]:
            found = [run for run in running(output).values() if run["state"] == "running"]
            return [run for run in found if (output.parent / f"asleep-{process_of(run)}").is_file()]

        def job(run: dict) -> str:
            return re.search(r"job (\S+)", run["where"]).group(1)

        def process_of(run: dict) -> str:
            return re.search(r"process (\d+)", run["where"]).group(1)

        first, second = wait_for(lambda: asleep() if len(asleep()) == 2 else None)
        cluster.command("scancel", job(first))
        cluster.command("scancel", "--batch", "--signal=USR2", job(second))  # as at the end of its time
        third = wait_for(lambda: next((run for run in asleep() if job(run) not in (job(first), job(second))), None))
        subprocess.run(["kill", "-9", process_of(third)], check=True)
        restarts = cluster.command("scontrol", "show", "job", job(second))
        assert "Restarts=1" in restarts, restarts
        return job(second)

    def test_error_of_sbatch_is_reported(self, pilot, images, tmp_path):
        given = settings(images, tmp_path / "runs", "seeds=1")
        status, printed = pilot("compare", "l2p", "folder_lt", *given, "--quick", "--slurm", "partition=nowhere")
        assert status == 2 and "error: SLURM refuses: " in printed and "invalid partition" in printed, printed
        assert len(printed.strip().splitlines()) == 1

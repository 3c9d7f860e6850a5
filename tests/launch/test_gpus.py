"""Which GPU a run gets and who loads its images, on machines that are not here."""

import os

import pytest
import torch
from helpers.images import make_images
from helpers.tiny import settings

from pilot_tal.config.grid import study_config
from pilot_tal.config.settings import Hardware
from pilot_tal.engine import hardware
from pilot_tal.engine import launch as launching
from pilot_tal.engine.jobs import Jobs


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(autouse=True)
def _four_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_all_or_selected_gpus(monkeypatch):
    assert hardware.find_gpus(Hardware()) == ["0", "1", "2", "3"]
    assert hardware.find_gpus(Hardware(gpus=(3, 1))) == ["3", "1"]
    assert hardware.find_gpus(Hardware(device="cuda:2")) == ["2"]
    assert hardware.find_gpus(Hardware(device="cpu")) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert hardware.find_gpus(Hardware(gpus=(1,))) == ["GPU-b"]
    with pytest.raises(ValueError, match="there is no GPU 2; this machine has 2"):
        hardware.find_gpus(Hardware(gpus=(0, 2)))


def test_runs_at_a_time_share_the_cores_that_load_images(images, tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "cores", lambda: 16)

    def loaders(*items: str) -> int | None:
        device = [] if "device=cpu" in items else ["device=auto"]
        plan = study_config(
            "l2p",
            "folder_lt",
            settings(images, tmp_path, *items, *device, *["losses=ce,tal"] * ("losses=ce" not in items)),
        )
        return hardware.find_loaders(plan, hardware.find_gpus(plan.hardware))

    assert loaders("losses=ce", "seeds=1") == 8  # alone, as many as help
    assert loaders() == 4 and loaders("gpus=1") == 8 and loaders("jobs=3") == 5  # six runs on four GPUs
    assert loaders("gpus=0,1", "jobs_per_gpu=3") == 2 and loaders("workers=7") == 7 and loaders("workers=0") == 0
    assert loaders("device=cpu") is None
    monkeypatch.setattr(hardware, "cores", lambda: 2)
    assert loaders() == 1


def test_every_run_of_a_plan_gets_them(images, tmp_path, monkeypatch):
    seen = []

    class Spy:
        def __init__(self, jobs, slots, *_):
            self.jobs = jobs

        def work(self, todo):
            seen.extend(self.jobs.trainer(job).shared.workers for job in todo)

    monkeypatch.setattr(hardware, "cores", lambda: 16)
    monkeypatch.setattr(launching, "Workers", Spy)
    launching.launch(study_config("l2p", "folder_lt", settings(images, tmp_path, "device=auto", "losses=ce,tal")))
    assert seen == [4] * 6


def test_places(images, tmp_path):
    def places(*items: str) -> list:
        plan = study_config("l2p", "folder_lt", settings(images, tmp_path, "device=auto", "losses=ce,tal", *items))
        jobs = Jobs(plan)
        return launching.find_slots(jobs, jobs.all, hardware.find_gpus(plan.hardware))

    assert places() == ["0", "1", "2", "3"]
    assert places("gpus=1,2", "jobs_per_gpu=2") == ["1", "2", "1", "2"]
    assert places("jobs=2") == ["0", "1"]
    assert places("gpus=0,1", "jobs_per_gpu=4") == ["0", "1"] * 3
    assert (
        hardware.find_threads(
            study_config("l2p", "folder_lt", settings(images, tmp_path, "device=auto", "losses=ce,tal"))
        )
        is None
    )


def test_run_is_pinned_to_its_gpu(tmp_path):
    """What the worker's process sees, without a GPU."""
    seen = tmp_path / "seen"

    class Run:
        path = tmp_path

        def execute(self, *_):
            seen.write_text(os.environ["CUDA_VISIBLE_DEVICES"])
            raise ValueError

    context = launching.multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    arguments = (Run(), "run", (), launching._Pipe(send, False), "GPU-7", 1, os.getpid())
    worker = context.Process(target=launching._work, args=arguments)
    worker.start()
    worker.join()
    assert seen.read_text() == "GPU-7" and receive.recv() == ("failed", "ValueError")

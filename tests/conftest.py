"""Settings of the whole suite: repeatable examples, one thread, no network."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hypothesis
import pytest
import torch

# Files whose tests train runs, start processes or draw whole reports; `pytest -m "not slow"` leaves them out.
SLOW = {
    *("api/test_api", "api/test_notebook", "backbone/test_backbones", "cli/test_command_line", "demo/test_demo_vit"),
    *("cli/test_output", "config/test_plugins"),
    *("docs/test_code_blocks", "engine/test_loggers", "engine/test_resume", "engine/test_run", "engine/test_wiring"),
    *("engine/test_suspended_owner", "fuzz/test_damage", "fuzz/test_paths"),
    *("launch/test_kills", "launch/test_launch", "launch/test_slurm", "learners/test_all_learners"),
    *("learners/test_each_learner", "losses/test_tal_processes", "model/test_export", "model/test_graph"),
    *("model/test_learn", "model/test_predict_command", "record/test_power_cut", "results/test_browser"),
    *("results/test_page", "setup/test_benches", "setup/test_setup", "upstream/test_driver"),
    *("upstream/test_real_checkouts", "upstream/test_swap", "upstream/test_workarounds", "verify/test_verify"),
}


def pytest_collection_modifyitems(items):
    for item in items:
        path = item.path.with_suffix("")
        if f"{path.parent.name}/{path.name}" in SLOW:
            item.add_marker(pytest.mark.slow)


hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_disk_sync(monkeypatch):
    """Waiting for the disk would take most of the suite's time."""
    monkeypatch.setattr("os.fsync", lambda _: None)

"""Settings of the whole suite: repeatable examples, one thread, no network."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_disk_sync(monkeypatch):
    """Waiting for the disk would take most of the suite's time."""
    monkeypatch.setattr("os.fsync", lambda _: None)

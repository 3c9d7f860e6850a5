"""What a run says of where it was made: true, and silent where nothing is known."""

import hashlib
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from pilot_tal import __version__
from pilot_tal.record import writer as environment
from pilot_tal.record.writer import describe, hub_source, image_fingerprint


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A checkout with one commit, which the module takes for its own."""
    file = tmp_path / "pilot_tal" / "record" / "environment.py"
    file.parent.mkdir(parents=True)
    file.write_text("first\n")
    monkeypatch.setattr(environment, "_ROOT", tmp_path)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "--message=first")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_environment_contains_versions_and_hardware(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["pilot-tal", "run", "l2p", "demo_lt"])
    monkeypatch.chdir(tmp_path)
    told = describe("cpu")
    assert told["pilot_tal"] == __version__ and told["python"] == platform.python_version()
    assert told["command"] == ["pilot-tal", "run", "l2p", "demo_lt"] and told["working_directory"] == str(tmp_path)
    assert told["platform"] == platform.platform() and told["threads"] == torch.get_num_threads()
    assert told["device"] == "cpu" and told["device_name"] == platform.machine()
    assert {"torch", "torchvision", "timm", "numpy", "safetensors"} <= set(told["packages"])
    assert told["packages"] == {name: version(name) for name in told["packages"]}


def test_gpu_name_is_recorded(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"the card of {device}")
    assert describe("cuda:1")["device_name"] == "the card of cuda:1"


def test_missing_package_has_no_version(monkeypatch):
    monkeypatch.setattr(environment, "PACKAGES", ("torch", "no-such-package"))
    assert describe("cpu")["packages"] == {"torch": version("torch"), "no-such-package": None}


def test_commit_and_whether_tracked_files_were_changed(checkout):
    (checkout / "notes.txt").write_text("not tracked\n")
    told = describe("cpu")
    assert told["commit"] == git(checkout, "rev-parse", "HEAD") and told["changed_since_commit"] is False
    (checkout / "pilot_tal" / "record" / "environment.py").write_text("second\n")
    assert describe("cpu")["changed_since_commit"] is True


def test_installed_package_has_no_commit(checkout, monkeypatch):
    """Nor has one that lies inside a checkout of something else."""
    monkeypatch.setattr(environment, "_ROOT", checkout / "site-packages")
    told = describe("cpu")
    assert told["commit"] is None and told["changed_since_commit"] is False


@pytest.mark.parametrize("way", ["no git", "too slow", "damaged"])
def test_commit_is_empty_without_git(way, checkout, monkeypatch):
    if way == "no git":
        monkeypatch.setenv("PATH", str(checkout / "nothing"))
    elif way == "too slow":
        slow = subprocess.TimeoutExpired("git", 10)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: (_ for _ in ()).throw(slow))
    else:
        (checkout / ".git" / "HEAD").unlink()
    assert describe("cpu")["commit"] is None


def test_revision_and_checksum_of_hub_weights_are_found(tmp_path, monkeypatch):
    file = tmp_path / "snapshots" / "0123abcd" / "model.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: str(file))
    found = hub_source("vit_base_patch16_224.augreg_in21k")
    assert found["repository"].startswith("timm/") and found["revision"] == "0123abcd"
    assert found["sha256"] == hashlib.sha256(b"weights").hexdigest()
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    assert hub_source("vit_base_patch16_224.augreg_in21k") == {}


def test_fingerprint_changes_with_content_and_size_but_not_with_the_folder(tmp_path):
    for folder in ("one", "two"):
        for number in range(5):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / f"{number}.png").write_bytes(bytes([number]) * 10)
    names = [f"{number}.png" for number in range(5)]
    one, two = (image_fingerprint(tmp_path / folder, names) for folder in ("one", "two"))
    assert one == two
    for content in (b"x" * 10, b"x" * 11):
        (tmp_path / "two" / "3.png").write_bytes(content)
        assert image_fingerprint(tmp_path / "two", names) != one

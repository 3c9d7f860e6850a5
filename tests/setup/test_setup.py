"""scripts/setup.sh: does nothing the second time, and says in a sentence why it cannot go on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path):
    """The project's set-up files in a folder with a space in its name."""
    root = tmp_path / "a copy"
    (root / "scripts").mkdir(parents=True)
    for name in ("scripts/setup.sh", "requirements.txt", "requirements-test.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    return root


def setup(root, **environment):
    script = root / "scripts" / "setup.sh"
    return subprocess.run(
        ["bash", str(script)], cwd="/", env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )


def test_finished_setup_does_nothing_silently():
    if not (ROOT / ".venv" / ".installed").is_file():
        pytest.skip("this checkout was not set up by scripts/setup.sh")
    done = setup(ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_old_python_is_refused_in_one_sentence(project):
    old = project / "old python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.8.18 && exit 0\nexit 1\n')
    old.chmod(0o755)
    done = setup(project, PYTHON=str(old))
    assert done.returncode != 0 and "Python 3.10 or newer is needed" in done.stderr and "3.8.18" in done.stderr
    assert not (project / ".venv").exists()


def test_missing_python_prints_one_sentence(project):
    done = setup(project, PYTHON="no-such-python")
    assert done.returncode != 0 and done.stderr == (
        "setup: Python 3.10 or newer is needed, but 'no-such-python' is missing; "
        "install one or set PYTHON=/path/to/python3.\n"
    )


NOWHERE = {
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_FIND_LINKS": "",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_RETRIES": "0",
    "PYTHON": sys.executable,
}


def test_venv_without_pip_is_kept_and_gets_pip(project):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(project / ".venv")], check=True)
    (project / ".venv" / "mine").write_text("keep")
    assert "the package registry cannot be reached" in setup(project, **NOWHERE).stderr  # so pip was there
    assert (project / ".venv" / "mine").read_text() == "keep"


def test_unreachable_index_prints_one_sentence(project):
    done = setup(project, **NOWHERE)
    assert done.returncode != 0 and "the package registry cannot be reached" in done.stderr
    assert not (project / ".venv" / ".installed").exists()


def test_scripts_are_valid_bash():
    for script in (ROOT / "scripts").glob("*.sh"):
        assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0, script


def test_requirements_are_pinned():
    lines = [line for file in ROOT.glob("requirements*.txt") for line in file.read_text().splitlines()]
    for line in lines:
        if line and not line.startswith("#"):
            assert "==" in line, line

"""scripts/setup_upstream.sh refuses what it cannot use before it makes anything."""

import subprocess

import pytest
from helpers.cli import ROOT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "usage: bash scripts/setup_upstream.sh PATH_OF_THE_CHECKOUT"),
        (("--env",), "--env needs a directory"),
        (("--venv", "x"), "unknown option '--venv'"),
        (("a", "b"), "one checkout at a time, got 'a' and 'b'"),
        (("nowhere",), "'nowhere' is not a checkout of LAMDA-PILOT"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments, message, tmp_path):
    command = ["bash", str(ROOT / "scripts/setup_upstream.sh"), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_directory_without_an_environment_is_kept(pilot, tmp_path):
    (tmp_path / "env").mkdir()
    (tmp_path / "env/precious.txt").write_text("mine")
    command = ["bash", str(ROOT / "scripts/setup_upstream.sh"), str(pilot), "--env", str(tmp_path / "env")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "is not an environment" in done.stderr
    assert (tmp_path / "env/precious.txt").read_text() == "mine"

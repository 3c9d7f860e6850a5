"""Messages: names and commands in them can be typed as they stand."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from data_lt.errors import command, unknown_name

PROGRAM = Path(sys.executable).with_name("pilot-tal")


@pytest.mark.parametrize(
    ("called", "cwd", "on_path", "expected"),
    [
        ("{bin}/pilot-tal", ".", False, "{bin}/pilot-tal list"),
        ("{bin}/pilot-tal", "{bin}/..", False, "bin/pilot-tal list"),
        ("{bin}/pilot-tal", "{bin}", False, "./pilot-tal list"),
        ("{bin}/pilot-tal", ".", True, "pilot-tal list"),
        ("/somewhere/pilot_tal/__main__.py", "{bin}/..", False, "bin/python -m pilot_tal list"),
        ("/somewhere/pilot_tal/__main__.py", ".", True, "python -m pilot_tal list"),
        ("/usr/bin/pytest", "{bin}/..", False, "bin/pilot-tal list"),
        ("", "{bin}/..", False, "bin/pilot-tal list"),
    ],
)
def test_program_is_named_as_it_was_called(tmp_path, monkeypatch, called, cwd, on_path, expected):
    folder = tmp_path / "env/bin"
    folder.mkdir(parents=True)
    for name in ("pilot-tal", "python"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty" if cwd == "." else cwd.format(bin=folder))
    monkeypatch.setenv("PATH", str(folder) if on_path else str(tmp_path / "empty"))
    monkeypatch.setattr(sys, "argv", [called.format(bin=folder)])
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    assert command("list") == expected.format(bin=folder)


def test_arguments_are_quoted(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pilot-tal"])
    assert command("build", "a b", Path("c;d"), 3).endswith("pilot-tal build 'a b' 'c;d' 3")


def test_command_in_a_message_runs(tmp_path):
    call = [sys.executable, "-m", "pilot_tal", "build", "cub_lt", "--data-root", "no where"]
    message = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path, check=False).stderr
    typed = message.strip().split("get them with: ")[1].replace("--download", "--shipped")  # without a network
    again = subprocess.run(typed, shell=True, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert again.returncode == 0 and "1,258" in again.stdout, again.stderr
    assert shlex.split(typed)[-1] == "no where"


def test_unknown_name_among_many_lists_some():
    names = [f"class {number:03d}" for number in range(200)]
    assert str(unknown_name("class", "zebra", names)).endswith("class 019 and 180 more")
    assert str(unknown_name("class", "class 1o7", names)) == "unknown class 'class 1o7': did you mean 'class 197'?"

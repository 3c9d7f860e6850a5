"""How the command line answers: help with an example, and errors as one sentence on standard error."""

import subprocess
import sys

import pytest
from helpers.cli import ROOT, ask
from helpers.images import make_images

from pilot_tal.cli.app import app

COMMANDS = [info.name for info in app.registered_commands]


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_shows_an_example(command):
    answer = ask(*filter(None, [command]), "--help")
    assert answer.status == 0 and not answer.err
    wanted = f"pilot-tal {command or 'compare'} "
    assert "Example" in answer.out and wanted in " ".join(answer.out.split()).replace("│", "")


def test_alone_it_shows_its_help():
    alone, helped = ask(), ask("--help")
    assert alone.status == 0 and alone.out.split() == helped.out.split()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nope"], "No such command 'nope'; see "),
        (["--nope"], "No such option: --nope; see "),
        (["status", "--" + "x" * 5000], "xxx…; see "),
        (["run", "l2p"], "Missing argument 'DATASET'; see "),
        (["report"], "Missing argument 'RUNS'; see "),
        (["build", "cub_lt", "--shape", "x"], "shape must be a number"),
        (["run", "l2p", "demo_lt", "qqqqq=1"], "unknown setting 'qqqqq': all are listed by: "),
        (["run", "l2p", "x" * 300], "unknown dataset 'xxx"),
        (["run", "l\n2p\x1b", "demo_lt"], "unknown method 'l\\n2p\\x1b'"),
        (["compare", "l2p", "demo_lt", "output="], "output has no value"),
        (["report", ""], "RUNS is empty; give a path, or . for the working directory"),
        (["report", ".", "-o", ""], "--output is empty; give a path"),
        (["report", "x" * 300], "RUNS cannot be a path: it or a name in it is too long"),
        (["report", "no\x1bwhere"], "is not a directory"),
        (["verify", "x" * 300], "FILES cannot be a path"),
        (["status", ""], "FOLDER is empty; give a path"),
        (["status", "x" * 300], "FOLDER cannot be a path"),
        (["build", "cub_lt", "--shipped", "-o", ""], "--out is empty; give a path"),
        (["build", "cub_lt", "--data-root", "x" * 300], "--data-root cannot be a path"),
        (["list", "l2q"], "unknown method or loss 'l2q': did you mean 'l2p'?"),
        (["list", "l2p", "--dataset", "x" * 300], "unknown dataset 'xxx"),
        (["upstream", "--repo", "", "--config", "x"], "--repo is empty; give a path"),
        (["upstream", "--repo", ".", "--config", "x", "-o", ""], "--output is empty; give a path"),
    ],
)
def test_errors_are_one_line_on_standard_error(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = ask(*arguments)
    assert answer.status == 2 and not answer.out
    (line,) = answer.err.splitlines()
    assert line.startswith("error: ") and sentence in line and len(line) < 400 and line.isprintable()
    assert not list(tmp_path.iterdir())


def test_environment_names_the_images_for_every_command(tmp_path, monkeypatch):
    monkeypatch.setenv("PILOT_TAL_DATA", str(make_images(tmp_path / "images")))
    sizes = ("--n-max", "6", "--n-min", "2", "--test-per-class", "2")
    answer = ask("build", "folder_lt", "--out", tmp_path / "out", *sizes)
    assert answer.status == 0 and list((tmp_path / "out").iterdir()), answer.err
    assert "PILOT_TAL_DATA" in ask("upstream", "--help").out


def test_reader_that_closes_the_pipe_gets_no_error():
    program = subprocess.Popen(
        [sys.executable, "-u", "-m", "pilot_tal", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    assert program.stdout is not None and program.stderr is not None
    program.stdout.close()
    assert program.stderr.read() == b"" and program.wait() == 1

"""Standard output of any kind, foreign code that exits, and Ctrl-C at any moment: one sentence, never a traceback."""

import os
import signal
import subprocess
import sys
import zlib

import pytest
from helpers.cli import ROOT, ask
from helpers.images import make_images
from helpers.tiny import settings

from pilot_tal.losses import LOSSES
from pilot_tal.record.run_dir import find_runs


def run_program(*arguments: str, code: str = "", **options) -> subprocess.CompletedProcess:
    """Runs the program in a process of its own; `code` is executed before."""
    start = [
        sys.executable,
        "-c",
        f"{code}\nimport sys; sys.argv[0] = 'pilot-tal'\nfrom pilot_tal.cli import main\nmain()",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return subprocess.run([*start, *arguments], env=environment, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii"])
def test_characters_that_an_encoding_lacks_are_replaced(encoding):
    code = "from pilot_tal.cli import shared\nshared.accept_any_text()\nshared.echo('ρ −1 ☃')"
    done = run_program("list", code=code, env={"PYTHONIOENCODING": encoding}, stdout=subprocess.PIPE)
    assert done.returncode == 0 and done.stdout.startswith(b"rho -1 ?") and not done.stderr, done


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written_raises_user_error():
    with open("/dev/full", "w") as full:
        done = run_program("list", stdout=full)
    assert (done.returncode, done.stderr) == (1, b"error: cannot write the output: No space left on device\n")


PLUGIN = """
import sys, torch
from pilot_tal.losses import LOSSES, TaskLoss

@LOSSES.register
class Mine(TaskLoss):
    name, title = "mine{number}", "Mine"

    def forward(self, logits, targets):
        loss = torch.nn.functional.cross_entropy(logits, targets)
        {body}
"""


@pytest.mark.parametrize("code", [0, 3, None, "'bye'"])
def test_plugin_that_exits_when_imported_is_an_error(code, tmp_path):
    (tmp_path / "plugin.py").write_text(f"import sys\nsys.exit({code})\n")
    answer = ask("run", "l2p", "demo_lt", f"plugins={tmp_path / 'plugin.py'}", "--dry-run")
    assert answer.status == 2 and answer.err.count("\n") == 1 and "cannot be loaded: SystemExit" in answer.err


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("sys.exit(0)", r"has ended the run with sys.exit(0)"),
        ("return loss.detach()", "got no gradient"),
        ("return float(loss)", "got float"),
        ("return torch.stack([loss, loss])", "got shape (2,)"),
    ],
)
def test_loss_of_a_plugin_that_exits_or_returns_no_loss_is_an_error(body, problem, tmp_path, monkeypatch):
    number = zlib.crc32(body.encode())
    monkeypatch.setitem(LOSSES, f"mine{number}", None)  # so that other tests do not see this loss
    del LOSSES[f"mine{number}"]
    (tmp_path / "plugin.py").write_text(PLUGIN.format(number=number, body=body))
    images = make_images(tmp_path / "images")
    wanted = settings(images, tmp_path / "runs", f"plugins={tmp_path / 'plugin.py'}", f"loss=mine{number}")
    answer = ask("run", "l2p", "folder_lt", *wanted, "--quick")
    assert answer.status == 2 and problem in answer.err.splitlines()[-1], answer
    (run,) = find_runs([tmp_path / "runs"])
    assert problem in (run / "error.txt").read_text()


def test_exception_with_a_broken_text_is_named_by_its_type(tmp_path):
    (tmp_path / "plugin.py").write_text(
        "class Odd(Exception):\n    def __str__(self):\n        raise KeyError\nraise Odd\n"
    )
    answer = ask("run", "l2p", "demo_lt", f"plugins={tmp_path / 'plugin.py'}", "--dry-run")
    assert answer.status == 2 and answer.err.endswith("cannot be loaded: Odd\n")


INTERRUPTIONS = {
    "while it is imported": """
sys.addaudithook(lambda event, given: event == 'import' and given[0] == 'typer' and stop())
""",
    "twice": """
import typer
def command(*_, **__):
    try:
        stop()
    finally:
        stop()
typer.Typer.__call__ = command
""",
}


@pytest.mark.parametrize("moment", INTERRUPTIONS)
def test_interrupted_program_prints_no_traceback(moment):
    code = "import os, signal, sys\nstop = lambda: os.kill(os.getpid(), signal.SIGINT)\n" + INTERRUPTIONS[moment]
    done = run_program("list", code=code, stdout=subprocess.PIPE)
    assert b"Traceback" not in done.stderr and done.returncode in (130, -signal.SIGINT), done


def test_terminal_escapes_in_names_are_printed_escaped(tmp_path):
    run = tmp_path / "evil\x1b]0;title\x07\nname"
    run.mkdir()
    (run / "error.txt").write_text("no\x1b[2Jtext")
    answer = ask("status", tmp_path)
    assert answer.status == 0 and "\x1b" not in answer.out and "\x07" not in answer.out
    assert "\\x1b]0;title" in answer.out and "no\\x1b[2Jtext" in answer.out
    answer = ask("report", run)
    assert answer.status == 2 and "\x1b" not in answer.err and answer.err.count("\n") == 1


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs /proc")
def test_file_that_cannot_be_read_raises_user_error(tmp_path):
    answer = ask("run", "l2p", "demo_lt", "weights=/proc/self/mem", f"output={tmp_path}", "--quick")
    assert answer.status == 2 and answer.err == "error: cannot use /proc/self/mem: Input/output error\n"

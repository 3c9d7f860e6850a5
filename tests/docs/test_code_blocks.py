"""Every code block of the README and the docs does what it says.

Python runs as it stands. Of the commands, those on the demo run (quickly); the others are read as far as everything
in them is checked before images are looked for.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers.cli import ROOT, process
from helpers.images import make_images
from markdown_it import MarkdownIt

from pilot_tal.cli.app import app
from pilot_tal.config.grid import study_config

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PROGRAMS = ("pilot-tal", ".venv/bin/pilot-tal", "python -m pilot_tal")
PRELUDE = """
import torch
logits = torch.randn(6, 20, requires_grad=True)
targets = torch.randint(20, (6,))
features, model = torch.randn(6, 8), torch.nn.Linear(8, 20)
"""


def blocks(page: Path, language: str) -> list[str]:
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    return [t.content for t in tokens if t.type == "fence" and t.info.split()[:1] == [language]]


def lines(page: Path) -> list[str]:
    """The commands of a page, without comments, continued lines joined."""
    text = "\n".join(blocks(page, "bash")).replace("\\\n", " ")
    return [
        line for line in (re.sub(r"\s#.*", "", raw).strip() for raw in text.splitlines()) if line and line[0] != "#"
    ]


def cases() -> list:
    return [pytest.param(page, line, id=f"{page.name}-{line[:50]}") for page in PAGES for line in lines(page)]


def write_files(page: Path, folder: Path) -> list[str]:
    """Puts blocks that begin with `# file: NAME` into the folder; gives the other Python blocks."""
    others = []
    for language in ("python", "yaml"):
        for block in blocks(page, language):
            named = re.match(r"# file: (\S+)\n", block)
            if named:
                (folder / named[1]).write_text(block, encoding="utf-8")
            elif language == "python":
                others.append(block)
            else:
                yaml.safe_load(block)
    return others


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_python_runs(page, tmp_path):
    code = "\n".join([PRELUDE, *write_files(page, tmp_path)])
    path = os.pathsep.join((str(ROOT), str(tmp_path)))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def quickly(arguments: list[str], folder: Path) -> list[str]:
    """What makes a recipe's command end soon: few steps, and for a dataset of its own a small ViT (and its images)."""
    small = []
    if "birds_lt" in arguments:
        (root,) = re.findall(r"data[-_]root[= ](\S+)", " ".join(arguments))
        make_images(folder / root / "birds", classes=3, images=120, size=(12, 12))
        small = ["tasks=2", "backbone=vit_tiny_patch16_224", "weights=random", "img_size=32"]
    if arguments[0] == "compare":
        small += ["references=none"]
        small += [] if any(item.startswith("losses=") for item in arguments) else ["losses=ce"]
    return [] if arguments[0] == "build" else ["--quick", "seeds=1993", *small]


@pytest.mark.parametrize(("page", "line"), cases())
def test_commands_are_understood(page, line, tmp_path, monkeypatch):
    words = shlex.split(line)
    if (
        words[0] in ("bash", "python", ".venv/bin/python")
        and len(words) > 1
        and words[1].startswith(("scripts/", ".ci/"))
    ):
        assert (ROOT / words[1]).is_file(), f"{words[1]} does not exist"
        if words[1] != "scripts/run_ptm.sh":
            return
        words = ["pilot-tal", "compare", *words[2:]]
    if words[:2] == ["python", "-c"]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, env=environment, check=True)
        return
    program = next((p for p in PROGRAMS if line.startswith(p) or words[0] == p), None)
    if program is None:
        assert words[0] in ("git", "pip", "source", "pre-commit", "cd", "export", "tensorboard", "bash", "mkdocs"), line
        return
    arguments = words[len(program.split()) :]
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    if any(item.startswith(("plugins=", "--plugins")) for item in arguments):
        done = process(*arguments, *quickly(arguments, tmp_path), cwd=tmp_path)
        printed = done.communicate()[0]
        assert done.returncode == 0, printed
    elif arguments[0] in ("run", "compare") and "--slurm" not in arguments:
        settings = [item for item in arguments[3:] if "=" in item and not item.startswith("-")]
        assert study_config(arguments[1], arguments[2], settings).runs
    else:
        import typer.main

        command = typer.main.get_command(app)
        context = command.make_context("pilot-tal", arguments, resilient_parsing=False)
        name, sub, rest = command.resolve_command(context, arguments)
        sub.make_context(name, list(rest), parent=context)

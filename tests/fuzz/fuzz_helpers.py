"""Tiny runs on images of 9 × 10 pixels with a ViT of width 16, and how an answer of the command line is judged.

The suite draws the same few hundred cases every time; `FUZZ=20 pytest tests/fuzz` draws twenty times as many at random.
"""

import contextlib
import ctypes
import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import hypothesis
import pandas as pd
import pytest
from helpers.cli import Answer, ask
from helpers.images import make_images
from helpers.vit import empty_vit

from pilot_tal import load_runs
from pilot_tal.record.run_dir import find_runs

TIMES = int(os.environ.get("FUZZ", "1"))
LONGEST_SENTENCE, LONGEST_SECONDS = 400, 60
VIT = "vit_fuzz"
SETTINGS = [
    f"backbone={VIT}", "weights=random", "img_size=8", "n_max=6", "n_min=2", "test_per_class=2", "tasks=2",
    "device=cpu", "workers=0", "threads=1", "loss=tal", "seed=1",
]  # fmt: skip


class Broken(BaseException):
    """Stands for a power cut."""


def cases(number: int) -> hypothesis.settings:
    """Settings of a fuzz test with `number` cases in the suite."""
    return hypothesis.settings(
        max_examples=number * TIMES,
        derandomize=TIMES == 1,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


@dataclass(frozen=True)
class Workspace:
    """Images, a finished run, and one that was interrupted in its second task."""

    root: Path

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def image(self) -> Path:
        return self.images / "class 0 é" / "00.png"

    @cached_property
    def finished(self) -> Path:
        return find_runs([self.root / "finished"])[0]

    @cached_property
    def predicted(self) -> str:
        """What the finished run predicts for `image`."""
        return ask("predict", self.finished, self.image, "--device", "cpu").out

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The table of a study of the finished run."""
        return load_runs([self.finished]).frame().drop(columns="run", errors="ignore")

    def command(self, output: Path) -> list[str]:
        """The command that made the runs."""
        return ["run", "l2p", "folder_lt", *SETTINGS, f"data_root={self.images}", f"output={output}", "--quick"]


def make_workspace(root: Path) -> Workspace:
    _register_vit()
    workspace = Workspace(root)
    make_images(workspace.images, size=(9, 10))
    answer = ask(*workspace.command(root / "finished"))
    assert answer.status == 0, answer.err
    with _broken_in_the_second_task(), contextlib.suppress(Broken):
        ask(*workspace.command(root / "half"))
    for folder in ("finished", "half"):
        (root / folder / ".plans").mkdir()
        (root / folder / ".plans" / "plan.json").write_text('{"later": "12_3"}\n')
    (find_runs([root / "half"])[0] / "error.txt").write_text("RuntimeError: it failed\n")
    return workspace


def copy_of(source: Path, place: Path) -> Path:
    """A copy to damage."""
    shutil.rmtree(place, ignore_errors=True)
    return shutil.copytree(source, place, symlinks=True)


def answered(*arguments: object) -> Answer:
    """As `ask`; one that takes too long raises."""

    def too_long(*_):
        raise TimeoutError(f"{arguments}: no answer in {LONGEST_SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LONGEST_SECONDS)
    try:
        return ask(*arguments)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(answer: Answer) -> None:
    """An answer is success, or ends in one sentence and status 1 or 2."""
    with contextlib.suppress(hypothesis.errors.InvalidArgument):  # not drawn
        hypothesis.event(f"status {answer.status}")
    if answer.status == 0:
        return
    assert answer.status in (1, 2), answer
    said = [line for line in answer.err.split("\n") if line][-1]
    assert len(said) <= LONGEST_SENTENCE, (len(said), said)
    assert said.isprintable(), said
    if answer.status == 2:
        assert said.startswith("error: ") and answer.err.count("error: ") == 1, answer
    assert not re.search(r"weights_only=False|allow_pickle|Traceback|Error\(|site-packages", answer.err), answer


@contextlib.contextmanager
def without_override() -> Iterator[None]:
    """Takes root's right to read any file away, so that a file without permissions is unreadable."""
    libc, header = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0)
    before, fewer = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    libc.capget(header, before)
    fewer[:] = [before[0] & ~0b110, *before[1:]]
    libc.capset(header, fewer)
    yield
    libc.capset(header, before)


def _register_vit() -> None:
    import timm
    from timm.models import register_model

    def vit_fuzz(pretrained=False, **options):
        known = ("img_size", "num_classes", "global_pool")
        return empty_vit(**{key: value for key, value in options.items() if key in known})

    if not timm.is_model(VIT):
        register_model(vit_fuzz)


@contextlib.contextmanager
def _broken_in_the_second_task() -> Iterator[None]:
    from pilot_tal.engine import trainer

    evaluate, calls = trainer.evaluate, []

    def breaking(*arguments):
        calls.append(1)
        if len(calls) > 1:
            raise Broken
        return evaluate(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "evaluate", breaking)
        yield

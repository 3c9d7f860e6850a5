"""A world in which a run takes a moment: a ViT of width 16, images of 8 pixels, and how an answer is judged."""

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.cli import Answer, ask
from helpers.images import make_images
from helpers.vit import empty_vit

from pilot_tal.record.run_dir import find_runs

VIT = "vit_fuzz"
LONGEST_SENTENCE = 400
SMALL = {"ranpac": ("M=40",), "mos": ("crct_epochs=2",), "coda_prompt": ("prompt_param=[12,4,0]",)}
SETTINGS = {
    "backbone": VIT, "weights": "random", "img_size": "8", "n_max": "6", "n_min": "2", "test_per_class": "2",
    "tasks": "2", "device": "cpu", "workers": "0", "threads": "1",
}  # fmt: skip


class Broken(BaseException):
    """Stands for a power cut."""


@dataclass(frozen=True)
class World:
    """Images, two finished runs that are alike but for the seed, and one that was broken off after its first task."""

    root: Path

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def image(self) -> Path:
        return self.images / "class 0 é" / "00.png"

    def settings(self, method: str, **changes: str) -> list[str]:
        """The tiny settings, with others in place of theirs."""
        values = SETTINGS | dict(item.split("=", 1) for item in SMALL.get(method, ()))
        values |= {"data_root": str(self.images), "output": str(self.root / "new")} | changes
        return [f"{key}={value}" for key, value in values.items()]

    def command(self, output: Path, seed: int = 1) -> list[str]:
        """What made the runs of this world, with another place for them."""
        return [
            "run",
            "l2p",
            "folder_lt",
            *self.settings("l2p", output=str(output), loss="tal", seed=str(seed)),
            "--quick",
        ]

    @property
    def finished(self) -> Path:
        return self.root / "finished"

    @property
    def half(self) -> Path:
        return self.root / "half"


def make_world(root: Path) -> World:
    """Makes it, in a second or two."""
    _register_vit()
    world = World(root)
    make_images(world.images, size=(9, 10))
    for seed in (1, 2):
        answer = ask(*world.command(world.finished, seed))
        assert answer.status == 0, answer.err
    assert ask("predict", the_run(world.finished), world.image).status == 0  # leaves a file of its own
    with _broken_in_the_second_task(), contextlib.suppress(Broken):
        ask(*world.command(world.half))
    return world


def the_run(folder: Path, seed: int = 1) -> Path:
    """The run of a seed."""
    return next(path for path in find_runs([folder]) if f"-s{seed}-" in path.name)


def copy_of(source: Path, place: Path) -> Path:
    """A copy to damage."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)
    return place


def wrong(answer: Answer, at_once: bool = True) -> str:
    """What is wrong with an answer: it must be success, or one sentence for the user and status 2; empty if it is so.

    Args:
        answer: Of the command line.
        at_once: Nothing else may have been said; a run that had begun has told how far it was.
    """
    if answer.status == 0:
        return ""
    if answer.status != 2:
        return f"status {answer.status}: {answer.err[-300:]}"
    lines = answer.err.splitlines()
    said = [line for line in lines if line.startswith("error: ")]
    if len(said) != 1 or not lines[-1].startswith("error: ") or (at_once and len(lines) > 1):
        return f"not one sentence: {answer.err[-600:]!r}"
    if len(said[0]) > LONGEST_SENTENCE or not said[0].isprintable():
        return f"too long ({len(said[0])}) or not printable: {said[0]!r}"
    if re.search(r"weights_only=False|allow_pickle|Traceback|Error\(|site-packages", said[0]):
        return f"a library's words: {said[0]!r}"
    if answer.out:
        return f"standard output besides the error: {answer.out[-300:]!r}"
    return ""


def answered(*arguments: object) -> Answer:
    """As `ask`; what is raised becomes a status of its own."""
    try:
        return ask(*arguments)
    except Exception as error:
        import traceback

        trace = "".join(traceback.format_exception(error)[-4:])
        return Answer(-1, "", f"TRACEBACK {trace}")


def tables(report: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((report / "tables").glob("*.csv"))}


def states(text: str) -> list[str]:
    """The states that `status --json` tells."""
    return [run["state"] for run in json.loads(text)["runs"]]


def _register_vit() -> None:
    import timm
    from timm.models import register_model

    if timm.is_model(VIT):
        return

    def vit_fuzz(pretrained=False, **options):
        known = ("img_size", "num_classes", "global_pool")
        return empty_vit(**{key: value for key, value in options.items() if key in known})

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

"""How often a model that scores every image alone says something else than its run, which let a batch vote."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_lt.errors import UserError
from pilot_tal.model.stored import StoredModel
from pilot_tal.record.run_dir import load_run, read_sealed, write_sealed
from pilot_tal.schema import build

MOST_COMPARED = 200  # test images, evenly spread: enough to tell 5 % from 10 %, and a minute with ViT-B on a CPU
KEPT = "alone.json"


@dataclass(frozen=True)
class Disagreement:
    """On `differ` of `compared` test images the run said something else."""

    differ: int
    compared: int


def find_difference(stored: StoredModel, label: Callable[[Sequence[Path]], list[str]]) -> Disagreement | None:
    """What is known already, or else what a comparison on the run's test images gives; None without the images.

    Args:
        stored: The model. A run directory keeps what was found, an exported folder knows it or not.
        label: Gives the model's own labels of images.
    """
    if not stored.is_run:
        return build(Disagreement, stored.alone) if stored.alone else None
    file, task = stored.path / KEPT, str(stored.tasks_done)
    known = _kept(file)
    if task not in known:
        found = _compare(stored, label)
        if found is None:
            return None
        known[task] = asdict(found)
        with contextlib.suppress(UserError):  # whoever may only read the run compares again the next time
            write_sealed(file, known)
    return build(Disagreement, known[task])


def sentence(method: str, difference: Disagreement | None) -> str:
    """What a user must know before the labels."""
    text = f"{method} let the images of a batch vote in this run; here every image is judged alone"
    if difference is None:
        missing = "for the run's test images were not found, or not all can be read"
        return f"{text}. How often that changes a label is not known, {missing}."
    return f"{text}, which gives another label for {difference.differ} of {difference.compared} of its test images."


def _compare(stored: StoredModel, label: Callable[[Sequence[Path]], list[str]]) -> Disagreement | None:
    run, task = load_run(stored.path), stored.tasks_done - 1
    names, classes = run.images(task), stored.record.stream.class_names
    chosen = range(0, len(names), -(-len(names) // MOST_COMPARED))
    for environment in reversed(stored.record.environment):
        files = [Path(str(environment.get("images"))) / names[place] for place in chosen]
        if all(file.is_file() for file in files):
            said = [classes[run.predictions[task][1][place]] for place in chosen]
            try:
                found = label(files)
            except UserError:  # an image that the caller has not named must not stop his own
                return None
            return Disagreement(sum(a != b for a, b in zip(found, said, strict=True)), len(files))
    return None


def _kept(file: Path) -> dict[str, Any]:
    with contextlib.suppress(UserError):
        content = read_sealed(file) if file.is_file() else {}
        for entry in content.values():
            build(Disagreement, entry if isinstance(entry, dict) else {})
        return content
    return {}

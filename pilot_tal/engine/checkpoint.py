"""What a run needs to go on after a finished task, and a user to use its model: safetensors and one JSON file.

`taskNN.learner.safetensors` stays for every task; `taskNN.cache.safetensors`, which only resuming needs, for the last.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from data_lt.errors import UserError
from data_lt.files import atomic_path, checksum, read_json, write_json
from pilot_tal.record.run_dir import damaged

FORMAT = 2
LATEST = "latest.json"


@dataclass(frozen=True)
class Checkpoint:
    """The state after `tasks_done` tasks."""

    tasks_done: int
    learner: dict[str, Tensor]
    cache: dict[str, Tensor]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Writes the checkpoint; what is not needed any more is removed only after it is complete."""
    done = checkpoint.tasks_done
    files = _known(folder)["files"] if done > 1 else {}
    files = {name: seal for name, seal in files.items() if 0 < _after(name) < done}
    for part in ("learner", "cache"):
        tensors = getattr(checkpoint, part)
        if tensors:
            name = f"{_name(done)}.{part}.safetensors"
            write_tensors(folder / name, tensors)
            files[name] = checksum(folder / name)
    write_json(folder / LATEST, {"format": FORMAT, "tasks_done": done, "files": files})
    clean_checkpoint(folder)


def clean_checkpoint(folder: Path) -> None:
    """Removes tensors that the last complete checkpoint does not name."""
    if (folder / LATEST).is_file():
        files = _known(folder)["files"]
        for old in folder.glob("*.safetensors"):
            if old.name not in files:
                old.unlink()


def load_checkpoint(folder: Path, task: int | None = None) -> Checkpoint | None:
    """The last complete checkpoint, or None if there is none; with `task`, the learner as it was after that many tasks.

    Raises:
        UserError: the checkpoint is damaged, or there is none of that task.
    """
    if not (folder / LATEST).is_file():
        return None
    known = _known(folder)
    done = known["tasks_done"] if task is None else task
    learner, cache = (f"{_name(done)}.{part}.safetensors" for part in ("learner", "cache"))
    if learner not in known["files"]:
        raise UserError(f"{folder.parent} has no model after task {done}; it has been through {known['tasks_done']}")
    kept = _read(folder, cache, known["files"]) if cache in known["files"] and task is None else {}
    return Checkpoint(done, _read(folder, learner, known["files"]), kept)


def _name(done: int) -> str:
    return f"task{done - 1:02d}"


def _after(name: str) -> int:
    """After how many tasks a file holds the learner; 0 for any other file."""
    learner = re.fullmatch(r"task(\d{2,6})\.learner\.safetensors", name, re.ASCII)
    return int(learner[1]) + 1 if learner else 0


def _known(folder: Path) -> dict[str, Any]:
    """What `latest.json` says, if it makes sense."""
    file = folder / LATEST
    try:
        content = read_json(file)
    except UserError as error:
        raise damaged(file, str(error).removeprefix(f"{file} is ")[:80]) from error
    files = content.get("files") if isinstance(content, dict) else None
    done = content.get("tasks_done") if isinstance(content, dict) else None
    sealed = isinstance(files, dict) and all(isinstance(seal, str) for seal in files.values())
    newest = max(map(_after, files), default=0) if isinstance(files, dict) else 0
    if not sealed or type(done) is not int or not 1 <= done == newest or content.get("format") != FORMAT:
        raise damaged(file, f"it must be of format {FORMAT} and name the tasks done and their files")
    return content


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Writes tensors as safetensors, whole or not at all."""
    with atomic_path(path) as temporary:  # safetensors wants whole tensors with memory of their own
        try:
            save_file({key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}, temporary)
        except SafetensorError as error:  # what safetensors makes of a full disk
            raise UserError(f"cannot write {path}: {error}") from error


def _read(folder: Path, name: str, files: dict[str, str]) -> dict[str, Tensor]:
    path = folder / Path(name).name  # a name, never a path out of the folder
    if not path.is_file() or checksum(path) != files[name]:
        raise damaged(path, "it is missing, or its checksum does not fit")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise damaged(path, str(error)[:80]) from error

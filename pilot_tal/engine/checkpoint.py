"""The model after each task, and what resuming needs beside it, as safetensors in `checkpoint/` of a run directory.

`taskNN.learner.safetensors` stays for every task; `taskNN.cache.safetensors`, which only resuming needs, for the last.
`result.json` names them with size and SHA-256, so that a task and its checkpoint are committed by one rename.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from data_lt.errors import UserError
from pilot_tal.record import run_dir
from pilot_tal.record.run_dir import RECORD, RESULT, Labels, damaged, load_run
from pilot_tal.record.writer import RunWriter


@dataclass(frozen=True)
class Checkpoint:
    """The state after `tasks_done` tasks."""

    tasks_done: int
    learner: dict[str, Tensor]
    cache: dict[str, Tensor]


def save_checkpoint(writer: RunWriter, checkpoint: Checkpoint, only_last: bool = False) -> None:
    """Writes a checkpoint for the next commit, which then deletes the cache of the task before.

    With `only_last`, the learner of the task before is deleted as well.
    """
    done = checkpoint.tasks_done
    for part in ("learner", "cache"):
        tensors = getattr(checkpoint, part)
        if tensors:
            with writer.new_file(_name(done, part)) as temporary:
                write_tensors(temporary, tensors)
    for part in ("learner", "cache") if only_last else ("cache",):
        writer.files.pop(_name(done - 1, part), None)


def load_checkpoint(path: Path, task: int | None = None) -> Checkpoint | None:
    """Reads the last checkpoint of a run, None if there is none; with `task`, the learner after that many tasks."""
    if not (path / RECORD).is_file() or not (path / "checkpoint").is_dir():
        return None
    result = run_dir.read_result(path)
    done, files = result["tasks_done"], result["files"]
    if not any(name.startswith("checkpoint/") for name in files):
        return None
    if _name(done, "learner") not in files:
        raise damaged(path / RESULT, f"it has no checkpoint of task {done}")
    wanted = done if task is None else task
    learner, cache = _name(wanted, "learner"), _name(wanted, "cache")
    if learner not in files:
        raise UserError(f"{path} has no model after task {wanted}; it has been through {done}")
    kept = _read(path, cache, files) if cache in files and task is None else {}
    return Checkpoint(wanted, _read(path, learner, files), kept)


def resume(writer: RunWriter) -> tuple[Checkpoint | None, list[Labels]]:
    """Verifies what a run has so far, continues its list of files, and returns it: last checkpoint and all labels."""
    path = writer.path
    if not (path / RECORD).is_file() and not (path / RESULT).is_file():
        return None, []
    run, checkpoint = load_run(path), load_checkpoint(path)
    if run.tasks_done and checkpoint is None:
        raise damaged(path / "checkpoint", f"it is missing, and the result has {run.tasks_done} finished tasks")
    done = range(run.tasks_done)
    ours = {run_dir.task_file(kind, task) for task in done for kind in ("predictions", *run_dir.LOGS)}
    ours |= {_name(task + 1, part) for task in done for part in ("learner", "cache")}
    writer.files = {name: seal for name, seal in run.files.items() if name in ours}
    return checkpoint, run.labels


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors as safetensors; for a path that nobody reads yet."""
    try:  # safetensors needs contiguous tensors that share no memory, and makes a new file private
        path.touch()
        mode = path.stat().st_mode
        save_file({key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}, path)
        path.chmod(mode)
    except SafetensorError as error:  # raised for a full disk
        raise UserError(f"cannot write {path.parent}: {error}") from error


def _name(done: int, part: str) -> str:
    return f"checkpoint/task{done - 1:02d}.{part}.safetensors"


def _read(path: Path, name: str, files: dict[str, Any]) -> dict[str, Tensor]:
    try:
        return load(run_dir.verified_bytes(path, name, files))
    except SafetensorError as error:
        raise damaged(path / name, str(error)[:80]) from error

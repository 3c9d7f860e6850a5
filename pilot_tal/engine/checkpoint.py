"""The model after each task, and what resuming needs beside it, as safetensors in `checkpoint/` of a run directory.

`taskNN.learner.safetensors` stays for every task; `taskNN.cache.safetensors`, which only resuming needs, for the last.
`result.json` names them with size and SHA-256, so that a task and its checkpoint are committed by one rename. Runs of
earlier versions name them in `checkpoint/latest.json` instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from data_lt.errors import UserError
from data_lt.files import atomic_path, read_json
from pilot_tal.record.run_dir import (
    LATEST,
    RECORD,
    RESULT,
    Labels,
    damaged,
    load_run,
    read_result,
    read_run_record,
    task_files,
    verified_bytes,
)
from pilot_tal.record.run_record import RunRecord
from pilot_tal.record.writer import RunWriter


@dataclass(frozen=True)
class Checkpoint:
    """The state after `tasks_done` tasks."""

    tasks_done: int
    learner: dict[str, Tensor]
    cache: dict[str, Tensor]


def save_checkpoint(writer: RunWriter, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint for the next commit, which then deletes the cache of the task before."""
    done = checkpoint.tasks_done
    for part in ("learner", "cache"):
        tensors = getattr(checkpoint, part)
        if tensors:
            with writer.new_file(_name(done, part)) as temporary:
                _save(temporary, tensors)
    writer.outdate(_name(done - 1, "cache"))


def load_checkpoint(path: Path, task: int | None = None) -> Checkpoint | None:
    """Reads the last checkpoint of a run, None if there is none; with `task`, the learner after that many tasks.

    Raises:
        UserError: the checkpoint is damaged, disagrees with the result, or there is none after that task.
    """
    done, files = _named(path)
    if not files:
        return None
    wanted = done if task is None else task
    learner, cache = _name(wanted, "learner"), _name(wanted, "cache")
    if learner not in files:
        raise UserError(f"{path} has no model after task {wanted}; it has been through {done}")
    kept = _read(path, cache, files) if cache in files and task is None else {}
    return Checkpoint(wanted, _read(path, learner, files), kept)


def resume(writer: RunWriter, record: RunRecord) -> tuple[Checkpoint | None, list[Labels]]:
    """Verifies what a run has so far and continues its list of files.

    Returns:
        The last checkpoint, None if no task is finished, and true and predicted labels after each finished task.

    Raises:
        UserError: a file is missing or damaged.
    """
    path = writer.path
    if not (path / RECORD).is_file() and not (path / RESULT).is_file():
        return None, []
    known = read_result(path, read_run_record(path))
    checkpoint = load_checkpoint(path)
    done = 0 if checkpoint is None else checkpoint.tasks_done
    if known["tasks_done"] > done and not (done and (path / LATEST).is_file()):
        raise damaged(path / "checkpoint", f"it is missing, and the result has {known['tasks_done']} finished tasks")
    run = load_run(path, done)
    checkpoints = _named(path)[1] if done else {}
    ours = {name for task in range(done) for name in task_files(task)}
    writer.files = {name: seal for name, seal in run.files.items() if name in ours} | checkpoints
    if (path / LATEST).is_file() and done:  # of an earlier version: its result may be one task ahead
        writer.commit(record, done, restart=True)
        writer.remove(LATEST)
    return checkpoint, run.labels


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors as safetensors, whole or not at all."""
    with atomic_path(path) as temporary:
        _save(temporary, tensors)


def _save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    try:  # safetensors needs contiguous tensors that share no memory
        save_file({key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}, path)
    except SafetensorError as error:  # raised for a full disk
        raise UserError(f"cannot write {path.parent}: {error}") from error


def _name(done: int, part: str) -> str:
    return f"checkpoint/task{done - 1:02d}.{part}.safetensors"


def _named(path: Path) -> tuple[int, dict[str, Any]]:
    """Returns the number of tasks of the last checkpoint, and size and SHA-256 of all checkpoint files."""
    if not (path / RECORD).is_file() or not (path / "checkpoint").is_dir():
        return 0, {}
    result = read_result(path, read_run_record(path))
    done = result["tasks_done"]
    files = {name: seal for name, seal in result["files"].items() if name.startswith("checkpoint/")}
    if not files:
        return _named_by_latest(path, result) if (path / LATEST).exists() else (0, {})
    if _name(done, "learner") not in files:
        raise damaged(path / "result.json", f"it has no checkpoint of task {done}")
    return done, files


def _named_by_latest(path: Path, result: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    file = path / LATEST
    try:
        content = read_json(file)
    except UserError as error:
        raise damaged(file, str(error).removeprefix(f"{file} is ")[:80]) from error
    known = content.get("files") if isinstance(content, dict) else None
    done = content.get("tasks_done") if isinstance(content, dict) else None
    if not isinstance(known, dict) or type(done) is not int or not all(isinstance(s, str) for s in known.values()):
        raise damaged(file, "it must hold tasks_done and the SHA-256 of each file")
    ahead = result["tasks_done"] - done  # the result was written before the checkpoint
    names = {f"checkpoint/{name}" for name in known}
    if not 0 <= ahead <= (0 if result["finished"] else 1) or _name(done, "learner") not in names:
        raise damaged(file, f"it is of task {done}, the result of task {result['tasks_done']}")
    ours = {_name(task, part) for task in range(1, done + 1) for part in ("learner", "cache")}
    sizes = {name: (path / name).stat().st_size for name in names & ours if (path / name).is_file()}
    return done, {f"checkpoint/{n}": {"bytes": sizes.get(f"checkpoint/{n}"), "sha256": s} for n, s in known.items()
                  if f"checkpoint/{n}" in ours}  # fmt: skip


def _read(path: Path, name: str, files: dict[str, Any]) -> dict[str, Tensor]:
    try:
        return load(verified_bytes(path, name, files))
    except SafetensorError as error:
        raise damaged(path / name, str(error)[:80]) from error

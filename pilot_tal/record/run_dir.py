"""One run's directory: what is in it, how it is written and read back.

    run.json           the `RunRecord`
    predictions/       task00.csv …: image, true, pred over all classes seen, after each task
    steps/             task00.jsonl …: one line a training step
    states/            task00.jsonl …: TAL's Q and α·w at intervals
    result.json        tasks done, the metrics after them, and length and checksum of every file above
    checkpoint/        what is needed to go on, and to use the model
    log.txt            what was said while it ran
    error.txt          what made it fail, until it is started again

Both JSON files carry a checksum of themselves. Only the standard library and NumPy are needed here, so that runs of
other toolboxes are written by the same code.
"""

import contextlib
import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_lt.errors import UserError, sentence
from data_lt.files import guarded, unguarded, write_json, write_text
from pilot_tal.metrics import Predictions, summarize
from pilot_tal.record.lock import Lock
from pilot_tal.record.run_record import FORMAT, RunRecord, canonical
from pilot_tal.schema import build

RECORD, RESULT, LOG, ERROR = "run.json", "result.json", "log.txt", "error.txt"
_SEAL = "checksum"
_FOLDERS = ("predictions", "steps", "states", "checkpoint")


def write_record(path: Path, record: RunRecord) -> None:
    """Writes what is run; with it the directory is a run."""
    write_sealed(path / RECORD, record.plain())


def write_predictions(path: Path, task: int, images: Sequence[str], true: Iterable[int], pred: Iterable[int]) -> None:
    """Writes what was predicted after `task`, one line an image."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("image", "true", "pred"))
    writer.writerows(zip(map(guarded, images), (int(y) for y in true), (int(y) for y in pred), strict=True))
    write_text(path / task_file("predictions", task), text.getvalue())


def write_log(path: Path, kind: str, task: int, lines: Iterable[dict[str, Any]]) -> None:
    """Writes the log `steps` or `states` of a task."""
    write_text(path / task_file(kind, task), "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))


def write_result(path: Path, record: RunRecord, predictions: Predictions, finished: bool) -> dict[str, Any]:
    """Writes how far the run is, with the metrics of the tasks done and the checksums of their files; gives them."""
    done, stream = len(predictions), record.stream
    metrics = summarize(predictions, stream.task_sizes, stream.train_counts, stream.class_order) if done else {}
    files = {}
    for task in range(done):
        for name in task_files(task):
            if (path / name).is_file():
                content = (path / name).read_bytes()
                files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    result = {"run": record.stamp, "tasks_done": done, "finished": finished, "metrics": metrics, "files": files}
    write_sealed(path / RESULT, result)
    return metrics


@dataclass(frozen=True)
class Run:
    """A run read back. `predictions[t]` are the true and predicted labels after task t."""

    path: Path
    record: RunRecord
    predictions: list[tuple[np.ndarray, np.ndarray]]
    finished: bool
    metrics: dict[str, Any]
    files: dict[str, dict[str, Any]]

    @property
    def tasks_done(self) -> int:
        """How many tasks it has been through."""
        return len(self.predictions)

    def images(self, task: int) -> list[str]:
        """The test images after a task, in the order of its predictions."""
        rows = csv.DictReader(io.StringIO(_verified(self.path, task_file("predictions", task), self.files), newline=""))
        return [unguarded(row["image"]) for row in rows]

    def step_log(self) -> list[dict[str, Any]]:
        """The training steps of the tasks done."""
        return self._log("steps")

    def state_log(self) -> list[dict[str, Any]]:
        """TAL's state at intervals in the tasks done; empty for losses without one."""
        return self._log("states")

    def _log(self, kind: str) -> list[dict[str, Any]]:
        files = {task: task_file(kind, task) for task in range(self.tasks_done)}
        return [
            {**line, "task": task}
            for task, name in files.items()
            if name in self.files
            for line in _read_lines(self.path, name, self.files)
        ]


def load_run(path: str | Path, done: int | None = None) -> Run:
    """Reads a run directory, finished or not, and checks every file against its checksum.

    Args:
        path: The directory.
        done: Read the first tasks only.

    Raises:
        UserError: a file is missing, damaged or does not fit the others; the sentence names it and the way out.
    """
    path = Path(path)
    record = read_run_record(path)
    result = _read_result(path, record)
    seen, tasks = np.cumsum(record.stream.task_sizes), result["tasks_done"]
    if done is not None and done > tasks:
        raise damaged(path / RESULT, f"it knows of {tasks} finished tasks, the checkpoint of {done}")
    files = result["files"]
    chosen = range(tasks if done is None else done)
    predictions = [_read_predictions(path, task_file("predictions", t), files, int(seen[t])) for t in chosen]
    for name in [name for t in chosen for name in task_files(t)]:  # what else it names is not ours
        if name in files and not name.startswith("predictions"):
            _verified(path, name, files)
    return Run(path, record, predictions, result["finished"], result["metrics"], files)


def read_run_record(path: Path) -> RunRecord:
    """What was run, from a run directory."""
    file = path / RECORD
    if not file.is_file():
        raise UserError(f"{path} is not a run directory: it has no file {RECORD}")
    content = _read_object(file)
    if content.get("format") != FORMAT:
        raise UserError(
            f"{path} is of another run format ({str(content.get('format'))[:20]}, this version has {FORMAT}): "
            "report on it with the version that wrote it, or run it again"
        )
    try:
        return build(RunRecord, _unsealed(file, content))
    except UserError as error:
        raise error if str(file) in str(error) else damaged(file, str(error)) from error


def is_finished(path: Path) -> bool:
    """Whether a run is complete; a damaged result is an error."""
    if not (path / RESULT).is_file() or not (path / RECORD).is_file():
        return False
    return _read_result(path, read_run_record(path))["finished"]


def tasks_done(path: Path) -> int:
    """How many tasks a run has been through, 0 if it has not begun; a damaged result is an error."""
    return _read_result(path, read_run_record(path))["tasks_done"] if (path / RECORD).is_file() else 0


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """The run directories among `paths` and below them, sorted.

    Raises:
        UserError: a path does not exist, or there is no run in any of them.
    """
    found: set[Path] = set()
    given = list(paths)
    for name in given:
        path = Path(name)
        if not str(name) or not path.is_dir():
            raise UserError(f"{str(name)!r} is not a directory; give run directories or a folder of them")
        found.update([path] if (path / RECORD).is_file() else (file.parent for file in path.glob(f"**/{RECORD}")))
    if not found:
        raise UserError(f"no runs found in {', '.join(map(str, given))} (a run has a {RECORD})")
    return sorted(found)


@contextlib.contextmanager
def failure_kept(path: Path, lock: Lock) -> Iterator[None]:
    """What makes a run fail stays in `error.txt` until its next start."""
    (path / ERROR).unlink(missing_ok=True)
    try:
        yield
    except Exception as error:
        with contextlib.suppress(UserError):  # a full disk must not hide what was wrong
            lock.check()
            write_text(path / ERROR, sentence(error) + "\n")
        raise


def remove_leftovers(path: Path) -> None:
    """Removes what a process that was killed while writing has left in a run directory; only its owner may."""
    for left in path.rglob(".*.tmp"):
        if left.is_file():
            left.unlink()


def damaged(file: Path, reason: str) -> UserError:
    """The error for a file of a run whose content is broken: what is wrong with it, and the way out."""
    run = file.parent.parent if file.parent.name in _FOLDERS else file.parent
    return UserError(f"{file} is damaged ({reason}); remove {run} to start this run anew")


def task_files(task: int) -> list[str]:
    """What a run may have written of a task, below its directory."""
    return [task_file(kind, task) for kind in ("predictions", "steps", "states")]


def task_file(kind: str, task: int) -> str:
    """The predictions, steps or states of a task, below the run's directory."""
    return f"{kind}/task{task:02d}.{'csv' if kind == 'predictions' else 'jsonl'}"


def write_sealed(file: Path, content: dict[str, Any]) -> None:
    """Writes a JSON object with a checksum of itself."""
    write_json(file, {**content, _SEAL: hashlib.sha256(canonical(content)).hexdigest()})


def read_sealed(file: Path) -> dict[str, Any]:
    """What `write_sealed` wrote; anything else is a `UserError`."""
    return _unsealed(file, _read_object(file))


def unsealed(content: dict[str, Any]) -> dict[str, Any] | None:
    """An object without its checksum; None if that does not fit."""
    rest = {key: value for key, value in content.items() if key != _SEAL}
    try:
        fits = content.get(_SEAL) == hashlib.sha256(canonical(rest)).hexdigest()
    except ValueError:  # NaN, which our files never hold
        fits = False
    return rest if fits else None


def _unsealed(file: Path, content: dict[str, Any]) -> dict[str, Any]:
    rest = unsealed(content)
    if rest is None:
        raise damaged(file, "it was edited or cut, for its checksum does not fit")
    return rest


def _read_object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise damaged(file, f"not valid JSON: {str(error)[:80]}") from error
    if not isinstance(content, dict):
        raise damaged(file, "not a JSON object")
    return content


def _read_result(path: Path, record: RunRecord) -> dict[str, Any]:
    file, tasks = path / RESULT, record.num_tasks
    if not file.is_file():
        if (
            file.exists() or (path / task_file("predictions", 1)).exists()
        ):  # the second task's come after a first result
            raise damaged(file, "it is missing, though a task is finished")
        return {"tasks_done": 0, "finished": False, "metrics": {}, "files": {}}
    result = _unsealed(file, _read_object(file))
    done = result.get("tasks_done")
    fits = type(done) is int and 0 <= done <= tasks and isinstance(result.get("finished"), bool)
    if not fits or not all(isinstance(result.get(key), dict) for key in ("metrics", "files")):
        raise damaged(file, f"it must tell tasks_done (0 to {tasks}), finished, metrics and files")
    if result.get("run", record.stamp) != record.stamp:  # results of earlier versions do not name their run
        raise damaged(file, f"it is not of the run that {RECORD} tells of")
    return result


def _verified(path: Path, name: str, files: dict[str, Any]) -> str:
    """The text of a file, after a look at its length and checksum."""
    file, known = path / name, files.get(name)
    if not isinstance(known, dict):
        raise damaged(path / RESULT, f"it has no checksum of {name}")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise damaged(file, f"it cannot be read: {error.strerror or error}") from error
    if len(content) != known.get("bytes"):
        raise damaged(file, f"it has {len(content)} bytes instead of {known.get('bytes')}")
    if hashlib.sha256(content).hexdigest() != known.get("sha256"):
        raise damaged(file, "its checksum does not fit")
    return content.decode("utf-8", "replace")


def _read_predictions(path: Path, name: str, files: dict[str, Any], classes: int) -> tuple[np.ndarray, np.ndarray]:
    text = _verified(path, name, files)
    try:
        rows = [(int(row["true"]), int(row["pred"])) for row in csv.DictReader(io.StringIO(text, newline=""))]
        table = np.array(rows, dtype=np.int64).reshape(-1, 2)
    except (KeyError, TypeError, ValueError, OverflowError, csv.Error) as error:
        raise damaged(path / name, "it must have the columns image, true, pred with whole numbers") from error
    if table.size and (table.min() < 0 or table.max() >= classes):
        raise damaged(path / name, f"it has labels outside 0 … {classes - 1}")
    return table[:, 0], table[:, 1]


def _read_lines(path: Path, name: str, files: dict[str, Any]) -> list[dict[str, Any]]:
    lines = []
    for number, line in enumerate(_verified(path, name, files).splitlines(), 1):
        try:
            lines.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise damaged(path / name, f"line {number} is not valid JSON") from error
        if not isinstance(lines[-1], dict):
            raise damaged(path / name, f"line {number} is not a JSON object")
    return lines

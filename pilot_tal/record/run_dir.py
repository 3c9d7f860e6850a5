"""A run directory: its files, and how they are read and verified.

    run.json           the `RunRecord`
    predictions/       task00.csv …: image, true, pred over all classes seen, after each task
    steps/             task00.jsonl …: one line per training step
    states/            task00.jsonl …: TAL's Q and α·w at intervals
    prompts/           task00.jsonl …: how often the test images of each task picked each prompt (L2P, DualPrompt)
    checkpoint/        task00.learner.safetensors …: the model after each task, and what resuming needs
    result.json        tasks done, with size and SHA-256 of every file above but run.json
    log.txt            messages
    error.txt          why it failed, until the next start

The two JSON files hold a checksum of themselves. Upstream runs use the same code, so nothing here needs torch.
"""

import csv
import hashlib
import io
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_lt.errors import UserError
from data_lt.files import parse_json, read_bytes, unguarded, write_json
from pilot_tal.metrics import summarize
from pilot_tal.record.run_record import FORMAT, RunRecord, canonical
from pilot_tal.schema import build

if TYPE_CHECKING:
    import pandas as pd

    from pilot_tal.model.model import Model

RECORD, RESULT, LOG, ERROR = "run.json", "result.json", "log.txt", "error.txt"
Labels = tuple[np.ndarray, np.ndarray]  # true and predicted
SESSION = ".session"  # begins the name of a folder in which `learn` works on a model
_SEAL = "checksum"
LOGS = ("steps", "states", "prompts")
FOLDERS = ("predictions", *LOGS, "checkpoint")


@dataclass(frozen=True, repr=False)
class Run:
    """A run read from the directory `path`: its `record` (settings, data, environment) and its results.

    `labels` are true and predicted labels of the test images after each task, `files` size and checksum of each file.
    """

    path: Path
    record: RunRecord
    labels: list[Labels]
    finished: bool
    files: dict[str, dict[str, Any]]

    @property
    def tasks_done(self) -> int:
        """How many tasks it has been through."""
        return len(self.labels)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """All metrics after the tasks done, computed from the predictions; empty before the first."""
        stream = self.record.stream
        return summarize(self.labels, stream.task_sizes, stream.train_counts, stream.class_order) if self.labels else {}

    def __repr__(self) -> str:
        found = [f"{name}={100 * self.metrics[name]:.2f} %" for name in ("a_mean", "a_tail") if name in self.metrics]
        return f"Run({self.path.name}: {', '.join([f'{self.tasks_done} of {self.record.num_tasks} tasks', *found])})"

    def predictions(self, task: int = -1) -> "pd.DataFrame":
        """Returns one row per test image after a task (default: the last): image, true and predicted class."""
        import pandas as pd

        done = self.tasks_done
        if not -done <= task < done:
            raise UserError(f"{self.path.name} has {done} finished tasks; there are no predictions of {task}")
        names = np.array(self.record.stream.class_names, dtype=object)
        true, predicted = self.labels[task]
        return pd.DataFrame({"image": self.images(task % done), "true": names[true], "predicted": names[predicted]})

    def model(self) -> "Model":
        """Loads the model after the last finished task, to label new images."""
        load: Callable[[Path], Model] = import_module("pilot_tal.model.load").load_model  # a higher layer
        return load(self.path)

    @property
    def image_folder(self) -> Path | None:
        """The folder of the images; None if it is not there any more."""
        folder = self.record.environment[-1].get("images") if self.record.environment else None
        return Path(folder) if isinstance(folder, str) and Path(folder).is_dir() else None

    def images(self, task: int) -> list[str]:
        """The test images after a task, in the order of its predictions."""
        rows = csv.DictReader(_opened(self.path, task_file("predictions", task), self.files))
        return [unguarded(row["image"]) for row in rows]

    def step_log(self) -> list[dict[str, Any]]:
        """The training steps of the tasks done."""
        return self._log("steps")

    def state_log(self) -> list[dict[str, Any]]:
        """TAL's state at intervals in the tasks done; empty for losses without one."""
        return self._log("states")

    def prompt_log(self) -> list[dict[str, Any]]:
        """For each task done and each task up to it (`of_task`): its test images, and how many picked each prompt."""
        return self._log("prompts")

    def _log(self, kind: str) -> list[dict[str, Any]]:
        lines = []
        for task in range(self.tasks_done):
            if (name := task_file(kind, task)) in self.files:
                try:
                    found = [parse_json(line) for line in _opened(self.path, name, self.files)]
                    lines += [{**line, "task": task} for line in found]
                except (TypeError, ValueError) as error:
                    raise damaged(self.path / name, str(error)[:80]) from error
        return lines


def load_run(path: str | Path) -> Run:
    """Reads a run directory, finished or not; a file that is missing or damaged is a `UserError` with the way out."""
    path = Path(path)
    record = read_run_record(path)
    result = read_result(path, record)
    files, tasks = result["files"], range(result["tasks_done"])
    seen = np.cumsum(record.stream.task_sizes)
    predictions = [_read_predictions(path, task_file("predictions", t), files, int(seen[t])) for t in tasks]
    for name in [task_file(kind, t) for t in tasks for kind in LOGS]:  # what else it names is not ours
        if name in files:
            verified_bytes(path, name, files)
    return Run(path, record, predictions, result["finished"], files)


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
        return build(RunRecord, unsealed(content))
    except UserError as error:
        raise damaged(file, str(error)) from error


def is_finished(path: Path) -> bool:
    """Whether a run is complete; a damaged result is an error."""
    return (path / RESULT).is_file() and (path / RECORD).is_file() and read_result(path)["finished"]


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """The run directories among `paths` and below them, sorted; it is a `UserError` if there are none."""
    found: set[Path] = set()
    given = list(paths)
    for name in given:
        if not str(name) or not Path(name).is_dir():
            raise UserError(f"{str(name)!r} is not a directory; give run directories or a folder of them")
        for folder, folders, files in os.walk(name):  # which ignores folders that vanish
            if RECORD in files + folders and not (Path(folder).name.startswith(SESSION) and folder != str(name)):
                found.add(Path(folder))
    if not found:
        raise UserError(f"no runs found in {', '.join(map(str, given))} (a run has a {RECORD})")
    return sorted(found)


def damaged(file: Path, reason: str) -> UserError:
    """Returns the error for a damaged file of a run: the cause and the remedy."""
    run = file.parent.parent if file.parent.name in FOLDERS else file.parent
    return UserError(f"{file} is damaged ({reason}); remove {run} to start over")


def task_file(kind: str, task: int) -> str:
    """The file of one kind (predictions, steps, states, prompts) of a task, below the run's directory."""
    return f"{kind}/task{task:02d}.{'csv' if kind == 'predictions' else 'jsonl'}"


def write_sealed(file: Path, content: dict[str, Any], check: Callable[[], None] | None = None) -> None:
    """Writes a JSON object with a checksum of itself; `check` as in `data_lt.files.atomic_path`."""
    write_json(file, {**content, _SEAL: hashlib.sha256(canonical(content)).hexdigest()}, check)


def read_sealed(file: Path) -> dict[str, Any]:
    """What `write_sealed` wrote; anything else is a `UserError`."""
    content = _read_object(file)
    try:
        return unsealed(content)
    except UserError as error:
        raise damaged(file, str(error)) from error


def unsealed(content: dict[str, Any]) -> dict[str, Any]:
    """An object without its checksum, which must fit."""
    rest = {key: value for key, value in content.items() if key != _SEAL}
    if content.get(_SEAL) != hashlib.sha256(canonical(rest)).hexdigest():
        raise UserError("checksum mismatch: edited or truncated")
    return rest


def _read_object(file: Path) -> dict[str, Any]:
    try:
        content = parse_json(read_bytes(file))
    except (OSError, ValueError) as error:
        raise damaged(file, f"cannot read it: {str(error)[:80]}") from error
    if not isinstance(content, dict):
        raise damaged(file, "not a JSON object")
    return content


def read_result(path: Path, record: RunRecord | None = None) -> dict[str, Any]:
    """Returns the content of `result.json`: tasks_done, finished and files; zeros if the run has not begun."""
    file, nothing = path / RESULT, {"tasks_done": 0, "finished": False, "files": {}}
    if record is None and not (path / RECORD).is_file():
        return nothing
    record = record or read_run_record(path)
    if not file.is_file():
        if file.exists() or (path / task_file("predictions", 0)).exists():  # a result precedes the first task
            raise damaged(file, "it is missing")
        return nothing
    tasks = record.num_tasks
    result = read_sealed(file)
    done, finished, files = (result.get(key) for key in ("tasks_done", "finished", "files"))
    fits = type(done) is int and 0 <= done <= tasks and type(finished) is bool and isinstance(files, dict)
    if not fits or (finished and done != tasks):
        raise damaged(file, f"it must hold tasks_done (0 to {tasks}), finished and files")
    if result.get("run", record.stamp) != record.stamp:  # which early runs of this format do not name
        raise damaged(file, f"it belongs to another run than {RECORD}")
    return result


def verified_bytes(path: Path, name: str, files: dict[str, Any]) -> bytes:
    """Reads a file of a run and verifies its size and SHA-256."""
    file, known = path / name, files.get(name)
    if not isinstance(known, dict):
        raise damaged(path / RESULT, f"it has no checksum of {name}")
    try:
        content = read_bytes(file, 1 << 40)
    except OSError as error:
        raise damaged(file, f"cannot read it: {error.strerror or error}") from error
    if len(content) != known.get("bytes"):
        raise damaged(file, f"{len(content)} bytes instead of {str(known.get('bytes'))[:20]}")
    if hashlib.sha256(content).hexdigest() != known.get("sha256"):
        raise damaged(file, "checksum mismatch")
    return content


def _opened(path: Path, name: str, files: dict[str, Any]) -> io.StringIO:
    """The lines of a verified file."""
    return io.StringIO(verified_bytes(path, name, files).decode("utf-8", "replace"), newline="")


def _read_predictions(path: Path, name: str, files: dict[str, Any], classes: int) -> Labels:
    lines = _opened(path, name, files)
    try:
        table = np.array([(int(row["true"]), int(row["pred"])) for row in csv.DictReader(lines)], np.int64)
    except (KeyError, TypeError, ValueError, OverflowError, csv.Error) as error:
        raise damaged(path / name, "it must have the columns image, true, pred with whole numbers") from error
    true, pred = table.reshape(-1, 2).T
    if table.size and not 0 <= table.min() <= table.max() < classes:
        raise damaged(path / name, f"it has labels outside 0 … {classes - 1}")
    return true, pred

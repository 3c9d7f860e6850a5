"""One run's directory: what is in it, how it is written and read back.

    config.json        the resolved config
    environment.json   versions, checksums, command line: what is needed to repeat the run
    run.json           `RunInfo`: what was run
    predictions/       task00.csv …: image, true, pred over all classes seen, after each task
    steps.jsonl        one line a training step
    tal.jsonl          TAL's Q and α·w at intervals
    result.json        tasks done, and the metrics after each of them

Only the standard library and NumPy are needed here, so that runs of other toolboxes can be written alike.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from pilot_tal.errors import PilotTalError
from pilot_tal.files import write_json, write_text

FORMAT = 1


@dataclass(frozen=True)
class RunInfo:
    """What was run. Lists over classes are in the order of the labels after the class order was applied."""

    dataset: str
    method: str
    loss: str
    seed: int
    fidelity: str
    task_sizes: tuple[int, ...]
    class_names: tuple[str, ...]
    class_order: tuple[int, ...]
    train_counts: tuple[int, ...]
    engine: str = "native"
    notes: tuple[str, ...] = field(default=())
    format: int = FORMAT

    def __post_init__(self):
        for name in ("task_sizes", "class_names", "class_order", "train_counts", "notes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        classes = sum(self.task_sizes)
        for name in ("class_names", "class_order", "train_counts"):
            if len(getattr(self, name)) != classes:
                raise PilotTalError(
                    f"{name} has {len(getattr(self, name))} entries, but the tasks have {classes} classes"
                )

    @property
    def num_classes(self) -> int:
        """Classes over all tasks."""
        return sum(self.task_sizes)

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.task_sizes)


def config_hash(config: dict[str, Any]) -> str:
    """Eight hex digits that change with any value of the resolved config."""
    text = json.dumps(config, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def run_name(dataset: str, method: str, loss: str, seed: int, config: dict[str, Any]) -> str:
    """`cub_lt-l2p-tal-s1993-1a2b3c4d`."""
    return f"{dataset}-{method}-{loss}-s{seed}-{config_hash(config)}"


def write_run(path: Path, info: RunInfo, config: dict[str, Any], environment: dict[str, Any]) -> None:
    """Writes the files that stand from the start; `run.json` last, for it makes the directory a run."""
    write_json(path / "config.json", config)
    write_json(path / "environment.json", environment)
    write_json(path / "run.json", asdict(info))


def write_predictions(path: Path, task: int, images: Sequence[str], true: Iterable[int], pred: Iterable[int]) -> None:
    """Writes what was predicted after `task`, one line an image."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("image", "true", "pred"))
    writer.writerows(zip(images, (int(y) for y in true), (int(y) for y in pred), strict=True))
    write_text(_predictions_file(path, task), text.getvalue())


def write_result(path: Path, tasks_done: int, finished: bool, metrics: dict[str, Any]) -> None:
    """Writes how far the run is, and its metrics so far."""
    write_json(path / "result.json", {"tasks_done": tasks_done, "finished": finished, "metrics": metrics})


@dataclass(frozen=True)
class Run:
    """A run read back. `predictions[t]` are the true and predicted labels after task t."""

    path: Path
    info: RunInfo
    config: dict[str, Any]
    environment: dict[str, Any]
    predictions: list[tuple[np.ndarray, np.ndarray]]
    finished: bool

    def step_log(self) -> list[dict[str, Any]]:
        """The training steps."""
        return read_lines(self.path / "steps.jsonl")

    def tal_log(self) -> list[dict[str, Any]]:
        """TAL's state at intervals; empty for other losses."""
        return read_lines(self.path / "tal.jsonl")


def load_run(path: str | Path) -> Run:
    """Reads a run directory, finished or not.

    Raises:
        PilotTalError: a file is missing, broken or does not fit the others; the sentence names it.
    """
    path = Path(path)
    if not (path / "run.json").is_file():
        raise PilotTalError(f"{path} is not a run directory: it has no file run.json")
    info = _run_info(path / "run.json")
    done, finished = _read_result(path / "result.json", info.num_tasks)
    seen = np.cumsum(info.task_sizes)
    predictions = [_read_predictions(_predictions_file(path, t), int(seen[t])) for t in range(done)]
    config, environment = read_record(path / "config.json"), read_record(path / "environment.json")
    return Run(path, info, config, environment, predictions, finished)


def read_record(file: Path) -> dict[str, Any]:
    """Reads one of a run's JSON files, which hold an object each.

    Raises:
        PilotTalError: the file cannot be read, or is damaged.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PilotTalError(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise damaged(file, f"not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise damaged(file, "not a JSON object")
    return content


def damaged(file: Path, reason: str) -> PilotTalError:
    """The error for a file of a run whose content is broken: what is wrong with it, and the way out."""
    run = file.parent.parent if file.parent.name == "predictions" else file.parent
    return PilotTalError(f"{file} is damaged ({reason}); remove {run} to start this run anew")


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """The run directories among `paths` and below them, sorted.

    Raises:
        PilotTalError: a path does not exist, or there is no run in any of them.
    """
    found: set[Path] = set()
    given = [Path(path) for path in paths]
    for path in given:
        if not path.is_dir():
            raise PilotTalError(f"{path} is not a directory; give run directories or a folder of them")
        if (path / "run.json").is_file():
            found.add(path)
        else:
            found.update(file.parent for file in path.glob("**/run.json"))
    if not found:
        raise PilotTalError(f"no runs found in {', '.join(map(str, given))} (a run has a run.json)")
    return sorted(found)


def _predictions_file(path: Path, task: int) -> Path:
    return path / "predictions" / f"task{task:02d}.csv"


def _run_info(path: Path) -> RunInfo:
    content = read_record(path)
    known = {f.name for f in fields(RunInfo)}
    if content.get("format") != FORMAT:
        raise PilotTalError(f"{path} is not of run format {FORMAT}: another version or program wrote it")
    wrong = next((name for name, fits in _FITS.items() if name in content and not fits(content[name])), None)
    if wrong is not None:
        raise damaged(path, f"{wrong} has a wrong value")
    try:
        return RunInfo(**{key: value for key, value in content.items() if key in known})
    except (TypeError, PilotTalError) as error:
        raise damaged(path, f"it is incomplete: {error}") from error


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(_is_whole(v) and 0 <= v < 1 << 31 for v in value)


def _are_sizes(value: Any) -> bool:
    return _are_counts(value) and len(value) > 0 and min(value) > 0


_FITS = {
    **dict.fromkeys(("dataset", "method", "loss", "fidelity", "engine"), _is_text),
    "seed": _is_whole,
    "task_sizes": _are_sizes,
    **dict.fromkeys(("class_names", "notes"), _are_texts),
    **dict.fromkeys(("class_order", "train_counts"), _are_counts),
}


def _read_result(path: Path, tasks: int) -> tuple[int, bool]:
    """Tasks done, and whether the run is finished."""
    if not path.is_file():
        return 0, False
    result = read_record(path)
    done, finished = result.get("tasks_done", 0), result.get("finished", False)
    if not _is_whole(done) or not 0 <= done <= tasks:
        raise damaged(path, f"tasks_done must be 0 to {tasks}, got {done!r}")
    if not isinstance(finished, bool):
        raise damaged(path, f"finished must be true or false, got {finished!r}")
    return done, finished


def _read_predictions(path: Path, classes: int) -> tuple[np.ndarray, np.ndarray]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [(int(row["true"]), int(row["pred"])) for row in csv.DictReader(file)]
        table = np.array(rows, dtype=np.int64).reshape(-1, 2)
    except OSError as error:
        raise PilotTalError(f"cannot read {path}: {error.strerror or error}") from error
    except (KeyError, TypeError, ValueError, OverflowError, csv.Error) as error:
        raise damaged(path, "it must have the columns image, true, pred with whole numbers") from error
    if table.size and (table.min() < 0 or table.max() >= classes):
        raise damaged(path, f"it has labels outside 0 … {classes - 1}")
    return table[:, 0], table[:, 1]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The entries of a log, each with its task; none if there is no such file."""
    if not path.is_file():
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise PilotTalError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise damaged(path, "not a text file") from error
    return [_read_line(path, number, line) for number, line in enumerate(lines, 1)]


def _read_line(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"line {number} is not valid JSON: {error}") from error
    if not isinstance(entry, dict):
        raise damaged(path, f"line {number} is not a JSON object")
    if not _is_whole(entry.get("task")):
        raise damaged(path, f"line {number} names no task")
    return entry

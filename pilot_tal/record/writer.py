"""Writes a run directory. Every write and deletion is fenced by the run's lock, so a suspended process cannot harm it.

One rename commits a task: its predictions, logs and checkpoint are written first, then `result.json` names them all
with size and SHA-256. A process that is killed at any moment leaves a run that is resumable or finished.
"""

import contextlib
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_lt.errors import Terminated, UserError, sentence
from data_lt.files import atomic_path, checksum, guarded, open_to_append, os_errors, sync
from pilot_tal.record.lock import Lock, has_locks, locked, owner_of
from pilot_tal.record.run_dir import (
    ERROR,
    LATEST,
    LOG,
    RECORD,
    RESULT,
    read_result,
    read_run_record,
    task_file,
    write_sealed,
)
from pilot_tal.record.run_record import RunRecord


class RunWriter:
    """Writes the files of one run.

    Attributes:
        files: Size and SHA-256 of every file that the next commit will name.
    """

    def __init__(self, path: Path, lock: Lock):
        self.path, self.lock = path, lock
        self.files: dict[str, dict[str, Any]] = {}
        self._outdated: list[str] = []

    @contextlib.contextmanager
    def new_file(self, name: str) -> Iterator[Path]:
        """Yields a temporary path that becomes the file `name` of the run and of its next commit."""
        with atomic_path(self.path / name, self.lock.check) as temporary:
            yield temporary
            self.files[name] = {"bytes": temporary.stat().st_size, "sha256": checksum(temporary)}

    def write_record(self, record: RunRecord, resumed: bool = False) -> None:
        """Writes `run.json`, which makes the directory a run; a resumed run keeps its earlier environments.

        Raises:
            UserError: the resumed run began with another ViT or other images.
        """
        if resumed:
            before = read_run_record(self.path)
            _same(self.path, "ViT", before.backbone.checksum, record.backbone.checksum)
            _same(self.path, "set of image files", before.data.images, record.data.images)
            record = replace(record, environment=(*before.environment, *record.environment))
        write_sealed(self.path / RECORD, record.plain(), self.lock.check)

    def write_task(
        self,
        task: int,
        images: Sequence[str],
        true: Iterable[int],
        pred: Iterable[int],
        **logs: Iterable[dict[str, Any]],
    ) -> None:
        """Writes the predictions after a task and its logs (`steps`, `states`, `prompts`); an empty log has no file."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("image", "true", "pred"))
        writer.writerows(zip(map(guarded, images), (int(y) for y in true), (int(y) for y in pred), strict=True))
        self._write(task_file("predictions", task), text.getvalue())
        for kind, lines in logs.items():
            if content := "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines):
                self._write(task_file(kind, task), content)

    def outdate(self, name: str) -> None:
        """Leaves a file out of the next commit, which then deletes it."""
        self.files.pop(name, None)
        if (self.path / name).is_file():
            self._outdated.append(name)

    def commit(self, record: RunRecord, tasks_done: int, restart: bool = False) -> None:
        """Makes the first `tasks_done` tasks part of the run; with the last one the run is finished.

        Raises:
            UserError: the run on disk has more tasks, unless it is to `restart`.
        """
        self.lock.check()
        known = 0 if restart or not (self.path / RESULT).is_file() else read_result(self.path, record)["tasks_done"]
        if tasks_done < known:
            raise UserError(f"{self.path} has {known} finished tasks already; not overwritten with {tasks_done}")
        result = {
            "run": record.stamp,
            "tasks_done": tasks_done,
            "finished": tasks_done == record.num_tasks,
            "files": dict(sorted(self.files.items())),
        }
        write_sealed(self.path / RESULT, result, self.lock.check)
        self.remove(*self._outdated)
        self._outdated = []

    def append_log(self, line: str) -> None:
        """Adds a line to `log.txt`."""
        log = self.path / LOG
        with os_errors(f"cannot write {log}"), open_to_append(log) as file:
            self.lock.check()
            file.write(line + "\n")

    def clean(self) -> None:
        """Deletes what an earlier owner left: temporary files, and caches that the result does not name.

        Without its temporary file, an owner that was suspended between check and rename cannot rename any more.
        """
        self.remove(*(str(left.relative_to(self.path)) for left in _leftovers(self.path)))

    def _write(self, name: str, text: str) -> None:
        with self.new_file(name) as temporary:
            temporary.write_bytes(text.encode("utf-8"))

    def remove(self, *names: str) -> None:
        """Deletes files of the run."""
        for name in names:
            self.lock.check()
            (self.path / name).unlink(missing_ok=True)
            sync((self.path / name).parent)


@contextlib.contextmanager
def open_run(path: Path) -> Iterator[RunWriter]:
    """Locks a run directory and yields its writer; an exception stays in `error.txt` until the next start.

    Raises:
        Busy: another process works on this run.
    """
    with locked(path) as lock:
        writer = RunWriter(path, lock)
        try:
            writer.clean()
            writer.remove(ERROR)
            yield writer
        except SystemExit as error:
            if isinstance(error, Terminated):
                raise
            text = f"foreign code (a plugin, loss or callback) has ended the run with sys.exit({str(error.code)[:60]})"
            keep_failure(path, text, lock.check)
            raise UserError(text) from error
        except Exception as error:
            with contextlib.suppress(UserError):  # a full disk must not hide the cause
                keep_failure(path, sentence(error), lock.check)
            raise


def keep_failure(path: Path, text: str, check: Callable[[], None] | None = None) -> None:
    """Writes why a run failed to its `error.txt`."""
    with atomic_path(path / ERROR, check) as temporary:
        temporary.write_bytes((text + "\n").encode("utf-8", "backslashreplace"))


def clean_finished(path: Path) -> None:
    """Removes what a process that was killed in its last moment left in a finished run; needs no write permission."""
    with contextlib.suppress(UserError, OSError):
        if (has_locks(path) or any(_leftovers(path))) and owner_of(path) is None:
            with locked(path) as lock:
                RunWriter(path, lock).clean()


def _leftovers(path: Path) -> Iterator[Path]:
    yield from (left for left in path.rglob(".*.tmp") if left.is_file())
    if not (path / RESULT).is_file() or (path / LATEST).is_file():
        return
    with contextlib.suppress(UserError):  # a damaged result is reported where it is needed
        named = read_result(path)["files"]
        caches = (path / "checkpoint").glob("task*.cache.safetensors")
        yield from (file for file in caches if f"checkpoint/{file.name}" not in named)


def _same(path: Path, what: str, before: str | None, now: str | None) -> None:
    if None not in (before, now) and before != now:
        raise UserError(
            f"{path} began with another {what} (checksum {str(before)[:12]}…, now {str(now)[:12]}…): restore it to "
            f"resume, or remove {path} to start over"
        )

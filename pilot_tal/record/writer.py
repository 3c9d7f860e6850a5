"""Writes a run directory. Every write and deletion is fenced by the run's lock, so a suspended process cannot harm it.

One rename commits a task: its predictions, logs and checkpoint are written first, then `result.json` names them all
with size and SHA-256. A process that is killed at any moment leaves a run that is resumable or finished.
"""

import contextlib
import csv
import hashlib
import io
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from data_lt.errors import Terminated, UserError, sentence
from data_lt.files import atomic_path, checksum, guarded, open_to_append, os_errors, read_bytes, sync, write_text
from pilot_tal.record.lock import Lock, lock_numbers, locked, owner_of
from pilot_tal.record.run_dir import ERROR, LOG, RECORD, RESULT, read_result, read_run_record, task_file, write_sealed
from pilot_tal.record.run_record import RunRecord
from pilot_tal.version import __version__

PACKAGES = ("torch", "torchvision", "timm", "numpy", "scipy", "pandas", "pillow", "safetensors")
_ROOT = Path(__file__).resolve().parents[2]
_SAMPLED = 1000  # images whose content is compared when a run resumes


class RunWriter:
    """Writes the files of one run; `files` holds size and SHA-256 of those that the next commit will name."""

    def __init__(self, path: Path, lock: Lock):
        self.path, self.lock = path, lock
        self.files: dict[str, dict[str, Any]] = {}

    @contextlib.contextmanager
    def new_file(self, name: str) -> Iterator[Path]:
        """Yields a temporary path that becomes the file `name` of the run and of its next commit."""
        with atomic_path(self.path / name, self.lock.check) as temporary:
            yield temporary
            self.files[name] = {"bytes": temporary.stat().st_size, "sha256": checksum(temporary)}

    def write_record(self, record: RunRecord, resumed: bool = False) -> None:
        """Writes `run.json`, which makes the directory a run.

        A resumed run keeps its earlier environments; with another ViT or other images it is a `UserError`.
        """
        if resumed:
            before = read_run_record(self.path)
            vits, images = (
                (before.backbone.checksum, record.backbone.checksum),
                (before.data.images, record.data.images),
            )
            for what, (old, new) in {"ViT": vits, "set of image files": images}.items():
                if old and new and old != new:
                    raise UserError(
                        f"{self.path} began with another {what} (checksum {old[:12]}…, now {new[:12]}…): restore it "
                        f"to resume, or remove {self.path} to start over"
                    )
            record = replace(record, environment=(*before.environment, *record.environment))
        write_sealed(self.path / RECORD, record.plain(), self.lock.check)

    def write_task(
        self, task: int, images: Sequence[str], true: Iterable[int], pred: Iterable[int], **logs: Iterable[dict]
    ) -> None:
        """Writes the predictions after a task and its logs (`steps`, `states`, `prompts`); an empty log has no file."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("image", "true", "pred"))
        writer.writerows(zip(map(guarded, images), (int(y) for y in true), (int(y) for y in pred), strict=True))
        lines = {kind: [json.dumps(line, allow_nan=False) + "\n" for line in log] for kind, log in logs.items()}
        for kind, content in {"predictions": [text.getvalue()], **lines}.items():
            if content:
                with self.new_file(task_file(kind, task)) as temporary:
                    temporary.write_bytes("".join(content).encode("utf-8"))

    def commit(self, record: RunRecord, tasks_done: int, restart: bool = False) -> None:
        """Makes the first `tasks_done` tasks part of the run, and deletes checkpoints that it does not name.

        A run that has more tasks on disk is refused, unless it is to `restart`.
        """
        self.lock.check()
        known = 0 if restart or not (self.path / RESULT).is_file() else read_result(self.path, record)["tasks_done"]
        if tasks_done < known:
            raise UserError(f"{self.path} has {known} finished tasks already; not overwritten with {tasks_done}")
        result = {"run": record.stamp, "tasks_done": tasks_done, "finished": tasks_done == record.num_tasks}
        write_sealed(self.path / RESULT, {**result, "files": dict(sorted(self.files.items()))}, self.lock.check)
        self.clean()

    def append_log(self, line: str) -> None:
        """Adds a line to `log.txt`."""
        log = self.path / LOG
        with os_errors(f"cannot write {log}"), open_to_append(log) as file:
            self.lock.check()
            file.write(line + "\n")

    def clean(self) -> None:
        """Deletes what an earlier owner left: temporary files, and checkpoints that the result does not name.

        Without its temporary file, an owner that was suspended between check and rename cannot rename any more.
        """
        self.remove(*(str(left.relative_to(self.path)) for left in _leftovers(self.path)))

    def remove(self, *names: str) -> None:
        """Deletes files of the run."""
        for name in names:
            self.lock.check()
            (self.path / name).unlink(missing_ok=True)
            sync((self.path / name).parent)


@contextlib.contextmanager
def open_run(path: Path) -> Iterator[RunWriter]:
    """Locks a run directory, or raises `Busy`; an exception stays in its `error.txt` until the next start."""
    with locked(path) as lock:
        writer = RunWriter(path, lock)
        try:
            writer.clean()
            writer.remove(ERROR)
            yield writer
        except Terminated:
            raise
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit):
                what = "foreign code (a plugin, loss or callback) has ended the run"
                error = UserError(f"{what} with sys.exit({str(error.code)[:60]})")
            with contextlib.suppress(UserError):  # a full disk must not hide the cause
                keep_failure(path, sentence(error), lock.check)
            raise error


def keep_failure(path: Path, text: str, check: Callable[[], None] | None = None) -> None:
    """Writes why a run failed to its `error.txt`."""
    write_text(path / ERROR, text + "\n", check)


def clean_finished(path: Path) -> None:
    """Removes what a process that was killed in its last moment left in a finished run; needs no write permission."""
    with contextlib.suppress(UserError, OSError):
        if (lock_numbers(path) or any(_leftovers(path))) and owner_of(path) is None:
            with locked(path) as lock:
                RunWriter(path, lock).clean()


def _leftovers(path: Path) -> Iterator[Path]:
    yield from (left for left in path.rglob(".*.tmp") if left.is_file())
    if (path / RESULT).is_file():
        with contextlib.suppress(UserError):  # a damaged result is reported where it is needed
            named = {path / name for name in read_result(path)["files"]}
            checkpoints = {*(path / "checkpoint").glob("*.safetensors")}
            yield from sorted(checkpoints - named) if checkpoints & named else ()


def describe(device: str) -> dict[str, Any]:
    """What is needed to repeat a run beside its record: versions, command line, commit, device and threads."""
    import torch

    return {
        "pilot_tal": __version__,
        "commit": git("rev-parse", "HEAD"),
        "changed_since_commit": bool(git("status", "--porcelain", "--untracked-files=no")),
        "command": sys.argv,
        "working_directory": str(Path.cwd()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "device": device,
        "device_name": torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine(),
        "threads": torch.get_num_threads(),
    }


def _version(package: str) -> str | None:
    with contextlib.suppress(PackageNotFoundError):
        return version(package)
    return None


def git(*arguments: str, root: Path | None = None) -> str | None:
    """What git says of a checkout, by default this one; None for an installed package."""
    root = root or _ROOT
    if not (root / ".git").exists():
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip() or None
    return None


def hub_source(name: str) -> dict[str, Any]:
    """Returns revision and SHA-256 of a ViT's file in the cache of the Hugging Face hub; empty if it is not there."""
    import pilot_tal._torchvision  # noqa: F401, I001, before timm
    import timm
    from huggingface_hub import try_to_load_from_cache

    card = timm.get_pretrained_cfg(name)
    if card is None or not card.hf_hub_id:
        return {}
    file = try_to_load_from_cache(card.hf_hub_id, card.hf_hub_filename or "model.safetensors")
    if not isinstance(file, str):
        return {}
    return {"repository": card.hf_hub_id, "revision": Path(file).parent.name, "sha256": checksum(file)}


def image_fingerprint(root: Path, paths: Sequence[str]) -> str:
    """SHA-256 over the sizes of all images and the content of at least `_SAMPLED` evenly spaced ones.

    Modification times are left out: a copy of the images on another host is the same data.
    """
    digest = hashlib.sha256()
    for path in paths:
        with contextlib.suppress(OSError):  # a missing image is reported when it is read
            digest.update(f"{path}\0{(root / path).stat().st_size}\0".encode("utf-8", "surrogateescape"))
    for path in paths[:: max(1, len(paths) // _SAMPLED)]:
        with contextlib.suppress(OSError):
            digest.update(hashlib.sha256(read_bytes(root / path)).digest())
    return digest.hexdigest()

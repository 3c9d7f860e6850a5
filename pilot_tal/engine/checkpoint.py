"""What a run needs to go on after a finished task: tensors as safetensors, the rest as JSON."""

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pilot_tal.errors import PilotTalError
from pilot_tal.files import atomic_path, checksum, read_json, write_json

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """The state after `tasks_done` tasks."""

    tasks_done: int
    learner: dict[str, Tensor]
    cache: dict[str, Tensor]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Writes the checkpoint; the one before is removed only after the new one is complete."""
    name = f"task{checkpoint.tasks_done - 1:02d}"
    files = {}
    for part in ("learner", "cache"):
        file = f"{name}.{part}.safetensors"
        tensors = getattr(checkpoint, part).items()
        with atomic_path(folder / file) as temporary:  # safetensors wants whole tensors with memory of their own
            try:
                save_file({key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors}, temporary)
            except SafetensorError as error:  # what safetensors makes of a full disk
                raise PilotTalError(f"cannot write {folder / file}: {error}") from error
        files[part] = {"file": file, "sha256": checksum(folder / file)}
    write_json(folder / "latest.json", {"format": FORMAT, "tasks_done": checkpoint.tasks_done, "files": files})
    for old in folder.glob("task*.safetensors"):
        if old.name not in {entry["file"] for entry in files.values()}:
            old.unlink()


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The last complete checkpoint, or None if there is none.

    Raises:
        PilotTalError: the checkpoint is damaged.
    """
    if not (folder / "latest.json").is_file():
        return None
    latest = read_json(folder / "latest.json")
    advice = f"remove {folder} to start this run anew"
    try:
        if latest["format"] != FORMAT:
            raise PilotTalError(f"{folder} holds a checkpoint of another version; {advice}")
        done, files = int(latest["tasks_done"]), latest["files"]
        parts = {part: _read(folder, files[part], advice) for part in ("learner", "cache")}
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, PilotTalError):
            raise
        raise PilotTalError(f"{folder / 'latest.json'} is damaged; {advice}") from error
    return Checkpoint(done, **parts)


def drop_cache(folder: Path) -> None:
    """Empties the feature cache of a finished run: only resuming needs it."""
    latest = load_checkpoint(folder)
    if latest is not None and latest.cache:
        save_checkpoint(folder, Checkpoint(latest.tasks_done, latest.learner, {}))


def _read(folder: Path, entry: dict[str, str], advice: str) -> dict[str, Tensor]:
    path = folder / Path(entry["file"]).name  # a name, never a path out of the folder
    if not path.is_file() or checksum(path) != entry["sha256"]:
        raise PilotTalError(f"the checkpoint {path} is missing or damaged; {advice}")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise PilotTalError(f"the checkpoint {path} cannot be read ({error}); {advice}") from error

"""Files written whole or not at all, and checksums."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pilot_tal.errors import PilotTalError


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`; on success it takes `path`'s place, on failure it is removed.

    A reader sees the old file or the new one, never a part. A full disk or a read-only directory is a
    `PilotTalError` that names the file; whatever stood at `path` before is untouched.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise PilotTalError(f"cannot write {path}: {error.strerror or error}") from error
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes files private; results are to be shared
        temporary.replace(path)
    except OSError as error:
        raise PilotTalError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Writes `text` as UTF-8 with plain newlines, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """Writes `value` as readable JSON (keys in their order, no NaN), whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Reads JSON; a missing or broken file is a `PilotTalError` that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise PilotTalError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise PilotTalError(f"{path} is not valid JSON: {error}") from error


def checksum(path: str | Path, algorithm: str = "sha256") -> str:
    """Hex digest of a file's bytes, read in pieces."""
    digest = hashlib.new(algorithm)
    with Path(path).open("rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()

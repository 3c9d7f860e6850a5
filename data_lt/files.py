"""Files written whole or not at all, texts that are safe in a CSV, and checksums."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_lt.errors import UserError

_LONGEST_NAME = 255  # bytes: what the usual file systems take
_GUARD = "'"
_FORMULA = tuple(f"=+-@\t\r\n＝＋－＠{_GUARD}")  # what makes a spreadsheet run a text, and our own mark


def fits(part: str) -> bool:
    """Whether a file could have this name: not too long, and without a zero byte."""
    return "\0" not in part and len(os.fsencode(part)) <= _LONGEST_NAME


def is_name(text: str) -> bool:
    """Whether a text is the name of a file, not a path."""
    return bool(text) and Path(text).name == text and fits(text)


def given_path(path: str | Path, name: str) -> Path:
    """A path that a user gave as `name`, with ~ expanded; one that no file can have is refused."""
    if not str(path).strip():
        raise UserError(f"{name} is empty; give a path, or . for the working directory")
    if any(not fits(part) for part in Path(path).parts):
        raise UserError(f"{name} cannot be a path: a name in it is too long or holds a zero byte")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{name}={path}: there is no such home directory") from error


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`; on success it takes `path`'s place, on failure it is removed.

    A reader sees the old file or the new one, never a part. A full disk or a read-only directory is a
    `UserError` that names the file; whatever stood at `path` before is untouched.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes files private; results are to be shared
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def staged_folder(path: str | Path) -> Iterator[Path]:
    """Gives a temporary folder to fill; on success its files go to the folder `path`, on failure none does.

    A folder that is new appears whole. In one that exists, files of the same name are replaced and others stay.
    """
    path = Path(path)
    temporary = None
    try:
        # Inside a folder that exists: its parent may be another file system, from which nothing can be renamed.
        beside = path if path.is_dir() else path.parent
        beside.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name or 'new'}.", suffix=".tmp", dir=beside))
        yield temporary
        temporary.chmod(0o777 & ~_umask())  # mkdtemp makes folders private
        _move(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    """Moves a file or folder, or a folder's entries where the target exists; all by renaming, which needs no space."""
    try:
        source.replace(target)
    except OSError:
        if not (source.is_dir() and target.is_dir()):
            raise
        for entry in sorted(source.iterdir()):
            _move(entry, target / entry.name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: str | Path, text: str) -> None:
    """Writes `text` as UTF-8 with plain newlines, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """Writes `value` as readable JSON (keys in their order, no NaN), whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Reads JSON; a missing or broken file is a `UserError` that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_no_constant)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {str(error)[:80]}") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def guarded(text: str) -> str:
    """A text as it may stand in a CSV: with an apostrophe, as OWASP advises, before what a spreadsheet would run."""
    return f"{_GUARD}{text}" if text.startswith(_FORMULA) else text


def unguarded(text: str) -> str:
    """What `guarded` made this of."""
    return text.removeprefix(_GUARD)


def checksum(path: str | Path, algorithm: str = "sha256") -> str:
    """Hex digest of a file's bytes, read in pieces."""
    digest = hashlib.new(algorithm)
    with Path(path).open("rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()

"""Extracts an archive so that nothing can leave the target and nothing half-made stays behind."""

import os
import shutil
import tarfile
import zlib
from lzma import LZMAError
from pathlib import Path, PurePosixPath, PureWindowsPath

from data_lt.progress import progress
from pilot_tal.errors import PilotTalError


def extract(archive: Path, target: Path, folder: str) -> Path:
    """Extracts the tar file `archive` and puts its top folder `folder` below `target`.

    All of it goes to a hidden folder beside the target first, which takes its name when it is whole. Where
    `target/folder` exists already, only the files that it lacks are moved there. Members that are links,
    devices or paths outside the target are refused.
    """
    staging = target / f".{folder}.extracting"
    final = target / folder
    try:
        if staging.exists():
            shutil.rmtree(staging)  # of a process that was killed
        staging.mkdir()
        try:
            _unpack(archive, staging)
            if not (staging / folder).is_dir():
                raise PilotTalError(f"{archive} holds no folder {folder}/; it is another archive")
            _merge(staging / folder, final)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except (tarfile.TarError, EOFError, zlib.error, LZMAError) as error:
        raise PilotTalError(f"cannot read the archive {archive}: {error}; remove it to fetch it anew") from error
    except OSError as error:
        raise PilotTalError(f"cannot extract {archive} to {final}: {error.strerror or error}") from error
    return final


def _unpack(archive: Path, staging: Path) -> None:
    with (
        archive.open("rb") as file,
        tarfile.open(fileobj=file, mode="r:*") as tar,
        progress(f"extracting {archive.name}", archive.stat().st_size, is_bytes=True) as advance,
    ):
        done = 0
        for member in tar:
            _check_member(member, archive)
            # The filter repeats our checks where this Python has it, and drops owners and special bits.
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extract(member, staging, set_attrs=False, **safe)
            advance(file.tell() - done)
            done = file.tell()


def _check_member(member: tarfile.TarInfo, archive: Path) -> None:
    path = PurePosixPath(member.name)
    windows = PureWindowsPath(member.name)
    if path.is_absolute() or windows.drive or windows.root or ".." in windows.parts:
        raise PilotTalError(f"{archive} is not safe: its member {member.name!r} would leave the target folder")
    if not (member.isfile() or member.isdir()):
        raise PilotTalError(f"{archive} is not safe: its member {member.name!r} is neither a file nor a folder")


def _merge(source: Path, target: Path) -> None:
    """Moves `source` to `target`, or what `target` lacks into it; never replaces a file."""
    if not os.path.lexists(target):
        source.rename(target)
        return
    for entry in sorted(source.iterdir()):
        if not os.path.lexists(target / entry.name) or (entry.is_dir() and (target / entry.name).is_dir()):
            _merge(entry, target / entry.name)

"""Extracts an archive so that nothing can leave the target and nothing half-made stays behind."""

import os
import shutil
import sys
import tarfile
import zlib
from lzma import LZMAError
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from data_lt.errors import UserError
from data_lt.files import checksum
from data_lt.progress import progress

DEEPEST = 100  # nested folders of a member
GROWTH, ALWAYS_ALLOWED = 10, 1 << 30  # images hardly compress: what grows more than this is no archive of images


def check_archive(archive: Path, official: str) -> None:
    """Refuses an archive that is not, byte by byte, the one whose checksum (`md5:…` or `sha256:…`) is given."""
    if archive.is_dir():
        raise UserError(f"{archive} is a folder, but the archive goes there; rename or move the folder")
    algorithm, _, wanted = official.partition(":")
    say_checking(archive)
    try:
        found = checksum(archive, algorithm)
    except OSError as error:
        raise UserError(f"cannot read the archive {archive}: {error.strerror or error}") from error
    if found != wanted:
        raise UserError(
            f"{archive} is not the official archive: its {algorithm} is not {wanted}; remove it to fetch it anew"
        )


def say_checking(archive: Path) -> None:
    """Says what takes seconds, for gigabytes."""
    print(f"checking the checksum of {archive.name}", file=sys.stderr, flush=True)


def extract(archive: Path, target: Path, folder: str) -> Path:
    """Extracts the tar file `archive` and puts its top folder `folder` below `target`.

    All of it goes to a hidden folder beside the target first, which takes its name when it is whole. Where
    `target/folder` exists already, only the files that it lacks are moved there. Members that are links,
    devices or paths outside the target are refused, and so is an archive that unpacks to `GROWTH` times its size.
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
                raise UserError(f"{archive} holds no folder {folder}/; it is another archive")
            _merge(staging / folder, final)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except (tarfile.TarError, EOFError, zlib.error, LZMAError) as error:
        raise UserError(f"cannot read the archive {archive}: {error}; remove it to fetch it anew") from error
    except OSError as error:
        raise UserError(f"cannot extract {archive} to {final}: {error.strerror or error}") from error
    return final


def _unpack(archive: Path, staging: Path) -> None:
    with (
        archive.open("rb") as file,
        tarfile.open(fileobj=file, mode="r:*") as tar,
        progress(f"extracting {archive.name}", archive.stat().st_size, is_bytes=True) as advance,
    ):
        done = unpacked = 0
        for member in tar:
            _check_member(member, archive)
            unpacked += member.size + tarfile.BLOCKSIZE  # a file that is empty takes space too
            if unpacked > max(ALWAYS_ALLOWED, GROWTH * archive.stat().st_size):
                raise UserError(f"{archive} is not safe: it unpacks to more than {GROWTH} times its own size")
            # The filter repeats our checks where this Python has it, and drops owners and special bits.
            safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extract(member, staging, set_attrs=False, **safe)
            advance(file.tell() - done)
            done = file.tell()


def _check_member(member: tarfile.TarInfo, archive: Path) -> None:
    path = PurePosixPath(member.name)
    windows = PureWindowsPath(member.name)
    name = f"{archive} is not safe: its member {member.name[:100]!r}"
    if path.is_absolute() or windows.drive or windows.root or ".." in windows.parts:
        raise UserError(f"{name} would leave the target folder")
    if len(path.parts) > DEEPEST:
        raise UserError(f"{name} lies in more than {DEEPEST} nested folders")
    if not (member.isfile() or member.isdir()):
        raise UserError(f"{name} is neither a file nor a folder")


def _merge(source: Path, target: Path) -> None:
    """Moves `source` to `target`, or what `target` lacks into it; never replaces a file."""
    if not os.path.lexists(target):
        source.rename(target)
        return
    for entry in sorted(source.iterdir()):
        if not os.path.lexists(target / entry.name) or (entry.is_dir() and (target / entry.name).is_dir()):
            _merge(entry, target / entry.name)

"""Downloads a dataset's official archive (resumed after an interruption), verifies and extracts it."""

import re
import sys
import tarfile
import time
import zlib
from lzma import LZMAError
from pathlib import Path, PureWindowsPath
from typing import Any

from data_lt.cards import DatasetCard
from data_lt.errors import UserError
from data_lt.files import checksum, given_path, make_folder, os_errors, staged_folder
from data_lt.progress import progress

ATTEMPTS = 5  # in a row without a new byte
PAUSE = 1.0  # seconds before another attempt
PIECE = 1 << 18
DEEPEST = 100  # nested folders in an archive
TIMEOUT = (15, 60)  # seconds to connect, and between two pieces


def download(card: DatasetCard, data_root: str | Path) -> Path:
    """Puts the dataset's official folder below `data_root` and returns it.

    The archive is downloaded unless it is there already. If the connection breaks, the part that was received stays
    as `.part`, and the next call continues from there.
    """
    if card.url is None:
        raise UserError(f"there is nothing to download for {card.name}: {card.source or 'it is made here'}")
    data_root = given_path(data_root, "data_root")
    archive = data_root / card.archive
    with os_errors(f"cannot write {archive}"):
        make_folder(data_root)
        if archive.exists():
            check_archive(archive, card.checksum or "")
        else:
            _fetch(card, archive)
    if card.make is None:
        return extract(archive, data_root, card.folders[0])
    card.make(data_root)
    return data_root / card.folders[0]


def check_archive(archive: Path, official: str) -> None:
    """Raises unless the archive has the official checksum (`md5:…` or `sha256:…`)."""
    if archive.is_dir():
        raise UserError(f"{archive} is a folder, but the archive goes there; rename or move the folder")
    algorithm, _, wanted = official.partition(":")
    print(f"verifying the checksum of {archive.name}", file=sys.stderr, flush=True)
    with os_errors(f"cannot read the archive {archive}"):
        found = checksum(archive, algorithm)
    if found != wanted:
        raise UserError(f"{archive} is not the official archive: its {algorithm} is not {wanted}; remove it")


def extract(archive: Path, target: Path, folder: str) -> Path:
    """Extracts the top folder `folder` of a tar file to `target`, all of it or nothing.

    Files that are in `target/folder` already are replaced by those of the archive; others stay.
    """
    try:
        with staged_folder(target / folder) as staging:
            _unpack(archive, staging, folder)
    except (tarfile.TarError, EOFError, zlib.error, LZMAError) as error:
        raise UserError(f"cannot read the archive {archive}: {error}; remove it to download it again") from error
    return target / folder


def _unpack(archive: Path, staging: Path, folder: str) -> None:
    # The filter repeats our checks where this Python has it, and drops owners and special bits.
    safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    size, done = archive.stat().st_size, 0
    with (
        archive.open("rb") as file,
        tarfile.open(fileobj=file, mode="r:*") as tar,
        progress(f"extracting {archive.name}", size, is_bytes=True) as bar,
    ):
        for member in tar:
            path = PureWindowsPath(member.name)  # which splits at / and \
            outside = path.anchor or ".." in path.parts or len(path.parts) > DEEPEST
            if outside or not (member.isfile() or member.isdir()):
                name = f"its member {member.name[:100]!r}"
                raise UserError(f"{archive} is not safe: {name} is a link, leaves the folder or is nested too deeply")
            if len(path.parts) > 1 and path.parts[0] == folder:
                member.name = "/".join(path.parts[1:])
                tar.extract(member, staging, set_attrs=False, **safe)
            bar.update(file.tell() - done)
            done = file.tell()
    if not any(staging.iterdir()):
        raise UserError(f"{archive} holds no folder {folder}/; it is another archive")


def _fetch(card: DatasetCard, archive: Path) -> None:
    """Downloads the archive to its `.part`, continuing where an earlier attempt stopped, verifies and renames it."""
    import requests

    part, url = archive.with_name(archive.name + ".part"), str(card.url)
    elsewhere = f"download {url} by other means, put it at {archive} and run the same command again"
    failures, complete = 0, False
    while not complete:
        before = part.stat().st_size if part.exists() else 0
        try:
            complete = _stream(url, part, before)
        except requests.HTTPError as error:
            raise UserError(f"{url} answers {error.response.status_code}; {elsewhere}") from error
        except requests.RequestException as error:
            after = part.stat().st_size if part.exists() else 0
            failures = failures + 1 if after <= before else 0
            if failures >= ATTEMPTS:
                raise UserError(
                    f"cannot download {url} ({type(error).__name__}, {after:,} bytes are kept): "
                    f"run the same command again to continue, or {elsewhere}"
                ) from error
            time.sleep(PAUSE)
    try:
        check_archive(part, card.checksum or "")
    except UserError:
        part.unlink()
        raise UserError(f"what {url} sent is not the official archive: its checksum is not {card.checksum}") from None
    part.replace(archive)


def _stream(url: str, part: Path, offset: int) -> bool:
    """One request. Returns whether the file is complete; False asks for another request from the start."""
    import requests

    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={offset}-"} if offset else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
        content_range = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+)", answer.headers.get("Content-Range", ""))
        if answer.status_code == 416 and offset:  # nothing after our offset: the part is complete, or too long
            if content_range and int(content_range[2]) == offset:
                return True
            part.unlink()
            return False
        answer.raise_for_status()
        resumed = answer.status_code == 206 and content_range and content_range[1] == str(offset)
        start = offset if resumed else 0
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length else None
        with (
            part.open("r+b" if resumed else "wb") as file,
            progress(f"downloading {part.stem}", total, start, is_bytes=True) as bar,
        ):
            file.seek(start)
            for piece in answer.iter_content(PIECE):
                file.write(piece)
                bar.update(len(piece))
    if total is not None and part.stat().st_size < total:
        raise requests.ConnectionError(f"the connection ended at {part.stat().st_size} of {total} bytes")
    return True

"""Official archives: downloaded (resumed after an interruption), verified, and extracted or written as images."""

import pickle
import re
import tarfile
import time
import zlib
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
from PIL import Image

from data_lt.cards import DatasetCard
from data_lt.errors import UserError
from data_lt.files import checksum, given_path, make_folder, os_errors, progress, staged_folder

ATTEMPTS = 5  # in a row without a new byte
PAUSE = 1.0  # seconds before another attempt
PIECE = 1 << 18
DEEPEST = 100  # nested folders in an archive
TIMEOUT = (15, 60)  # seconds to connect, and between two pieces
_NUMPY: dict[str, Any] = {
    "numpy.core.multiarray._reconstruct": np.zeros(0).__reduce__()[0],  # its module has another name in NumPy 2
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
}


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
            check_archive(archive, card)
        else:
            _fetch(card, archive)
    if card.make is None:
        return extract(archive, data_root, card.folders[0])
    card.make(data_root)
    return data_root / card.folders[0]


def check_archive(archive: Path, card: DatasetCard) -> None:
    """Raises unless the archive has the official checksum (`md5:…` or `sha256:…`)."""
    algorithm, _, wanted = (card.checksum or "").partition(":")
    with os_errors(f"cannot read the archive {archive}"), progress(f"verifying the checksum of {archive.name}", None):
        found = checksum(archive, algorithm)
    if found != wanted:
        raise UserError(f"{archive} is not the official archive: its {algorithm} is not {wanted}; remove it")


def extract(archive: Path, target: Path, folder: str) -> Path:
    """Extracts the top folder `folder` of a tar file to `target`, all of it or nothing.

    Files that are in `target/folder` already are replaced by those of the archive; others stay.
    """
    # The filter repeats our checks where this Python has it, and drops owners and special bits.
    safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    try:
        with (
            staged_folder(target / folder) as staging,
            archive.open("rb") as file,
            tarfile.open(fileobj=file) as tar,
            progress(f"extracting {archive.name}", archive.stat().st_size, is_bytes=True) as bar,
        ):
            for member in tar:
                path = PureWindowsPath(member.name)  # which splits at / and \
                outside = path.anchor or ".." in path.parts or len(path.parts) > DEEPEST
                if outside or not (member.isfile() or member.isdir()):
                    problem = "is a link, leaves the folder or is nested too deeply"
                    raise UserError(f"{archive} is not safe: its member {member.name[:100]!r} {problem}")
                if len(path.parts) > 1 and path.parts[0] == folder:
                    member.name = "/".join(path.parts[1:])
                    tar.extract(member, staging, set_attrs=False, **safe)
                bar.update(file.tell() - bar.n)
            if not any(staging.iterdir()):
                raise UserError(f"{archive} holds no folder {folder}/; it is another archive")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read the archive {archive}: {error}; remove it to download it again") from error
    return target / folder


def write_cifar100(card: DatasetCard, data_root: Path) -> None:
    """Writes CIFAR-100's archive as `{train,test}/<class>/<number>.png`, unless it is missing or the folder exists."""
    folder, archive = data_root / card.folders[0], data_root / card.archive
    if folder.exists() or not archive.exists():
        return
    check_archive(archive, card)
    parts = read_cifar100(archive).items()
    images = [(part, *image) for part, (pixels, labels) in parts for image in zip(pixels, labels, strict=True)]
    with staged_folder(folder) as temporary, progress(f"writing the images of {archive.name}", len(images)) as bar:
        for number, (part, picture, label) in enumerate(images):  # numbered over both parts
            path = temporary / part / card.class_names[label] / f"{number:05d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(path, compress_level=1)
            bar.update(1)


def read_cifar100(archive: Path) -> dict[str, tuple[np.ndarray, list[int]]]:
    """Pixels [N, 32, 32, 3] and labels of `train` and `test`."""
    parts = {}
    with tarfile.open(archive) as tar:
        for part in ("train", "test"):
            file: Any = tar.extractfile(f"cifar-100-python/{part}")
            content = _Reader(file, encoding="bytes").load()
            pixels = content[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            parts[part] = np.ascontiguousarray(pixels), content[b"fine_labels"]
    return parts


class _Reader(pickle.Unpickler):
    """Reads NumPy arrays, lists and numbers; anything else in a pickle could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _NUMPY:
            raise UserError(f"the archive's pickle asks for {module}.{name}, which no list of images needs")
        return _NUMPY[f"{module}.{name}"]


def _fetch(card: DatasetCard, archive: Path) -> None:
    """Downloads the archive to its `.part`, continuing where an earlier attempt stopped, verifies and renames it."""
    import requests

    part, url = archive.with_name(archive.name + ".part"), str(card.url)
    elsewhere = f"download {url} by other means, put it at {archive} and run the same command again"
    failures, complete = 0, False
    while not complete:
        before = _size(part)
        try:
            complete = _stream(url, part, before)
        except requests.HTTPError as error:
            raise UserError(f"{url} answers {error.response.status_code}; {elsewhere}") from error
        except requests.RequestException as error:
            failures = failures + 1 if _size(part) <= before else 0
            if failures >= ATTEMPTS:
                raise UserError(
                    f"cannot download {url} ({type(error).__name__}, {_size(part):,} bytes are kept): "
                    f"run the same command again to continue, or {elsewhere}"
                ) from error
            time.sleep(PAUSE)
    try:
        check_archive(part, card)
    except UserError:
        part.unlink()
        raise UserError(f"what {url} sent is not the official archive: its checksum is not {card.checksum}") from None
    part.replace(archive)


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


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
    if total is not None and _size(part) < total:
        raise requests.ConnectionError(f"the connection ended at {_size(part)} of {total} bytes")
    return True

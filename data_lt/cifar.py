"""CIFAR-100's official archive → `{train,test}/<class>/<number>.png`, so that it is a folder of images like any other.

The archive holds pickles, which can run code when loaded. This unpickler knows three names of NumPy only, and replaces
them by an inert object that stores its arguments.
"""

import io
import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from data_lt.archive import check_archive
from data_lt.errors import UserError
from data_lt.files import staged_folder
from data_lt.progress import progress

SIDE = 32
LARGEST_MEMBER = 400_000_000  # bytes; the training images have 155 million
_NUMPY = {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}


def write_pictures(archive: Path, checksum: str, folder: Path, class_names: Sequence[str]) -> None:
    """Writes the pictures of the official archive to `folder`, which appears whole or not at all."""
    check_archive(archive, checksum)
    parts = read_archive(archive, class_names)
    number = 0
    total = sum(len(labels) for _, labels in parts.values())
    with staged_folder(folder) as temporary, progress(f"writing the images of {archive.name}", total) as advance:
        for part in parts:
            for name in class_names:
                (temporary / part / name).mkdir(parents=True)
        for part, (pixels, labels) in parts.items():
            for picture, label in zip(pixels, labels, strict=True):
                path = temporary / part / class_names[label] / f"{number:05d}.png"  # no number twice in the whole set
                Image.fromarray(picture).save(path, compress_level=1)  # 60,000 of them
                number += 1
                advance(1)


def read_archive(archive: Path, class_names: Sequence[str]) -> dict[str, tuple[np.ndarray, list[int]]]:
    """Pixels [N, 32, 32, 3] and labels of `train` and `test`; anything but such arrays and lists is refused."""
    try:
        with tarfile.open(archive) as tar:
            names = _load(tar, "meta")[b"fine_label_names"]
            if [name.decode() for name in names] != list(class_names):
                raise ValueError("its classes are not those of CIFAR-100")
            return {part: _table(_load(tar, part), len(names)) for part in ("train", "test")}
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(f"{archive} is not CIFAR-100's archive: {str(error) or type(error).__name__}") from error


def _load(tar: tarfile.TarFile, name: str) -> Any:
    member = tar.getmember(f"cifar-100-python/{name}")
    file = tar.extractfile(member) if member.isfile() and member.size <= LARGEST_MEMBER else None
    if file is None:
        raise ValueError(f"{member.name} is not a file of its size")
    return _Reader(io.BytesIO(file.read()), encoding="bytes").load()


class _Numpy:
    """Replaces NumPy's names in the pickle: stores its arguments and does nothing."""

    def __init__(self, *told: Any):
        self.told = told

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        if (module, name) not in _NUMPY:
            raise pickle.UnpicklingError(f"its pickle asks for {module}.{name}, which no list of images needs")
        return _Numpy


def _table(content: Any, classes: int) -> tuple[np.ndarray, list[int]]:
    """The pixels and labels of one pickle."""
    labels = content[b"fine_labels"]
    _, shape, kind, by_column, raw = content[b"data"].state
    if kind.told[0] != b"u1" or shape != (len(labels), 3 * SIDE * SIDE):
        raise ValueError("its pixels are not bytes of 32 × 32 images, one for each label")
    if not all(type(label) is int and 0 <= label < classes for label in labels):
        raise ValueError(f"its labels are not numbers from 0 to {classes - 1}")
    pixels = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_column else "C")
    return np.ascontiguousarray(pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)), labels

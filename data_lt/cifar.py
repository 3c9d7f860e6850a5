"""Writes CIFAR-100's official archive as `{train,test}/<class>/<number>.png`, a folder of images like any other."""

import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from data_lt.cards import DatasetCard
from data_lt.download import check_archive
from data_lt.errors import UserError
from data_lt.files import staged_folder
from data_lt.progress import progress


def write_pictures(card: DatasetCard, data_root: Path) -> None:
    """Writes the images of the official archive below the data root, unless it is missing or the folder exists."""
    folder, archive = data_root / card.folders[0], data_root / card.archive
    if folder.exists() or not archive.exists():
        return
    check_archive(archive, card.checksum or "")
    parts = read_archive(archive)
    number = 0
    total = sum(len(labels) for _, labels in parts.values())
    with staged_folder(folder) as temporary, progress(f"writing the images of {archive.name}", total) as bar:
        for part, (pixels, labels) in parts.items():
            for name in card.class_names:
                (temporary / part / name).mkdir(parents=True)
            for picture, label in zip(pixels, labels, strict=True):
                path = temporary / part / card.class_names[label] / f"{number:05d}.png"  # numbered over both parts
                Image.fromarray(picture).save(path, compress_level=1)
                number += 1
                bar.update(1)


def read_archive(archive: Path) -> dict[str, tuple[np.ndarray, list[int]]]:
    """Pixels [N, 32, 32, 3] and labels of `train` and `test`."""
    parts = {}
    with tarfile.open(archive) as tar:
        for part in ("train", "test"):
            file: Any = tar.extractfile(f"cifar-100-python/{part}")
            content = _Reader(file, encoding="bytes").load()
            pixels = content[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            parts[part] = np.ascontiguousarray(pixels), content[b"fine_labels"]
    return parts


_NUMPY: dict[str, Any] = {
    "numpy.core.multiarray._reconstruct": np.zeros(0).__reduce__()[0],  # its module has another name in NumPy 2
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
}


class _Reader(pickle.Unpickler):
    """Reads NumPy arrays, lists and numbers; anything else in a pickle could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _NUMPY:
            raise UserError(f"the archive's pickle asks for {module}.{name}, which no list of images needs")
        return _NUMPY[f"{module}.{name}"]

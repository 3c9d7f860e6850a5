"""What the tests of the dataset builders share: official name lists, and small image folders on a disk."""

import io
import lzma
from collections import defaultdict
from pathlib import Path

import numpy as np
from PIL import Image

OFFICIAL = Path(__file__).parent / "official"


def unpack(name):
    return lzma.decompress((OFFICIAL / name).read_bytes())


def by_class(paths):
    groups = defaultdict(list)
    for path in paths:
        label, name = path.split("/")
        groups[label].append(name)
    return dict(groups)


def cub_files():
    """The 11,788 paths of CUB-200-2011, each with whether it is in the official training set."""
    lines = unpack("cub.txt.xz").decode().splitlines()
    return {path: flag == "1" for path, flag in (line.split() for line in lines)}


def imagenetr_files():
    """The 30,000 paths of ImageNet-R."""
    return unpack("imagenetr.txt.xz").decode().splitlines()


def food101_files():
    """The official training and test paths of Food-101, without extension.

    The file holds the class names (a line), then for the sorted ids of all classes the bytes of the
    differences, lowest byte first and byte plane by byte plane, then a bit an image: 1 for the official test.
    """
    head, _, rest = unpack("food101.xz").partition(b"\n")
    classes, size = head.decode().split(" "), 101 * 1000
    planes = np.frombuffer(rest[: 3 * size], np.uint8).reshape(3, 101, 1000).astype(np.int64)
    ids = np.cumsum(planes[0] + 256 * planes[1] + 65536 * planes[2], axis=1)
    test = np.unpackbits(np.frombuffer(rest[3 * size :], np.uint8))[:size].reshape(101, 1000).astype(bool)
    return tuple(
        [f"{label}/{id_}" for label, row, chosen in zip(classes, ids, mask, strict=True) for id_ in row[chosen]]
        for mask in (~test, test)
    )


def official_pools(dataset):
    """(names to sample from, names to test on or None), as the builder reads them from a complete copy."""
    if dataset == "cub_lt":
        return by_class(cub_files()), None
    if dataset == "imagenetr_lt":
        return by_class(imagenetr_files()), None
    return tuple(by_class(f"{path}.jpg" for path in part) for part in food101_files())


def jpeg(size=8):
    """The bytes of a small real picture."""
    buffer = io.BytesIO()
    ramp = np.arange(size * size * 3, dtype=np.uint8).reshape(size, size, 3)
    Image.fromarray(ramp).save(buffer, "JPEG")
    return buffer.getvalue()


def write_files(root, paths, content=b""):
    """Writes one file a path below `root`."""
    for folder in {str(Path(path).parent) for path in paths}:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for path in paths:
        (root / path).write_bytes(content)


def make_folder(root, sizes, content=None):
    """`root/class/000.jpg …` with so many pictures a class; returns `root`."""
    content = jpeg() if content is None else content
    write_files(root, [f"{k}/{i:03d}.jpg" for k, n in sizes.items() for i in range(n)], content)
    return root


def few_classes(tmp_path, count=5):
    files = {k: v for k, v in by_class(cub_files()).items() if len(v) == 60}
    chosen = dict(list(files.items())[:count])
    write_files(tmp_path / "CUB_200_2011/images", [f"{k}/{name}" for k, names in chosen.items() for name in names])
    return tmp_path, chosen

"""CIFAR-100 from an archive in the official format, small and of our own making; evil pickles are refused."""

import dataclasses
import hashlib
import io
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest
from PIL import Image

from data_lt import CARDS, prepare
from data_lt.download import download, read_cifar100
from data_lt.errors import UserError

CARD = CARDS["cifar100_lt"]
TRAIN, TEST = 6, 3  # images a class in the small archive


class Global(str):
    """`module name`, which a pickle asks for."""


class Reduced(tuple):
    """(function, arguments, state): what a pickle calls, and tells the result."""


def python2(value):
    """Opcodes of protocol 2 as Python 2 wrote them: a string is bytes."""
    if isinstance(value, Global):
        return b"c" + value.replace(" ", "\n").encode() + b"\n"
    if isinstance(value, Reduced):
        function, arguments, state = value
        return python2(function) + python2(arguments) + b"R" + (b"" if state is None else python2(state) + b"b")
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, bool | None):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(python2, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(python2, value)) + b"t"
    return b"}(" + b"".join(python2(key) + python2(item) for key, item in value.items()) + b"u"


def array(values, kind=b"u1", order="C"):
    dtype = Reduced((Global("numpy dtype"), (kind, 0, 1), (3, b"|", None, None, None, -1, -1, 0)))
    start = Global("numpy.core.multiarray _reconstruct"), (Global("numpy ndarray"), (0,), b"b")
    return Reduced((*start, (1, values.shape, dtype, order == "F", values.tobytes(order))))


def pixels_of(number):
    return np.random.RandomState(number).randint(0, 256, 3072).astype(np.uint8)


def tables():
    names = [name.encode() for name in CARD.class_names]
    made = {"meta": {b"fine_label_names": names, b"coarse_label_names": [b"fish"]}}
    number = 0
    for part, images in (("train", TRAIN), ("test", TEST)):
        labels = [label for _ in range(images) for label in range(100)]
        data = np.stack([pixels_of(number + k) for k in range(len(labels))])
        number += len(labels)
        made[part] = {
            b"data": array(data, order="C" if part == "train" else "F"),
            b"fine_labels": labels,
            b"batch_label": b"of one",
        }
    return made


def write(path, **changed):
    """Writes an archive; `changed` gives pickles in place of the usual ones."""
    with tarfile.open(path, "w:gz") as tar:
        for name, table in tables().items():
            content = changed.get(name) or b"\x80\x02" + python2(table) + b"."
            info = tarfile.TarInfo(f"cifar-100-python/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def official(tmp_path, monkeypatch):
    """A data root with the small archive, and a card that takes it for the official one."""
    archive = write(tmp_path / CARD.archive)
    checksum = f"md5:{hashlib.md5(archive.read_bytes()).hexdigest()}"
    card = dataclasses.replace(CARD, checksum=checksum, images=900, n_max=5, n_min=2, test_per_class=TEST)
    monkeypatch.setitem(CARDS, "cifar100_lt", card)
    return tmp_path


def test_numpy_reads_the_test_pickles():
    data = np.arange(6, dtype=np.uint8).reshape(2, 3)
    content = b"\x80\x02" + python2({b"data": array(data), b"fine_labels": [0, -1]}) + b"."
    again = pickle.loads(content, encoding="bytes")
    assert (again[b"data"] == data).all() and again[b"data"].dtype == np.uint8 and again[b"fine_labels"] == [0, -1]


def test_archive_is_converted_to_images_and_a_set(official):
    made = prepare("cifar100_lt", official)
    folder = official / "cifar100"
    assert made.root == folder and made.class_names == list(CARD.class_names)
    assert len(list(folder.rglob("*.png"))) == 900
    frame = made.frame
    assert (frame[frame.split == "test"].label.value_counts() == TEST).all()
    assert all(path.startswith(f"{split}/") for path, split in zip(frame.path, frame.split, strict=True))
    assert (made.law["law"], made.law["largest"], made.law["smallest"]) == ("exponential", 5, 2)
    for number in (0, 99, 250, 899):  # 100 classes in turn, test images after the training images
        part = "train" if number < 100 * TRAIN else "test"
        path = folder / part / CARD.class_names[number % 100] / f"{number:05d}.png"
        expected = pixels_of(number).reshape(3, 32, 32)
        with Image.open(path) as image:
            assert (np.asarray(image) == np.moveaxis(expected, 0, 2)).all()


def test_images_are_written_once_and_a_missing_one_is_noticed(official):
    first = prepare("cifar100_lt", official)
    (official / CARD.archive).unlink()
    assert prepare("cifar100_lt", official / "cifar100").checksum == first.checksum
    next((official / "cifar100/train/wolf").iterdir()).unlink()
    with pytest.raises(UserError, match=r"holds 899 images, but CIFAR100-LT has 900; remove the folder; get them"):
        prepare("cifar100_lt", official)


def test_download_takes_an_archive_put_there_by_hand(official):
    assert download(CARDS["cifar100_lt"], official) == official / "cifar100"
    assert (official / "cifar100/test/train").is_dir()  # a class is called so


def test_without_archive_and_images_other_folders_are_not_taken_for_classes(tmp_path):
    (tmp_path / "CUB_200_2011/images").mkdir(parents=True)
    with pytest.raises(UserError, match=r"no images of CIFAR100-LT below .*build cifar100_lt --download"):
        prepare("cifar100_lt", tmp_path)


def test_another_archive_and_a_folder_of_its_name_are_refused(tmp_path):
    write(tmp_path / CARD.archive)
    with pytest.raises(UserError, match=r"is not the official archive: its sha256 is not 85cd44d0"):
        prepare("cifar100_lt", tmp_path)
    (tmp_path / CARD.archive).unlink()
    (tmp_path / CARD.archive).mkdir()
    with pytest.raises(UserError, match=r"cannot read the archive .*cifar-100-python.tar.gz: Is a directory"):
        prepare("cifar100_lt", tmp_path)


def test_full_disk_leaves_no_folder(official, monkeypatch):
    saved, save = [], Image.Image.save

    def full(self, path, **options):
        saved.append(path)
        if len(saved) == 500:
            raise OSError(28, "No space left on device")
        save(self, path, **options)

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(UserError, match="cifar100: No space left on device"):
        prepare("cifar100_lt", official)
    assert [path.name for path in official.iterdir()] == [CARD.archive]


def whole(value):
    return b"\x80\x02" + python2(value) + b"."


def evil(function, *arguments):
    return whole({b"data": Reduced((Global(function), arguments, None)), b"fine_labels": [0]})


EVIL = {
    "a command": evil("os system", b"touch evil"),
    "a command by another name": evil("posix system", b"touch evil"),
    "eval": evil("builtins eval", b"open('evil', 'w')"),
    "eval of Python 2": evil("__builtin__ eval", b"open('evil', 'w')"),
    "attributes": evil("builtins getattr", b"a", b"b"),
    "a file of NumPy": evil("numpy load", b"evil"),
    "another of NumPy's pieces": evil("numpy.core.multiarray scalar", b"evil"),
    "a new protocol": pickle.dumps(os.system),
}


@pytest.mark.parametrize("content", EVIL.values(), ids=EVIL)
def test_malicious_pickles_are_rejected(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"pickle asks for \w+\.[\w.]+, which no list of images needs"):
        read_cifar100(write(tmp_path / "a.tar.gz", train=content))
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]

"""The images of a run by index."""

import numpy as np
import pytest
from PIL import Image

from data_lt.errors import UserError
from pilot_tal.stream import store as module
from pilot_tal.stream.store import ImageStore


def save(folder, count=3, size=(10, 20)):
    for number in range(count):
        Image.new("RGB", size, (number, 0, 0)).save(folder / f"{number}.png")
    return [f"{number}.png" for number in range(count)]


def test_images_come_by_index(tmp_path):
    store = ImageStore(tmp_path, save(tmp_path), "off")
    assert [store[index].getpixel((0, 0)) for index in (2, 0, 1)] == [(2, 0, 0), (0, 0, 0), (1, 0, 0)]
    assert store[0].mode == "RGB" and store[0].size == (10, 20) and not store.in_memory


def test_16_bit_images_keep_their_brightness(tmp_path):
    Image.fromarray(np.full((4, 4), 25_700, np.uint16)).save(tmp_path / "x.png")
    assert ImageStore(tmp_path, ["x.png"])[0].getpixel((0, 0)) == (100, 100, 100)


@pytest.mark.parametrize("cache", ["on", "off"])
def test_only_the_cache_outlives_the_file(tmp_path, cache):
    store = ImageStore(tmp_path, save(tmp_path, 1), cache)
    store.keep([0])
    (tmp_path / "0.png").unlink()
    if cache == "on":
        assert store[0].size == (10, 20)
    else:
        with pytest.raises(UserError, match=r"cannot read the image .*0\.png: No such file"):
            store[0]


def test_auto_caches_images_that_fit_into_memory(tmp_path, monkeypatch):
    paths = save(tmp_path, 100)
    bytes_needed = 100 * 10 * 20 * 3 / module.MEMORY_SHARE
    for free, expected in ((bytes_needed * 1.01, True), (bytes_needed * 0.99, False)):
        monkeypatch.setattr(module, "free_memory", lambda free=free: free)
        assert ImageStore(tmp_path, paths).in_memory is expected


def test_unreadable_image_does_not_stop_the_estimate(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "free_memory", lambda: 1)
    paths = save(tmp_path)
    (tmp_path / "1.png").write_bytes(b"")
    store = ImageStore(tmp_path, paths)
    assert not store.in_memory and store[0].size == (10, 20)
    with pytest.raises(UserError, match=r"1\.png: empty file; replace it by an intact copy"):
        store[1]


def test_broken_image_is_named(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nno picture")
    with pytest.raises(UserError, match=r"cannot read the image .*bad\.png"):
        ImageStore(tmp_path, ["bad.png"])[0]

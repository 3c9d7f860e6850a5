"""The demo's pictures: readable characters that depend on their seed alone, and folders that appear whole."""

import hashlib
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from data_lt import demo, pareto_counts, prepare
from data_lt.demo import (
    CHARACTERS,
    TEST_FONTS,
    TRAIN_FONTS,
    build_demo,
    class_name,
    covered,
    demo_counts,
    demo_list,
    demo_picture,
    draw,
    font_path,
    glyph,
    paint,
    pose,
)
from data_lt.errors import UserError
from data_lt.files import write_json

BRIGHTNESS = np.array([0.299, 0.587, 0.114])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build_demo(tmp_path_factory.mktemp("data"))


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_character_has_a_glyph_of_its_own_in_every_font():
    assert len(set(CHARACTERS)) == len(CHARACTERS) == 50
    assert not set(TRAIN_FONTS) & set(TEST_FONTS)
    for font in (*TRAIN_FONTS, *TEST_FONTS):
        absent = next(chr(code) for code in range(0xE000, 0xF900) if code not in covered(font))
        with pytest.raises(UserError, match="has no glyph for"):
            glyph(absent, font)
        box = Image.new("L", (100, 100))  # what an absent character looks like: an empty box
        writer = ImageFont.truetype(str(font_path(font)), demo._POINTS, layout_engine=ImageFont.Layout.BASIC)
        ImageDraw.Draw(box).text((10, 10), absent, fill=255, font=writer)
        shapes = {glyph(char, font).tobytes() for char in CHARACTERS} | {box.crop(box.getbbox()).tobytes()}
        assert len(shapes) == 51, font


def test_class_names_differ_on_any_file_system():
    names = [class_name(char) for char in CHARACTERS]
    assert all(re.fullmatch(r"U[0-9A-F]{4}_[A-Za-z0-9_]+", name) for name in names)
    assert len({name.casefold() for name in names}) == 50
    assert names == sorted(names) == list(demo_counts())
    assert class_name("A") == "U0041_A" and class_name("δ") == "U03B4_greek_delta"
    assert class_name("Δ") == "U0394_Greek_Delta" and class_name("&") == "U0026_ampersand"


def test_class_counts_are_the_shuffled_profile():
    counts = list(demo_counts().values())
    assert sorted(counts, reverse=True) == pareto_counts(50, 100, 5)
    ranks = np.argsort(np.argsort(counts))
    assert abs(np.corrcoef(ranks, np.arange(50))[0, 1]) < 0.3  # class index and size have nothing to do with each other
    assert len(demo_list("train")) == sum(counts) and len(demo_list("test")) == 50 * 20


def test_picture_depends_only_on_its_number():
    wanted = [("train", "Ж", 3), ("test", "Ж", 3), ("train", "Ж", 4), ("train", "g", 3)]
    first = [demo_picture(*key) for key in wanted]
    again = [demo_picture(*key) for key in reversed(wanted)][::-1]
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert all(picture.shape == (32, 32, 3) and picture.dtype == np.uint8 for picture in first)
    assert len({picture.tobytes() for picture in first}) == 4


def test_training_and_test_pictures_share_no_font(monkeypatch):
    used = {"train": {}, "test": {}}
    for split in used:
        monkeypatch.setattr(demo, "draw", lambda char, font, rng, to=used[split]: to.setdefault(char, []).append(font))
        for char, number in demo_list(split):
            demo_picture(split, char, number)
    assert {font for fonts in used["train"].values() for font in fonts} == set(TRAIN_FONTS)
    assert all(sorted(fonts) == sorted(TEST_FONTS * 5) for fonts in used["test"].values())
    assert all(len(set(fonts)) == min(len(fonts), len(TRAIN_FONTS)) for fonts in used["train"].values())


def test_every_character_is_inside_its_image_and_visible():
    for i, char in enumerate(CHARACTERS * 6):
        rng = np.random.default_rng(i)
        cover = pose(char, TRAIN_FONTS[i % 12], rng)
        picture = paint(cover, rng) @ BRIGHTNESS
        border = np.concatenate([cover[0], cover[-1], cover[:, 0], cover[:, -1]])
        assert border.sum() < 0.05 * cover.sum()
        assert abs((picture * cover).sum() / cover.sum() - (picture * (1 - cover)).sum() / (1 - cover).sum()) > 0.12


def test_folder_contains_images_and_info(built):
    info = json.loads((built / "info.json").read_text(encoding="utf-8"))
    pixels = hashlib.sha256()
    for split in ("train", "test"):
        for char, number in demo_list(split):
            with Image.open(built / split / class_name(char) / f"{number:03d}.png") as image:
                picture = np.asarray(image)
            assert np.array_equal(picture, demo_picture(split, char, number)), (split, char, number)
            pixels.update(picture.tobytes())
    assert info["pixels_sha256"] == pixels.hexdigest()
    assert info["train_counts"] == demo_counts() and info["seed"] == 1993 and info["version"] == demo.VERSION
    assert len(files(built)) == 1 + 1099 + 1000


def test_second_call_draws_nothing_unless_an_image_is_missing(built, monkeypatch):
    before = files(built)
    drawn = []
    monkeypatch.setattr(demo, "draw", lambda *given: drawn.append(given) or draw(*given))
    assert build_demo(built.parent) == built and not drawn
    (built / "train/U0041_A/001.png").unlink()
    build_demo(built.parent)
    assert drawn and files(built) == before


def test_demo_folder_is_written_atomically(tmp_path, monkeypatch):
    drawn = []

    def stop(*given):
        drawn.append(given)
        if len(drawn) == 5:
            raise KeyboardInterrupt
        return draw(*given)

    monkeypatch.setattr(demo, "draw", stop)
    with pytest.raises(KeyboardInterrupt):
        build_demo(tmp_path)
    assert len(drawn) == 5 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("info", [{"dataset": "demo_lt", "version": 0, "seed": 1993}, [1], "text"])
def test_folder_of_other_pictures_is_refused(tmp_path, info):
    write_json(tmp_path / "demo_lt/info.json", info)
    with pytest.raises(UserError, match="remove the folder"):
        build_demo(tmp_path)


def test_demo_of_an_earlier_version_is_refused_and_kept(tmp_path, built):
    shutil.copytree(built, tmp_path / "demo_lt")
    info = json.loads((built / "info.json").read_text(encoding="utf-8"))
    write_json(tmp_path / "demo_lt/info.json", {**info, "version": info["version"] - 1})
    before = files(tmp_path)
    with pytest.raises(UserError, match="remove the folder"):
        build_demo(tmp_path)
    assert files(tmp_path) == before


def test_errors_name_the_cause(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*file/demo_lt"):
        build_demo(tmp_path / "file")
    (tmp_path / "demo_lt").mkdir()
    with pytest.raises(UserError, match=r"holds other images .* remove the folder"):
        build_demo(tmp_path)
    with pytest.raises(UserError, match="the font 'Comic' is missing"):
        draw("A", "Comic", np.random.default_rng(0))


def test_prepare_draws_the_set_and_keeps_its_folders(built, tmp_path):
    found = prepare("demo_lt", built.parent)
    assert found.class_names == list(demo_counts()) and found.root == built
    frame = found.frame
    training = frame[frame.split == "train"]
    assert training.groupby("label").size().tolist() == list(demo_counts().values())
    assert (frame[frame.split == "test"].groupby("label").size() == 20).all()
    assert all(path.startswith(f"{split}/") for path, split in zip(frame.path, frame.split, strict=True))
    assert all((built / path).is_file() for path in frame.path)
    assert prepare("demo_lt", tmp_path / "new").checksum == found.checksum

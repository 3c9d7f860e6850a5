"""Photographs of every Pillow mode against known pixels; what is no photograph is refused."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from data_lt.errors import UserError
from data_lt.pictures import picture_size, read_picture, to_rgb, verify_images

GREY8 = [[0, 100], [200, 255]]
GREY16 = [[0, 25_700], [51_455, 65_535]]  # the same greys in 16 bits; the third one's lower byte is 255
COLOURS = [[(0, 0, 0), (10, 20, 30)], [(200, 100, 50), (255, 255, 255)]]


def rgb(image):
    return np.asarray(to_rgb(image)).tolist()


def grey(levels):
    return [[[level] * 3 for level in row] for row in levels]


def colours(alpha=None):
    rows = [[(*c, alpha) if alpha is not None else c for c in row] for row in COLOURS]
    return Image.fromarray(np.array(rows, np.uint8))


def with_palette(transparency=None):
    image = Image.new("P", (2, 2))
    image.putpalette([value for row in COLOURS for colour in row for value in colour])
    image.putdata([0, 1, 2, 3])
    if transparency is not None:
        image.info["transparency"] = transparency
    return image


def wide(mode):
    image = Image.new(mode, (2, 2))
    for y, row in enumerate(GREY16):
        for x, level in enumerate(row):
            image.putpixel((x, y), level)
    return image


EXACT = [[list(c) for c in row] for row in COLOURS]
MODES = {
    "1": (Image.fromarray(np.array([[0, 255], [255, 0]], np.uint8)).convert("1"), grey([[0, 255], [255, 0]])),
    "L": (Image.fromarray(np.array(GREY8, np.uint8)), grey(GREY8)),
    "LA": (Image.fromarray(np.dstack([GREY8, np.full((2, 2), 7)]).astype(np.uint8)), grey(GREY8)),
    "P": (with_palette(), EXACT),
    "P, one colour transparent": (with_palette(1), EXACT),
    "P, degrees of transparency": (with_palette(bytes([0, 60, 200, 255])), EXACT),
    "RGB": (colours(), EXACT),
    "RGBA": (colours(alpha=5), EXACT),
    "CMYK": (colours().convert("CMYK"), EXACT),
    "I;16": (wide("I;16"), grey(GREY8)),
    "I;16L": (wide("I;16L"), grey(GREY8)),
    "I;16B": (wide("I;16B"), grey(GREY8)),
    "I": (wide("I"), grey(GREY8)),
    "F to 255": (Image.fromarray(np.array(GREY8, np.float32)), grey(GREY8)),
    "F to 1": (Image.fromarray(np.array(GREY8, np.float32) / np.float32(255)), grey(GREY8)),
}


@pytest.mark.parametrize(("image", "expected"), MODES.values(), ids=MODES)
def test_every_mode_gives_known_pixels(image, expected):
    assert rgb(image) == expected


def test_ycbcr_gives_known_pixels_within_its_rounding():
    assert np.abs(np.array(rgb(colours().convert("YCbCr"))) - np.array(EXACT)).max() <= 2


@pytest.mark.parametrize("wrong", [[[-1.0, 2.0]], [[0.0, 256.0]], [[0.0, float("nan")]], [[float("inf"), 1.0]]])
def test_floats_outside_a_picture_are_refused(wrong):
    with pytest.raises(UserError, match="those of an image from 0 to"):
        to_rgb(Image.fromarray(np.array(wrong, np.float32)))
    with pytest.raises(UserError, match="from -1 to 5, those of an image from 0 to 65535"):
        to_rgb(Image.fromarray(np.array([[-1, 5]], np.int32)))


def png16(colour_type, samples):
    """A 2 × 1 PNG of 16-bit samples, written without a library."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    lines = b"\0" + struct.pack(f">{len(samples)}H", *samples)
    header = struct.pack(">IIBBBBB", 2, 1, 16, colour_type, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize(
    ("colour_type", "samples", "expected"),
    [
        (0, [25_700, 51_455], [[100] * 3, [200] * 3]),
        (4, [25_700, 9, 51_455, 9], [[100] * 3, [200] * 3]),
        (2, [25_700, 0, 65_535, 256, 512, 1023], [[100, 0, 255], [1, 2, 3]]),
        (6, [25_700, 0, 65_535, 9, 256, 512, 1023, 9], [[100, 0, 255], [1, 2, 3]]),
    ],
)
def test_16_bit_pngs_keep_their_brightness(tmp_path, colour_type, samples, expected):
    (tmp_path / "x.png").write_bytes(png16(colour_type, samples))
    assert np.asarray(read_picture(tmp_path / "x.png")).tolist() == [expected]


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def test_exif_orientation_is_reported_but_not_applied(tmp_path):
    for orientation in (1, 3, 6):
        colours().resize((40, 20)).save(tmp_path / f"{orientation}.png", exif=exif(orientation))
    colours().resize((40, 20)).save(tmp_path / "none.png")
    pictures = [np.asarray(read_picture(path)) for path in sorted(tmp_path.iterdir())]
    assert pictures[0].shape == (20, 40, 3)
    assert all((picture == pictures[0]).all() for picture in pictures)
    assert verify_images(tmp_path, ["1.png", "3.png", "6.png", "none.png"]) == (4, 2)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_documented_kinds_open_under_any_name(tmp_path, kind):
    colours().save(tmp_path / "x.jpg", kind, **({"lossless": True} if kind == "WEBP" else {}))
    assert read_picture(tmp_path / "x.jpg").mode == "RGB" and picture_size(tmp_path / "x.jpg") == (2, 2)


@pytest.mark.parametrize("kind", ["EPS", "TIFF", "PCX", "TGA", "ICO", "PPM", "PDF"])
def test_other_kinds_do_not_open_as_png(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    colours().resize((32, 32)).save(tmp_path / "x.png", kind)
    with pytest.raises(UserError, match=r"the image .*x\.png: not an image of the kinds JPEG.*an intact copy"):
        read_picture(tmp_path / "x.png")
    assert picture_size(tmp_path / "x.png") is None
    with pytest.raises(UserError, match="not an image"):
        verify_images(tmp_path, ["x.png"])


def test_decompression_bomb_raises_user_error(tmp_path):
    header = png16(0, [1, 2]).replace(struct.pack(">II", 2, 1), struct.pack(">II", 60_000, 60_000))
    checked = header[12:29]
    (tmp_path / "x.png").write_bytes(header.replace(header[29:33], struct.pack(">I", zlib.crc32(checked)), 1))
    with pytest.raises(UserError, match=r"x\.png: more than [\d,]+ pixels; replace it by an intact copy"):
        read_picture(tmp_path / "x.png")


def test_any_damage_raises_user_error(tmp_path):
    """Every kind, cut and scribbled on in many places: a picture, or one sentence with the file's name."""
    refused = 0
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP"):
        buffer = io.BytesIO()
        Image.effect_noise((24, 24), 60).convert("RGB").save(buffer, kind)
        whole = buffer.getvalue()
        for place in np.linspace(0, len(whole) - 1, 60).astype(int):
            for damaged in (whole[:place], whole[:place] + b"\xff\x00\xff" + whole[place + 3 :]):
                (tmp_path / "x.jpg").write_bytes(damaged)
                try:
                    read_picture(tmp_path / "x.jpg")
                except UserError as error:
                    refused += 1
                    assert "x.jpg" in str(error) and "\n" not in str(error)
    assert refused > 200

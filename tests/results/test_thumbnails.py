"""Thumbnails show what the predictions hold, and are left out where the image files are gone."""

import base64
import io
import shutil

import numpy as np
import pytest
from PIL import Image
from synthetic_runs import long_tailed_counts, write_comparison

from pilot_tal.results import build_report, load_study
from pilot_tal.results.images import CLASSES, SIDE, thumbnails

SMALL = {"task_sizes": (4, 4), "counts": long_tailed_counts(8, 30, 3), "tests": 5, "steps_a_task": 2, "seeds": (1,)}


@pytest.fixture
def runs(tmp_path):
    """CE and TAL, and the images that their predictions name: the colour of an image is its number."""
    photos = tmp_path / "photos"
    write_comparison(tmp_path / "runs", environment=({"images": str(photos)},), **SMALL)
    run = load_study([tmp_path / "runs"]).runs[0]
    for number, name in enumerate(run.images(1)):
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (200, 100), (5 * number, 0, 0)).save(photos / name)
    return tmp_path / "runs"


def test_thumbnails_are_images_of_their_class_and_of_its_confusions(runs):
    (group,) = load_study([runs]).groups
    variant, found = thumbnails(group)
    classes, run = group.classes(), variant.runs[1]
    assert variant is group.compared_variants()[0]
    places = [*classes.order[:CLASSES], *classes.order[-CLASSES:]]
    assert [item.name for item in found] == [classes.names[k] for k in places]
    assert [item.part for item in found] == ["head"] * CLASSES + ["tail"] * CLASSES
    names, (true, pred) = run.record.stream.class_names, run.labels[-1]
    for item in found:
        own = np.flatnonzero(np.array(names, dtype=object)[true] == item.name)
        assert item.accuracy == pytest.approx(np.mean(pred[own] == true[own]))
        for url, taken_for in item.images:
            image = Image.open(io.BytesIO(base64.b64decode(url.split(",")[1])))
            number = round(image.getpixel((5, 5))[0] / 5)
            assert image.size == (SIDE, SIDE // 2) and number in own and names[pred[number]] == taken_for
        wrong = [taken_for for _, taken_for in item.images if taken_for != item.name]
        assert len(wrong) == len({*wrong}) == min(4, len({*pred[own]} - {*true[own]}))


def test_page_has_thumbnails_only_while_the_files_exist(runs, tmp_path):
    assert build_report([runs], tmp_path / "a").read_text().count("data:image/jpeg") > 6
    next((tmp_path / "photos").rglob("*.png")).write_bytes(b"broken")
    build_report([runs], tmp_path / "b")
    shutil.rmtree(tmp_path / "photos")
    assert "data:image/jpeg" not in build_report([runs], tmp_path / "c").read_text()

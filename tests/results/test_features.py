"""`report --features`: a map of the frozen features, with the images and weights of a real run."""

import sys
import types

import numpy as np
import pytest
from helpers.cli import command
from helpers.images import make_images

from data_lt.errors import UserError
from pilot_tal.results import load_study
from pilot_tal.results.images import feature_maps


class UMAP:
    """Takes the first two features for places."""

    def __init__(self, n_neighbors, random_state):
        assert n_neighbors == 11 and random_state == 0

    def fit_transform(self, features):
        return features[:, :2]


@pytest.fixture
def umap(monkeypatch):
    module = types.ModuleType("umap")
    module.UMAP = UMAP
    monkeypatch.setitem(sys.modules, "umap", module)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    images = make_images(folder / "images")
    settings = ["backbone=demo_vit", "weights=bundled", "n_max=6", "n_min=2", "test_per_class=2", "tasks=2"]
    for method in ("simplecil", "plda"):
        where = (f"data_root={images}", f"output={folder / 'runs'}")
        status, printed = command("run", method, "folder_lt", *settings, "device=cpu", *where)
        assert status == 0, printed
    return folder / "runs"


def test_map_has_every_test_image_once_per_dataset_and_vit(runs, umap):
    study = load_study([runs])
    (plot,) = feature_maps(study)
    run = study.runs[0]
    folder = runs.parent / "images"
    expected = run.model().features(folder / name for name in run.images(1))[:, :2]
    by_part, by_task = plot.figure.axes[:2]
    drawn = np.concatenate([np.column_stack(line.get_data()) for line in by_part.lines])
    assert {tuple(row) for row in drawn} == {tuple(row) for row in expected} and len(drawn) == 12
    np.testing.assert_array_equal(by_task.collections[0].get_offsets(), expected)
    assert by_task.collections[0].get_array().tolist() == [1] * 6 + [2] * 6


def test_report_has_the_map_on_request(runs, umap, tmp_path):
    status, printed = command("report", runs, "-o", tmp_path / "report", "--features")
    assert status == 0, printed
    assert "Frozen features" in (tmp_path / "report" / "index.html").read_text()


def test_missing_package_is_named_with_its_remedy(runs, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "umap", None)
    status, printed = command("report", runs, "-o", tmp_path / "report", "--features")
    assert status != 0 and "umap-learn" in printed and "install" in printed and "Traceback" not in printed
    assert not (tmp_path / "report").exists()


def test_missing_images_are_named(runs, umap):
    images = runs.parent / "images"
    images.rename(runs.parent / "moved")
    try:
        with pytest.raises(UserError, match="images"):
            feature_maps(load_study([runs]))
    finally:
        (runs.parent / "moved").rename(images)

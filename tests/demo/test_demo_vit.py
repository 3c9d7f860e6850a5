"""The ViT that ships with the demo: what the file holds, what it is worth, and how it was made."""

import importlib.util
import json
import sys
import unicodedata
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from data_lt.demo import CHARACTERS, TEST_FONTS, TRAIN_FONTS
from data_lt.files import checksum, read_json
from pilot_tal.backbone.load import DEMO_VIT, DEMO_WEIGHTS

SCRIPT = Path(__file__).parents[2] / "scripts" / "pretrain_demo_vit.py"


@pytest.fixture(scope="module")
def pretraining():
    spec = importlib.util.spec_from_file_location("pretrain_demo_vit", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def log():
    return read_json(DEMO_WEIGHTS.with_suffix(".log.json"))


def test_file_is_small_and_in_timms_names(pretraining, log):
    path = DEMO_WEIGHTS
    assert path.stat().st_size <= 5_000_000
    assert checksum(path) == log["sha256"]
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["architecture"]) == DEMO_VIT == log["architecture"]
    tensors = load_file(path)
    expected = pretraining.new_vit(0, 0).state_dict()
    assert {k: (v.shape, torch.float32) for k, v in expected.items()} == {
        k: (v.shape, v.dtype) for k, v in tensors.items()
    }
    assert all(value.isfinite().all() for value in tensors.values())
    assert sum(value.numel() for value in tensors.values()) == log["parameters"]


def test_frozen_features_are_three_times_as_good_as_random_ones(pretraining, log):
    pretrained = pretraining.demo_accuracy(load_file(DEMO_WEIGHTS))
    random, recorded = pretraining.demo_accuracy(pretraining.new_vit(0, 0).state_dict()), log["demo_simplecil"]
    assert pretrained >= 3 * max(random, *recorded["random_weights"])
    assert pretrained == pytest.approx(recorded["pretrained"], abs=0.01)  # other processors round otherwise
    assert 0.3 < pretrained < 0.95  # neither hopeless nor solved before anything is learned


def test_pretraining_saw_none_of_the_demos_characters_and_fonts(pretraining, log):
    characters = log["characters"]
    assert len(set(characters)) == len(characters) > 300
    assert tuple(log["fonts"]) == TRAIN_FONTS and not set(TRAIN_FONTS) & set(TEST_FONTS)

    bare = {unicodedata.normalize("NFKD", char)[0] for char in characters}  # without accents
    assert not bare & {*CHARACTERS, *(char.swapcase() for char in CHARACTERS)}
    for look_alike in "ВНКМТХаегуΑΒΕΗΚΜΤΧПГФÄéɡƁ":
        assert look_alike not in characters, look_alike
    assert log["settings"] == asdict(pretraining.Settings())
    assert 0 < log["cpu_seconds"] <= 1800 and log["threads"] == 1


def test_pretraining_gives_the_same_weights_again(pretraining):
    settings = pretraining.Settings(steps=10, batch=8)
    few = list("LNPUVWZ")

    def trained(settings):
        torch.use_deterministic_algorithms(True)
        try:
            model = pretraining.new_vit(len(few), settings.seed)
            history = pretraining.train(model, few, TRAIN_FONTS, settings)
        finally:
            torch.use_deterministic_algorithms(False)
        return pretraining.backbone_tensors(model), history

    start = pretraining.new_vit(0, 0).state_dict()
    first, history = trained(settings)
    again, same = trained(settings)
    assert history == same and len(history) == 10 and first.keys() == again.keys() == start.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], start[name]) for name in first)  # every tensor is trained


def test_lessons_grow_harder_and_each_has_its_own_number(pretraining):
    settings = pretraining.Settings(steps=10, batch=10, ramp=0.5)
    lessons = pretraining.Lessons(["U", "Ч"], TRAIN_FONTS, settings)
    assert len(lessons) == 100
    picture, ink, label = lessons[0]
    assert torch.equal(picture, (1 - ink).expand(3, -1, -1)) and label in (0, 1)  # black on white
    picture, ink, _ = lessons[60]
    assert picture.shape == (3, 32, 32) and picture.min() >= 0 and picture.max() <= 1
    assert not torch.equal(picture, lessons[61][0]) and torch.equal(picture, lessons[60][0])
    patches = pretraining.in_patches(ink[None])[0]
    side = DEMO_VIT["patch_size"]
    assert torch.equal(patches[5].view(side, side), ink[side : 2 * side, side : 2 * side])  # row 1, column 1 of 4 × 4

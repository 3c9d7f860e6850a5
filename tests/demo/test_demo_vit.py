"""The ViT that ships with the demo: what the file holds, what it is worth, and how it was made."""

import json
import unicodedata

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import pilot_tal._torchvision  # noqa: F401  (before timm)
from data_lt.demo import CHARACTERS, TEST_FONTS, TRAIN_FONTS, demo_list, demo_picture
from data_lt.files import checksum, read_json
from pilot_tal.api import create_learner
from pilot_tal.backbone import build_from_state
from pilot_tal.backbone.load import DEMO_VIT, DEMO_WEIGHTS
from pilot_tal.stream.task import TaskInfo

from timm.models.vision_transformer import VisionTransformer  # isort: skip


def random_vit(seed):
    torch.manual_seed(seed)
    return VisionTransformer(**DEMO_VIT, num_classes=0, weight_init="jax").state_dict()


def demo_accuracy(state):
    """Accuracy of SimpleCIL (nearest class mean, by cosine) on all characters of the demo in one task."""
    splits = []
    for split in ("train", "test"):
        listed = demo_list(split)
        pictures = np.stack([demo_picture(split, char, number) for char, number in listed])
        labels = torch.tensor([CHARACTERS.index(char) for char, _ in listed])
        splits.append((torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255, labels))
    learner = create_learner("simplecil", build_from_state(state, DEMO_VIT["num_heads"]), len(CHARACTERS), 1)
    (x, y), (test, truth) = splits
    learner.begin_task(TaskInfo(0, 1, 0, len(CHARACTERS), tuple(torch.bincount(y).tolist())))
    learner.end_task(lambda: [(x, y)])
    return (learner.scores(test).argmax(1) == truth).double().mean().item()


@pytest.fixture(scope="module")
def log():
    return read_json(DEMO_WEIGHTS.with_suffix(".log.json"))


def test_file_is_small_and_in_timms_names(log):
    path = DEMO_WEIGHTS
    assert path.stat().st_size <= 5_000_000
    assert checksum(path) == log["sha256"]
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["architecture"]) == DEMO_VIT == log["architecture"]
    tensors = load_file(path)
    expected = random_vit(0)
    assert {k: (v.shape, torch.float32) for k, v in expected.items()} == {
        k: (v.shape, v.dtype) for k, v in tensors.items()
    }
    assert all(value.isfinite().all() for value in tensors.values())
    assert sum(value.numel() for value in tensors.values()) == log["parameters"]


def test_frozen_features_are_three_times_as_good_as_random_ones(log):
    pretrained = demo_accuracy(load_file(DEMO_WEIGHTS))
    random, recorded = demo_accuracy(random_vit(0)), log["demo_simplecil"]
    assert pretrained >= 3 * max(random, *recorded["random_weights"])
    assert pretrained == pytest.approx(recorded["pretrained"], abs=0.01)  # other processors round otherwise
    assert 0.3 < pretrained < 0.95  # neither hopeless nor solved before anything is learned


def test_pretraining_saw_none_of_the_demos_characters_and_fonts(log):
    characters = log["characters"]
    assert len(set(characters)) == len(characters) > 300
    assert tuple(log["fonts"]) == TRAIN_FONTS and not set(TRAIN_FONTS) & set(TEST_FONTS)

    bare = {unicodedata.normalize("NFKD", char)[0] for char in characters}  # without accents
    assert not bare & {*CHARACTERS, *(char.swapcase() for char in CHARACTERS)}
    for look_alike in "ВНКМТХаегуΑΒΕΗΚΜΤΧПГФÄéɡƁ":
        assert look_alike not in characters, look_alike
    assert 0 < log["cpu_seconds"] <= 1800 and log["threads"] == 1

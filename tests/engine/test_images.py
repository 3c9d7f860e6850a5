"""Batches: their order and random crops depend on seeds alone."""

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import make_images

from pilot_tal import images
from pilot_tal.errors import PilotTalError
from pilot_tal.images import Batches, ImageStore, build_transforms, derive_seed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"), classes=2, images=5)


def batches(folder, workers=0, cache="auto", size=4, training=True):
    paths = sorted(str(path.relative_to(folder)) for path in folder.glob("*/*.png"))
    transform = build_transforms("pilot", 32)[0 if training else 1]
    store = ImageStore(folder, paths, cache)
    return Batches(store, range(10), [index // 5 for index in range(10)], transform, size, workers)


def collect(source, epochs=2, seed=3, **options):
    give = source.epochs(epochs, seed, **options)
    return [(x.clone(), y.clone()) for epoch in range(epochs) for x, y in give(epoch)]


def same(one, other):
    return len(one) == len(other) and all(
        torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(one, other, strict=True)
    )


def test_batches_do_not_depend_on_workers_or_on_the_cache(folder):
    wanted = collect(batches(folder))
    assert same(wanted, collect(batches(folder, cache="off")))
    assert same(wanted, collect(batches(folder, workers=2)))
    assert not same(wanted, collect(batches(folder), seed=4))


def test_epochs_differ_in_order_and_crops(folder):
    first, second = collect(batches(folder, size=10))
    assert not torch.equal(first[1], second[1])
    assert not torch.equal(first[0].sort(dim=0).values, second[0].sort(dim=0).values)


def test_batches_leave_the_global_random_numbers_alone(folder):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    collect(batches(folder))
    list(batches(folder, training=False).in_order())
    assert torch.equal(torch.get_rng_state(), before)


def test_last_batch_is_dropped_only_if_there_is_a_full_one(folder):
    assert [len(y) for _, y in collect(batches(folder), epochs=1)] == [4, 4, 2]
    assert [len(y) for _, y in collect(batches(folder), epochs=1, drop_last=True)] == [4, 4]
    assert [len(y) for _, y in collect(batches(folder, size=64), epochs=1, drop_last=True)] == [10]
    assert batches(folder).steps() == 3 and batches(folder).steps(drop_last=True) == 2
    assert [len(y) for _, y in collect(batches(folder), epochs=1, limit=1)] == [4]


def test_in_order_serves_each_image_once_with_its_place(folder):
    seen = list(batches(folder, training=False).in_order())
    assert torch.cat([ids for _, _, ids in seen]).tolist() == list(range(10))
    assert torch.cat([y for _, y, _ in seen]).tolist() == [0] * 5 + [1] * 5


@pytest.mark.parametrize("name", ["pilot", "coda", "characters"])
def test_transforms_give_pixels_from_0_to_1_in_the_right_size(name):
    image = Image.effect_noise((90, 50), 80).convert("RGB")
    for transform in build_transforms(name, 48):
        pixels = transform(image)
        assert pixels.shape == (3, 48, 48) and pixels.min() >= 0 and pixels.max() <= 1


def test_the_test_transform_resizes_256_to_224_and_crops_the_middle():
    image = Image.effect_noise((512, 256), 80).convert("RGB")
    _, test = build_transforms("pilot", 224)
    expected = image.crop((144, 16, 144 + 224, 16 + 224))
    got = (test(image).permute(1, 2, 0) * 255).round().byte().numpy()
    assert (got == np.asarray(expected)).all()


def test_a_broken_image_is_named(folder, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nno picture")
    with pytest.raises(PilotTalError, match=r"cannot read the image .*bad\.png"):
        ImageStore(tmp_path, ["bad.png"])[0]


def test_a_broken_image_in_a_worker_is_one_sentence(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    transform = build_transforms("pilot", 32)[1]
    broken = Batches(ImageStore(tmp_path, ["bad.png"], "off"), [0], [0], transform, 1, workers=1)
    with pytest.raises(PilotTalError) as caught:
        list(broken.in_order())
    assert str(caught.value).startswith("cannot read the image") and "\n" not in str(caught.value)


def test_free_memory_respects_a_container(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "CGROUP", tmp_path)
    machine = images.free_memory()
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert images.free_memory() == 3000 < machine
    (tmp_path / "memory.max").write_text("max\n")
    assert images.free_memory() > 3000


def test_unknown_transform_is_refused():
    with pytest.raises(PilotTalError, match="unknown transform 'pilots': did you mean 'pilot'"):
        build_transforms("pilots", 32)


def test_derived_seeds_are_fixed_for_ever():
    assert derive_seed("task", 1993, 0) == 35135034685338635
    assert derive_seed("task", 1993, 0) != derive_seed("task", 1993, 1)

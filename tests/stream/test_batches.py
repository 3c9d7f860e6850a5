"""Batches: their order and random crops depend on seeds alone."""

import os
import signal

import pytest
import torch
from helpers.images import make_images

from data_lt.errors import UserError
from pilot_tal.stream.batches import Batches, derive_seed
from pilot_tal.stream.store import ImageStore
from pilot_tal.stream.transforms import build_transforms


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


def test_order_and_crops_are_drawn_from_seeds_that_never_change(folder):
    """A run of today ends as one of last year did."""
    source = batches(folder, size=10)
    for epoch, (x, y) in enumerate(collect(source, seed=3)):
        generator = torch.Generator().manual_seed(derive_seed("order", 3, epoch))
        order = torch.randperm(10, generator=generator).tolist()
        assert y.tolist() == [place // 5 for place in order]
        for image, place in zip(x, order, strict=True):
            torch.manual_seed(derive_seed("augment", 3, epoch, place))
            assert torch.equal(image, source.transform(source.store[place]))


def test_epochs_differ_in_order_and_crops(folder):
    first, second = collect(batches(folder, size=10))
    assert not torch.equal(first[1], second[1])
    assert not torch.equal(first[0].sort(dim=0).values, second[0].sort(dim=0).values)


def test_batches_do_not_change_the_global_random_state(folder):
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


def test_broken_image_in_a_worker_raises_user_error(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    transform = build_transforms("pilot", 32)[1]
    broken = Batches(ImageStore(tmp_path, ["bad.png"], "off"), [0], [0], transform, 1, workers=1)
    with pytest.raises(UserError) as caught:
        list(broken.in_order())
    assert str(caught.value).startswith("cannot read the image") and "\n" not in str(caught.value)


def test_worker_that_is_killed_raises_user_error(folder):
    def killed(_):
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory runs out

    dying = Batches(ImageStore(folder, ["class 0 é/00.png"], "off"), [0], [0], killed, 1, workers=1)
    with pytest.raises(UserError, match=r"^a process that decodes images was killed, .*; give workers=0 or fewer$"):
        list(dying.in_order())


def drawn_classes(counts, sampler, epochs=400, seed=0):
    """How often each class is drawn per epoch, without loading images."""
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    source = Batches(None, range(len(labels)), labels, None, batch_size=7)
    places = [
        key[1] for epoch in range(epochs) for chunk in source._shuffled(epoch, seed, False, sampler) for key in chunk
    ]
    return torch.bincount(torch.tensor([labels[place] for place in places]), minlength=len(counts)) / epochs


def test_samplers_draw_classes_in_proportion_to_a_power_of_their_counts():
    counts = (36, 9, 4, 1)  # 50 images; roots 6 + 3 + 2 + 1 = 12
    assert drawn_classes(counts, "natural", epochs=2).tolist() == list(counts)
    torch.testing.assert_close(drawn_classes(counts, "sqrt"), 50 * torch.tensor([6, 3, 2, 1]) / 12, rtol=0, atol=0.5)
    torch.testing.assert_close(drawn_classes(counts, "balanced"), torch.full((4,), 12.5), rtol=0, atol=0.5)


def test_images_drawn_again_in_an_epoch_get_other_crops(folder):
    source = batches(folder, size=10)
    source.labels = [0] * 9 + [1]  # one image makes up half of every epoch
    ((x, y),) = collect(source, epochs=1, sampler="balanced")
    again = [image for image, label in zip(x, y.tolist(), strict=True) if label == 1]
    assert len(again) > 1 and not any(torch.equal(again[0], other) for other in again[1:])
    assert same(collect(source, sampler="balanced"), collect(source, sampler="balanced"))
    assert source.steps() == 1 and len(y) == 10


def test_derived_seeds_are_fixed_for_ever():
    assert derive_seed("task", 1993, 0) == 35135034685338635
    assert derive_seed("task", 1993, 0) != derive_seed("task", 1993, 1)

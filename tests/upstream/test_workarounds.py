"""Each workaround alone: the trouble it cures, and that it leaves all else as it was."""

import logging
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import pilot_tal._torchvision  # noqa: F401
from pilot_tal.errors import PilotTalError
from pilot_tal.upstream import workarounds
from pilot_tal.upstream.job import Data, Job
from pilot_tal.upstream.sites import LAMDA_PILOT, PYCIL, Toolbox
from pilot_tal.upstream.source import LongTailedSource
from pilot_tal.upstream.swap import Patches
from pilot_tal.upstream.weights import load_vit_weights

DATA = Data("/images", "a", "cub", ["x", "y"], [("x/1.png", 0), ("y/2.png", 1)], [("x/3.png", 0)], "0" * 64)


def context(toolbox: Toolbox, method: str, on_cpu=True, args=None, **job) -> workarounds.Context:
    args = {"init_cls": 10, **(args or {})}
    job = {"workers": 0, "data": DATA, **job}
    made = Job("repo", "run", args, "folder_lt", method, "ce", 1, {}, **job)
    learner = toolbox.learners[method]
    names = ("models.base", learner.module, learner.backbone)
    return workarounds.Context(made, learner, Patches(), {name: ModuleType(name) for name in names}, on_cpu)


def needed(made: workarounds.Context) -> set[str]:
    both = {**workarounds.BEFORE, **workarounds.ON_LEARNER}
    return {name for name, (test, _) in both.items() if test(made)}


def test_only_what_is_needed_is_switched_on(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    assert needed(context(LAMDA_PILOT, "l2p", workers=None)) == set()
    assert needed(context(LAMDA_PILOT, "l2p", workers=2)) == {"fewer_workers"}
    assert needed(context(LAMDA_PILOT, "l2p", workers=None, args={"init_cls": 4})) == {"few_classes"}
    assert needed(context(LAMDA_PILOT, "l2p", workers=None, args={"pretrained": False})) == set()
    assert needed(context(LAMDA_PILOT, "mos", workers=None, args={"pretrained": False})) == {"no_download"}
    assert needed(context(LAMDA_PILOT, "coda_prompt", on_cpu=False, workers=None)) == {"keep_small_task"}
    coda = context(LAMDA_PILOT, "coda_prompt", workers=None, args={"tuned_epoch": 1})
    assert needed(coda) == {"keep_small_task", "coda_leaf", "coda_one_epoch"}
    assert needed(context(PYCIL, "icarl", workers=None, data=None)) == set()
    assert needed(context(PYCIL, "icarl", workers=None)) == {"few_exemplars"}
    assert needed(context(PYCIL, "bic", workers=None)) == {"few_exemplars", "small_validation"}
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert needed(context(LAMDA_PILOT, "l2p", workers=None)) == {"fewer_workers"}


def test_what_is_switched_on_is_logged(caplog):
    made = context(LAMDA_PILOT, "l2p")
    for module in made.modules.values():
        module.DataLoader = dict
    with caplog.at_level(logging.WARNING):
        lines = workarounds.apply_before(made)
    assert len(lines) == 1 and lines[0].startswith("workaround fewer_workers: ")
    assert lines[0] in caplog.text


def test_loaders_are_given_our_number_of_workers():
    made = context(LAMDA_PILOT, "l2p", workers=3)
    made.modules["models.base"].DataLoader = made.own.DataLoader = original = lambda *args, **kwargs: kwargs
    workarounds.fewer_workers(made)
    assert made.own.DataLoader([], batch_size=2, num_workers=8, pin_memory=True) == {
        "batch_size": 2,
        "num_workers": 3,
    }
    made.patches.close()
    assert made.own.DataLoader is made.modules["models.base"].DataLoader is original


@pytest.mark.parametrize(("images", "kept"), [(3, False), (4, True), (9, True)])
def test_coda_keeps_a_task_smaller_than_a_batch(images, kept):
    made = context(LAMDA_PILOT, "coda_prompt")
    made.own.DataLoader = lambda dataset, **kwargs: kwargs["drop_last"]
    workarounds.keep_small_task(made)
    assert made.own.DataLoader(range(images), batch_size=4, shuffle=True, drop_last=True, num_workers=8) is kept
    assert made.own.DataLoader(range(images), batch_size=4, shuffle=False, drop_last=False) is False


def test_coda_may_add_in_place_on_the_cpu():
    made = context(LAMDA_PILOT, "coda_prompt")
    module = made.modules[made.learner.backbone]
    module.torch = torch
    workarounds.coda_leaf(made)
    total = module.torch.zeros((1,), requires_grad=True).to("cpu")
    total += 1.0  # a leaf would refuse
    assert not module.torch.zeros(2).requires_grad and module.torch.ones is torch.ones
    made.patches.close()
    assert module.torch is torch


def test_coda_may_train_one_epoch():
    made = context(LAMDA_PILOT, "coda_prompt", args={"tuned_epoch": 1})
    made.own.CosineSchedule = lambda optimizer, K: 1 / (K - 1)
    workarounds.coda_one_epoch(made)
    assert made.own.CosineSchedule(None, K=1) == 1
    assert made.own.CosineSchedule(None, K=5) == 0.25


def test_five_best_of_three_classes():
    seen = []
    learner = SimpleNamespace(_known_classes=0, _cur_task=-1, topk=5)
    learner.incremental_train = lambda data: seen.append(learner.topk)
    learner._evaluate = lambda pred, true: {f"top{learner.topk}": 1.0}
    made = context(LAMDA_PILOT, "l2p", args={"init_cls": 3})
    workarounds.few_classes(made, learner)
    data = SimpleNamespace(get_task_size=lambda task: 3)
    learner.incremental_train(data)
    assert learner._evaluate(None, None) == {"top3": 1.0, "top5": 1.0}
    learner._known_classes, learner._cur_task = 3, 0
    learner.incremental_train(data)
    assert seen == [3, 5]
    assert learner._evaluate(None, None) == {"top5": 1.0}


@pytest.mark.parametrize("name", ["_construct_exemplar", "_construct_exemplar_unified"])
def test_small_classes_give_all_they_have(name):
    """The original chooses m of every class from known to total; where m is too many it is asked class by class."""
    chosen = {}
    learner = SimpleNamespace(_known_classes=1, _total_classes=4)

    def choose(data, m):
        chosen.update(dict.fromkeys(range(learner._known_classes, learner._total_classes), m))

    learner._construct_exemplar = learner._construct_exemplar_unified = choose
    workarounds.few_exemplars(context(PYCIL, "icarl"), learner)
    data = SimpleNamespace(_train_targets=np.array([0, 1, 1, 2, 3, 3, 3, 3]))
    getattr(learner, name)(data, 3)
    assert chosen == {1: 2, 2: 1, 3: 3}
    assert (learner._known_classes, learner._total_classes) == (1, 4)
    getattr(learner, name)(data, 1)
    assert chosen == {1: 1, 2: 1, 3: 1}


def test_validation_takes_what_the_smallest_class_can_spare():
    memory = ([], np.array([0, 0, 0, 1, 1, 1]))
    learner = SimpleNamespace(_cur_task=-1)
    learner.incremental_train = lambda data: data.get_dataset_with_split(
        np.arange(2, 4), source="train", mode="train", appendent=memory, val_samples_per_class=5
    )
    workarounds.small_validation(context(PYCIL, "bic"), learner)
    data = SimpleNamespace(
        _train_targets=np.repeat(range(4), 9),
        get_dataset_with_split=lambda indices, val_samples_per_class, **_: val_samples_per_class,
    )
    assert learner.incremental_train(data) == 2  # the exemplars, three of each, are the smallest
    learner._cur_task, data._train_targets = 0, np.repeat(range(4), (9, 9, 9, 1))
    assert learner.incremental_train(data) == 1


class TinyViT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cls_token = torch.nn.Parameter(torch.zeros(1, 1, 2))
        self.head = torch.nn.Linear(2, 3)
        self.prompt = torch.nn.Parameter(torch.zeros(2))


def test_weights_come_from_a_file_instead_of_a_download(monkeypatch, tmp_path):
    timm = ModuleType("timm")
    timm.create_model = lambda name, pretrained=False: SimpleNamespace(name=name, pretrained=pretrained)
    monkeypatch.setitem(sys.modules, "timm", timm)
    made = context(LAMDA_PILOT, "lae", weights="random")
    workarounds.no_download(made)
    assert vars(timm.create_model("vit", pretrained=True)) == {"name": "vit", "pretrained": False}
    assert timm.create_model("vit", True).pretrained is False
    made.patches.close()
    assert timm.create_model("vit", pretrained=True).pretrained
    timm.create_model = lambda name, pretrained: TinyViT()
    state = {"cls_token": torch.ones(1, 1, 2), "head.weight": torch.ones(9, 2)}
    torch.save({"model": state}, tmp_path / "vit.pth")
    workarounds.no_download(context(LAMDA_PILOT, "lae", weights=str(tmp_path / "vit.pth")))
    assert timm.create_model("vit", pretrained=True).cls_token.sum() == 2


def test_weights_that_do_not_fit_are_named(tmp_path):
    torch.save({"cls_token": torch.ones(1, 1, 5)}, tmp_path / "vit.pth")
    with pytest.raises(PilotTalError, match="do not fit the ViT: cls_token is missing or of another shape"):
        load_vit_weights(TinyViT(), tmp_path / "vit.pth")
    (tmp_path / "vit.bin").write_bytes(b"nothing")
    with pytest.raises(PilotTalError, match="cannot read the weights"):
        load_vit_weights(TinyViT(), tmp_path / "vit.bin")


def test_images_of_any_size_fit_the_sources_transforms():
    from torchvision import transforms

    plain = SimpleNamespace(train_trsf=[transforms.ToTensor()], test_trsf=[transforms.ToTensor()], common_trsf=[])
    small = Data(**{**vars(DATA), "template": "cifar100_aa"})

    picture = Image.new("RGB", (50, 40))

    def size(source):
        return transforms.Compose([*source.train_trsf, *source.common_trsf])(picture).shape[-2:]

    assert size(LongTailedSource(DATA, plain)) == (40, 50)  # ViTs: the template crops, it need not be told
    assert size(LongTailedSource(DATA, plain, side=16)) == (16, 16)
    assert size(LongTailedSource(small, plain)) == (32, 32)
    source = LongTailedSource(DATA, plain)
    source.download_data()
    assert source.train_data.tolist() == ["/images/x/1.png", "/images/y/2.png"]
    assert source.train_targets.tolist() == [0, 1] and source.class_order == [0, 1]

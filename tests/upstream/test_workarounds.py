"""Each workaround alone: the trouble it cures, and that it leaves all else as it was."""

import logging
import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import pilot_tal._torchvision  # noqa: F401
from data_lt.errors import UserError
from pilot_tal.stream.transforms import build_transforms
from pilot_tal.upstream import workarounds
from pilot_tal.upstream.job import Data, Job
from pilot_tal.upstream.sites import LAMDA_PILOT, PYCIL, Toolbox, vit_module
from pilot_tal.upstream.source import LongTailedSource, load_vit_weights
from pilot_tal.upstream.swap import Patches

DATA = Data("/images", "a", "cub", ["x", "y"], [("x/1.png", 0), ("y/2.png", 1)], [("x/3.png", 0)])


def context(toolbox: Toolbox, method: str, kind: type = object, on_cpu=True, args=None, **job) -> workarounds.Context:
    """A context with empty modules; `kind` is the class of the learner."""
    vit = {"backbone_type": f"vit_base_patch16_224_{method}"} if toolbox is LAMDA_PILOT else {}
    args = {"init_cls": 10, **vit, **(args or {})}
    job = {"workers": 0, "data": DATA, **job}
    made = Job("repo", "run", args, {"method": {"name": method}, "loss": {"name": "ce"}, "seed": 1}, **job)
    learner = toolbox.learners[method]
    names = ("models.base", "utils.data_manager", learner.module, vit_module(args.get("backbone_type", "")))
    modules = {name: ModuleType(name) for name in names}
    setattr(modules[learner.module], learner.cls, kind)
    return workarounds.Context(made, learner, Patches(), modules, on_cpu)


def needed(made: workarounds.Context) -> set[str]:
    return {name for name, (test, _) in workarounds.WORKAROUNDS.items() if test(made)}


def test_only_needed_workarounds_are_active(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    assert needed(context(LAMDA_PILOT, "l2p", workers=None)) == set()
    assert needed(context(LAMDA_PILOT, "l2p", workers=2)) == {"fewer_workers"}
    assert needed(context(LAMDA_PILOT, "l2p", workers=None, args={"init_cls": 4})) == {"few_classes"}
    assert needed(context(LAMDA_PILOT, "mos", workers=None, weights="random")) == {"no_download"}
    assert needed(context(LAMDA_PILOT, "coda_prompt", on_cpu=False, workers=None)) == {"keep_small_task"}
    coda = context(LAMDA_PILOT, "coda_prompt", workers=None, args={"tuned_epoch": 1})
    assert needed(coda) == {"keep_small_task", "coda_leaf", "coda_one_epoch"}
    assert needed(context(PYCIL, "icarl", workers=None, data=None, weights="random")) == set()
    assert needed(context(LAMDA_PILOT, "icarl", workers=None)) == {"few_exemplars"}
    assert needed(context(LAMDA_PILOT, "dgr", workers=None)) == {"few_exemplars", "cuda_on_cpu"}
    assert needed(context(LAMDA_PILOT, "dgr", on_cpu=False, workers=None)) == {"few_exemplars"}
    assert needed(context(LAMDA_PILOT, "fecam", workers=None)) == {"fecam_inverse"}
    assert needed(context(PYCIL, "icarl", workers=None, data=None)) == set()
    assert needed(context(PYCIL, "icarl", workers=None)) == {"few_exemplars"}
    assert needed(context(PYCIL, "bic", workers=None)) == {"few_exemplars", "small_validation"}
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert needed(context(LAMDA_PILOT, "l2p", workers=None)) == {"fewer_workers"}


def test_active_workarounds_are_logged(caplog):
    made = context(LAMDA_PILOT, "l2p")
    for module in made.modules.values():
        module.DataLoader = dict
    with caplog.at_level(logging.WARNING):
        lines = workarounds.apply_workarounds(made)
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
    module = made.vit
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
    class Learner(SimpleNamespace):
        def incremental_train(self, data):
            seen.append(self.topk)

        def _evaluate(self, pred, true):
            return {f"top{self.topk}": 1.0}

    seen = []
    learner = Learner(_known_classes=0, _cur_task=-1, topk=5)
    made = context(LAMDA_PILOT, "l2p", Learner, args={"init_cls": 3})
    workarounds.few_classes(made)
    data = SimpleNamespace(get_task_size=lambda task: 3)
    learner.incremental_train(data)
    assert learner._evaluate(None, None) == {"top3": 1.0, "top5": 1.0}
    learner._known_classes, learner._cur_task = 3, 0
    learner.incremental_train(data)
    assert seen == [3, 5]
    assert learner._evaluate(None, None) == {"top5": 1.0}


def test_working_exemplar_selection_is_unchanged():
    class BaseLearner:
        def _construct_exemplar_unified(self, data, m):
            return "shared"

    class Learner(BaseLearner):
        def _construct_exemplar(self, data, m):
            return "its own"

    own = Learner._construct_exemplar
    with (made := context(LAMDA_PILOT, "memo", Learner)).patches:
        workarounds.few_exemplars(made)
        assert Learner._construct_exemplar is own and "_construct_exemplar_unified" in vars(Learner)
    assert "_construct_exemplar_unified" not in vars(Learner)


def test_prior_of_dgr_stays_on_the_cpu():
    made = context(LAMDA_PILOT, "dgr")
    with made.patches:
        workarounds.cuda_on_cpu(made)
        assert torch.FloatTensor([1.0]).cuda().is_cpu
    assert "cuda" not in vars(torch.Tensor)


def test_pseudo_inverse_that_does_not_converge_is_tried_in_float64(monkeypatch):
    """What the first try would have taken for zero stays zero: here an eigenvalue of 1e-7."""
    plain = torch.linalg.pinv

    def stubborn(matrix, **kwargs):
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("did not converge")
        return plain(matrix, **kwargs)

    matrix = torch.diag(torch.tensor([1.0, 2.0, 1e-7]))
    expected = plain(matrix)
    monkeypatch.setattr(torch.linalg, "pinv", stubborn)
    made = context(LAMDA_PILOT, "fecam")
    with made.patches:
        workarounds.fecam_inverse(made)
        found = torch.linalg.pinv(matrix)
        assert torch.equal(torch.linalg.pinv(matrix.double()), plain(matrix.double()))
    torch.testing.assert_close(found, expected)
    assert found.dtype == torch.float32 and found.max() == 1
    assert torch.linalg.pinv is stubborn


def test_cofima_averages_where_gradients_are_zero():
    old, new, share = torch.tensor([1.0, 1.0, 1e-3]), torch.tensor([3.0, 3.0, 3e-3]), 0.4
    fishers = iter([{"w": torch.tensor([0.0, 1e-4, 0.0])}, {"w": torch.tensor([0.0, 0.0, 1e-9])}])
    kind = type("Learner", (), {"getFisherDiagonal": lambda self, loader, optimizer: next(fishers)})
    workarounds.cofima_average(context(LAMDA_PILOT, "cofima", kind))
    first, second = (kind().getFisherDiagonal(None, None)["w"] for _ in range(2))
    both = ((1 - share) * first * old + share * second * new) / ((1 - share) * first + share * second)
    torch.testing.assert_close(both, torch.tensor([0.6 * 1 + 0.4 * 3, 1.0, 3e-3]))


def test_duct_gets_the_class_means_it_asks_for():
    made = context(LAMDA_PILOT, "duct", type("Learner", (SimpleNamespace,), {}))
    made.base.BaseLearner = type("BaseLearner", (), {})
    made.base.DataLoader = lambda images, **_: images
    assert "duct_means" in needed(made)
    vectors = {label: np.tile([[label], [label + 1]], 3) for label in range(4)}
    learner = made.kind(_known_classes=0, _total_classes=2, batch_size=8)
    learner._extract_vectors = lambda images: (images, None)
    data = SimpleNamespace(get_dataset=lambda labels, source, mode: vectors[labels[0]])
    workarounds.duct_means(made)
    learner._compute_class_mean(data)
    assert learner._class_means.tolist() == [[0.5] * 3, [1.5] * 3]
    learner._known_classes, learner._total_classes = 2, 4
    learner._compute_class_mean(data)
    assert learner._class_means[:, 0].tolist() == [0.5, 1.5, 2.5, 3.5]
    made.base.BaseLearner._compute_class_mean = None  # a checkout in which it is mended
    assert "duct_means" not in needed(made)


@pytest.mark.parametrize("name", ["_construct_exemplar", "_construct_exemplar_unified"])
def test_small_classes_give_all_they_have(name):
    """The original chooses m of every class from known to total; where m is too many it is asked class by class."""
    chosen = {}

    class BaseLearner(SimpleNamespace):
        def _construct_exemplar(self, data, m):
            chosen.update(dict.fromkeys(range(self._known_classes, self._total_classes), m))

        _construct_exemplar_unified = _construct_exemplar

    learner = type("iCaRL", (BaseLearner,), {})(_known_classes=1, _total_classes=4)
    workarounds.few_exemplars(context(PYCIL, "icarl", type(learner)))
    data = SimpleNamespace(_train_targets=np.array([0, 1, 1, 2, 3, 3, 3, 3]))
    getattr(learner, name)(data, 3)
    assert chosen == {1: 2, 2: 1, 3: 3}
    assert (learner._known_classes, learner._total_classes) == (1, 4)
    getattr(learner, name)(data, 1)
    assert chosen == {1: 1, 2: 1, 3: 1}


def test_validation_size_is_limited_by_the_smallest_class():
    class DataManager(SimpleNamespace):
        def get_dataset_with_split(self, indices, source, mode, appendent=None, val_samples_per_class=0):
            return val_samples_per_class

    made = context(PYCIL, "bic")
    made.modules["utils.data_manager"].DataManager = DataManager
    workarounds.small_validation(made)
    data = DataManager(_train_targets=np.repeat(range(4), 9))
    options = {"source": "train", "mode": "train", "appendent": ([], np.array([0, 0, 0, 1, 1, 1]))}
    split = partial(data.get_dataset_with_split, np.arange(2, 4), **options)
    assert split(val_samples_per_class=5) == 2  # the exemplars, three of each, are the smallest
    data._train_targets = np.repeat(range(4), (9, 9, 9, 1))
    assert split(val_samples_per_class=5) == 1


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


def test_vit_in_two_parts_gets_its_weights_twice(monkeypatch, tmp_path):
    timm = ModuleType("timm")
    timm.create_model = lambda name, pretrained: (TinyViT(), TinyViT())
    monkeypatch.setitem(sys.modules, "timm", timm)
    torch.save({"cls_token": torch.ones(1, 1, 2)}, tmp_path / "vit.pth")
    workarounds.no_download(context(LAMDA_PILOT, "memo", weights=str(tmp_path / "vit.pth")))
    assert [part.cls_token.sum() for part in timm.create_model("vit", pretrained=True)] == [2, 2]


def test_another_shape_reaches_the_outermost_vit_alone(monkeypatch):
    timm_vit = ModuleType("timm.models.vision_transformer")
    timm_vit.VisionTransformer = dict
    for name, module in (("timm", ModuleType("timm")), ("timm.models", ModuleType("timm.models"))):
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["timm.models"].vision_transformer = timm_vit
    monkeypatch.setitem(sys.modules, "timm.models.vision_transformer", timm_vit)
    made = context(LAMDA_PILOT, "memo", vit={"depth": 3})

    class Whole:
        def __init__(self, depth=12):
            self.depth = depth

    class Part(Whole):
        def __init__(self, depth=12):
            super().__init__(depth)

    made.vit.VisionTransformer, made.vit.Generalized_Vit = Whole, Part
    with made.patches:
        workarounds.other_vit(made)
        assert made.vit.Generalized_Vit(depth=12).depth == made.vit.VisionTransformer().depth == 3
        assert timm_vit.VisionTransformer(embed_dim=2) == {"embed_dim": 2, "depth": 3}
    assert made.vit.Generalized_Vit is Part and timm_vit.VisionTransformer is dict


def test_weights_that_do_not_fit_are_named(tmp_path):
    torch.save({"cls_token": torch.ones(1, 1, 5)}, tmp_path / "vit.pth")
    with pytest.raises(UserError, match="do not fit the ViT: cls_token is missing or of another shape"):
        load_vit_weights(TinyViT(), tmp_path / "vit.pth")
    (tmp_path / "vit.bin").write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot read the weights"):
        load_vit_weights(TinyViT(), tmp_path / "vit.bin")


def test_smaller_vit_gets_the_crops_of_our_transform():
    """Cropped at its own size: by way of 224 pixels the picture would be softer."""
    from torchvision import transforms as T

    crop = T.RandomResizedCrop(224, scale=(0.05, 1.0), ratio=(3 / 4, 4 / 3))
    template = SimpleNamespace(
        train_trsf=[crop, T.RandomHorizontalFlip(p=0.5), T.ToTensor()],
        test_trsf=[T.Resize(256, T.InterpolationMode.BICUBIC), T.CenterCrop(224), T.ToTensor()],
        common_trsf=[],
    )
    source = LongTailedSource(DATA, template, side=32)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8))
    ours = build_transforms("pilot", 32)
    for mine, theirs in zip(ours, (source.train_trsf, source.test_trsf), strict=True):
        torch.manual_seed(0)
        expected = mine(picture)
        torch.manual_seed(0)
        assert torch.equal(T.Compose([*theirs, *source.common_trsf])(picture), expected) and expected.shape[-1] == 32
    assert crop.size == (224, 224)  # the checkout's own stays


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


@pytest.fixture
def widths(monkeypatch):
    """The checkout's modules that have 768 written into them."""

    class Linear:
        def forward_reweight(self, x, out_dim=768):
            return x, out_dim

    nets = SimpleNamespace(get_backbone=lambda args, pretrained: SimpleNamespace(out_dim=768))
    timm = SimpleNamespace(create_model=lambda name: SimpleNamespace(state_dict=lambda: {"a.qkv.b": torch.ones(6)}))
    names = {"utils.inc_net": nets, "backbone.linears": SimpleNamespace(EaseCosineLinear=Linear), "timm": timm}
    for name, module in {**names, **dict.fromkeys(("utils", "backbone"), SimpleNamespace(__path__=[]))}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return SimpleNamespace(nets=nets, Linear=Linear, timm=timm)


def test_coda_prompt_takes_a_vit_of_another_width(widths):
    class Prompt(nn.Module):
        def __init__(self, width, n_tasks, param, key_dim=768):
            super().__init__()
            self.built, self.n_tasks = (width, n_tasks, param, key_dim), n_tasks

    class Learner:
        def __init__(self, args):
            self._network = SimpleNamespace(backbone=None, fc=nn.Linear(768, 6), prompt=Prompt(768, 3, None))

    made = context(LAMDA_PILOT, "coda_prompt", Learner, vit={"embed_dim": 8})
    workarounds.other_width(made)
    network = Learner({"prompt_param": [6, 4, 0.0]})._network
    assert network.fc.weight.shape == (6, 8)
    assert network.prompt.built == (8, 3, [6, 4, 0.0], 8)


def test_width_set_again_by_a_network_is_replaced(widths):
    class Learner:
        def __init__(self, args):
            self._network = SimpleNamespace(backbone=SimpleNamespace(out_dim=768))

    workarounds.other_width(context(LAMDA_PILOT, "lae", Learner, vit={"embed_dim": 8}))
    assert Learner({})._network.backbone.out_dim == 8


def test_every_vit_and_ease_get_the_width_of_the_trial(widths):
    made = context(LAMDA_PILOT, "ease", type("Learner", (), {}), vit={"embed_dim": 8})
    assert "other_width" in needed(made) and "other_width" not in needed(context(LAMDA_PILOT, "lae", vit={"depth": 2}))
    with made.patches:
        workarounds.other_width(made)
        assert widths.nets.get_backbone({}, pretrained=True).out_dim == 8
        assert widths.Linear().forward_reweight(1) == (1, 8)
        assert list(widths.timm.create_model("vit").state_dict()) == ["a.q_proj.b", "a.k_proj.b", "a.v_proj.b"]
    assert widths.nets.get_backbone({}, pretrained=True).out_dim == 768
    assert widths.Linear().forward_reweight(1) == (1, 768)
    assert list(widths.timm.create_model("vit").state_dict()) == ["a.qkv.b"]


def test_attention_is_split_at_the_width_of_the_vit():
    state = {"blocks.0.attn.qkv.weight": torch.arange(24.0).view(12, 2), "norm.bias": torch.ones(4)}
    split = workarounds._split_attention(state)
    assert list(split) == [f"blocks.0.attn.{letter}_proj.weight" for letter in "qkv"] + ["norm.bias"]
    assert torch.equal(torch.cat(list(split.values())[:3]), state["blocks.0.attn.qkv.weight"])

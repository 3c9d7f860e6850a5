"""Workarounds for the ViT of a checkout: weights from a file, another shape, width or image size."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from upstream_helpers import DATA, context, needed

import pilot_tal._torchvision  # noqa: F401
from data_lt.errors import UserError
from pilot_tal.stream.transforms import build_transforms
from pilot_tal.upstream import workarounds
from pilot_tal.upstream.job import Data
from pilot_tal.upstream.sites import LAMDA_PILOT
from pilot_tal.upstream.source import LongTailedSource, load_vit_weights


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


def test_another_shape_reaches_only_the_outermost_vit(monkeypatch):
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

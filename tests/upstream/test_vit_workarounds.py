"""What a checkout gets from outside: images, weights from a file, a ViT of another shape."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from pilot_tal.upstream.workarounds import load_vit_weights

from torchvision import transforms as T  # isort: skip
from upstream_helpers import DATA, context

import pilot_tal._torchvision  # noqa: F401
from data_lt.errors import UserError
from pilot_tal.stream.transforms import build_transforms
from pilot_tal.upstream import workarounds


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
    made = context("lae", weights="random")
    workarounds.no_download(made)
    assert vars(timm.create_model("vit", pretrained=True)) == {"name": "vit", "pretrained": False}
    assert timm.create_model("vit", True).pretrained is False
    made.patches.close()
    assert timm.create_model("vit", pretrained=True).pretrained
    timm.create_model = lambda name, pretrained: TinyViT()
    state = {"cls_token": torch.ones(1, 1, 2), "head.weight": torch.ones(9, 2)}
    torch.save({"model": state}, tmp_path / "vit.pth")
    workarounds.no_download(context("lae", weights=str(tmp_path / "vit.pth")))
    assert timm.create_model("vit", pretrained=True).cls_token.sum() == 2


def test_another_shape_is_that_of_timms_vit_too(monkeypatch):
    class VisionTransformer:
        def __init__(self, embed_dim=768, depth=12):
            self.shape = embed_dim, depth

    timm_vit = ModuleType("timm.models.vision_transformer")
    timm_vit.VisionTransformer = VisionTransformer
    monkeypatch.setitem(sys.modules, "timm.models.vision_transformer", timm_vit)
    made = context("simplecil", vit={"depth": 3})
    with made.patches:
        workarounds.other_vit(made)
        assert VisionTransformer(embed_dim=2, depth=12).shape == (2, 3)
        assert type("VPT_ViT", (VisionTransformer,), {})(depth=12).shape == (768, 3)
    assert VisionTransformer().shape == (768, 12)


def test_weights_that_do_not_fit_are_named(tmp_path):
    torch.save({"cls_token": torch.ones(1, 1, 5)}, tmp_path / "vit.pth")
    with pytest.raises(UserError, match="do not fit the ViT: cls_token is missing or of another shape"):
        load_vit_weights(TinyViT(), tmp_path / "vit.pth")
    (tmp_path / "vit.bin").write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot read the weights"):
        load_vit_weights(TinyViT(), tmp_path / "vit.bin")


def source_of(template, **job):
    """The data source that the checkout gets for a dataset of ours."""
    made = context(job.pop("method", "l2p"), data=DATA, args={"dataset": job.pop("dataset", "cub_lt")}, **job)
    asked = []
    made.manager._get_idata = lambda name, args: asked.append(name) or SimpleNamespace(**vars(template))
    with made.patches:
        workarounds.our_data(made)
        source = made.manager._get_idata("cub_lt", {})
    source.download_data()
    return source, asked


@pytest.mark.parametrize(
    ("method", "dataset", "transform"),
    [("l2p", "cub_lt", "pilot"), ("l2p", "imagenetr_lt", "pilot"), ("coda_prompt", "imagenetr_lt", "coda")],
)
def test_smaller_vit_gets_the_crops_of_our_transform(method, dataset, transform):
    """Cropped at its own size: by way of 224 pixels the picture would be softer."""
    template = SimpleNamespace(train_trsf=[1], test_trsf=[2], common_trsf=[3])
    source, _ = source_of(template, method=method, dataset=dataset, vit={"img_size": 32})
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8))
    ours = build_transforms(transform, 32)
    for mine, theirs in zip(ours, (source.train_trsf, source.test_trsf), strict=True):
        torch.manual_seed(0)
        expected = mine(picture)
        torch.manual_seed(0)
        assert torch.equal(T.Compose([*theirs, *source.common_trsf])(picture), expected) and expected.shape[-1] == 32


@pytest.mark.parametrize(("dataset", "own"), [("cub_lt", "cub"), ("imagenetr_lt", "imagenetr"), ("demo_lt", "cub")])
def test_images_are_ours_and_transforms_the_checkouts(dataset, own):
    source, asked = source_of(SimpleNamespace(train_trsf=[1], test_trsf=[2], common_trsf=[3]), dataset=dataset)
    assert asked == [own] and source.use_path
    assert (source.train_trsf, source.test_trsf, source.common_trsf) == ([1], [2], [3])
    assert source.train_data.tolist() == ["/images/x/1.png", "/images/y/2.png"]
    assert source.train_targets.tolist() == [0, 1] and source.class_order == [0, 1]
    assert source.test_data.tolist() == ["/images/x/3.png"] and source.test_targets.tolist() == [0]

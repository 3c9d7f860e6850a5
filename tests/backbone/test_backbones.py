"""Which backbones work with which methods: timm models of several families, own modules, refusals."""

import importlib

import pytest
import torch
from helpers.cli import ROOT
from helpers.images import make_images
from helpers.vit import tiny_vit
from torch import nn

import pilot_tal as pt
from data_lt.errors import UserError
from pilot_tal.backbone import FrozenBackbone, FrozenViT, build_backbone
from pilot_tal.backbone.load import load_backbone, register_backbone
from pilot_tal.config.settings import method_config
from pilot_tal.learners import LEARNERS

EVA = {
    "plain": {},
    "rotary": {"use_rot_pos_emb": True},
    "EVA-02": {"use_rot_pos_emb": True, "swiglu_mlp": True, "scale_mlp": True, "qkv_fused": False},
    "scaled attention": {"use_rot_pos_emb": True, "scale_attn_inner": True, "init_values": 0.1},
    "DINOv3": {"use_rot_pos_emb": True, "rope_type": "dinov3", "num_reg_tokens": 4, "use_abs_pos_emb": False},
    "mixed rope": {"use_rot_pos_emb": True, "rope_type": "mixed", "use_abs_pos_emb": False},
    "q norm": {"use_rot_pos_emb": True, "qk_norm": True, "qkv_bias": False},
    "averaged": {"use_rot_pos_emb": True, "global_pool": "avg", "use_fc_norm": True},
}


def eva(**options) -> FrozenViT:
    from timm.models.eva import Eva

    shape = {"img_size": 8, "patch_size": 2, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 0}
    model = Eva(**{**shape, "global_pool": "token", **options})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():  # rotary frequencies of "mixed rope" are parameters too
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return FrozenViT(model, "eva")


@pytest.mark.parametrize("options", EVA.values(), ids=EVA)
def test_eva_blocks_equal_timm(options):
    backbone, x = eva(**options), torch.randn(2, 3, 8, 8)
    tokens = backbone.embed(x)
    with torch.no_grad():
        expected, pooled = backbone.vit.forward_features(x), backbone.vit(x)
        whole = backbone.run(tokens, keep=slice(None))
        if not options.get("use_fc_norm"):  # timm applies fc_norm after its average
            torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(backbone.run(tokens, keep=slice(3, 9)), expected[:, 3:9], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(backbone.run(tokens), whole[:, :1], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(backbone.features(x)[:, 0], pooled, rtol=1e-4, atol=1e-5)


def test_rotary_positions_apply_only_to_patches():
    """A prompt token is a register token: with the same values, in either place, CLS is the same."""
    backbone, x = eva(**EVA["DINOv3"]), torch.randn(2, 3, 8, 8)
    tokens = backbone.embed(x)
    registers, without = tokens[:, 1:5], torch.cat((tokens[:, :1], tokens[:, 5:]), dim=1)
    torch.testing.assert_close(backbone.query(backbone.insert_prompts(without, registers)), backbone.query(tokens))
    first = torch.cat((registers, without), dim=1)
    torch.testing.assert_close(backbone.run(first, keep=slice(4, 5)), backbone.run(tokens))


def test_distilled_deit_equals_timm():
    backbone = build_backbone("deit_tiny_distilled_patch16_224", "random", 32)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = backbone.vit.forward_features(x)[:, 0]
    assert isinstance(backbone, FrozenViT) and backbone.embed(x).shape[1] == 2 + 4
    torch.testing.assert_close(backbone.query(backbone.embed(x)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "size", "dim"),
    [("resnet10t", None, 512), ("convnext_atto", 64, 320), ("swin_tiny_patch4_window7_224", 56, 768)],
)
def test_other_timm_models_return_their_features(name, size, dim):
    backbone = build_backbone(name, "random", size)
    side = size or 176  # the size that timm states for resnet10t
    x = torch.rand(2, 3, side, side)
    assert type(backbone) is FrozenBackbone and backbone.img_size == (side, side) and backbone.dim == dim
    assert torch.equal(backbone.features(x)[:, 0], backbone.network(x))
    assert not any(parameter.requires_grad for parameter in backbone.parameters())


def test_prompt_methods_refuse_other_models_and_name_those_that_work():
    backbone = FrozenBackbone(Tiny(), "tiny", (8, 8))
    for name, learner in LEARNERS.items():
        if learner.needs == "features":
            config = {"adapter": False} if hasattr(method_config(name), "adapter") else {}
            pt.create_learner(name, backbone, 4, 2, **config)
            continue
        with pytest.raises(UserError, match=f"^{name} .*tiny.*simplecil") as caught:
            pt.create_learner(name, backbone, 4, 2)
        assert "\n" not in str(caught.value) and "l2p" not in str(caught.value).split("(")[1]


class Tiny(nn.Module):
    """Channel means and a little more."""

    def __init__(self, dim: int = 6):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, dim, 3, bias=False), nn.BatchNorm2d(dim)

    def forward(self, x):
        return self.norm(self.conv(x)).mean(dim=(2, 3))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))


def test_module_is_a_backbone_of_run(images, tmp_path):
    given = {"data_root": images, "n_max": 6, "n_min": 2, "test_per_class": 2, "tasks": 2, "device": "cpu"}
    torch.manual_seed(0)
    module = Tiny().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    run = pt.run("simplecil", "folder_lt", backbone=module, img_size=16, output=tmp_path, **given)
    assert run.record.backbone.name.startswith("Tiny@") and run.record.backbone.img_size == 16
    assert pt.load_model(run.path).predict(next(images.rglob("*.png")))
    assert module.training and all(torch.equal(module.state_dict()[name], before[name]) for name in before)
    with torch.no_grad():
        module.conv.weight.mul_(2)
    other = pt.run("simplecil", "folder_lt", backbone=module, img_size=16, output=tmp_path, **given)
    assert other.path != run.path
    with pytest.raises(UserError, match=r"l2p puts prompts.*simplecil"):
        pt.run("l2p", "folder_lt", backbone=module, img_size=16, output=tmp_path, **given)


def test_plugin_registers_a_backbone(images, tmp_path):
    plugin = tmp_path / "tiny_backbone.py"
    plugin.write_text(
        "import torch\nfrom pilot_tal import register_backbone\n\n\ndef build():\n    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.AvgPool2d(4), torch.nn.Flatten())\n\n\n"
        "register_backbone(build, 'pooled_pixels')\n"
    )
    given = {"data_root": images, "n_max": 6, "n_min": 2, "test_per_class": 2, "tasks": 2, "device": "cpu"}
    own = {"backbone": "pooled_pixels", "plugins": plugin, "img_size": 8, "output": tmp_path}
    run = pt.run("simplecil", "folder_lt", **own, **given)
    assert run.record.backbone.name == "pooled_pixels" and run.finished


def test_registered_vit_keeps_its_image_size():
    name = register_backbone(tiny_vit().vit, "my_vit")
    assert isinstance(load_backbone(name, "bundled"), FrozenViT)
    assert load_backbone(name, "bundled", 8).img_size == (8, 8)
    with pytest.raises(UserError, match="takes images of 8 pixels: leave img_size=16 out"):
        load_backbone(name, "bundled", 16)


def test_module_that_returns_no_features_is_refused():
    name = register_backbone(nn.Conv2d(3, 4, 3))
    with pytest.raises(UserError, match=r"must map images to features \[images, dim\]; for 2 images it returns"):
        load_backbone(name, "bundled", 8)
    with pytest.raises(UserError, match=r"does not take images .*set img_size"):
        load_backbone(register_backbone(nn.Conv2d(3, 4, 9)), "bundled", 8)
    with pytest.raises(UserError, match=r"comes with its weights"):
        load_backbone(name, "random")
    with pytest.raises(UserError, match="given as a Python object"):
        load_backbone("Net@12345678", "bundled")
    with pytest.raises(UserError, match=r"takes an nn\.Module"):
        register_backbone("resnet18")


def test_weights_of_the_demo_do_not_apply_to_another_backbone():
    from pilot_tal.config.grid import study_config

    def settings(*items):
        return study_config("simplecil", "demo_lt", items).runs[0].settings

    assert settings().weights == settings("backbone=demo_vit").weights == "bundled"
    other = settings("backbone=deit_tiny_patch16_224")
    assert (other.weights, other.img_size) == ("hub", None)
    assert settings("backbone=deit_tiny_patch16_224", "weights=random", "img_size=32").weights == "random"


def test_demo_runs_on_another_backbone(tmp_path):
    own = {"backbone": "vit_tiny_patch16_224", "weights": "random", "img_size": 32, "output": tmp_path}
    assert pt.run("simplecil", "demo_lt", quick=True, device="cpu", data_root=tmp_path, **own).finished


@pytest.fixture
def table_script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("backbones_table")


def test_part_of_the_table_of_the_docs(table_script):
    made = table_script.table(["simplecil", "l2p", "ranpac"], ["EVA-02", table_script.MODULE])
    rows = [[part.strip() for part in line.strip("|\n").split("|")] for line in made.splitlines()[2:]]
    assert [row[2:] for row in rows] == [["yes", "yes", "yes"], ["yes", "no", "`adapter=false`"]]


def test_table_of_the_docs_has_every_backbone(table_script):
    shown = table_script.PAGE.read_text().partition(table_script.START)[2].partition(table_script.END)[0]
    assert [line.split(" | ")[0].strip("| ") for line in shown.splitlines()[2:]] == list(table_script.BACKBONES)

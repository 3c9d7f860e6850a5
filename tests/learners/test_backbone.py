"""The frozen ViT: equal to timm's, with prefixes, prompts and adapters as the formulas say."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from learner_world import tiny_vit
from safetensors.torch import save_file

from pilot_tal.backbone import BlockExtras, FrozenViT, build_backbone, build_from_state
from pilot_tal.backbone.vit import prefixed_attention
from pilot_tal.backbone.weights import load_weights
from pilot_tal.errors import PilotTalError

VARIANTS = {
    "plain": {},
    "layer scale": {"init_values": 1e-5},
    "registers": {"reg_tokens": 3, "no_embed_class": True},
    "pre-norm": {"pre_norm": True},
    "no qkv bias, qk norm": {"qkv_bias": False, "qk_norm": True},
    "one block": {"depth": 1},
    "other shape": {"embed_dim": 24, "num_heads": 3, "patch_size": 2},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_query_equals_timm(options):
    backbone = tiny_vit(**options)
    x = torch.randn(3, 3, 8, 8)
    tokens = backbone.embed(x)
    expected = backbone.vit.forward_features(x)
    torch.testing.assert_close(backbone.query(tokens), expected[:, 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(backbone.run(tokens, keep=slice(None)), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(backbone.run(tokens, keep=slice(1, 3)), expected[:, 1:3], rtol=1e-4, atol=1e-5)


def explicit(q, k, v, prefix_k, prefix_v):
    """The softmax of all keys, written out, and the share λ of the prefix."""
    weights = (q @ torch.cat((prefix_k, k), dim=2).transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(dim=-1)
    length = prefix_k.shape[2]
    return weights, weights[..., :length].sum(dim=-1, keepdim=True), torch.cat((prefix_v, v), dim=2)


def heads(*shape):
    return torch.randn(2, 3, *shape, dtype=torch.float64)


def test_prefix_attention_equals_softmax_over_all_keys():
    q, k, v, prefix_k, prefix_v = heads(5, 4), heads(7, 4), heads(7, 4), heads(2, 4), heads(2, 4)
    weights, _, values = explicit(q, k, v, prefix_k, prefix_v)
    out = prefixed_attention(q, k, v, BlockExtras(prefix=(prefix_k, prefix_v)))
    torch.testing.assert_close(out, weights @ values)


def test_compensated_weights_sum_to_two_minus_lambda():
    q, k, v, prefix_k, prefix_v = heads(5, 4), heads(7, 4), heads(7, 4), heads(2, 4), heads(2, 4)
    weights, share, values = explicit(q, k, v, prefix_k, prefix_v)
    weights = torch.cat((weights[..., :2] / share, weights[..., 2:]), dim=-1)
    extras = BlockExtras(prefix=(prefix_k, prefix_v), compensated=True)
    torch.testing.assert_close(prefixed_attention(q, k, v, extras), weights @ values)
    ones = BlockExtras(prefix=(prefix_k, torch.ones_like(prefix_v)), compensated=True)
    total = prefixed_attention(q, k, torch.ones_like(v), ones)
    torch.testing.assert_close(total, (2 - share).expand_as(total))


def test_compensated_gradients_flow_through_lambda():
    q, k, v = heads(5, 4), heads(7, 4), heads(7, 4)
    prefix_k, prefix_v = heads(2, 4).requires_grad_(), heads(2, 4).requires_grad_()
    direction = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    weights, share, values = explicit(q, k, v, prefix_k, prefix_v)
    weights = torch.cat((weights[..., :2] / share, weights[..., 2:]), dim=-1)
    expected = torch.autograd.grad((weights @ values * direction).sum(), (prefix_k, prefix_v))
    out = prefixed_attention(q, k, v, BlockExtras(prefix=(prefix_k, prefix_v), compensated=True))
    torch.testing.assert_close(torch.autograd.grad((out * direction).sum(), (prefix_k, prefix_v)), expected)


def test_extras_equal_hooks_on_timms_blocks():
    """Adapters and LoRA against timm's own forward with the same additions hooked in."""
    backbone, x = tiny_vit(), torch.randn(2, 3, 8, 8)
    up = torch.randn(16, 16)
    lora = 0.1 * torch.randn(32, 16)
    extras = {
        1: BlockExtras(attention_adapter=lambda a: torch.tanh(a @ up)),
        2: BlockExtras(kv_delta=lambda a: F.linear(a, lora)),
        5: BlockExtras(mlp_adapter=lambda h: torch.sin(h @ up), attention_adapter=torch.cos),
    }
    blocks = backbone.vit.blocks
    stream = {}
    hooks = [
        blocks[1].attn.register_forward_hook(lambda m, i, o: o + torch.tanh(i[0] @ up)),
        blocks[5].attn.register_forward_hook(lambda m, i, o: o + torch.cos(i[0])),
        blocks[2].attn.qkv.register_forward_hook(lambda m, i, o: o + F.pad(F.linear(i[0], lora), (16, 0))),
        blocks[5].norm2.register_forward_hook(lambda m, i, o: stream.update(h=i[0])),
        blocks[5].mlp.register_forward_hook(lambda m, i, o: o + torch.sin(stream["h"] @ up)),
    ]
    expected = backbone.vit.forward_features(x)[:, 0]
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(backbone.run(backbone.embed(x), extras)[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_prompts_get_the_position_of_cls():
    backbone, x, prompts = tiny_vit(), torch.randn(2, 3, 8, 8), torch.randn(2, 3, 16)
    tokens = backbone.embed(x)
    out = backbone.insert_prompts(tokens, prompts)
    torch.testing.assert_close(out[:, 1:4], prompts + backbone.vit.pos_embed[:, :1])
    assert torch.equal(out[:, :1], tokens[:, :1]) and torch.equal(out[:, 4:], tokens[:, 1:])


def test_nothing_frozen_gets_a_gradient_and_no_training_mode():
    backbone = tiny_vit()
    backbone.train()
    assert not any(module.training for module in backbone.modules())
    key = torch.randn(1, 2, 3, 8, requires_grad=True)
    backbone.run(backbone.embed(torch.randn(2, 3, 8, 8)), {0: BlockExtras(prefix=(key, key))}).sum().backward()
    assert key.grad is not None
    assert all(not p.requires_grad and p.grad is None for p in backbone.parameters())


def test_wrong_image_size_is_one_sentence():
    with pytest.raises(PilotTalError, match=r"takes images \[B, 3, 8, 8\], got \[2, 3, 9, 9\]"):
        tiny_vit().embed(torch.randn(2, 3, 9, 9))


def state_of(backbone: FrozenViT) -> dict[str, torch.Tensor]:
    return {name: tensor.clone().contiguous() for name, tensor in backbone.vit.state_dict().items()}


def empty_vit(**options):
    from timm.models.vision_transformer import VisionTransformer

    shape = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 6, "num_heads": 2, "num_classes": 0}
    return VisionTransformer(**{**shape, **options})


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".npz"])
def test_weights_come_back_from_every_kind_of_file(tmp_path, suffix):
    source, path = tiny_vit(), tmp_path / f"weights{suffix}"
    state = {**state_of(source), "head.weight": torch.zeros(5, 16), "head.bias": torch.zeros(5)}
    if suffix == ".safetensors":
        save_file(state, path)
    elif suffix == ".pth":
        torch.save({"model": state}, path)
    else:
        np.savez(path, **{name: tensor.numpy() for name, tensor in state.items()})
    vit = empty_vit()
    load_weights(vit, path)
    assert FrozenViT(vit).checksum == source.checksum
    assert source.checksum != tiny_vit(seed=1).checksum


def test_weights_in_jax_names(tmp_path):
    """Google's layout: kernels transposed, heads apart."""
    source = tiny_vit(depth=1)
    s = {name: tensor.numpy() for name, tensor in state_of(source).items()}
    block, q = "Transformer/encoderblock_0", "MultiHeadDotProductAttention_1"
    jax = {
        "embedding/kernel": s["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": s["patch_embed.proj.bias"],
        "cls": s["cls_token"],
        "Transformer/posembed_input/pos_embedding": s["pos_embed"],
        "Transformer/encoder_norm/scale": s["norm.weight"],
        "Transformer/encoder_norm/bias": s["norm.bias"],
        f"{block}/LayerNorm_0/scale": s["blocks.0.norm1.weight"],
        f"{block}/LayerNorm_0/bias": s["blocks.0.norm1.bias"],
        f"{block}/LayerNorm_2/scale": s["blocks.0.norm2.weight"],
        f"{block}/LayerNorm_2/bias": s["blocks.0.norm2.bias"],
        f"{block}/{q}/out/kernel": s["blocks.0.attn.proj.weight"].T.reshape(2, 8, 16),
        f"{block}/{q}/out/bias": s["blocks.0.attn.proj.bias"],
        f"{block}/MlpBlock_3/Dense_0/kernel": s["blocks.0.mlp.fc1.weight"].T,
        f"{block}/MlpBlock_3/Dense_0/bias": s["blocks.0.mlp.fc1.bias"],
        f"{block}/MlpBlock_3/Dense_1/kernel": s["blocks.0.mlp.fc2.weight"].T,
        f"{block}/MlpBlock_3/Dense_1/bias": s["blocks.0.mlp.fc2.bias"],
    }
    for i, name in enumerate(("query", "key", "value")):
        rows = slice(16 * i, 16 * (i + 1))
        jax[f"{block}/{q}/{name}/kernel"] = s["blocks.0.attn.qkv.weight"][rows].T.reshape(16, 2, 8)
        jax[f"{block}/{q}/{name}/bias"] = s["blocks.0.attn.qkv.bias"][rows].reshape(2, 8)
    np.savez(tmp_path / "google.npz", **jax)
    vit = empty_vit(depth=1)
    load_weights(vit, tmp_path / "google.npz")
    assert FrozenViT(vit).checksum == source.checksum
    del jax[f"{block}/MlpBlock_3/Dense_1/bias"]
    np.savez(tmp_path / "short.npz", **jax)
    with pytest.raises(PilotTalError, match=r"short\.npz lacks"):
        load_weights(empty_vit(depth=1), tmp_path / "short.npz")


def test_positions_are_resampled_for_another_image_size(tmp_path):
    source, path = tiny_vit(), tmp_path / "w.safetensors"
    save_file(state_of(source), path)
    vit = empty_vit(img_size=16)
    load_weights(vit, path)
    assert vit.pos_embed.shape == (1, 17, 16)
    assert torch.equal(vit.pos_embed[:, 0], source.vit.pos_embed[:, 0])
    assert FrozenViT(vit).query(FrozenViT(vit).embed(torch.randn(1, 3, 16, 16))).shape == (1, 16)


def bad_files(folder):
    state = state_of(tiny_vit())
    save_file({k: v for k, v in state.items() if k != "norm.bias"}, folder / "missing.safetensors")
    save_file({**state, "norm.bias": torch.zeros(5)}, folder / "shape.safetensors")
    save_file({**state, "blocks.0.extra": torch.zeros(5)}, folder / "extra.safetensors")
    save_file(state_of(tiny_vit(patch_size=2)), folder / "patch.safetensors")
    (folder / "text.safetensors").write_text("not weights")
    (folder / "text.pth").write_text("not weights")
    (folder / "text.npz").write_text("not weights")
    torch.save([1, 2, 3], folder / "list.pth")
    torch.save({"net": tiny_vit()}, folder / "pickle.pth")
    (folder / "w.h5").write_text("")


def test_weights_that_do_not_fit_are_one_sentence(tmp_path):
    bad_files(tmp_path)
    cases = {
        "missing.safetensors": "lacks 1 of the model's tensors, first 'norm.bias'",
        "shape.safetensors": r"norm.bias is \[5\], the model needs \[16\]",
        "extra.safetensors": "1 tensors the model does not know, first 'blocks.0.extra'",
        "patch.safetensors": "patch_embed.proj.weight is",
        "text.safetensors": r"text\.safetensors",
        "text.pth": r"text\.pth",
        "text.npz": r"text\.npz",
        "list.pth": "does not hold a state dict",
        "pickle.pth": "not a file of plain tensors",
        "w.h5": "must be a .safetensors",
        "absent.pth": "does not exist",
    }
    for name, message in cases.items():
        with pytest.raises(PilotTalError, match=message) as caught:
            load_weights(empty_vit(), tmp_path / name)
        assert "\n" not in str(caught.value)


def test_build_backbone_by_name(tmp_path):
    first = build_backbone("vit_tiny_patch16_224", weights="random", img_size=32)
    assert (first.dim, first.depth, first.num_heads, first.img_size) == (192, 12, 3, (32, 32))
    torch.manual_seed(5)
    assert build_backbone("vit_tiny_patch16_224", weights="random", img_size=32).checksum == first.checksum
    save_file(state_of(first), tmp_path / "ti.safetensors")
    again = build_backbone("vit_tiny_patch16_224", weights=tmp_path / "ti.safetensors", img_size=32)
    assert again.checksum == first.checksum


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_tinny_patch16_224", "did you mean 'vit_tiny_patch16_224'"),
        ("resnet18", "does not fit"),
        ("vit_base_patch16_siglip_224", "does not fit"),
        ("vit_relpos_small_patch16_224", "does not fit"),
    ],
)
def test_models_that_do_not_fit(name, message):
    with pytest.raises(PilotTalError, match=message):
        build_backbone(name, weights="random", img_size=None)


def test_unreachable_hub_is_one_sentence(monkeypatch):
    import timm

    def unreachable(*args, **kwargs):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(timm, "create_model", unreachable)
    with pytest.raises(PilotTalError, match=r"from timm's hub .ConnectionError.; connect to the network once, or"):
        build_backbone("vit_tiny_patch16_224.augreg_in21k")


def test_build_from_state_reads_the_shape():
    source = tiny_vit(init_values=0.5, qkv_bias=False)
    again = build_from_state(state_of(source), num_heads=2)
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(again.query(again.embed(x)), source.query(source.embed(x)))
    with pytest.raises(PilotTalError, match="3 heads do not divide the width 16"):
        build_from_state(state_of(source), num_heads=3)

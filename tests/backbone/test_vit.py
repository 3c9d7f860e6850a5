"""The frozen ViT: equal to timm's, with prefixes, prompts and adapters as the formulas say."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers.vit import tiny_vit

from data_lt.errors import UserError
from pilot_tal.backbone import BlockExtras
from pilot_tal.backbone.vit import attention, prefixed_attention

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


def test_wrong_image_size_raises_user_error():
    with pytest.raises(UserError, match=r"takes images \[B, 3, 8, 8\], got \[2, 3, 9, 9\]"):
        tiny_vit().embed(torch.randn(2, 3, 9, 9))


def test_features_are_cls_of_the_last_blocks():
    vit = tiny_vit()
    x = torch.randn(3, 3, *vit.img_size, generator=torch.Generator().manual_seed(0))
    assert torch.equal(vit.features(x)[:, 0], vit.query(vit.embed(x)))
    outputs = []
    hooks = [block.register_forward_hook(lambda m, a, out: outputs.append(out[:, 0])) for block in vit.vit.blocks]
    with torch.no_grad():
        vit.vit.forward_features(x)
        expected = vit.vit.norm(torch.stack(outputs[-3:], dim=1))
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(vit.features(x, layers=3), expected)
    with pytest.raises(UserError, match="layers must be from 1 to"):
        vit.features(x, layers=vit.depth + 1)


@pytest.mark.parametrize("queries", [1, 7])
def test_bf16_attention_on_cpu_equals_fused_attention_with_gradients(queries):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8) for n in (queries, 7, 7))
    exact = [part.clone().requires_grad_() for part in (q, k, v)]
    rounded = [part.bfloat16().requires_grad_() for part in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*exact)
    found = attention(*rounded)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.03, atol=0.03)
    expected.square().sum().backward()
    found.float().square().sum().backward()
    for ours, reference in zip(rounded, exact, strict=True):
        torch.testing.assert_close(ours.grad.float(), reference.grad, rtol=0.06, atol=0.06)

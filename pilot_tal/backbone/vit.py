"""The one frozen ViT every learner shares: it embeds, runs the blocks with what a learner adds, gives features."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pilot_tal._torchvision  # noqa: F401
from data_lt.errors import UserError

CLS = slice(0, 1)


@dataclass(frozen=True)
class BlockExtras:
    """What a learner adds to one block. Everything is optional; an empty one is the plain block.

    Attributes:
        prefix: Keys and values put before the block's own, each [B or 1, heads, m, head_dim].
        compensated: Give the prefix a softmax of its own (LAE) instead of a share of the common one.
        attention_adapter: Function of the normalised input, added to the attention's output.
        kv_delta: Function of the normalised input, added to keys and values [B, N, 2 * dim].
        mlp_adapter: Function of the residual stream before `norm2`, added to the MLP's output.
        tokens: Prompt tokens [B, m, dim] put before the whole sequence; they stay in it from this block on.
    """

    prefix: tuple[Tensor, Tensor] | None = None
    compensated: bool = False
    attention_adapter: Callable[[Tensor], Tensor] | None = None
    kv_delta: Callable[[Tensor], Tensor] | None = None
    mlp_adapter: Callable[[Tensor], Tensor] | None = None
    tokens: Tensor | None = None


NO_EXTRAS = BlockExtras()


def prefixed_attention(q: Tensor, k: Tensor, v: Tensor, extras: BlockExtras) -> Tensor:
    """Attention of `q` over prefix and own keys; fused in every case.

    Compensated attention (LAE) leaves the weights of the ordinary keys as they are in the common softmax and
    re-normalises those of the prefix to sum to one, so that all weights sum to 2 - λ. Both parts are plain
    attentions: the first with the prefix' values set to zero, the second over the prefix alone. (The original
    divides by max(λ, 1e-12); the two differ only for queries whose whole prefix weighs less than that.)
    """
    if extras.prefix is None:
        return F.scaled_dot_product_attention(q, k, v)
    batch = k.shape[0]
    prefix_k, prefix_v = (part.expand(batch, -1, -1, -1).to(k.dtype) for part in extras.prefix)
    all_k = torch.cat((prefix_k, k), dim=2)
    if not extras.compensated:
        return F.scaled_dot_product_attention(q, all_k, torch.cat((prefix_v, v), dim=2))
    ordinary = F.scaled_dot_product_attention(q, all_k, torch.cat((torch.zeros_like(prefix_v), v), dim=2))
    return ordinary + F.scaled_dot_product_attention(q, prefix_k, prefix_v)


class FrozenViT(nn.Module):
    """A timm `VisionTransformer` with a CLS token whose tensors never change and never get a gradient."""

    vit: Any  # timm's VisionTransformer, whose parts have no types

    def __init__(self, vit: Any, name: str = "vit"):
        super().__init__()
        _check_architecture(vit, name)
        self.vit = vit.requires_grad_(False).eval()
        self.name = name
        self.dim: int = vit.embed_dim
        self.depth = len(vit.blocks)
        self.num_heads: int = vit.blocks[0].attn.num_heads
        self.head_dim = self.dim // self.num_heads
        self.img_size: tuple[int, int] = tuple(vit.patch_embed.img_size)

    def train(self, mode: bool = True) -> "FrozenViT":
        """Stays in evaluation mode: a frozen network has no training behaviour."""
        return super().train(False)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 over the names, shapes and float32 values of all tensors."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.vit.state_dict().items()):
            values = tensor.detach().to("cpu", torch.float32).contiguous()
            digest.update(f"{name}{tuple(values.shape)}".encode())
            digest.update(values.numpy().tobytes())
        return digest.hexdigest()

    @torch.no_grad()
    def patches(self, x: Tensor) -> Tensor:
        """Patch embeddings [B, patches, dim], before CLS and positions."""
        if x.ndim != 4 or tuple(x.shape[-2:]) != self.img_size:
            raise UserError(
                f"{self.name} takes images [B, 3, {self.img_size[0]}, {self.img_size[1]}], got {list(x.shape)}"
            )
        return self.vit.patch_embed(x)

    @torch.no_grad()
    def embed(self, x: Tensor, patches: Tensor | None = None) -> Tensor:
        """Tokens [B, N, dim] as they enter the blocks: CLS, registers if any, patches, with their positions."""
        return self.vit._pos_embed(self.patches(x) if patches is None else patches)

    def insert_prompts(self, tokens: Tensor, prompts: Tensor) -> Tensor:
        """Puts prompt tokens [B, m, dim] behind CLS; each gets the position of CLS, so their order is free."""
        if self.vit.pos_embed is not None and not self.vit.no_embed_class:
            prompts = prompts + self.vit.pos_embed[:, :1]
        return torch.cat((tokens[:, :1], prompts, tokens[:, 1:]), dim=1)

    @torch.no_grad()
    def query(self, tokens: Tensor) -> Tensor:
        """The query feature [B, dim] of embedded tokens: CLS after the plain frozen network."""
        return self.run(tokens)[:, 0]

    def features(self, x: Tensor, layers: int = 1, extras: Mapping[int, BlockExtras] | None = None) -> Tensor:
        """CLS after each of the last `layers` blocks, through the final norm [B, layers, dim]; one forward pass."""
        if not 1 <= layers <= self.depth:
            raise UserError(f"layers must be from 1 to {self.depth}, the number of blocks of {self.name}, got {layers}")
        outputs = self._blocks(self.embed(x), extras or {}, CLS)
        return self.vit.norm(torch.stack([out[:, 0] for index, out in outputs if index >= self.depth - layers], dim=1))

    def run(self, tokens: Tensor, extras: Mapping[int, BlockExtras] | None = None, keep: slice = CLS) -> Tensor:
        """Runs all blocks and the final norm; returns the output tokens `keep` only.

        The last block attends from, and runs its MLP on, the kept tokens alone: the others would be thrown away.
        """
        out = tokens
        for _, out in self._blocks(tokens, extras or {}, keep):  # noqa: B007 the last one is used
            pass
        return self.vit.norm(out)

    def _blocks(self, tokens: Tensor, extras: Mapping[int, BlockExtras], keep: slice) -> Iterator[tuple[int, Tensor]]:
        """The tokens after each block."""
        tokens = self.vit.norm_pre(tokens)
        for index in range(self.depth):
            last = index == self.depth - 1
            tokens = self._block(index, tokens, extras.get(index, NO_EXTRAS), keep if last else None)
            yield index, tokens

    def _block(self, index: int, tokens: Tensor, extras: BlockExtras, keep: slice | None) -> Tensor:
        block = self.vit.blocks[index]
        if extras.tokens is not None:
            tokens = torch.cat((extras.tokens, tokens), dim=1)
        normed = block.norm1(tokens)
        attended = self._attention(block.attn, normed, extras, keep)
        if keep is not None:
            tokens, normed = tokens[:, keep], normed[:, keep]
        if extras.attention_adapter is not None:
            attended = attended + extras.attention_adapter(normed)
        tokens = tokens + block.ls1(attended)
        out = tokens + block.ls2(block.mlp(block.norm2(tokens)))
        if extras.mlp_adapter is not None:
            out = out + extras.mlp_adapter(tokens)
        return out

    def _attention(self, attn: Any, normed: Tensor, extras: BlockExtras, keep: slice | None) -> Tensor:
        if keep is None:
            q, k, v = (self._heads(part) for part in attn.qkv(normed).chunk(3, dim=-1))
        else:
            weight, bias, dim = attn.qkv.weight, attn.qkv.bias, self.dim
            q_bias, kv_bias = (None, None) if bias is None else (bias[:dim], bias[dim:])
            q = self._heads(F.linear(normed[:, keep], weight[:dim], q_bias))
            k, v = (self._heads(part) for part in F.linear(normed, weight[dim:], kv_bias).chunk(2, dim=-1))
        if extras.kv_delta is not None:
            delta_k, delta_v = (self._heads(part) for part in extras.kv_delta(normed).chunk(2, dim=-1))
            k, v = k + delta_k, v + delta_v
        q, k = attn.q_norm(q), attn.k_norm(k)
        out = prefixed_attention(q, k, v, extras)
        return attn.proj(attn.norm(out.transpose(1, 2).flatten(2)))

    def _heads(self, tokens: Tensor) -> Tensor:
        return tokens.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)


def _check_architecture(vit: Any, name: str) -> None:
    from timm.models.vision_transformer import Attention, Block, VisionTransformer

    plain = (
        type(vit) is VisionTransformer
        and vit.cls_token is not None
        and vit.attn_pool is None
        and all(type(block) is Block and type(block.attn) is Attention for block in vit.blocks)
        and all(getattr(block.attn, "gate", None) is None for block in vit.blocks)
    )
    if not plain:
        raise UserError(
            f"{name} does not fit: the backbone must be a plain timm VisionTransformer with a CLS token "
            "(for example vit_base_patch16_224, deit_tiny_patch16_224, vit_small_patch14_dinov2)"
        )

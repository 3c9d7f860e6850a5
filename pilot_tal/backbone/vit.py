"""Frozen networks: any that maps images to features, and the ViT whose blocks take prompts and adapters.

Prototype and closed-form methods need features alone. `FrozenViT` runs timm's blocks with what a learner adds to them.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pilot_tal._torchvision  # noqa: F401
from data_lt.errors import UserError, sentence

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
    """

    prefix: tuple[Tensor, Tensor] | None = None
    compensated: bool = False
    attention_adapter: Callable[[Tensor], Tensor] | None = None
    kv_delta: Callable[[Tensor], Tensor] | None = None
    mlp_adapter: Callable[[Tensor], Tensor] | None = None


NO_EXTRAS = BlockExtras()


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention [B, heads, N, head_dim].

    In bf16 on a CPU two matrix products take less than half the time of PyTorch's fused kernel, forward and backward.
    """
    if q.device.type == "cpu" and q.dtype == torch.bfloat16:
        return ((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)).softmax(dim=-1) @ v
    return F.scaled_dot_product_attention(q, k, v)


def prefixed_attention(q: Tensor, k: Tensor, v: Tensor, extras: BlockExtras) -> Tensor:
    """Attention of `q` over prefix and own keys.

    Compensated attention (LAE) leaves the weights of the ordinary keys as they are in the common softmax and
    re-normalises those of the prefix to sum to one, so that all weights sum to 2 - λ. Both parts are plain
    attentions: the first with the prefix' values set to zero, the second over the prefix alone. (The original
    divides by max(λ, 1e-12); the two differ only for queries whose whole prefix weighs less than that.)
    """
    if extras.prefix is None:
        return attention(q, k, v)
    batch = k.shape[0]
    prefix_k, prefix_v = (part.expand(batch, -1, -1, -1).to(k.dtype) for part in extras.prefix)
    all_k = torch.cat((prefix_k, k), dim=2)
    if not extras.compensated:
        return attention(q, all_k, torch.cat((prefix_v, v), dim=2))
    ordinary = attention(q, all_k, torch.cat((torch.zeros_like(prefix_v), v), dim=2))
    return ordinary + attention(q, prefix_k, prefix_v)


def state_checksum(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over the names, shapes and float32 values of all tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        values = tensor.detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{name}{tuple(values.shape)}".encode())
        digest.update(values.numpy().tobytes())
    return digest.hexdigest()


class FrozenBackbone(nn.Module):
    """A network whose tensors never change and never get a gradient.

    Attributes:
        network: The module; it maps images [B, 3, height, width] to features [B, dim].
        name: As in a run's record.
        img_size: Height and width of the images.
        dim: Width of the features of one layer.
        depth: Number of layers that `features` can return.
        tokens: Positions at which it computes `dim` values, for estimates of memory.
    """

    network: Any
    depth = 1

    def __init__(self, network: Any, name: str, img_size: tuple[int, int]):
        super().__init__()
        self.network = network.requires_grad_(False).eval()
        self.name, self.img_size = name, img_size
        self.dim = self._find_dim()
        self.tokens = max(1, img_size[0] * img_size[1] // 128)  # a CNN: dim / 8 channels at a quarter of each side

    def _find_dim(self) -> int:
        """Width of the features, from two blank images."""
        try:
            with torch.no_grad():
                features = self.network(torch.zeros(2, 3, *self.img_size))
        except Exception as error:
            raise UserError(
                f"{self.name} does not take images [2, 3, {self.img_size[0]}, {self.img_size[1]}]: "
                f"{sentence(error)[:120]}; set img_size"
            ) from error
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
            shape = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise UserError(f"{self.name} must map images to features [images, dim]; for 2 images it returns {shape}")
        return features.shape[1]

    def train(self, mode: bool = True) -> "FrozenBackbone":
        """Stays in evaluation mode: a frozen network has no training behaviour."""
        return super().train(False)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the network's tensors."""
        return state_checksum(self.network.state_dict())

    @torch.no_grad()
    def features(self, x: Tensor, layers: int = 1) -> Tensor:
        """Features [B, 1, dim] of images: only the last layer, because other layers differ in width."""
        self.check_images(x)
        self.check_layers(layers)
        return self.network(x).unsqueeze(1)

    def check_layers(self, layers: int) -> None:
        """Raises a UserError for a number of layers that the network does not have."""
        if not 1 <= layers <= self.depth:
            raise UserError(f"layers must be from 1 to {self.depth}, the layers of {self.name}, got {layers}")

    def check_images(self, x: Tensor) -> None:
        """Raises a UserError for images of another shape."""
        if x.ndim != 4 or tuple(x.shape[-2:]) != self.img_size:
            raise UserError(
                f"{self.name} takes images [B, 3, {self.img_size[0]}, {self.img_size[1]}], got {list(x.shape)}"
            )


class FrozenViT(FrozenBackbone):
    """A timm ViT with a CLS token: `VisionTransformer`, distilled DeiT, or `Eva` (EVA-02, DINOv3).

    Tokens are [CLS, prompts, distillation and register tokens, patches]; rotary positions turn patches alone.
    """

    def __init__(self, vit: Any, name: str = "vit"):
        if not takes_prompts(vit):
            raise UserError(f"{name} does not fit: it is not a plain timm ViT with a CLS token")
        super().__init__(vit, name, tuple(vit.patch_embed.img_size))
        # Weights that were trained with averaged patches have their last norm behind the average.
        self._averages = vit.global_pool == "avg" and not isinstance(vit.fc_norm, nn.Identity)
        self.depth = len(vit.blocks)
        self.num_heads: int = vit.blocks[0].attn.num_heads
        self.head_dim = self.dim // self.num_heads
        self.tokens: int = vit.patch_embed.num_patches

    @property
    def vit(self) -> Any:
        """timm's model, whose parts have no types."""
        return self.network

    def _find_dim(self) -> int:
        return self.vit.embed_dim

    @torch.no_grad()
    def embed(self, x: Tensor) -> Tensor:
        """Tokens [B, N, dim] as they enter the blocks: CLS, other prefix tokens, patches, with their positions."""
        self.check_images(x)
        tokens = self.vit._pos_embed(self.vit.patch_embed(x))
        return tokens[0] if isinstance(tokens, tuple) else tokens  # Eva returns rotary positions beside them

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
        """Features [B, layers, dim] after each of the last `layers` blocks, through the final norm; one forward pass.

        A feature is CLS, or the mean of the patches for weights that were trained with it (EVA-02).
        """
        self.check_layers(layers)
        blocks = self._blocks(self.embed(x), extras or {}, slice(None) if self._averages else CLS)
        pooled = torch.stack(tuple(deque(map(self._pool, blocks), maxlen=layers)), dim=1)
        return self.vit.fc_norm(self.vit.norm(pooled))

    def _pool(self, tokens: Tensor) -> Tensor:
        return tokens[:, -self.tokens :].mean(dim=1) if self._averages else tokens[:, 0]

    def run(self, tokens: Tensor, extras: Mapping[int, BlockExtras] | None = None, keep: slice = CLS) -> Tensor:
        """Runs all blocks and the final norm; returns the output tokens `keep` only.

        The last block attends from, and runs its MLP on, the kept tokens alone: the others would be thrown away.
        """
        for output in self._blocks(tokens, extras or {}, keep):
            tokens = output
        return self.vit.fc_norm(self.vit.norm(tokens))  # one of the two does nothing

    def _blocks(self, tokens: Tensor, extras: Mapping[int, BlockExtras], keep: slice) -> Iterator[Tensor]:
        """The output of every block, of the last one for the tokens `keep` only."""
        rotary = getattr(self.vit, "rope", None)
        tokens, rope = self.vit.norm_pre(tokens), None if rotary is None else rotary.get_embed()
        for index, block in enumerate(self.vit.blocks):
            positions = rope[index] if rope is not None and self.vit.rope_mixed else rope
            kept = keep if index == self.depth - 1 else None
            tokens = self._block(block, tokens, extras.get(index, NO_EXTRAS), kept, positions)
            yield tokens

    def _block(
        self, block: Any, tokens: Tensor, extras: BlockExtras, keep: slice | None, rope: Tensor | None
    ) -> Tensor:
        normed = block.norm1(tokens)
        attended = self._attention(block.attn, normed, extras, keep, rope)
        if keep is not None:
            tokens, normed = tokens[:, keep], normed[:, keep]
        if extras.attention_adapter is not None:
            attended = attended + extras.attention_adapter(normed)
        tokens = tokens + _layer_scale(block, 1, attended)
        out = tokens + _layer_scale(block, 2, block.mlp(block.norm2(tokens)))
        if extras.mlp_adapter is not None:
            out = out + extras.mlp_adapter(tokens)
        return out

    def _attention(
        self, attn: Any, normed: Tensor, extras: BlockExtras, keep: slice | None, rope: Tensor | None
    ) -> Tensor:
        if keep is None:
            q, k, v = (self._heads(part) for part in _project(attn, normed, "qkv"))
        else:
            (q,) = (self._heads(part) for part in _project(attn, normed[:, keep], "q"))
            k, v = (self._heads(part) for part in _project(attn, normed, "kv"))
        if extras.kv_delta is not None:
            delta_k, delta_v = (self._heads(part) for part in extras.kv_delta(normed).chunk(2, dim=-1))
            k, v = k + delta_k, v + delta_v
        q, k = attn.q_norm(q), attn.k_norm(k)
        if rope is not None:
            q, k = (self._rotate(part, rope, attn, normed.shape[1], where) for part, where in ((q, keep), (k, None)))
        out = prefixed_attention(q, k, v, extras)
        return attn.proj(attn.norm(out.transpose(1, 2).flatten(2)))

    def _rotate(self, heads: Tensor, rope: Tensor, attn: Any, length: int, keep: slice | None) -> Tensor:
        """Turns the patches among the kept tokens; the patches are the last of all `length` tokens."""
        from timm.layers import apply_rot_embed_cat

        first = length - self.tokens
        start, stop, _ = (keep or slice(None)).indices(length)
        if stop <= first:
            return heads
        plain = max(first - start, 0)
        positions = rope[..., max(start - first, 0) : stop - first, :]
        turned = apply_rot_embed_cat(heads[:, :, plain:], positions, half=attn.rotate_half)
        return torch.cat((heads[:, :, :plain], turned.to(heads.dtype)), dim=2)

    def _heads(self, tokens: Tensor) -> Tensor:
        return tokens.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)


def _project(attn: Any, x: Tensor, parts: str) -> tuple[Tensor, ...]:
    """Queries, keys and values of tokens; `parts` is `qkv`, `q` or `kv`."""
    if attn.qkv is None:  # Eva may hold three layers in place of one
        return tuple(getattr(attn, f"{part}_proj")(x) for part in parts)
    weight, bias = attn.qkv.weight, attn.qkv.bias
    if getattr(attn, "q_bias", None) is not None:
        bias = torch.cat((attn.q_bias, attn.k_bias, attn.v_bias))
    dim = weight.shape[0] // 3
    rows = slice({"q": 0, "k": dim}[parts[0]], {"q": dim, "v": 3 * dim}[parts[-1]])
    return F.linear(x, weight[rows], None if bias is None else bias[rows]).chunk(len(parts), dim=-1)


def _layer_scale(block: Any, number: int, x: Tensor) -> Tensor:
    """timm's ViT has layers for it, Eva a parameter or None."""
    if hasattr(block, "ls1"):
        return (block.ls1 if number == 1 else block.ls2)(x)
    gamma = block.gamma_1 if number == 1 else block.gamma_2
    return x if gamma is None else gamma * x


def takes_prompts(vit: Any) -> bool:
    """Whether a model is a ViT with a CLS token whose blocks `FrozenViT` can run."""
    from timm.layers import Attention, AttentionRope
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.eva import Eva, EvaAttention, EvaBlock
    from timm.models.vision_transformer import Block, VisionTransformer

    return (
        type(vit) in (VisionTransformer, VisionTransformerDistilled, Eva)
        and vit.cls_token is not None
        and vit.attn_pool is None
        and not vit.dynamic_img_size
        and all(
            type(block) in (Block, EvaBlock)
            and type(block.attn) in (Attention, AttentionRope, EvaAttention)
            and getattr(block.attn, "gate", None) is None
            and getattr(block.attn, "num_kv_groups", 1) == 1
            and block.attn.num_heads * block.attn.head_dim == vit.embed_dim
            for block in vit.blocks
        )
    )

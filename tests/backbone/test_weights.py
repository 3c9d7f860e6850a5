"""Weights of the frozen ViT: from every kind of file, and one sentence for those that are none."""

import socket
import time

import numpy as np
import pytest
import torch
from helpers.vit import empty_vit, state_of, tiny_vit
from safetensors.torch import save_file

from data_lt.errors import UserError
from pilot_tal.backbone import FrozenViT, build_backbone, build_from_state
from pilot_tal.backbone import weights as hub
from pilot_tal.backbone.weights import SUFFIXES, load_weights


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
    with pytest.raises(UserError, match=r"short\.npz lacks"):
        load_weights(empty_vit(depth=1), tmp_path / "short.npz")


def test_positions_are_resampled_for_another_image_size(tmp_path):
    source, path = tiny_vit(), tmp_path / "w.safetensors"
    save_file(state_of(source), path)
    vit = empty_vit(img_size=16)
    load_weights(vit, path)
    assert vit.pos_embed.shape == (1, 17, 16)
    assert torch.equal(vit.pos_embed[:, 0], source.vit.pos_embed[:, 0])
    assert FrozenViT(vit).query(FrozenViT(vit).embed(torch.randn(1, 3, 16, 16))).shape == (1, 16)


STATE = state_of(tiny_vit())


def saved(content):
    return lambda path: torch.save(content, path)


def tensors(**changed):
    """A safetensors file with other tensors; None leaves one out."""
    state = {**STATE, **{name.replace("__", "."): value for name, value in changed.items()}}
    return lambda path: save_file({name: value for name, value in state.items() if value is not None}, path)


def written(content):
    return lambda path: path.write_bytes(content)


def with_value(value, dtype=torch.float32):
    return STATE["blocks.3.mlp.fc1.weight"].to(dtype).index_fill(0, torch.tensor([2]), value)


def arrays(**content):
    return lambda path: np.savez(path, **content)


NAN = "blocks.3.mlp.fc1.weight holds NaN or infinite values"
NOT_OURS = "cannot read the weights .*{}: it is empty, damaged, or holds other things than tensors"
BAD = {
    "missing.safetensors": (tensors(norm__bias=None), "lacks 1 of the model's tensors, first 'norm.bias'"),
    "shape.safetensors": (tensors(norm__bias=torch.zeros(5)), r"norm.bias is \[5\], the model needs \[16\]"),
    "extra.safetensors": (tensors(blocks__0__extra=torch.zeros(5)), "does not know, first 'blocks.0.extra'"),
    "patch.safetensors": (lambda p: save_file(state_of(tiny_vit(patch_size=2)), p), "patch_embed.proj.weight is"),
    "int.safetensors": (tensors(norm__bias=torch.ones(16, dtype=torch.int64)), "norm.bias holds int64 values"),
    "bool.pth": (saved({**STATE, "norm.bias": torch.ones(16) > 0}), "norm.bias holds bool values; weights must be"),
    "complex.pth": (saved({**STATE, "norm.bias": torch.ones(16) * 1j}), "norm.bias holds complex64 values"),
    "sparse.pth": (saved({**STATE, "norm.bias": torch.ones(16).to_sparse()}), "norm.bias"),
    "nan.safetensors": (tensors(blocks__3__mlp__fc1__weight=with_value(float("nan"))), NAN),
    "inf.pth": (saved({**STATE, "blocks.3.mlp.fc1.weight": with_value(float("inf"))}), NAN),
    "too large.pth": (saved({**STATE, "blocks.3.mlp.fc1.weight": with_value(1e300, torch.float64)}), NAN),
    "nan.npz": (arrays(**{**STATE, "blocks.3.mlp.fc1.weight": with_value(float("nan"))}), NAN),
    "int.npz": (arrays(**{name: value.round().int() for name, value in STATE.items()}), "holds int32 values"),
    "int jax.npz": (arrays(**{"embedding/kernel": np.ones((4, 4, 3, 16), np.int32)}), "holds int32 values"),
    "nan jax.npz": (arrays(**{"embedding/kernel": np.full((4, 4, 3, 16), np.nan)}), "holds NaN"),
    "text inside.npz": (arrays(a=np.array(["some", "text"])), NOT_OURS.format("npz")),
    "objects.npz": (arrays(a=np.array([{}], object)), NOT_OURS.format("npz")),
    "text.safetensors": (written(b"no weights"), NOT_OURS.format("text.safetensors")),
    "text.pth": (written(b"no weights"), NOT_OURS.format("text.pth")),
    "letter e.pth": (written(b"e"), NOT_OURS.format("letter e.pth")),  # once answered "101"
    "text.npz": (written(b"no weights"), NOT_OURS.format("text.npz")),
    "objects.pth": (saved({"net": tiny_vit()}), r"holds other things than tensors; .* save the state_dict\(\) alone"),
    **{f"empty{suffix}": (written(b""), f"empty{suffix}: it is empty, damaged") for suffix in SUFFIXES},
    "list.pth": (saved([1, 2, 3]), "does not hold a state dict"),
    "numbers.pth": (saved({1: torch.zeros(3)}), "does not hold a state dict"),
    "text dict.pth": (saved({"norm.bias": "text"}), "does not hold a state dict"),
    "nested.pth": (saved({"a": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])}), "a is not a dense"),
    "w.h5": (written(b""), "must be a .safetensors"),
    "folder.pth": (lambda path: path.mkdir(), "does not exist"),
    "absent.pth": (lambda path: None, "does not exist"),
    "a" * 300 + ".pth": (lambda path: None, "too long"),
}


@pytest.mark.parametrize("name", BAD)
def test_weights_that_do_not_fit_are_one_sentence(tmp_path, name):
    write, message = BAD[name]
    write(tmp_path / name)
    vit = empty_vit()
    before = {key: value.clone() for key, value in vit.state_dict().items()}
    with pytest.raises(UserError, match=message) as caught:
        load_weights(vit, tmp_path / name)
    text = str(caught.value)
    assert "\n" not in text and not any(word in text for word in ("weights_only", "allow_pickle", "torch.load"))
    assert all(torch.equal(before[key], value) for key, value in vit.state_dict().items())


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".npz"])
def test_any_cut_raises_user_error(tmp_path, suffix):
    path = tmp_path / f"w{suffix}"
    {".safetensors": tensors(), ".pth": saved(STATE), ".npz": arrays(**STATE)}[suffix](path)
    whole = path.read_bytes()
    for size in np.linspace(1, len(whole) - 1, 40).astype(int):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=f"w{suffix}") as caught:
            load_weights(empty_vit(), path)
        assert "\n" not in str(caught.value)


def test_half_precision_weights_are_accepted(tmp_path):
    save_file({name: value.bfloat16() for name, value in STATE.items()}, tmp_path / "w.safetensors")
    vit = empty_vit()
    load_weights(vit, tmp_path / "w.safetensors")
    assert torch.equal(vit.norm.bias, STATE["norm.bias"].bfloat16().float())


def test_build_backbone_by_name(tmp_path):
    first = build_backbone("vit_tiny_patch16_224", weights="random", img_size=32)
    assert (first.dim, first.depth, first.num_heads, first.img_size) == (192, 12, 3, (32, 32))
    torch.manual_seed(5)
    assert build_backbone("vit_tiny_patch16_224", weights="random", img_size=32).checksum == first.checksum
    save_file(state_of(first), tmp_path / "ti.safetensors")
    again = build_backbone("vit_tiny_patch16_224", weights=tmp_path / "ti.safetensors", img_size=32)
    assert again.checksum == first.checksum


def test_unknown_model_names_the_nearest():
    with pytest.raises(UserError, match=r"neither a model of timm nor registered; did you mean 'vit_tiny_patch16_224'"):
        build_backbone("vit_tinny_patch16_224", weights="random")


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        (
            "vit_tiny_patch16_224",
            17,
            "multiple of 16, the patch size of vit_tiny_.*got 17, the nearest is 16",
        ),
        ("vit_tiny_patch16_224", 0, "got 0, the nearest is 16"),
        ("vit_tiny_patch16_224", -16, "got -16, the nearest is 16"),
        ("vit_tiny_patch16_224", 10**6, "up to 4096: got 1000000, the nearest is 4096"),
        ("vit_tiny_patch16_224", 10**20, "the nearest is 4096"),
        ("vit_small_patch14_dinov2", 224 + 16, "multiple of 14.*the nearest is 238"),
        ("vit_tiny_patch16_224", (32, 33), "got 33, the nearest is 32"),
    ],
)
def test_image_sizes_that_patches_do_not_tile(name, size, words):
    before = torch.get_rng_state()
    with pytest.raises(UserError, match=words) as caught:
        build_backbone(name, weights="random", img_size=size)
    assert "\n" not in str(caught.value) and torch.equal(torch.get_rng_state(), before)


def test_model_too_large_for_the_memory_raises_user_error(monkeypatch):
    import timm

    def full(*_, **__):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:117]\nDefaultCPUAllocator: can't allocate memory: 12 TB")

    monkeypatch.setattr(timm, "create_model", full)
    with pytest.raises(UserError, match=r"does not fit into memory; choose a smaller backbone or img_size$"):
        build_backbone("vit_tiny_patch16_224", weights="random")


NAME = "vit_tiny_patch16_224.augreg_in21k"


@pytest.fixture
def online(monkeypatch, tmp_path):
    """As on a machine that may ask the network, with an empty cache."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return constants


def test_silent_hub_raises_user_error_within_seconds(monkeypatch, online, capfd):
    import timm

    monkeypatch.setattr(hub, "SECONDS", 0.5)
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: pytest.fail("timm was asked"))
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the call and says nothing
        monkeypatch.setattr(online, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(UserError, match=r"does not answer, and .*not in its cache.*weights=FILE") as caught:
            build_backbone(NAME)
    assert time.monotonic() - start < 2 and "\n" not in str(caught.value) and capfd.readouterr() == ("", "")


def test_silent_name_server_raises_user_error_within_seconds(monkeypatch, online):
    monkeypatch.setattr(hub, "SECONDS", 0.3)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(3) or [])
    start = time.monotonic()
    with pytest.raises(UserError, match="it does not answer"):
        build_backbone(NAME)
    assert time.monotonic() - start < 2


def test_offline_mode_makes_no_request(monkeypatch, online):
    monkeypatch.setattr(online, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "_answers", lambda _: pytest.fail("the network was asked"))
    with pytest.raises(UserError, match="it does not answer"):
        build_backbone(NAME)


def test_hub_that_fails_half_way_raises_user_error(monkeypatch, online):
    import timm

    create = timm.create_model

    def broken(*names, **options):
        if "pretrained" in options:
            raise ConnectionError("no route\nto host")
        return create(*names, **options)

    monkeypatch.setattr(hub, "_answers", lambda _: True)
    monkeypatch.setattr(timm, "create_model", broken)
    with pytest.raises(UserError, match=r"cannot get the weights of .* from timm's hub.*or give weights=FILE"):
        build_backbone(NAME)


def test_weights_in_the_cache_need_no_network(monkeypatch, online):
    """The files of a download, laid out as the hub's library leaves them."""
    from pathlib import Path

    source = build_backbone("vit_tiny_patch16_224", weights="random", img_size=32)
    snapshot = Path(online.HF_HUB_CACHE, f"models--timm--{NAME}", "snapshots", "1234")
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs/main").write_text("1234")
    head = {"head.weight": torch.zeros(21843, 192), "head.bias": torch.zeros(21843)}
    save_file({**state_of(source), **head}, snapshot / "model.safetensors")
    monkeypatch.setattr(hub, "_answers", lambda _: pytest.fail("the network was asked"))
    assert build_backbone(NAME, img_size=32).checksum == source.checksum
    state = state_of(source)
    state["norm.weight"][0] = float("nan")
    save_file({**state, **head}, snapshot / "model.safetensors")
    with pytest.raises(UserError, match=f"the hub's {NAME}: norm.weight holds NaN"):
        build_backbone(NAME, img_size=32)


def test_unknown_tag_names_those_there_are():
    with pytest.raises(UserError, match=r"no weights of the name .*nonsense.*it has .*augreg_in21k"):
        build_backbone("vit_tiny_patch16_224.nonsense")


def test_build_from_state_reads_the_shape():
    source = tiny_vit()
    again = build_from_state(state_of(source), num_heads=2)
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(again.query(again.embed(x)), source.query(source.embed(x)))
    with pytest.raises(UserError, match="3 heads do not divide the width 16"):
        build_from_state(state_of(source), num_heads=3)

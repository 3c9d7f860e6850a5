"""Records tiny runs of LAMDA-PILOT's own learners, for `pilot-tal replay` to compare ours with.

    PYTHON tests/recordings/record.py CHECKOUT [--out FOLDER] [CASE …]

CHECKOUT is an unmodified LAMDA-PILOT at commit 5240714, PYTHON that of the environment `scripts/setup_upstream.sh`
makes for it. Nothing in the checkout is changed, and none of it ends up in a recording: the learners are driven from
outside, on a small ViT with random weights and on random images that are made here.

What a recording holds is told in docs/learners.md. A learner is played once with cross-entropy and once with TAL
in its place, from the same start; one that trains nothing is played once.
"""

import argparse
import contextlib
import importlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

COMMIT = "5240714"
SHAPE = {"dim": 32, "depth": 3, "heads": 4, "patch": 4, "img": 12}
STREAM = {"tasks": 3, "per": 4, "epochs": 3, "bs": 6}
TAL = {"lam": 0.9, "r": 1.0, "eps": 1e-8}
TRAIN_IMAGES = (8, 6, 5, 3)  # of the classes of a task, most to fewest
TEST_IMAGES = 3
NOISE = (0.2, 0.7, 2.0)  # of the images of a task: RanPAC needs another ridge for each
SGD = {"init_lr": 0.5, "optimizer": "sgd", "scheduler": "cosine", "min_lr": 0.001}
EASE = {**SGD, "ffn_num": 4, "use_diagonal": False, "recalc_sim": True, "use_reweight": True, "alpha": 0.1}
CASES: dict[str, dict[str, Any]] = {
    "simplecil": {"method": "simplecil", "wd": 0.0, "hp": {}},
    "ranpac": {"method": "ranpac", "wd": 0.005, "hp": {**SGD, "ffn_num": 4, "M": 24, "use_RP": True}},
    "ease": {"method": "ease", "wd": 0.005, "hp": {**EASE, "use_init_ptm": False, "beta": 0.0}},
    "ease_ptm": {"method": "ease", "wd": 0.0, "hp": {**EASE, "recalc_sim": False, "use_init_ptm": True, "beta": 0.5}},
}


# The world: a ViT, a stream of tasks. Everything is drawn from generators of its own.


def random_vit(generator: torch.Generator) -> dict[str, Tensor]:
    """The weights of a ViT under timm's names, large enough for tokens to differ."""
    from timm.models.vision_transformer import VisionTransformer

    vit = VisionTransformer(
        img_size=SHAPE["img"],
        patch_size=SHAPE["patch"],
        embed_dim=SHAPE["dim"],
        depth=SHAPE["depth"],
        num_heads=SHAPE["heads"],
        num_classes=0,
    )
    return {
        name: float("norm" in name and name.endswith("weight")) + 0.15 * torch.randn(old.shape, generator=generator)
        for name, old in vit.state_dict().items()
    }


def images_of(labels: Tensor, patterns: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Noisy copies of the classes' patterns."""
    return patterns[labels] + noise * torch.randn(labels.shape + patterns.shape[1:], generator=generator)


def make_stream(generator: torch.Generator) -> tuple[list[list[tuple]], list[tuple]]:
    """For every task its training batches and its test batch, each (index, images, labels) as the original's."""
    per, size = STREAM["per"], SHAPE["img"]
    patterns = torch.randn(STREAM["tasks"] * per, 3, size, size, generator=generator)
    train, test = [], []
    for task in range(STREAM["tasks"]):
        classes = torch.arange(task * per, (task + 1) * per)
        labels = classes.repeat_interleave(torch.tensor(TRAIN_IMAGES))
        labels = labels[torch.randperm(len(labels), generator=generator)]
        x = images_of(labels, patterns, NOISE[task], generator)
        columns = (torch.arange(len(x)), x, labels)
        train.append(list(zip(*(column.split(STREAM["bs"]) for column in columns), strict=True)))
        labels = classes.repeat(TEST_IMAGES)
        test.append((torch.arange(len(labels)), images_of(labels, patterns, NOISE[task], generator), labels))
    return train, test


class Batches(list):
    """A dataset that is already its loader: batches in a fixed order, and the labels the original asks for."""

    @property
    def labels(self) -> np.ndarray:
        return torch.cat([y for _, _, y in self]).numpy()


class Stream:
    """Stands in the place of the original's data manager."""

    def __init__(self, train: list[list[tuple]], test: list[tuple]):
        self.train, self.test = train, test

    def get_task_size(self, task: int) -> int:
        return STREAM["per"]

    def get_dataset(self, classes: np.ndarray, source: str, mode: str) -> Batches:
        tasks = range(int(classes[0]) // STREAM["per"], int(classes[-1]) // STREAM["per"] + 1)
        if source == "test":
            return Batches(self.test[task] for task in tasks)
        return Batches(batch for task in tasks for batch in self.train[task])


# The losses, in the arithmetic the recordings have always had.


class Recorder:
    """Stands in the place of cross-entropy and keeps every loss; as TAL it is Algorithm 1 for r = 1."""

    def __init__(self, name: str, cross_entropy: Callable[[Tensor, Tensor], Tensor]):
        self.name, self.cross_entropy = name, cross_entropy
        self.begin_task()

    def begin_task(self) -> None:
        self.losses: list[float] = []
        self.Q = torch.zeros(STREAM["per"], dtype=torch.float64)
        self.alpha = 2.0 * STREAM["per"] - 1.0

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        loss = self.cross_entropy(logits, targets) if self.name == "ce" else self.tal(logits, targets)
        self.losses.append(loss.item())
        return loss

    def tal(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Q and the log-weights in float64, cast to the logits' type; Q moves after the loss."""
        lam = TAL["lam"]
        weight = self.Q / (lam / (1 - lam))
        shift = (self.alpha * weight.clamp_min(TAL["eps"])).log().to(logits.dtype)
        shift = shift.expand(logits.shape).scatter(1, targets.unsqueeze(1), 0.0)
        true = logits.gather(1, targets.unsqueeze(1)).squeeze(1)
        positives = torch.bincount(targets, minlength=len(self.Q)).double() / len(targets)
        self.Q = (lam * (self.Q + positives - (1 - positives) * weight)).clamp_min(0.0)
        return (torch.logsumexp(logits + shift, dim=1) - true).mean()


# The original, driven.


def tiny_backbone(method: str, state: dict[str, Tensor], args: dict[str, Any]) -> nn.Module:
    """The checkout's own ViT for a method, small, with our weights; only its adapters are trainable."""
    shape = {"img_size": SHAPE["img"], "patch_size": SHAPE["patch"], "embed_dim": SHAPE["dim"]}
    shape |= {"depth": SHAPE["depth"], "num_heads": SHAPE["heads"], "num_classes": 0}
    if method == "simplecil":
        from timm.models.vision_transformer import VisionTransformer

        vit = VisionTransformer(**shape)
        vit.load_state_dict(state)
    else:
        module = importlib.import_module({"ranpac": "backbone.vit_adapter", "ease": "backbone.vit_ease"}[method])
        tuning = SimpleNamespace(
            ffn_adapt=True,
            ffn_option="parallel",
            ffn_adapter_layernorm_option="none",
            ffn_adapter_init_option="lora",
            ffn_adapter_scalar="0.1",
            ffn_num=args["ffn_num"],
            d_model=SHAPE["dim"],
            vpt_on=False,
            vpt_num=0,
            _device=args["device"][0],
        )
        vit = module.VisionTransformer(**shape, tuning_config=tuning)
        missing = vit.load_state_dict(split_attention(state), strict=False).missing_keys
        for name, parameter in vit.named_parameters():
            parameter.requires_grad_(name in missing)
    vit.out_dim = SHAPE["dim"]
    return vit.eval()


def split_attention(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's names as the checkout's ViTs with adapters have them: q, k, v apart, the MLP on the block."""
    split = {}
    for name, tensor in state.items():
        if ".qkv." in name:
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                split[name.replace("qkv", f"{letter}_proj")] = part
        else:
            split[name.replace(".mlp.", ".")] = tensor
    return split


def without_dropout(network: nn.Module) -> None:
    """A replay draws no random number, so the recorded run has no dropout either."""
    for module in network.modules():
        if hasattr(module, "down_proj"):
            module.dropout = 0.0


def settings(case: dict[str, Any]) -> dict[str, Any]:
    """The run as LAMDA-PILOT wants it told."""
    args = {"model_name": case["method"], "backbone_type": "tiny", "device": [torch.device("cpu")], "memory_size": 0}
    args |= {"init_cls": STREAM["per"], "increment": STREAM["per"], "nb_classes": STREAM["tasks"] * STREAM["per"]}
    args |= {"batch_size": STREAM["bs"], "weight_decay": case["wd"], **case["hp"]}
    args |= {"tuned_epoch": STREAM["epochs"], "init_epochs": STREAM["epochs"], "later_epochs": STREAM["epochs"]}
    args |= {"use_old_data": False, "moni_adam": False, "adapter_num": -1}
    return args


@contextlib.contextmanager
def driven(method: str, state: dict[str, Tensor], recorder: Recorder) -> Iterator[Any]:
    """The checkout's module of a method, with our ViT, our batches and our ear on its loss."""
    module, nets = importlib.import_module(f"models.{method}"), importlib.import_module("utils.inc_net")
    linears = importlib.import_module("backbone.linears")
    reweight = linears.EaseCosineLinear.forward_reweight

    def narrow(*args: Any, **kwargs: Any) -> Any:  # its width is written into a default: 768
        return reweight(*args, **kwargs, out_dim=SHAPE["dim"])

    places = {
        (nets, "get_backbone"): lambda args, pretrained: tiny_backbone(method, state, args),
        (module, "DataLoader"): lambda dataset, **options: dataset,
        (linears.EaseCosineLinear, "forward_reweight"): narrow,
        (torch.nn.functional, "cross_entropy"): recorder,
    }
    before = {place: getattr(*place) for place in places}
    for place, value in places.items():
        setattr(*place, value)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield module
    finally:
        for place, value in before.items():
            setattr(*place, value)


def learned(learner: Any) -> dict[str, np.ndarray]:
    """What a learner has learned so far, under the names of its state dict, and what it leaves out of that."""
    network = learner._network
    found = {
        name: tensor
        for name, tensor in network.state_dict().items()
        if name.startswith(("fc.", "proxy_fc.", "backbone.cur_adapter.")) or ".adaptmlp." in name
    }
    for task, adapters in enumerate(getattr(network.backbone, "adapter_list", ())):
        for name, tensor in adapters.state_dict().items():
            found[f"backbone.adapter_list.{task}.{name}"] = tensor
    if getattr(learner, "W_rand", None) is not None:
        found["W_rand"] = learner.W_rand
    return {name: tensor.detach().numpy().copy() for name, tensor in found.items()}


def named(prefix: str, arrays: dict[str, np.ndarray], *parts: str) -> dict[str, np.ndarray]:
    """Arrays under a prefix; with parts, only those whose names begin with one of them."""
    return {f"{prefix}.{name}": array for name, array in arrays.items() if name.startswith(parts or ("",))}


def play(case: dict[str, Any], loss: str, state: dict[str, Tensor], stream: Stream) -> dict[str, np.ndarray]:
    """One run of the original, as arrays by name."""
    method = case["method"]
    arrays: dict[str, np.ndarray] = {}
    recorder = Recorder(loss, torch.nn.functional.cross_entropy)
    torch.manual_seed(5)
    with driven(method, state, recorder) as module:
        learner = module.Learner(settings(case))
        learner.topk = 1
        arrays |= named("init", learned(learner), "backbone.blocks.")
        for task in range(STREAM["tasks"]):
            prefix = f"{loss}.task{task}"
            without_dropout(learner._network)
            recorder.begin_task()
            with listening(learner, task, prefix, arrays):
                learner.incremental_train(stream)
            arrays |= named(f"{prefix}.state", learned(learner))
            if recorder.losses:
                arrays[f"{prefix}.losses"] = np.array(recorder.losses)
            if recorder.losses and loss == "tal":
                arrays |= {f"{prefix}.Q": recorder.Q.numpy().copy(), f"{prefix}.alpha": np.array(recorder.alpha)}
            arrays |= evaluated(learner, prefix)
            learner.after_task()
        arrays |= named("init", learned(learner), "W_rand")
    return arrays


@contextlib.contextmanager
def listening(learner: Any, task: int, prefix: str, arrays: dict[str, np.ndarray]) -> Iterator[None]:
    """Writes down what a task draws when it begins, and the ridge RanPAC chooses when it ends."""
    update_fc, choose = learner._network.update_fc, getattr(learner, "optimise_ridge_parameter", None)
    drawn = {"ranpac": ("fc.weight",) if task == 0 else (), "ease": ("backbone.cur_adapter.", "proxy_fc.weight")}
    parts = drawn.get(learner.args["model_name"], ())

    def grow(classes: int) -> None:
        update_fc(classes)
        if parts:
            arrays.update(named(f"begin{task}", learned(learner), *parts))

    def chosen(*features: Tensor) -> float:
        ridge = choose(*features)
        arrays[f"{prefix}.log10_ridge"] = np.log10(ridge)
        return ridge

    learner._network.update_fc, learner.optimise_ridge_parameter = grow, chosen
    try:
        yield
    finally:
        del learner._network.update_fc, learner.optimise_ridge_parameter


@torch.no_grad()
def evaluated(learner: Any, prefix: str) -> dict[str, np.ndarray]:
    """The original's own evaluation, and the scores behind it."""
    pred, true = learner._eval_cnn(learner.test_loader)
    test = {"test": True} if learner.args["model_name"] == "ease" else {}
    scores = torch.cat([learner._network(x, **test)["logits"] for _, x, _ in learner.test_loader])
    return {f"{prefix}.eval.scores": scores.numpy(), f"{prefix}.eval.pred": pred[:, 0], f"{prefix}.eval.true": true}


def record(name: str) -> dict[str, np.ndarray]:
    """All arrays of a case, `meta` among them."""
    import timm

    case = CASES[name]
    generator = torch.Generator().manual_seed(1993)
    state = random_vit(generator)
    train, test = make_stream(generator)
    arrays = {f"vit.{key}": tensor.numpy() for key, tensor in state.items()}
    for task, batches in enumerate(train):
        for index, (_, x, y) in enumerate(batches):
            arrays |= {f"train{task}.{index}.x": x.numpy(), f"train{task}.{index}.y": y.numpy()}
        arrays |= {f"test{task}.x": test[task][1].numpy(), f"test{task}.y": test[task][2].numpy()}
    for loss in ("none",) if case["method"] == "simplecil" else ("ce", "tal"):
        run = play(case, loss, state, Stream(train, test))
        for key in arrays.keys() & run.keys():  # the start: the same for both losses
            assert np.array_equal(arrays[key], run[key]), key
        arrays |= run
    meta = {**SHAPE, **STREAM, **TAL, "method": case["method"], "fidelity": "pilot", "wd": case["wd"], "hp": case["hp"]}
    meta |= {"commit": COMMIT, "torch": torch.__version__, "timm": timm.__version__}
    return {"meta": np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8), **arrays}


def check_checkout(path: Path) -> None:
    """Stops unless the checkout is the one we say it is."""
    if not (path / "trainer.py").is_file():
        sys.exit(f"record: {path} is not a checkout of LAMDA-PILOT: trainer.py is not there")
    head, changes = (
        subprocess.run(["git", "-C", str(path), *command], capture_output=True, text=True, check=True).stdout
        for command in (("rev-parse", "HEAD"), ("status", "--porcelain"))
    )
    if not head.startswith(COMMIT) or changes:
        sys.exit(f"record: {path} must be LAMDA-PILOT at {COMMIT} without a change, it is at {head[:7]}\n{changes}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=[])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    check_checkout(options.checkout)
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(options.checkout), str(Path(__file__).parents[2])]
    torch.set_num_threads(1)
    import pilot_tal._torchvision  # noqa: F401

    for name in options.cases or CASES:
        path = options.out / f"{name}.npz"
        np.savez(path, **record(name))
        print(f"{path} ({path.stat().st_size // 1024} kB)")


if __name__ == "__main__":
    main()

"""Records small runs of LAMDA-PILOT's own learners, with which `pilot-tal verify` compares ours.

    PYTHON tests/recordings/record.py CHECKOUT [--out FOLDER] [CASE …]

CHECKOUT is an unmodified LAMDA-PILOT at commit 5240714, PYTHON that of the environment that `scripts/setup_upstream.sh`
makes. The driver of `pilot-tal upstream` runs the checkout's own classes and training code with the checkout's own
settings, except for those named here, on a small random ViT and random images. Nothing in the checkout is changed and
none of it ends up in a recording. docs/development/verification.md documents the format.

Each learner runs twice from the same start, with cross-entropy and with TAL; a learner that trains nothing runs once.
Batches have a fixed order and adapters no dropout, because verification draws no random numbers.
"""

import argparse
import contextlib
import importlib
import io
import json
import logging
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record_stream import SHAPE, STREAM, Arrays, Stream, random_vit, vit_shape
from torch import Tensor, nn

COMMIT = "5240714"
SEEDS = {"data": 1993, "learner": 5}
TAL = {"lam": 0.9, "r": 1.0, "eps": 1e-8}
# With ε = 1e-8 TAL's first gradients are rounding errors of float32, which differ between CPUs and which Adam scales to
# full steps. CODA-Prompt's tensors then differ by 1e-2, so it is recorded with a larger floor.
EPS = {"coda_prompt": 1e-2}
ADAM = {"init_lr": 0.01}
SGD = {"init_lr": 0.5, "min_lr": 0.001}
ADAPTERS = {**SGD, "weight_decay": 0.005, "ffn_num": 4}
EASE = {**ADAPTERS, "later_lr": 0.5}
MOS = {"init_lr": 0.5, "ffn_num": 4, "crct_epochs": 2, "batch_size": 4}
# Config file of the checkout, depth of the ViT, changed settings.
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "l2p": ("l2p", 5, {**ADAM, "size": 6, "length": 2, "top_k": 2}),
    "dualprompt": ("dualprompt", 5, {**ADAM, "size": 4, "length": 3, "g_prompt_length": 3}),
    "coda_prompt": ("coda_prompt", 5, {"prompt_param": [6, 4, 0.1]}),
    "lae": ("lae", 5, {**ADAM, "ema_decay": 0.9, "num_freeze_epochs": 1, "pet_length": 4}),
    "mos": ("mos", 5, MOS),
    "mos_fixed": ("mos", 5, MOS),
    "simplecil": ("simplecil", 3, {}),
    "ranpac": ("ranpac", 3, {**ADAPTERS, "M": 24}),
    "fecam": ("fecam", 3, ADAPTERS),
    "aper": ("aper_aperpter", 3, ADAPTERS),
    "ease": ("ease", 3, EASE),
    "ease_ptm": ("ease", 3, {**EASE, "weight_decay": 0.0, "recalc_sim": False, "use_init_ptm": True, "beta": 0.5}),
}
METHOD = {"aper_aperpter": "aper"}  # where our name is not that of the file
# Tensors that are drawn when a task begins, by the start of their names.
ONCE = ("ranpac", "fecam", "aper_adapter")  # train in the first task only
DRAWN = {"coda_prompt": ("prompt.",), "lae": ("fc.",), "ease": ("backbone.cur_adapter.", "proxy_fc.weight"),
         **dict.fromkeys(ONCE, ("fc.weight",))}  # fmt: skip
FROZEN = re.compile(r"original_backbone\.|backbones?\.(\d\.)?(patch_embed|cls_token|pos_embed|norm|blocks|pre_logits)")


# The loss and the learner.


class Recorder:
    """Takes the place of the cross-entropy on training images and keeps its values; TAL is Algorithm 1 for r = 1."""

    def __init__(self, name: str, eps: float):
        self.name, self.eps = name, eps
        self.begin_task(0, lambda: None)

    def begin_task(self, masked: int, on_first: Callable[[], None]) -> None:
        """`masked` is the number of columns of old classes; `on_first` is called before the first loss."""
        self.masked, self.on_first, self.losses = masked, on_first, list[float]()
        self.Q = torch.zeros(STREAM["per"], dtype=torch.float64)
        self.alpha = 2.0 * STREAM["per"] - 1.0

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        if not self.losses:
            self.on_first()
        if self.name == "ce":
            loss = nn.functional.cross_entropy(logits, targets)
        else:
            loss = self.tal(logits[:, self.masked :], targets - self.masked)
        self.losses.append(loss.item())
        return loss

    def tal(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Q and the log-weights in float64, cast to the logits' type; Q is updated after the loss."""
        lam = TAL["lam"]
        weight = self.Q / (lam / (1 - lam))
        shift = (self.alpha * weight.clamp_min(self.eps)).log().to(logits.dtype)
        shift = shift.expand(logits.shape).scatter(1, targets.unsqueeze(1), 0.0)
        true = logits.gather(1, targets.unsqueeze(1)).squeeze(1)
        positives = torch.bincount(targets, minlength=len(self.Q)).double() / len(targets)
        self.Q = (lam * (self.Q + positives - (1 - positives) * weight)).clamp_min(0.0)
        return (torch.logsumexp(logits + shift, dim=1) - true).mean()


def learned(learner: Any) -> Arrays:
    """The learned tensors under the names of the state dict, and those that the state dict lacks."""
    network = learner._network
    state = network.state_dict()
    found = {name: tensor for name, tensor in state.items() if not FROZEN.match(name) or ".adaptmlp." in name}
    if hasattr(network, "prompt"):  # CODA-Prompt's ViT has a classifier that is never used
        found = {name: tensor for name, tensor in found.items() if not name.startswith("backbone.")}
    for task, adapters in enumerate(getattr(network.backbone, "adapter_list", ())):
        found |= {f"backbone.adapter_list.{task}.{name}": t for name, t in adapters.state_dict().items()}
    if getattr(learner, "W_rand", None) is not None:
        found["W_rand"] = learner.W_rand
    if getattr(learner, "cov_mats", None):
        found["cov_mats"] = torch.stack(learner.cov_mats)
    if learner.args["model_name"] == "aper_adapter":  # as its network is called after the first task
        found = {re.sub(r"^backbone\.", "backbones.1.", name): tensor for name, tensor in found.items()}
    return {name: tensor.detach().numpy().copy() for name, tensor in found.items()}


def named(prefix: str, arrays: Arrays) -> Arrays:
    """Arrays under a prefix."""
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def keep_drawn(learner: Any, task: int, arrays: Arrays) -> None:
    """Keeps what the current task has drawn: new rows, new adapters, a new classifier."""
    method = learner.args["model_name"]
    found = {name: array for name, array in learned(learner).items() if name.startswith(DRAWN.get(method, ()))}
    if method == "lae":
        found = {name: array[-STREAM["per"] :] for name, array in found.items()}
    elif method == "coda_prompt":
        new = learner.args["prompt_param"][0] // STREAM["tasks"]
        found = {name: array[task * new : (task + 1) * new] for name, array in found.items() if task}
    if task == 0 or method not in ONCE:
        arrays |= found


def run_tasks(learner: Any, recorder: Recorder, stream: Stream, masks: bool) -> Arrays:
    """All tasks of one run."""
    arrays = named("init", learned(learner)) if learner.args["model_name"] != "ease" else {}  # new ones per task
    for task in range(STREAM["tasks"]):
        prefix = f"{recorder.name}.task{task}"
        for module in learner._network.modules():
            if hasattr(module, "down_proj"):
                module.dropout = 0.0
        begin: Arrays = {}
        recorder.begin_task(task * STREAM["per"] * masks, partial(keep_drawn, learner, task, begin))
        with listening(learner, prefix, arrays):
            learner.incremental_train(stream)
        arrays |= named(f"{prefix}.begin", begin) | named(f"{prefix}.state", learned(learner))
        if recorder.losses:
            arrays[f"{prefix}.losses"] = np.array(recorder.losses)
            if recorder.name == "tal":
                arrays |= {f"{prefix}.Q": recorder.Q.numpy(), f"{prefix}.alpha": np.array(recorder.alpha)}
        arrays |= evaluated(learner, prefix)
        learner.after_task()
    return arrays | {f"init.{name}": array for name, array in learned(learner).items() if name == "W_rand"}


@contextlib.contextmanager
def listening(learner: Any, prefix: str, arrays: Arrays) -> Iterator[None]:
    """Keeps what RanPAC and MOS compute at the end of a task: the ridge; class statistics and alignment batches."""
    from pilot_tal.upstream.swap import Patches

    features: list[Tensor] = []
    labels: list[Tensor] = []

    def on_head(module: nn.Module, inputs: tuple[Tensor]) -> None:
        if module.training and torch.is_grad_enabled() and not inputs[0].requires_grad:
            features.append(inputs[0].clone())

    def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
        if len(labels) < len(features):
            labels.append(targets.clone())
        return original(logits, targets)

    def ridge(*columns: Tensor) -> float:
        chosen = choose(*columns)
        arrays[f"{prefix}.log10_ridge"] = np.log10(chosen)
        return chosen

    original, choose = nn.functional.cross_entropy, getattr(learner, "optimise_ridge_parameter", None)
    with Patches() as patches:
        if choose is not None:
            patches.set(learner, "optimise_ridge_parameter", ridge)
        if hasattr(learner, "cls_mean"):
            patches.callback(learner._network.backbone.head.register_forward_pre_hook(on_head).remove)
            patches.set(nn.functional, "cross_entropy", cross_entropy)
        yield
    if features:
        arrays |= {f"{prefix}.align.features": torch.stack(features).numpy()}
        arrays |= {f"{prefix}.align.labels": torch.stack(labels).numpy().astype(np.int16)}
    for label in range(learner._known_classes, learner._total_classes):
        if hasattr(learner, "cls_mean"):
            arrays |= {f"{prefix}.class_mean.{label}": learner.cls_mean[label].numpy()}
            arrays |= {f"{prefix}.class_cov.{label}": learner.cls_cov[label].numpy()}


@torch.no_grad()
def evaluated(learner: Any, prefix: str) -> Arrays:
    """The original's own evaluation, with the scores that it ranks."""
    from pilot_tal.upstream.swap import Patches

    scores: list[Tensor] = []
    topk = torch.topk

    def keep(outputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_code.co_name == "_eval_cnn":
            scores.append(outputs.clone())
        return topk(outputs, *args, **kwargs)

    def distances(*args: Any) -> np.ndarray:
        found = type(learner)._maha_dist(learner, *args)
        scores.append(-torch.from_numpy(found.T))
        return found

    with Patches() as patches:
        patches.set(torch, "topk", keep)
        if hasattr(learner, "_maha_dist"):  # FeCAM ranks distances
            patches.set(learner, "_maha_dist", distances)
        pred, true = learner._eval_cnn(learner.test_loader)
    return {f"{prefix}.eval.scores": torch.cat(scores).numpy(), f"{prefix}.eval.pred": pred[:, 0],
            f"{prefix}.eval.true": true}  # fmt: skip


def merge_once(patches: Any, vit: Any) -> None:
    """`mos_fixed`: adapters are merged once after each step, and the first sum of snapshots is a copy."""
    kind = vit.VisionTransformer
    reweight, total = kind.reweight_adapter, kind.sum_adapter_param
    patches.set(kind, "reweight_adapter", lambda self, adapter, index: adapter)
    patches.set(kind, "adapter_merge", lambda self: reweight(self, self.cur_adapter, len(self.adapter_list)))

    def sum_copies(self: Any) -> None:
        total(self)
        for sums in (self.down_weight_sum, self.down_bias_sum, self.up_weight_sum, self.up_bias_sum):
            for layer in sums:
                layer[-1] = layer[-1].clone()

    patches.set(kind, "sum_adapter_param", sum_copies)


def record(name: str, checkout: Path) -> Arrays:
    """All arrays of a case, `meta` included."""
    import timm

    config, depth, changes = CASES[name]
    args = json.loads((checkout / "exps" / f"{config}.json").read_text())
    sizes = {"init_cls": STREAM["per"], "increment": STREAM["per"]}
    epochs = {key: STREAM["epochs"] for key in ("tuned_epoch", "init_epochs", "later_epochs") if key in args}
    args |= {**sizes, **epochs, "batch_size": STREAM["bs"], **changes}
    generator = torch.Generator().manual_seed(SEEDS["data"])
    state = random_vit(depth, generator)
    stream = Stream(args["batch_size"], generator)
    arrays = {f"vit.{key}": tensor.numpy() for key, tensor in state.items()} | stream.arrays()
    for loss in ("none",) if config == "simplecil" else ("ce", "tal"):
        with tempfile.TemporaryDirectory() as folder:
            torch.save(state, f"{folder}/vit.pth")
            run = run_original(name, checkout, Path(folder), args, depth, loss, stream)
        for key in arrays.keys() & run.keys():  # the start, the same for both losses
            assert np.array_equal(arrays[key], run[key]), key
        arrays |= run
    versions = {"python": platform.python_version(), "torch": torch.__version__, "timm": timm.__version__,
                "numpy": np.__version__}  # fmt: skip
    tal = {**TAL, "eps": EPS.get(name, TAL["eps"])}
    meta = {**SHAPE, **STREAM, **tal, "depth": depth, "method": METHOD.get(config, config), "bs": args["batch_size"],
            "fidelity": "fixed" if name.endswith("_fixed") else "pilot", "wd": args["weight_decay"],
            "hp": {key: value for key, value in args.items() if key not in ("batch_size", "weight_decay")},
            "commit": COMMIT, "versions": versions, "seeds": SEEDS}  # fmt: skip
    return {"meta": np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8), **arrays}


def run_original(name: str, checkout: Path, folder: Path, args: dict[str, Any], depth: int, loss: str,
                 stream: Stream) -> Arrays:  # fmt: skip
    """One run of the checkout's learner, driven as `pilot-tal upstream` does."""
    from pilot_tal.upstream.checkout import known_learner, locate
    from pilot_tal.upstream.driver import Job, opened
    from pilot_tal.upstream.swap import Patches, swap
    from pilot_tal.upstream.workarounds import apply_workarounds

    job = Job(str(checkout), str(folder), args, {"method": {"name": args["model_name"]}},
              weights=str(folder / "vit.pth"), vit=vit_shape(depth), workers=0)  # fmt: skip
    known = known_learner(args["model_name"])
    recorder = Recorder(loss, EPS.get(name, TAL["eps"]))
    with Patches() as patches, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        context = opened(job, patches, on_cpu=True)
        swap(patches, context.own, locate(checkout, known), recorder)
        if name.endswith("_fixed"):
            merge_once(patches, importlib.import_module("backbone.vit_mos"))
        apply_workarounds(context)
        nets = importlib.import_module("utils.inc_net")
        random_states: list[Tensor] = []
        patches.set(nets, "get_backbone", partial(keep_random_state, nets.get_backbone, random_states))
        patches.set(context.own, "DataLoader", lambda dataset, *_, **__: dataset)
        torch.manual_seed(SEEDS["learner"])
        classes = {"nb_classes": STREAM["tasks"] * STREAM["per"], "nb_tasks": STREAM["tasks"]}
        learner = context.own.Learner({**args, **classes, "device": [torch.device("cpu")]})
        if args["model_name"] == "coda_prompt":
            draw_twice(learner, random_states[0])
        patches.callback(os.chdir, os.getcwd())
        os.chdir(folder)  # FeCAM writes a checkpoint
        return run_tasks(learner, recorder, stream, known.masked)


def keep_random_state(get_backbone: Callable[..., Any], states: list[Tensor], *args: Any, **kwargs: Any) -> Any:
    """A ViT; the state of the random numbers after it is kept."""
    backbone = get_backbone(*args, **kwargs)
    states.append(torch.get_rng_state())
    return backbone


def draw_twice(learner: Any, state: Tensor) -> None:
    """CODA-Prompt's head and prompts as when it was recorded: first drawn for the width 768 of its code."""
    network = learner._network
    head, prompts = type(network.fc), type(network.prompt)
    classes, tasks, shape = network.fc.out_features, network.prompt.n_tasks, learner.args["prompt_param"]
    torch.set_rng_state(state)
    for width in (768, SHAPE["dim"]):
        network.fc = head(width, classes)
        network.prompt = prompts(width, tasks, shape, key_dim=width)


def check_checkout(path: Path) -> None:
    """Stops unless the checkout is unmodified and at the commit."""
    if not (path / "trainer.py").is_file():
        sys.exit(f"record: {path} is not a checkout of LAMDA-PILOT: it has no trainer.py")
    head, changes = (
        subprocess.run(["git", "-C", str(path), *command], capture_output=True, text=True, check=True).stdout
        for command in (("rev-parse", "HEAD"), ("status", "--porcelain"))
    )
    if not head.startswith(COMMIT) or changes:
        sys.exit(f"record: {path} must be LAMDA-PILOT at {COMMIT} without changes, it is at {head[:7]}\n{changes}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=[])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    check_checkout(options.checkout)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path(__file__).parents[2]))
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    import pilot_tal._torchvision  # noqa: F401

    for name in options.cases or CASES:
        path = options.out / f"{name}.npz"
        np.savez_compressed(path, **record(name, options.checkout.resolve()))
        print(f"{path} ({path.stat().st_size // 1024} kB)")


if __name__ == "__main__":
    main()

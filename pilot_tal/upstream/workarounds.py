"""What a checkout gets from outside, and what it cannot do on a CPU, offline or with small classes.

One function each, which patches modules and classes of the checkout before the learner is built, only where it is
needed; the log then shows its docstring.
"""

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from data_lt.errors import UserError, foreign_code
from pilot_tal.backbone.weights import read_state
from pilot_tal.stream.transforms import build_transforms
from pilot_tal.upstream.swap import Patches

if TYPE_CHECKING:
    from pilot_tal.upstream.driver import Job

FULL_WORKERS = 8  # what most of the originals ask for
TOP_K = 5
SIDE, WIDTH = 224, 768  # of the ViTs and their images
_BACKBONE = ("patch_embed.", "cls_token", "pos_embed", "blocks.", "norm.")


@dataclass
class Context:
    """What a workaround reads and patches: the modules of the learner and of the data."""

    job: "Job"
    patches: Patches
    own: Any
    manager: Any
    on_cpu: bool


def needed_workarounds(context: Context) -> list[Callable[[Context], None]]:
    """Those that a job needs, in the order in which they are applied."""
    job = context.job
    coda = job.method == "coda_prompt"
    needed = {
        our_data: job.data is not None,
        no_download: job.weights is not None,
        other_vit: bool(job.vit),
        fewer_workers: _workers(job) is not None,
        keep_small_task: coda,
        coda_leaf: coda and context.on_cpu,
        coda_one_epoch: coda and job.args["tuned_epoch"] == 1,
        fecam_inverse: job.method == "fecam",
        few_classes: job.args["init_cls"] < TOP_K,
    }
    return [function for function, wanted in needed.items() if wanted]


def apply_workarounds(context: Context) -> list[str]:
    """Applies what is needed; returns the lines of the log."""
    lines = []
    for function in needed_workarounds(context):
        function(context)
        lines.append(f"workaround {function.__name__}: {function.__doc__}")
        logging.getLogger("pilot_tal").warning(lines[-1])
    return lines


def our_data(context: Context) -> None:
    """the images are those of our long-tailed set, with the transforms of the checkout's ImageNet-R or CUB."""
    data, side = context.job.data or {}, context.job.vit.get("img_size", SIDE)
    original, own = context.manager._get_idata, "cub"
    transform = "pilot"
    if context.job.args["dataset"] == "imagenetr_lt":
        own, transform = "imagenetr", "coda" if context.job.method == "coda_prompt" else "pilot"

    def get(dataset_name: str, *args: Any) -> Any:
        source = original(own, *args)
        source.use_path, source.class_order = True, list(range(len(data["class_names"])))
        for split in ("train", "test"):
            paths, labels = zip(*data[split], strict=True)
            setattr(source, f"{split}_data", np.array([str(Path(data["root"]) / path) for path in paths]))
            setattr(source, f"{split}_targets", np.array(labels, dtype=np.int64))
        source.download_data = lambda: None
        if side != SIDE:  # cropped at its own size: by way of 224 pixels the picture would be softer
            train, test = build_transforms(transform, side)
            source.train_trsf, source.test_trsf, source.common_trsf = [train], [test], []
        return source

    context.patches.set(context.manager, "_get_idata", get)


def no_download(context: Context) -> None:
    """the ViT's weights are not downloaded; they come from the given file, or stay random."""
    import timm

    original, weights = timm.create_model, context.job.weights
    changes = {"pretrained": False, **{name: side for name, side in context.job.vit.items() if name == "img_size"}}

    def create(name: str, *args: Any, **kwargs: Any) -> Any:
        model = original(name, *args[1:], **{**kwargs, **changes})
        if weights not in (None, "random"):
            load_vit_weights(model, Path(weights))
        return model

    context.patches.set(timm, "create_model", create)


def load_vit_weights(model: Any, path: Path) -> None:
    """Fills a ViT of the checkout as its own module would after a download; heads and prompts stay as they are."""
    if path.suffix == ".npz":  # in Google's JAX names
        with foreign_code(f"the weights {path} do not fit {type(model).__name__}"):
            model.load_pretrained(str(path))
        return
    state = read_state(path)
    prepare = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if prepare is not None:  # repeats the first position for prompt tokens
        state = prepare(state, model)
    own = model.state_dict()
    fitting = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    missing = model.load_state_dict(fitting, strict=False).missing_keys
    missing = [name for name in missing if name.startswith(_BACKBONE) and "ssf_" not in name]  # SSF trains its own
    if missing:
        what = f"{missing[0]} is missing or of another shape, and so are {len(missing) - 1} more"
        raise UserError(f"the weights {path} do not fit the ViT: {what}")


def other_vit(context: Context) -> None:
    """the shape of the ViT is written into the code; that of the given weights takes its place."""
    from timm.models.vision_transformer import VisionTransformer

    build, shape = VisionTransformer.__init__, context.job.vit

    def build_in_shape(self: Any, *args: Any, **kwargs: Any) -> None:  # the checkout's own ViTs: see driver.opened
        build(self, *args, **{**kwargs, **shape})

    context.patches.set(VisionTransformer, "__init__", build_in_shape)


def _workers(job: "Job") -> int | None:
    cores = os.cpu_count() or 1
    return cores if job.workers is None and cores < FULL_WORKERS else job.workers


def fewer_workers(context: Context) -> None:
    """the number of loader processes is written into the code; ours is used instead."""
    build = DataLoader.__init__

    def build_with_ours(self: DataLoader, *args: Any, **kwargs: Any) -> None:
        kwargs |= {"num_workers": _workers(context.job)} | ({"pin_memory": False} if context.on_cpu else {})
        build(self, *args, **kwargs)

    context.patches.set(DataLoader, "__init__", build_with_ours)


def keep_small_task(context: Context) -> None:
    """CODA-Prompt drops the last batch: a task smaller than one batch would not be trained at all."""
    build = DataLoader.__init__

    def build_whole(self: DataLoader, dataset: Any, batch_size: int = 1, *args: Any, **kwargs: Any) -> None:
        kwargs["drop_last"] = kwargs.get("drop_last", False) and len(dataset) >= batch_size
        build(self, dataset, batch_size, *args, **kwargs)

    context.patches.set(DataLoader, "__init__", build_whole)


def coda_leaf(context: Context) -> None:
    """CODA-Prompt adds in place to a leaf tensor, which only a copy to a GPU allows; the CPU gets a copy too."""
    original = torch.zeros

    def zeros(*args: Any, **kwargs: Any) -> Any:
        tensor = original(*args, **kwargs)
        return tensor.clone() if tensor.requires_grad else tensor

    context.patches.set(torch, "zeros", zeros)


def coda_one_epoch(context: Context) -> None:
    """CODA-Prompt's schedule divides by zero with one epoch; its first learning rate is kept."""
    original = context.own.CosineSchedule
    context.patches.set(context.own, "CosineSchedule", lambda optimizer, K: original(optimizer, K=max(K, 2)))


def fecam_inverse(context: Context) -> None:
    """FeCAM's pseudo-inverse may not converge where few images make a matrix near the identity; float64 helps."""
    original = torch.linalg.pinv

    def inverse(matrix: Any) -> Any:
        try:
            return original(matrix)
        except RuntimeError:  # what counts as zero stays what it is in the matrix's own type
            zero = max(matrix.shape) * torch.finfo(matrix.dtype).eps
            return original(matrix.double(), rtol=zero).to(matrix.dtype)

    context.patches.set(torch.linalg, "pinv", inverse)


def few_classes(context: Context) -> None:
    """the best five classes are asked for when fewer have been seen; as many as there are take their place."""
    kind = context.own.Learner
    train, evaluate = kind.incremental_train, kind._evaluate

    def limited(learner: Any, data_manager: Any) -> Any:
        seen = learner._known_classes + data_manager.get_task_size(learner._cur_task + 1)
        learner.topk = min(TOP_K, seen)
        return train(learner, data_manager)

    def with_top5(learner: Any, *args: Any) -> dict[str, Any]:
        result = evaluate(learner, *args)
        result.setdefault(f"top{TOP_K}", result[f"top{learner.topk}"])
        return result

    context.patches.set(kind, "incremental_train", limited)
    context.patches.set(kind, "_evaluate", with_top5)

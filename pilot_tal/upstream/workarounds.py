"""Workarounds for what the toolboxes cannot do on a CPU, offline or with small classes, one function each.

A workaround patches modules and classes of the checkout before the learner is built, only where it is needed; the log
then shows its docstring.
"""

import importlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, partialmethod
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from pilot_tal.upstream.job import Job
from pilot_tal.upstream.sites import LearnerSites, vit_module
from pilot_tal.upstream.source import load_vit_weights
from pilot_tal.upstream.swap import Patches

FULL_WORKERS = 8  # what most of the originals ask for
TOP_K = 5
LEAST_FISHER = 1e-30  # of gradients of 1e-15: nothing beside any other, and far enough from where float32 ends
# Classes of ViTs, as the checkout and timm call them.
_VITS = ("VisionTransformer", "Generalized_Vit", "Specialized_Vit", "VPT_ViT")
# Those that split the weights of timm's attention into queries, keys and values.
_SPLITTING = ("backbone.vit_adapter", "backbone.vit_ease", "backbone.vit_mos")


@dataclass
class Context:
    """What a workaround reads and patches."""

    job: Job
    learner: LearnerSites
    patches: Patches
    modules: dict[str, Any]
    on_cpu: bool

    @property
    def own(self) -> Any:
        """The module of the learner."""
        return self.modules[self.learner.module]

    @property
    def kind(self) -> Any:
        """The class of the learner."""
        return getattr(self.own, self.learner.cls)

    @property
    def base(self) -> Any:
        """The module that all learners share."""
        return self.modules["models.base"]

    @property
    def vit(self) -> Any:
        """The module that builds the learner's ViT; None for a learner without one."""
        kind = self.job.args.get("backbone_type")
        return None if kind is None else self.modules[vit_module(kind)]


Needed = Callable[[Context], bool]
WORKAROUNDS: dict[str, tuple[Needed, Callable[[Context], None]]] = {}


def _where(needed: Needed) -> Callable[[Callable[[Context], None]], Callable[[Context], None]]:
    def register(function: Callable[[Context], None]) -> Callable[[Context], None]:
        WORKAROUNDS[function.__name__] = (needed, function)
        return function

    return register


def apply_workarounds(context: Context) -> list[str]:
    """Applies what is needed; returns the lines of the log."""
    lines = []
    for name, (needed, function) in WORKAROUNDS.items():
        if needed(context):
            function(context)
            lines.append(f"workaround {name}: {str(function.__doc__).splitlines()[0]}")
            logging.getLogger("pilot_tal").warning(lines[-1])
    return lines


def chosen_workers(job: Job) -> int | None:
    """Loader processes: the job's, else the number of cores where it is below what the originals ask for."""
    cores = os.cpu_count() or 1
    return job.workers if job.workers is not None else (cores if cores < FULL_WORKERS else None)


@_where(lambda c: chosen_workers(c.job) is not None)
def fewer_workers(context: Context) -> None:
    """the number of loader processes is written into the code; ours is used instead."""
    build = DataLoader.__init__

    def build_with_ours(self: DataLoader, *args: Any, **kwargs: Any) -> None:
        kwargs["num_workers"] = chosen_workers(context.job)
        if context.on_cpu:
            kwargs.pop("pin_memory", None)
        build(self, *args, **kwargs)

    context.patches.set(DataLoader, "__init__", build_with_ours)


@_where(lambda c: c.job.method == "coda_prompt")
def keep_small_task(context: Context) -> None:
    """CODA-Prompt drops the last batch: a task smaller than one batch would not be trained at all."""
    build = DataLoader.__init__

    def build_whole(self: DataLoader, dataset: Any, batch_size: int = 1, *args: Any, **kwargs: Any) -> None:
        kwargs["drop_last"] = kwargs.get("drop_last", False) and len(dataset) >= batch_size
        build(self, dataset, batch_size, *args, **kwargs)

    context.patches.set(DataLoader, "__init__", build_whole)


@_where(lambda c: c.job.method == "coda_prompt" and c.on_cpu)
def coda_leaf(context: Context) -> None:
    """CODA-Prompt adds in place to a leaf tensor, which only a copy to a GPU allows; the CPU gets a copy too."""
    original = torch.zeros

    def zeros(*args: Any, **kwargs: Any) -> Any:
        tensor = original(*args, **kwargs)
        return tensor.clone() if tensor.requires_grad else tensor

    context.patches.set(torch, "zeros", zeros)


@_where(lambda c: c.job.method == "coda_prompt" and c.job.args.get("tuned_epoch") == 1)
def coda_one_epoch(context: Context) -> None:
    """CODA-Prompt's schedule divides by zero with one epoch; its first learning rate is kept."""
    original = context.own.CosineSchedule
    context.patches.set(context.own, "CosineSchedule", lambda optimizer, K: original(optimizer, K=max(K, 2)))


@_where(lambda c: c.vit is not None and c.job.weights is not None)
def no_download(context: Context) -> None:
    """the ViT's weights are not downloaded; they come from the given file, or stay random."""
    import timm

    original, weights = timm.create_model, context.job.weights

    def create(name: str, *args: Any, **kwargs: Any) -> Any:
        model = original(name, *args[1:], **{**kwargs, "pretrained": False})
        if weights not in (None, "random"):
            for part in _parts(model):
                load_vit_weights(part, weights)
        return model

    context.patches.set(timm, "create_model", create)


def _parts(model: Any) -> tuple[Any, ...]:
    return model if isinstance(model, tuple) else (model,)  # MEMO's ViT comes in two parts


@_where(lambda c: bool(c.job.vit))
def other_vit(context: Context) -> None:
    """the shape of the ViT is written into the code; it is changed for this trial."""
    import timm.models.vision_transformer as timm_vit

    for module, name in product({timm_vit, context.vit}, _VITS):
        if hasattr(module, name):
            build = partial(_reshaped, getattr(module, name), context.job.vit)
            context.patches.set(module, name, build)


def _reshaped(build: Callable, shape: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    if "tuning_config" in kwargs and "embed_dim" in shape:  # the width of the adapters
        kwargs["tuning_config"].d_model = shape["embed_dim"]
    return build(*args, **{**kwargs, **shape})


@_where(lambda c: "embed_dim" in c.job.vit)
def other_width(context: Context) -> None:
    """the width 768 is written beside every ViT; the width of this trial takes its place."""
    import timm

    width, patches = context.job.vit["embed_dim"], context.patches
    nets, linears = (importlib.import_module(name) for name in ("utils.inc_net", "backbone.linears"))
    get, create, build = nets.get_backbone, timm.create_model, context.kind.__init__

    def get_backbone(*args: Any, **kwargs: Any) -> Any:
        backbone = get(*args, **kwargs)
        for part in _parts(backbone):
            part.out_dim = width
        return backbone

    def create_split(*args: Any, **kwargs: Any) -> Any:
        model = create(*args, **kwargs)
        state = model.state_dict
        model.state_dict = lambda *a, **k: _split_attention(state(*a, **k))
        return model

    def build_narrow(learner: Any, args: Any) -> None:
        build(learner, args)
        network = learner._network
        if getattr(network, "backbone", None) is not None:  # LAE and MOS set its width again
            network.backbone.out_dim = width
        if context.job.method == "coda_prompt":
            network.fc = type(network.fc)(width, network.fc.out_features)
            tasks = network.prompt.n_tasks
            network.prompt = type(network.prompt)(width, tasks, args["prompt_param"], key_dim=width)

    patches.set(nets, "get_backbone", get_backbone)
    reweight = linears.EaseCosineLinear.forward_reweight
    patches.set(linears.EaseCosineLinear, "forward_reweight", partialmethod(reweight, out_dim=width))
    if context.vit.__name__ in _SPLITTING:
        patches.set(timm, "create_model", create_split)
    patches.set(context.kind, "__init__", build_narrow)


def _split_attention(state: dict[str, Any]) -> dict[str, Any]:
    """A ViT's tensors with queries, keys and values apart, which the originals split at a width of 768."""
    split: dict[str, Any] = {}
    for name, tensor in state.items():
        parts = zip("qkv", tensor.chunk(3), strict=True) if ".qkv." in name else [("", tensor)]
        split |= {name.replace("qkv", f"{letter}_proj") if letter else name: part for letter, part in parts}
    return split


@_where(lambda c: c.job.method == "dgr" and c.on_cpu)
def cuda_on_cpu(context: Context) -> None:
    """DGR moves its prior to the GPU whatever the device; on a CPU it stays where it is."""
    context.patches.set(torch.Tensor, "cuda", lambda tensor: tensor)


@_where(lambda c: c.job.method == "fecam")
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


@_where(lambda c: c.job.args["init_cls"] < TOP_K)
def few_classes(context: Context) -> None:
    """the best five classes are asked for when fewer have been seen; as many as there are take their place."""
    train, evaluate = context.kind.incremental_train, context.kind._evaluate

    def limited(learner: Any, data_manager: Any) -> Any:
        seen = learner._known_classes + data_manager.get_task_size(learner._cur_task + 1)
        learner.topk = min(TOP_K, seen)
        return train(learner, data_manager)

    def with_top5(learner: Any, *args: Any) -> dict[str, Any]:
        result = evaluate(learner, *args)
        result.setdefault(f"top{TOP_K}", result[f"top{learner.topk}"])
        return result

    context.patches.set(context.kind, "incremental_train", limited)
    context.patches.set(context.kind, "_evaluate", with_top5)


def _replays(context: Context) -> bool:
    return context.job.data is not None and context.learner.growing


@_where(_replays)
def few_exemplars(context: Context) -> None:
    """a class with fewer images than exemplars stops the choice of exemplars; it gives all the images it has."""
    for name in ("_construct_exemplar", "_construct_exemplar_unified"):
        original = getattr(context.kind, name)

        def limited(learner: Any, data_manager: Any, m: int, original: Callable = original) -> None:
            counts = np.bincount(data_manager._train_targets)
            known, total = learner._known_classes, learner._total_classes
            if counts[known:total].min() >= m:
                original(learner, data_manager, m)
                return
            try:  # the original chooses for the classes from known to total: one at a time, each with its own m
                for label in range(known, total):
                    learner._known_classes, learner._total_classes = label, label + 1
                    original(learner, data_manager, min(m, int(counts[label])))
            finally:
                learner._known_classes, learner._total_classes = known, total

        if name not in vars(context.kind):  # MEMO's own choice stops by itself when a class is used up
            context.patches.set(context.kind, name, limited)


@_where(lambda c: c.job.method == "cofima")
def cofima_average(context: Context) -> None:
    """CoFiMA divides zero by zero where two tasks have no gradient at all; there it takes the plain average."""
    original = context.kind.getFisherDiagonal

    def positive(*args: Any) -> dict[str, Any]:
        return {name: fisher.clamp(min=LEAST_FISHER) for name, fisher in original(*args).items()}

    context.patches.set(context.kind, "getFisherDiagonal", positive)


@_where(lambda c: c.job.method == "duct" and not hasattr(c.base.BaseLearner, "_compute_class_mean"))
def duct_means(context: Context) -> None:
    """the class means that DUCT asks for stand inside another method by mistake; they are computed here."""

    def compute(learner: Any, data_manager: Any) -> None:
        means = list(getattr(learner, "_class_means", []))
        for label in range(learner._known_classes, learner._total_classes):
            images = data_manager.get_dataset([label], source="train", mode="test")
            loader: Any = DataLoader(images, batch_size=learner.batch_size, num_workers=FULL_WORKERS)
            means.append(learner._extract_vectors(loader)[0].mean(axis=0, dtype=np.float64))
        learner._class_means = np.stack(means)

    context.patches.set(context.kind, "_compute_class_mean", compute)


@_where(lambda c: c.job.method == "bic" and _replays(c))
def small_validation(context: Context) -> None:
    """BiC's validation set takes as many images of every class as the smallest can spare."""
    manager = context.modules["utils.data_manager"].DataManager
    original = manager.get_dataset_with_split

    def split(self: Any, indices: Any, *args: Any, val_samples_per_class: int = 0, **kwargs: Any) -> Any:
        memory = kwargs.get("appendent")
        counts = np.bincount(self._train_targets)[np.asarray(indices)]
        if memory is not None:
            counts = np.concatenate([counts, np.bincount(np.asarray(memory[1], dtype=np.int64))])
        spare = max(1, int(counts.min()) - 1)
        return original(self, indices, *args, val_samples_per_class=min(val_samples_per_class, spare), **kwargs)

    context.patches.set(manager, "get_dataset_with_split", split)

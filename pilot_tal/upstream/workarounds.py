"""Workarounds for what the toolboxes cannot do on a CPU, offline or with small classes, one function each.

A workaround is applied only where it is needed; the log then shows its docstring.
"""

import importlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, partialmethod
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np

from pilot_tal.upstream.job import Job
from pilot_tal.upstream.sites import LearnerSites, vit_module
from pilot_tal.upstream.source import load_vit_weights
from pilot_tal.upstream.swap import Patches

FULL_WORKERS = 8  # what most of the originals ask for
VIT_WIDTH = 768
TOP_K = 5
LEAST_FISHER = 1e-30  # of gradients of 1e-15: nothing beside any other, and far enough from where float32 ends
# Classes of ViTs, as the checkout and timm call them.
_VITS = ("VisionTransformer", "Generalized_Vit", "Specialized_Vit", "VPT_ViT")
# Those that split the weights of timm's attention into queries, keys and values.
_SPLITTING = ("backbone.vit_adapter", "backbone.vit_ease", "backbone.vit_mos")
_HEED_PRETRAINED = ("l2p", "dualprompt", "coda_prompt")


@dataclass
class Context:
    """What a workaround reads and patches."""

    job: Job
    learner: LearnerSites
    patches: Patches
    modules: dict[str, ModuleType]
    on_cpu: bool

    @property
    def name(self) -> str:
        """The learner's name."""
        return self.job.method

    @property
    def own(self) -> ModuleType:
        """The module of the learner."""
        return self.modules[self.learner.module]

    @property
    def base(self) -> ModuleType:
        """The module that all learners share."""
        return self.modules["models.base"]

    @property
    def vit(self) -> ModuleType | None:
        """The module that builds the learner's ViT, if it has one."""
        kind = self.job.args.get("backbone_type")
        return None if kind is None else self.modules[vit_module(kind)]


Needed = Callable[[Context], bool]
BEFORE: dict[str, tuple[Needed, Callable[[Context], None]]] = {}
ON_LEARNER: dict[str, tuple[Needed, Callable[[Context, Any], None]]] = {}


def _register(registry: dict, needed: Needed):
    def add(function: Callable) -> Callable:
        registry[function.__name__] = (needed, function)
        return function

    return add


def apply_before(context: Context) -> list[str]:
    """Applies what is needed before the learner is built; returns the lines of the log."""
    return [_log(function, function(context)) for needed, function in BEFORE.values() if needed(context)]


def apply_on_learner(context: Context, learner: Any) -> list[str]:
    """Applies what is needed once the learner is built; returns the lines of the log."""
    return [_log(function, function(context, learner)) for needed, function in ON_LEARNER.values() if needed(context)]


def _log(function: Callable, _: None) -> str:
    line = f"workaround {function.__name__}: {str(function.__doc__).splitlines()[0]}"
    logging.getLogger("pilot_tal").warning(line)
    return line


def chosen_workers(job: Job) -> int | None:
    """Loader processes: the job's, else the machine's cores where they are fewer than the originals ask for."""
    cores = os.cpu_count() or 1
    return job.workers if job.workers is not None else (cores if cores < FULL_WORKERS else None)


@_register(BEFORE, lambda c: chosen_workers(c.job) is not None)
def fewer_workers(context: Context) -> None:
    """the number of loader processes is written into the code; ours is used instead."""
    for module in (context.base, context.own):
        original = module.DataLoader

        def loader(*args: Any, original: Callable = original, **kwargs: Any) -> Any:
            kwargs["num_workers"] = chosen_workers(context.job)
            if context.on_cpu:
                kwargs.pop("pin_memory", None)
            return original(*args, **kwargs)

        context.patches.set(module, "DataLoader", loader)


@_register(BEFORE, lambda c: c.name == "coda_prompt")
def keep_small_task(context: Context) -> None:
    """CODA-Prompt drops the last batch: a task smaller than one batch would not be trained at all."""
    original = context.own.DataLoader

    def loader(dataset: Any, batch_size: int, drop_last: bool = False, **kwargs: Any) -> Any:
        drop_last = drop_last and len(dataset) >= batch_size
        return original(dataset, batch_size=batch_size, drop_last=drop_last, **kwargs)

    context.patches.set(context.own, "DataLoader", loader)


@_register(BEFORE, lambda c: c.name == "coda_prompt" and c.on_cpu)
def coda_leaf(context: Context) -> None:
    """CODA-Prompt adds in place to a leaf tensor, which only a copy to a GPU allows; the CPU gets a copy too."""
    vit: Any = context.vit
    context.patches.set(vit, "torch", _CopiedLeaves(vit.torch))


class _CopiedLeaves:
    """torch, except that `zeros` with requires_grad gives a copy, to which one may add in place."""

    def __init__(self, torch: ModuleType):
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def zeros(self, *args: Any, **kwargs: Any) -> Any:
        tensor = self._torch.zeros(*args, **kwargs)
        return tensor.clone() if tensor.requires_grad else tensor


@_register(BEFORE, lambda c: c.name == "coda_prompt" and c.job.args.get("tuned_epoch") == 1)
def coda_one_epoch(context: Context) -> None:
    """CODA-Prompt's schedule divides by zero with one epoch; its first learning rate is kept."""
    original = context.own.CosineSchedule
    context.patches.set(context.own, "CosineSchedule", lambda optimizer, K: original(optimizer, K=max(K, 2)))


def _wants_no_download(context: Context) -> bool:
    ignored = context.name not in _HEED_PRETRAINED and context.job.args.get("pretrained") is False
    return context.vit is not None and (context.job.weights is not None or ignored)


@_register(BEFORE, _wants_no_download)
def no_download(context: Context) -> None:
    """the ViT's weights are not downloaded; they come from the given file, or stay random."""
    import timm

    original, weights = timm.create_model, context.job.weights

    def create(name: str, *args: Any, **kwargs: Any) -> Any:
        model = original(name, *args[1:], **{**kwargs, "pretrained": False})
        if weights not in (None, "random"):
            for part in model if isinstance(model, tuple) else (model,):  # MEMO's ViT comes in two parts
                load_vit_weights(part, weights)
        return model

    context.patches.set(timm, "create_model", create)


@_register(BEFORE, lambda c: bool(c.job.vit))
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


@_register(BEFORE, lambda c: c.name == "dgr" and c.on_cpu)
def cuda_on_cpu(context: Context) -> None:
    """DGR moves its prior to the GPU whatever the device; on a CPU it stays where it is."""
    import torch

    context.patches.set(torch.Tensor, "cuda", lambda tensor: tensor)


@_register(BEFORE, lambda c: c.name == "fecam")
def fecam_inverse(context: Context) -> None:
    """FeCAM's pseudo-inverse may not converge where few images make a matrix near the identity; float64 helps."""
    import torch

    original = torch.linalg.pinv

    def inverse(matrix: Any) -> Any:
        try:
            return original(matrix)
        except RuntimeError:  # what counts as zero stays what it is in the matrix's own type
            zero = max(matrix.shape) * torch.finfo(matrix.dtype).eps
            return original(matrix.double(), rtol=zero).to(matrix.dtype)

    context.patches.set(torch.linalg, "pinv", inverse)


@_register(BEFORE, lambda c: "embed_dim" in c.job.vit and getattr(c.vit, "__name__", "") in _SPLITTING)
def split_width(context: Context) -> None:
    """the ViT's attention weights are split at a width of 768; they are split at the width of this trial."""
    import timm

    original = timm.create_model

    def create(*args: Any, **kwargs: Any) -> Any:
        model = original(*args, **kwargs)
        state = model.state_dict
        model.state_dict = lambda *a, **k: _split_attention(state(*a, **k))
        return model

    context.patches.set(timm, "create_model", create)


def _split_attention(state: dict[str, Any]) -> dict[str, Any]:
    """A ViT's tensors with queries, keys and values apart."""
    split: dict[str, Any] = {}
    for name, tensor in state.items():
        parts = zip("qkv", tensor.chunk(3), strict=True) if ".qkv." in name else [("", tensor)]
        split |= {name.replace("qkv", f"{letter}_proj") if letter else name: part for letter, part in parts}
    return split


@_register(BEFORE, lambda c: "embed_dim" in c.job.vit)
def backbone_width(context: Context) -> None:
    """the width 768 is written beside every ViT; the width of this trial takes its place."""
    nets, linears = (importlib.import_module(name) for name in ("utils.inc_net", "backbone.linears"))
    width, get, ease = context.job.vit["embed_dim"], nets.get_backbone, linears.EaseCosineLinear

    def get_backbone(*args: Any, **kwargs: Any) -> Any:
        backbone = get(*args, **kwargs)
        backbone.out_dim = width
        return backbone

    context.patches.set(nets, "get_backbone", get_backbone)
    context.patches.set(ease, "forward_reweight", partialmethod(ease.forward_reweight, out_dim=width))


@_register(ON_LEARNER, lambda c: "embed_dim" in c.job.vit)
def other_width(context: Context, learner: Any) -> None:
    """some networks assume a ViT of width 768; they get the width of this trial."""
    network, width = learner._network, context.job.vit["embed_dim"]
    backbone = getattr(network, "backbone", None)
    if getattr(backbone, "out_dim", None) == VIT_WIDTH:
        context.patches.set(backbone, "out_dim", width)
    if context.name == "coda_prompt":
        prompt = network.prompt
        network.fc = type(network.fc)(width, network.fc.out_features)
        network.prompt = type(prompt)(width, prompt.n_tasks, context.job.args["prompt_param"], key_dim=width)


@_register(ON_LEARNER, lambda c: c.job.args["init_cls"] < TOP_K)
def few_classes(context: Context, learner: Any) -> None:
    """the best five classes are asked for when fewer have been seen; as many as there are take their place."""
    train, evaluate = learner.incremental_train, learner._evaluate

    def limited(data_manager: Any) -> Any:
        seen = learner._known_classes + data_manager.get_task_size(learner._cur_task + 1)
        learner.topk = min(TOP_K, seen)
        return train(data_manager)

    def with_top5(*args: Any) -> dict[str, Any]:
        result = evaluate(*args)
        result.setdefault(f"top{TOP_K}", result[f"top{learner.topk}"])
        return result

    context.patches.set(learner, "incremental_train", limited)
    context.patches.set(learner, "_evaluate", with_top5)


def _replays(context: Context) -> bool:
    return context.job.data is not None and context.learner.growing


@_register(ON_LEARNER, _replays)
def few_exemplars(context: Context, learner: Any) -> None:
    """a class with fewer images than exemplars stops the choice of exemplars; it gives all the images it has."""
    for name in ("_construct_exemplar", "_construct_exemplar_unified"):
        if name in vars(type(learner)):
            continue  # MEMO's own choice stops by itself when a class is used up
        original = getattr(learner, name)

        def limited(data_manager: Any, m: int, original: Callable = original) -> None:
            counts = np.bincount(data_manager._train_targets)
            known, total = learner._known_classes, learner._total_classes
            if counts[known:total].min() >= m:
                original(data_manager, m)
                return
            try:  # the original chooses for the classes from known to total: one at a time, each with its own m
                for label in range(known, total):
                    learner._known_classes, learner._total_classes = label, label + 1
                    original(data_manager, min(m, int(counts[label])))
            finally:
                learner._known_classes, learner._total_classes = known, total

        context.patches.set(learner, name, limited)


@_register(ON_LEARNER, lambda c: c.name == "cofima")
def cofima_average(context: Context, learner: Any) -> None:
    """CoFiMA divides zero by zero where two tasks have no gradient at all; there it takes the plain average."""
    original = learner.getFisherDiagonal

    def positive(*args: Any) -> dict[str, Any]:
        return {name: fisher.clamp(min=LEAST_FISHER) for name, fisher in original(*args).items()}

    context.patches.set(learner, "getFisherDiagonal", positive)


@_register(ON_LEARNER, lambda c: c.name == "duct" and not hasattr(c.base.BaseLearner, "_compute_class_mean"))
def duct_means(context: Context, learner: Any) -> None:
    """the class means that DUCT asks for stand inside another method by mistake; they are computed here."""

    def compute(data_manager: Any) -> None:
        means = list(getattr(learner, "_class_means", []))
        for label in range(learner._known_classes, learner._total_classes):
            images = data_manager.get_dataset([label], source="train", mode="test")
            loader = context.base.DataLoader(images, batch_size=learner.batch_size, num_workers=FULL_WORKERS)
            means.append(learner._extract_vectors(loader)[0].mean(axis=0, dtype=np.float64))
        learner._class_means = np.stack(means)

    context.patches.set(learner, "_compute_class_mean", compute)


@_register(ON_LEARNER, lambda c: c.name == "bic" and _replays(c))
def small_validation(context: Context, learner: Any) -> None:
    """BiC's validation set takes as many images of every class as the smallest can spare."""
    train = learner.incremental_train

    def limited(data_manager: Any) -> Any:
        if learner._cur_task < 0:  # about to begin the first task
            _limit_validation(context.patches, data_manager)
        return train(data_manager)

    context.patches.set(learner, "incremental_train", limited)


def _limit_validation(patches: Patches, data_manager: Any) -> None:
    original = data_manager.get_dataset_with_split

    def split(indices: Any, *args: Any, val_samples_per_class: int = 0, **kwargs: Any) -> Any:
        memory = kwargs.get("appendent")
        counts = np.bincount(data_manager._train_targets)[np.asarray(indices)]
        if memory is not None:
            counts = np.concatenate([counts, np.bincount(np.asarray(memory[1], dtype=np.int64))])
        spare = max(1, int(counts.min()) - 1)
        return original(indices, *args, val_samples_per_class=min(val_samples_per_class, spare), **kwargs)

    patches.set(data_manager, "get_dataset_with_split", split)

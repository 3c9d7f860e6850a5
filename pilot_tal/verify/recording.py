"""Reads a recorded run of a learner: one `.npz` file of numbers."""

import json
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from data_lt.errors import UserError, unknown_name
from data_lt.files import check_regular
from pilot_tal.learners import FIDELITIES, LEARNERS, MethodConfig
from pilot_tal.schema import Rule, build, settings_of
from pilot_tal.stream.task import TaskInfo

LOSSES = ("ce", "tal", "none")
"""Losses of recorded runs; `none` is that of a learner that trains nothing."""
LARGEST = 1 << 32  # bytes
Size = Annotated[int, Rule("a size", 1, 10_000)]


@dataclass(frozen=True)
class Meta:
    """The required entries of `meta`; `per` is the number of classes per task."""

    method: str
    fidelity: str
    dim: Size
    depth: Size
    heads: Size
    patch: Size
    img: Size
    tasks: Size
    per: Size
    epochs: Size
    bs: Size
    wd: Annotated[float, Rule("weight decay", 0, 100)]
    lam: Annotated[float, Rule("TAL's λ", above=0, below=1)]
    r: Annotated[float, Rule("TAL's r", above=0, high=1000)]
    eps: Annotated[float, Rule("TAL's ε", above=0, below=1)]
    hp: dict[str, Any]


_REQUIRED = set(settings_of(Meta))
_REMARKS = {"commit", "versions", "seeds"}
# Settings of LAMDA-PILOT that have no effect in these learners, or that `meta` has under another name.
_IGNORED = {
    "initializer", "predefined_key", "global_pool", "pretrained", "freeze", "prefix", "dataset", "memory_size",
    "memory_per_class", "fixed_memory", "shuffle", "init_cls", "increment", "model_name", "backbone_type",
    "device", "seed", "M", "vpt_type", "prompt_token_num", "use_simplecil", "adapter_num", "pull_constraint",
    "embedding_key", "prompt_key_init", "ca_storage_efficient_method_choices", "tuned_epoch", "init_epochs",
    "later_epochs", "later_lr", "init_lr", "optimizer", "min_lr", "scheduler",
}  # fmt: skip
# Settings for which our learners have one value.
_FIXED = {
    "prompt_pool": True, "prompt_key": True, "get_original_backbone": True, "reinit_optimizer": True,
    "use_g_prompt": True, "use_e_prompt": True, "use_prefix_tune_for_g_prompt": True,
    "same_key_value": False, "drop": 0, "drop_path": 0, "use_RP": True, "use_old_data": False, "moni_adam": False,
}  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """One recorded run: its meta data and its arrays."""

    path: Path
    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of classes of each task."""
        return (self.meta["per"],) * self.meta["tasks"]

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses of the recorded runs."""
        return tuple(loss for loss in LOSSES if any(name.startswith(f"{loss}.task0.") for name in self.arrays))

    def tensor(self, name: str) -> Tensor:
        """One array as a tensor."""
        if name not in self.arrays:
            raise UserError(f"{self.path} lacks the array {name!r}")
        return torch.from_numpy(self.arrays[name])

    def group(self, prefix: str) -> dict[str, Tensor]:
        """All tensors whose names begin with a prefix, without the prefix."""
        return {k.removeprefix(prefix): torch.from_numpy(v) for k, v in self.arrays.items() if k.startswith(prefix)}

    def train_batches(self, task: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The training batches of a task."""
        index = 0
        while f"train{task}.{index}.x" in self.arrays:
            yield self.tensor(f"train{task}.{index}.x"), self.tensor(f"train{task}.{index}.y")
            index += 1
        if index == 0:
            raise UserError(f"{self.path} has no training batch for task {task}")

    def task(self, index: int) -> TaskInfo:
        """A task as the training loop takes it."""
        first, size = sum(self.sizes[:index]), self.sizes[index]
        labels = torch.cat([y for _, y in self.train_batches(index)]) - first
        if labels.min() < 0 or labels.max() >= size:
            raise UserError(f"{self.path}: task {index} has training labels outside its {size} classes")
        counts = torch.bincount(labels, minlength=size).clamp_min(1).tolist()  # no recorded loss reads them
        return TaskInfo(index, len(self.sizes), first, first + size, tuple(counts))

    def config(self) -> MethodConfig:
        """The learner's settings: those of the recording, defaults for the rest."""
        meta, method = self.meta, self.meta["method"]
        known = settings_of(LEARNERS[method].config_class)
        values = {"tuned_epoch": meta["epochs"], "batch_size": meta["bs"], "weight_decay": meta["wd"]}
        values["scheduler"] = "cosine"  # of the learners whose original has no such setting
        values["adapter_dropout"] = 0.0  # verification draws no random number
        values = {name: value for name, value in values.items() if name in known}
        for name, value in meta["hp"].items():
            if name in known:
                values[name] = value
            elif name in _FIXED:
                if value != _FIXED[name]:
                    raise UserError(f"{self.path}: {name} must be {_FIXED[name]} to verify, got {value!r}")
            elif name not in _IGNORED:
                raise unknown_name(f"setting in {self.path} for {method}", name, {*known, *_FIXED, *_IGNORED})
        return build(LEARNERS[method].config_class, values, of=str(self.path))


def read_recording(path: str | Path) -> Recording:
    """Reads a recording.

    Raises:
        UserError: the file is not a recording, or its meta data are wrong.
    """
    path = Path(path)
    check_regular(path, "the recording", LARGEST)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta = json.loads(bytes(arrays.pop("meta")).decode("utf-8"))
    except (OSError, ValueError, LookupError, zipfile.BadZipFile, EOFError, AttributeError, TypeError, zlib.error,
            RecursionError, NotImplementedError, MemoryError) as error:  # fmt: skip
        raise UserError(f"{path} is not a recording: it must be an .npz file with a JSON 'meta'") from error
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise UserError(f"{path} is not a recording: its array {name[:60]!r} holds {array.dtype.name}, no numbers")
    _check_meta(path, meta)
    return Recording(path, meta, arrays)


def _check_meta(path: Path, meta: Any) -> None:
    missing = sorted(_REQUIRED - meta.keys()) if isinstance(meta, dict) else sorted(_REQUIRED)
    if missing:
        raise UserError(f"{path}: meta lacks {', '.join(missing)}")
    for name in meta:
        if name not in _REQUIRED | _REMARKS:
            raise unknown_name(f"entry of meta in {path}", name, _REQUIRED)
    try:
        build(Meta, {name: value for name, value in meta.items() if name in settings_of(Meta)})
    except UserError as error:
        raise UserError(f"{path}: meta: {error}") from error
    for name, known in (("method", LEARNERS), ("fidelity", FIDELITIES)):
        if meta[name] not in known:
            raise unknown_name(f"{name} in {path}", meta[name], known)

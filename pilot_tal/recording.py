"""Reading a recorded run of a learner: numbers only, in one `.npz` file."""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pilot_tal.errors import PilotTalError, unknown_name
from pilot_tal.learners import FIDELITIES, METHODS, MethodConfig
from pilot_tal.learners.config import load_method_config
from pilot_tal.task import TaskInfo

LOSSES = ("ce", "tal")
_REQUIRED = {"method", "fidelity", "dim", "depth", "heads", "patch", "img", "tasks", "per", "epochs", "bs", "wd"}
_REQUIRED |= {"lam", "r", "eps", "hp"}
_REMARKS = {"seed", "commit", "note", "name", "torch", "timm"}
# Settings of LAMDA-PILOT that its own code never reads (or reads without effect) in these learners.
_IGNORED = {
    "initializer", "predefined_key", "global_pool", "pretrained", "freeze", "prefix", "dataset", "memory_size",
    "memory_per_class", "fixed_memory", "shuffle", "init_cls", "increment", "model_name", "backbone_type",
    "device", "seed", "M",
}  # fmt: skip
# Settings with one value that makes sense here: another one would ask for something the learners do not do.
_FIXED = {
    "prompt_pool": True, "prompt_key": True, "get_original_backbone": True, "reinit_optimizer": True,
    "use_g_prompt": True, "use_e_prompt": True, "use_prefix_tune_for_g_prompt": True,
    "same_key_value": False, "drop": 0, "drop_path": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """One recorded run: what it says about itself, and its arrays."""

    path: Path
    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]
    sizes: tuple[int, ...]

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses the run was played with."""
        return tuple(loss for loss in LOSSES if f"{loss}.task0.losses" in self.arrays)

    def tensor(self, name: str) -> Tensor:
        """One array as a tensor; a missing one is named."""
        if name not in self.arrays:
            raise PilotTalError(f"{self.path} lacks the array {name!r}")
        return torch.from_numpy(self.arrays[name])

    def group(self, prefix: str) -> dict[str, Tensor]:
        """All tensors under a prefix, without it."""
        return {k.removeprefix(prefix): torch.from_numpy(v) for k, v in self.arrays.items() if k.startswith(prefix)}

    def train_batches(self, task: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The training batches of a task in their order."""
        index = 0
        while f"train{task}.{index}.x" in self.arrays:
            yield self.tensor(f"train{task}.{index}.x"), self.tensor(f"train{task}.{index}.y")
            index += 1
        if index == 0:
            raise PilotTalError(f"{self.path} has no training batch for task {task}")

    def task(self, index: int) -> TaskInfo:
        """What is known of a task when it begins."""
        first, size = sum(self.sizes[:index]), self.sizes[index]
        labels = torch.cat([y for _, y in self.train_batches(index)]) - first
        if labels.min() < 0 or labels.max() >= size:
            raise PilotTalError(f"{self.path}: task {index} has training labels outside its {size} classes")
        counts = torch.bincount(labels, minlength=size).clamp_min(1).tolist()  # no recorded loss reads them
        return TaskInfo(index, len(self.sizes), first, first + size, tuple(counts))

    def config(self) -> MethodConfig:
        """The learner's settings: LAMDA-PILOT's defaults, then what the recording says."""
        meta, method = self.meta, self.meta["method"]
        known = load_method_config(method)
        values = {"tuned_epoch": meta["epochs"], "batch_size": meta["bs"], "weight_decay": meta["wd"]}
        values["min_lr"] = 1e-5  # of all recordings that do not name it, those of MOS included
        if method == "mos":
            values["adapter_dropout"] = 0.0  # a replay draws no random number
        for name, value in meta["hp"].items():
            if name in _FIXED:
                if value != _FIXED[name]:
                    raise PilotTalError(f"{self.path}: {name} must be {_FIXED[name]} for a replay, got {value!r}")
            elif hasattr(known, name):
                values[name] = value
            elif name not in _IGNORED:
                names = {*vars(known), *_FIXED, *_IGNORED}
                raise unknown_name(f"setting in {self.path} for {method}", name, names)
        return load_method_config(method, overrides=values)


def read_recording(path: str | Path) -> Recording:
    """Reads a recording; a file that is none is one sentence."""
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta = json.loads(bytes(arrays.pop("meta")).decode("utf-8"))
    except FileNotFoundError as error:
        raise PilotTalError(f"{path} does not exist") from error
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError, AttributeError, TypeError) as error:
        raise PilotTalError(f"{path} is not a recording: it must be an .npz file with a JSON 'meta'") from error
    _check_meta(path, meta)
    return Recording(path, meta, arrays, _sizes(path, meta))


def _check_meta(path: Path, meta: Any) -> None:
    if not isinstance(meta, dict) or not meta.keys() >= _REQUIRED or not isinstance(meta["hp"], dict):
        missing = sorted(_REQUIRED - meta.keys()) if isinstance(meta, dict) else sorted(_REQUIRED)
        raise PilotTalError(f"{path}: meta lacks {', '.join(missing) or 'settings (hp)'}")
    for name in meta:
        if name not in _REQUIRED | _REMARKS:
            raise unknown_name(f"entry of meta in {path}", name, _REQUIRED)
    for name, known in (("method", METHODS), ("fidelity", FIDELITIES)):
        if meta[name] not in known:
            raise unknown_name(f"{name} in {path}", str(meta[name]), known)


def _sizes(path: Path, meta: dict[str, Any]) -> tuple[int, ...]:
    """Classes of each task: `per` is one number, or one a task."""
    tasks, per = meta["tasks"], meta["per"]
    sizes = tuple(per) if isinstance(per, list) else (per,) * tasks
    if len(sizes) != tasks or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise PilotTalError(f"{path}: per must give a number of classes for each of the {tasks} tasks, got {per}")
    return sizes

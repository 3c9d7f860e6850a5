"""Reads a recorded run of a learner: one `.npz` file of numbers."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from data_lt.errors import UserError
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
    """What is read of `meta`: `per` is the number of classes per task, `hp` has LAMDA-PILOT's settings."""

    method: Annotated[str, Rule("a method", choices=tuple(LEARNERS))]
    fidelity: Annotated[str, Rule("a fidelity", choices=FIDELITIES)]
    heads: Size
    tasks: Size
    per: Size
    epochs: Size
    bs: Size
    wd: Annotated[float, Rule("weight decay", 0, 100)]
    lam: Annotated[float, Rule("TAL's λ", above=0, below=1)]
    r: Annotated[float, Rule("TAL's r", above=0, high=1000)]
    eps: Annotated[float, Rule("TAL's ε", above=0, below=1)]
    hp: dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """One recorded run: its meta data and its arrays."""

    path: Path
    meta: Meta
    arrays: dict[str, np.ndarray]

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
        count = len(self.group(f"train{task}.")) // 2
        if count == 0:
            raise UserError(f"{self.path} has no training batch for task {task}")
        for index in range(count):
            yield self.tensor(f"train{task}.{index}.x"), self.tensor(f"train{task}.{index}.y")

    def task(self, index: int) -> TaskInfo:
        """A task as the training loop takes it."""
        size = self.meta.per
        counts = (1,) * size  # no recorded loss reads them
        return TaskInfo(index, self.meta.tasks, index * size, (index + 1) * size, counts)

    def config(self) -> MethodConfig:
        """The learner's settings: those of the recording that it has, defaults for the rest."""
        meta, config = self.meta, LEARNERS[self.meta.method].config_class
        values: dict[str, Any] = {"tuned_epoch": meta.epochs, "batch_size": meta.bs, "weight_decay": meta.wd}
        values["scheduler"] = "cosine"  # of the learners whose original has no such setting
        values["adapter_dropout"] = 0.0  # verification draws no random number
        known = settings_of(config)
        values = {name: value for name, value in (values | meta.hp).items() if name in known}
        return build(config, values, of=str(self.path))


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
        values = dict(json.loads(bytes(arrays.pop("meta")).decode("utf-8")))
    except Exception as error:  # NumPy's own message recommends allow_pickle
        raise UserError(f"{path} is not a recording: it must be an .npz file with a JSON 'meta'") from error
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise UserError(f"{path} is not a recording: its array {name[:60]!r} holds {array.dtype.name}, no numbers")
    try:
        meta = build(Meta, {name: value for name, value in values.items() if name in settings_of(Meta)})
    except UserError as error:
        raise UserError(f"{path}: meta: {error}") from error
    return Recording(path, meta, arrays)

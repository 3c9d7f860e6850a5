"""TAL and learners with what only recordings need: their arithmetic, and the values that the original drew."""

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from data_lt.errors import UserError
from pilot_tal.learners import LEARNERS, Learner
from pilot_tal.learners.adapters import named_adapters
from pilot_tal.learners.base import Images
from pilot_tal.learners.coda_prompt import CODAPrompt
from pilot_tal.learners.mos import MOS
from pilot_tal.learners.ranpac import RanPAC
from pilot_tal.losses.tal import TAL


class RecordedTAL(TAL):
    """TAL in the arithmetic of the recordings: Q and log-weights in float64, the loss in the logits' type.

    With Q at 0 and ε = 1e-8 the first losses of a task are about 1e-7, so their gradients are rounding errors of
    float32, and Adam scales a tiny gradient to a full step. Another order of the same operations, or another CPU, can
    differ by 1e-2 in the end.
    """

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """log Σ_k e^{z_k + ℓ_k} − z_y with ℓ_y = 0, averaged; then Q is updated."""
        shift = self.negative_weights().log().to(logits.dtype)
        shift = shift.expand(logits.shape).scatter(1, targets.unsqueeze(1), 0.0)
        true = logits.gather(1, targets.unsqueeze(1)).squeeze(1)
        loss = (torch.logsumexp(logits + shift, dim=1) - true).mean()
        super().forward(logits.detach(), targets)
        return loss


class RecordedRanPAC(RanPAC):
    """RanPAC that chooses its ridge by the last fifth of the images in the order of the recorded batches."""

    def shuffled(self, number: int) -> Tensor:
        """The order of the recording."""
        return torch.arange(number)


class RecordedMOS(MOS):
    """MOS that aligns its classifier with the recorded batches."""

    recorded: Mapping[str, Tensor]
    """What was recorded of the current task, by name; set before `end_task`."""

    def gaussian_batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The recorded batches of an epoch."""
        epochs = self.config.crct_epochs
        features, labels = self.recorded.get("align.features"), self.recorded.get("align.labels")
        if features is None or labels is None or len(features) % epochs:
            raise UserError(f"the recording of task {self.task.index} needs align batches for {epochs} epochs")
        yield from zip(features.chunk(epochs)[epoch], labels.long().chunk(epochs)[epoch], strict=True)


class ShippedMOS(RecordedMOS):
    """MOS whose statistics and evaluation merge the stored adapters, as every forward pass of LAMDA-PILOT does.

    Evaluation of ours must not change the model, so MOS uses the limit of these merges instead. This class shows that
    nothing else differs.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.merged = nn.ModuleList()

    def end_task(self, images: Images) -> None:
        """Keeps a second snapshot, which evaluation merges."""
        self.merged.append(copy.deepcopy(self.cur).requires_grad_(False))
        super().end_task(images)

    @torch.no_grad()
    def training_features(self, images: Images) -> tuple[Tensor, Tensor, Tensor]:
        """Features class by class; each pass merges the current adapters."""
        if not self._mean_parts:
            return super().training_features(images)
        for part, own in zip(self.cur.parts, self.merged[-1].parameters(), strict=True):
            part.copy_(own)
        x, y = (torch.cat(column) for column in zip(*images(), strict=True))
        tokens, order = self.backbone.embed(x), torch.argsort(y, stable=True)
        features = [
            self.features(tokens[y == label], self.contracted(self.cur.parts, self._mean_parts))
            for label in range(self.task.first, self.task.stop)
        ]
        return torch.cat(features), self.features(tokens[order], self.adapter_parts(0)), y[order]

    def adapter_features(self, index: int, tokens: Tensor, ids: Tensor | None) -> Tensor:
        """Test features under one snapshot, which the pass merges."""
        parts = list(self.merged[index].parameters())
        return self.features(tokens, self.contracted(parts, self.mean_parts(index)) if index else parts)

    def named_tensors(self) -> dict[str, Tensor]:
        """The snapshots as evaluation has left them."""
        named = super().named_tensors()
        for task, adapters in enumerate(self.merged):
            named |= named_adapters(adapters, f"backbone.adapter_list.{task}.{{}}")
        return named


def learner_class(method: str, fidelity: str) -> type[Learner]:
    """The learner that verifies recordings of a method."""
    mos = ShippedMOS if fidelity == "pilot" else RecordedMOS
    return {"mos": mos, "ranpac": RecordedRanPAC}.get(method, LEARNERS[method])


def new_rows(learner: Learner, tensor: Tensor, number: int) -> Tensor:
    """The `number` rows that `begin_task` has drawn: the last ones, in CODA-Prompt those of the task."""
    return tensor[learner.task.index * number :][:number] if isinstance(learner, CODAPrompt) else tensor[-number:]


def statistics(learner: Learner) -> dict[str, Tensor]:
    """What a recording may hold besides learned tensors: class statistics of MOS, the ridge of RanPAC."""
    named: dict[str, Tensor] = {}
    if isinstance(learner, RanPAC):
        named["log10_ridge"] = torch.tensor(math.log10(learner.ridge))
    if isinstance(learner, MOS):
        for label, known in learner.classes.items():
            named[f"class_mean.{label}"] = known.means.squeeze(0)
            named[f"class_cov.{label}"] = known.covariance()
    return named

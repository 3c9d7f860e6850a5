"""TAL and learners that play a recording: what is particular to it (its arithmetic, what it drew), kept out of ours."""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from data_lt.errors import UserError
from pilot_tal.learners import LEARNERS, MOS, CODAPrompt, Learner, RanPAC
from pilot_tal.learners.base import Images
from pilot_tal.learners.mos_statistics import JITTER, ClassStatistics
from pilot_tal.losses.tal import TAL


class PlayedTAL(TAL):
    """TAL in the arithmetic of the recordings: Q and log-weights in float64, the loss in the logits' type.

    With Q at 0 the first losses of a task are about 1e-7, so their gradients are rounding steps of float32, and
    Adam blows a tiny gradient up to a full step. Another order of the same operations parts by 1e-2 at the end.
    """

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """log Σ_k e^{z_k + ℓ_k} − z_y with ℓ_y = 0, averaged; then Q moves."""
        shift = self.negative_weights().log().to(logits.dtype)
        shift = shift.expand(logits.shape).scatter(1, targets.unsqueeze(1), 0.0)
        true = logits.gather(1, targets.unsqueeze(1)).squeeze(1)
        loss = (torch.logsumexp(logits + shift, dim=1) - true).mean()
        super().forward(logits.detach(), targets)
        return loss


class PlayedRanPAC(RanPAC):
    """RanPAC that chooses its ridge by the last fifth of the images in the order of the recorded batches."""

    def shuffled(self, number: int) -> Tensor:
        """The order of the recording."""
        return torch.arange(number)


class PlayedMOS(MOS):
    """MOS with the draws of a recording: features for the alignment, and the centroids of a random clustering.

    In `fixed`, the first optimizer step of the second task also moves the mean. LAMDA-PILOT keeps the sum of its
    first snapshot without copying it. Its own forward pass gives the current adapters new memory before that could
    matter; in the recorded runs the forward pass changes nothing, so the step writes into the sum as well, and the
    merge that follows finds nothing to pull.
    """

    recorded: Mapping[str, Tensor]
    """What was recorded of the current task, by name; set before `end_task`."""
    _moved: list[Tensor] | None = None

    def end_task(self, images: Images) -> None:
        """Ends the task, then takes over the recorded centroids."""
        super().end_task(images)
        for name, means in self.recorded.items():
            if name.startswith("class_mean.") and means.ndim == 2:
                label = name.removeprefix("class_mean.")
                variances = self.recorded[f"class_cov.{label}"].float() + JITTER
                self.classes[int(label)] = ClassStatistics(means.float(), variances=variances)

    def gaussian_batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The recorded mini-batches of an epoch."""
        epochs = self.config.crct_epochs
        features, labels = self.recorded.get("align.features"), self.recorded.get("align.labels")
        if features is None or labels is None or len(features) % epochs:
            raise UserError(f"the recording of task {self.task.index} needs align batches for {epochs} epochs")
        yield from zip(features.chunk(epochs)[epoch], labels.chunk(epochs)[epoch], strict=True)

    @torch.no_grad()
    def after_step(self) -> None:
        """Lets the mean follow the first step, then merges."""
        first = self.fidelity == "fixed" and self.task.index == 1 and self._moved is None
        if first and self.config.adapter_momentum > 0:
            self._moved = [part.detach().clone() for part in self.cur.parts]
            self._mean_parts = self.mean_parts(1)
        super().after_step()

    def mean_parts(self, count: int) -> list[Tensor]:
        """Mean of the first `count` snapshots, the first one as moved."""
        means = super().mean_parts(count)
        if self._moved is None:
            return means
        first = self.finished[0].parameters()
        return [m + (moved - part) / count for m, moved, part in zip(means, self._moved, first, strict=True)]


def player_of(method: str) -> type[Learner]:
    """The learner that plays recordings of a method."""
    return {"mos": PlayedMOS, "ranpac": PlayedRanPAC}.get(method, LEARNERS[method])


def new_rows(learner: Learner, tensor: Tensor, number: int) -> slice:
    """Where the `number` rows stand that `begin_task` has drawn: at the end, but in CODA-Prompt's pool in its place."""
    if isinstance(learner, CODAPrompt):
        return slice(learner.task.index * number, (learner.task.index + 1) * number)
    return slice(len(tensor) - number, len(tensor))


def statistics(learner: Learner) -> dict[str, Tensor]:
    """What a recording may tell of a learner besides its tensors: MOS's classes, RanPAC's choice."""
    named: dict[str, Tensor] = {}
    if isinstance(learner, RanPAC):
        named["log10_ridge"] = torch.tensor(math.log10(learner.ridge))
    if isinstance(learner, MOS):
        for label, known in learner.classes.items():
            named[f"class_mean.{label}"] = known.means.squeeze(0)
            named[f"class_cov.{label}"] = known.covariance()
    return named

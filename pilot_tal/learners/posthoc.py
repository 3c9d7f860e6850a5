"""Corrections of a trained linear classifier at evaluation, which training does not see."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data_lt.errors import unknown_name
from pilot_tal.stream.batches import SAMPLERS

POSTHOC = ("none", "logit_adjustment", "tau_norm")


class PostHoc(nn.Module):
    """Logits of a linear classifier with one of two corrections, both with τ = 1.

    - `logit_adjustment` (Menon et al., ICLR 2021): logit − log π. π is the share of a class among the images drawn in
      its task, because each task is trained with a softmax over its own classes.
    - `tau_norm` (Kang et al., ICLR 2020): the rows of the classifier have length 1, and there is no bias.
    """

    log_prior: Tensor

    def __init__(self, name: str, task_sizes: Sequence[int], counts: Sequence[float]):
        super().__init__()
        self.name = name
        tasks = torch.tensor(counts, dtype=torch.float64).clamp_min(1).split(list(task_sizes))
        prior = torch.cat([task / task.sum() for task in tasks])
        self.register_buffer("log_prior", prior.log().float(), persistent=False)

    def forward(self, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Corrected logits of the first classes, as many as `weight` has rows."""
        if self.name == "tau_norm":
            return F.linear(features, F.normalize(weight, dim=1))
        return F.linear(features, weight, bias) - self.log_prior[: len(weight)]


def build_posthoc(name: str, task_sizes: Sequence[int], counts: Sequence[int], sampler: str) -> PostHoc | None:
    """The correction of a run with these classes in each task and training images of each class, or None."""
    if name not in POSTHOC:
        raise unknown_name("posthoc", name, POSTHOC)
    drawn = [count ** (1 - SAMPLERS[sampler]) for count in counts]
    return None if name == "none" else PostHoc(name, task_sizes, drawn)

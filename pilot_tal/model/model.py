"""A trained model in use: images in, labels with their scores out."""

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from data_lt.errors import UserError
from data_lt.pictures import to_rgb
from pilot_tal.engine.loop import autocast, tensor_cores
from pilot_tal.learners import Learner
from pilot_tal.model.images import read_image
from pilot_tal.record.run_record import NO_LOSS, RunRecord

ImageLike = str | Path | Image.Image | Tensor
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class Prediction:
    """Prediction for one image.

    Attributes:
        label: The best class.
        score: Its share of one. Scores rank the classes of an image; they are not calibrated probabilities.
        top: The best classes, each with its score, the best one first.
    """

    label: str
    score: float
    top: tuple[tuple[str, float], ...]


class Model:
    """A classifier, as `load_model` returns it.

    Attributes:
        classes: Names of the classes, by index.
        transform: Turns a PIL image into the tensor that the ViT sees: crop, pixels, normalisation.
        record: What was run.
        tasks_done: Number of tasks learned.
        note: A sentence for the user where the run scored whole batches, so that its predictions may differ from
            this model's, which scores each image alone; else None.
    """

    def __init__(
        self,
        record: RunRecord,
        tasks_done: int,
        learner: Learner,
        transform: Callable[[Image.Image], Tensor],
        statistics: Statistics | None,
        device: torch.device,
    ):
        self.record, self.tasks_done = record, tasks_done
        self.classes: tuple[str, ...] = record.stream.class_names[: learner.seen]
        self.learner, self.transform, self.statistics, self.device = learner, transform, statistics, device
        self.note = _SCORED_ALONE.format(record.method.title) if learner.score_alone() else None
        self._warned = False
        precision = record.backbone.precision
        self._precision = precision if device.type == "cuda" or precision == "bf16" else "fp32"

    def __repr__(self) -> str:
        record = self.record
        loss = "" if record.loss.name == NO_LOSS else f", loss={record.loss.name}"
        tasks = f"{self.tasks_done} of {record.num_tasks}"
        return (
            f"Model({record.method.name}{loss}, {len(self.classes)} classes, tasks={tasks}, "
            f"data={record.data.name}, backbone={record.backbone.name}, device={self.device})"
        )

    def predict(self, images: ImageLike | Iterable[ImageLike], top: int = 5, batch_size: int = 32) -> list[Prediction]:
        """Predict the class of each image; a prediction never depends on the other images.

        Args:
            images: Paths, PIL images, or tensors as `transform` returns them; one or many.
            top: Number of best classes to return.
            batch_size: Images that pass the ViT at once.

        Raises:
            UserError: an image cannot be read.
        """
        if isinstance(images, (str, Path, Image.Image)) or (isinstance(images, Tensor) and images.ndim == 3):
            images = [images]
        return list(self.each(images, top, batch_size))

    def each(self, images: Iterable[ImageLike], top: int = 5, batch_size: int = 32) -> Iterator[Prediction]:
        """As `predict`, but one by one, for more images than fit into memory."""
        for name, value in (("top", top), ("batch_size", batch_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.note and not self._warned:
            self._warned = True
            warnings.warn(self.note, UserWarning, stacklevel=3)
        return self._each(images, top, batch_size)

    def _each(self, images: Iterable[ImageLike], top: int, batch_size: int) -> Iterator[Prediction]:
        tensors = (self._tensor(image) for image in images)
        while batch := list(itertools.islice(tensors, batch_size)):
            yield from self._best(self.scores(torch.stack(batch)), top)

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """The learner's own scores [B, classes] of images as `transform` returns them; the largest is the label."""
        with tensor_cores(self.device, self._precision), autocast(self.device, self._precision):
            return self.learner.scores(x.to(self.device, non_blocking=True)).float()

    def _best(self, scores: Tensor, top: int) -> list[Prediction]:
        """Rank by the scores themselves, equal ones by class, as the run did."""
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, :top]
        shares = self.learner.probabilities(scores).gather(1, order)
        rows = zip(order.tolist(), shares.tolist(), strict=True)
        best = [tuple((self.classes[label], share) for label, share in zip(*row, strict=True)) for row in rows]
        return [Prediction(*one[0], top=one) for one in best]

    def _tensor(self, image: Any) -> Tensor:
        if isinstance(image, (str, Path)):
            return self.transform(read_image(Path(image)))
        if isinstance(image, Image.Image):
            return self.transform(to_rgb(image))
        wanted = (3, *self.learner.backbone.img_size)
        if isinstance(image, Tensor) and tuple(image.shape) == wanted and image.is_floating_point():
            return image.float().cpu()
        got = f"a tensor {list(image.shape)} of {image.dtype}" if isinstance(image, Tensor) else type(image).__name__
        raise UserError(
            f"an image must be a path, a PIL image or a tensor {list(wanted)} of floats as model.transform returns it, "
            f"got {got}"
        )


_SCORED_ALONE = (
    "{} with fidelity pilot chose prompts for a whole batch in this run; predict scores each image alone, so labels "
    "can differ from the run's own predictions"
)

"""A trained model in use: images in, labels with their scores out."""

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from data_lt.errors import UserError
from data_lt.pictures import read_picture, to_rgb
from data_lt.progress import progress
from pilot_tal.engine.loop import autocast, tensor_cores
from pilot_tal.learners import Learner
from pilot_tal.model.alone import Disagreement, find_difference, sentence
from pilot_tal.model.stored import StoredModel

ImageLike = str | Path | Image.Image | Tensor
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class Prediction:
    """What the model says of one image.

    Attributes:
        label: The best class.
        score: Its share of one. Scores rank the classes of an image; they are not calibrated probabilities.
        top: The best classes, each with its score, the best one first.
    """

    label: str
    score: float
    top: tuple[tuple[str, float], ...]


class Model:
    """A model as `load_model` gives it.

    Attributes:
        classes: Names of the classes that it knows, by index.
        transform: Makes the tensor that the ViT sees of a PIL image: crop, pixels, normalisation.
        record: What was run.
        tasks_done: After how many tasks this is.
        scored_alone: Whether the run let the images of a batch vote, so that this model, which never does, may say
            something else than the run did.
    """

    def __init__(
        self,
        stored: StoredModel,
        learner: Learner,
        transform: Callable[[Image.Image], Tensor],
        statistics: Statistics | None,
        device: torch.device,
        scored_alone: bool = False,
    ):
        self.record, self.tasks_done = stored.record, stored.tasks_done
        self.classes: tuple[str, ...] = stored.record.stream.class_names[: learner.seen]
        self.learner, self.transform, self.statistics, self.device = learner, transform, statistics, device
        self.scored_alone = scored_alone
        self._stored, self._said = stored, False
        precision = stored.record.backbone.precision
        self._precision = precision if device.type == "cuda" or precision == "bf16" else "fp32"

    def predict(self, images: ImageLike | Iterable[ImageLike], top: int = 5, batch_size: int = 32) -> list[Prediction]:
        """One result an image, in their order; a prediction never depends on the other images.

        Args:
            images: Paths, PIL images, or tensors as `transform` gives them; one or many.
            top: How many of the best classes to give.
            batch_size: How many images pass the ViT at once.

        Raises:
            UserError: an image cannot be read.
        """
        if isinstance(images, (str, Path, Image.Image)) or (isinstance(images, Tensor) and images.ndim == 3):
            images = [images]
        return list(self.each(images, top, batch_size))

    def each(self, images: Iterable[ImageLike], top: int = 5, batch_size: int = 32) -> Iterator[Prediction]:
        """As `predict`, but one after the other, for more images than fit into memory."""
        if self.scored_alone and not self._said:
            warnings.warn(str(self.how_it_scores()), UserWarning, stacklevel=3)
        return self._each(images, top, batch_size)

    def _each(self, images: Iterable[ImageLike], top: int, batch_size: int) -> Iterator[Prediction]:
        for name, value in (("top", top), ("batch_size", batch_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name} must be a whole number of at least 1, got {value!r}")
        tensors = (self._tensor(image) for image in images)
        while batch := list(itertools.islice(tensors, batch_size)):
            yield from self._best(self.scores(torch.stack(batch)), top)

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """The learner's own scores [B, classes] of images as `transform` gives them; the largest one is the label."""
        with tensor_cores(self.device, self._precision), autocast(self.device, self._precision):
            return self.learner.scores(x.to(self.device, non_blocking=True)).float()

    def difference(self) -> Disagreement | None:
        """How often the run said something else on its own test images; None if nothing can be told.

        Only a model that is `scored_alone` can differ. The images are looked for where the run had them; what was
        found is kept in the run directory.
        """
        return find_difference(self._stored, self._labels) if self.scored_alone else Disagreement(0, 0)

    def how_it_scores(self) -> str | None:
        """The sentence for a user whose run let a batch vote, or None. Who asks is not told again by `predict`."""
        self._said = True
        return sentence(self.record.method.title, self.difference()) if self.scored_alone else None

    def _labels(self, files: Sequence[Path]) -> list[str]:
        with progress("comparing with the run's own predictions", len(files)) as advance:
            found = []
            for result in self._each(files, 1, 32):
                found.append(result.label)
                advance(1)
        return found

    def _best(self, scores: Tensor, top: int) -> list[Prediction]:
        """Ranked by the scores themselves, equal ones by class, as the run ranked them."""
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, :top]
        shares = self.learner.probabilities(scores).gather(1, order)
        return [
            self._prediction(classes, values) for classes, values in zip(order.tolist(), shares.tolist(), strict=True)
        ]

    def _prediction(self, classes: Sequence[int], values: Sequence[float]) -> Prediction:
        best = tuple((self.classes[index], value) for index, value in zip(classes, values, strict=True))
        return Prediction(*best[0], top=best)

    def _tensor(self, image: Any) -> Tensor:
        if isinstance(image, (str, Path)):
            return self.transform(read_picture(Path(image)))
        if isinstance(image, Image.Image):
            return self.transform(to_rgb(image))
        wanted = (3, *self.learner.backbone.img_size)
        if isinstance(image, Tensor) and tuple(image.shape) == wanted and image.is_floating_point():
            return image.float().cpu()
        got = f"a tensor {list(image.shape)} of {image.dtype}" if isinstance(image, Tensor) else type(image).__name__
        raise UserError(
            f"an image must be a path, a PIL image or a tensor {list(wanted)} of floats as model.transform gives it, "
            f"got {got}"
        )

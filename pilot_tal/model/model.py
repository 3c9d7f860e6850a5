"""A trained model in use: images in, labels with their scores out."""

import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from data_lt.errors import UserError
from data_lt.files import check_regular
from data_lt.pictures import read_picture, to_rgb
from pilot_tal.engine.hardware import choose_device
from pilot_tal.engine.loop import autocast, tensor_cores
from pilot_tal.learners import LEARNERS, Learner
from pilot_tal.record.run_record import NO_LOSS, RunRecord

if TYPE_CHECKING:
    from pilot_tal.engine.callbacks import Callback
    from pilot_tal.model.sessions import Photos, Session

ImageLike = str | Path | Image.Image | Tensor
LARGEST_IMAGE = 1 << 30  # bytes
_SCORED_ALONE = (
    "{} with fidelity pilot chose prompts for a whole batch in this run; predict scores each image alone, so labels "
    "can differ from the run's own predictions"
)


@dataclass(frozen=True)
class Prediction:
    """Prediction for one image.

    Attributes:
        label: The best class.
        score: Its share of one. Scores rank the classes of an image; they are not calibrated probabilities.
        top: The best classes, each with its score, the best one first.
        rejected: Whether the image looks like none of the classes; None unless `reject` was given.
    """

    label: str
    score: float
    top: tuple[tuple[str, float], ...]
    rejected: bool | None = None


def read_image(path: Path) -> Image.Image:
    """Reads an image file as RGB; a `UserError` says why it cannot be decoded."""
    check_regular(path, "the image", LARGEST_IMAGE)
    return read_picture(path)


class Model:
    """A classifier: of a run or an export, by `load_model`, or a new one that learns, by `create`.

    Attributes:
        classes: Names of the classes, by index.
        path: The folder that it is in.
        transform: Turns a PIL image into the tensor that the ViT sees: crop, pixels, normalisation.
        record: What was run.
        tasks_done: Number of tasks learned.
        note: A sentence for the user where the run scored whole batches, so that its predictions may differ from
            this model's, which scores each image alone; else None.
    """

    _method: str | None = None  # until the first session
    _scratch: tempfile.TemporaryDirectory | None = None  # where a model lives that was not saved

    def __init__(
        self,
        record: RunRecord,
        tasks_done: int,
        learner: Learner,
        transform: Callable[[Image.Image], Tensor],
        device: torch.device,
        path: Path,
    ):
        self.record, self.tasks_done, self.path = record, tasks_done, path
        self.classes: tuple[str, ...] = record.stream.class_names[: learner.seen]
        self.learner, self.transform, self.device = learner, transform, device
        self.note = _SCORED_ALONE.format(record.method.title) if learner.score_alone() else None
        self._settings = [f"device={device}"]
        precision = record.backbone.precision
        self._precision = precision if device.type == "cuda" or precision == "bf16" else "fp32"

    @classmethod
    def create(cls, method: str = "plda", **settings: Any) -> "Model":
        """Creates a model without classes; `learn` teaches it some.

        Args:
            method: Name of a method, see `list_methods`.
            **settings: Settings of the method and the ViT, such as `backbone=`, `weights=`, `epochs=`; `device=`;
                `max_tasks=` for DualPrompt and CODA-Prompt, whose prompts are divided among so many sessions.
        """
        from pilot_tal.config.parse import as_typed
        from pilot_tal.model.learn import open_folder

        model = cls.__new__(cls)
        model.classes, model.tasks_done, model.note = (), 0, None
        model._method, model._settings = method, [f"{key}={as_typed(value)}" for key, value in settings.items()]
        model._scratch = tempfile.TemporaryDirectory(prefix="pilot-tal-")
        model.path = Path(model._scratch.name) / "model"
        model.device = choose_device(open_folder(model.path, method, model._settings).hardware.device)
        return model

    def learn(
        self, photos: "Photos", *, hold_out: float = 0.2, again: bool = False, callbacks: "Sequence[Callback]" = ()
    ) -> "Session":
        """Learns the classes of `photos` as the next task, in the model's folder; see `pilot_tal.model.learn.learn`.

        Args:
            photos: A folder with one folder of images per class, or with train/ and test/; or images by class.
            hold_out: Share of each class that is held out for the report, where there is no test/.
            again: Also train on images that were trained on before.
            callbacks: Called during training.
        """
        from pilot_tal.model.learn import learn

        how: dict[str, Any] = {"hold_out": hold_out, "again": again, "callbacks": callbacks}
        session = learn(self.path, photos, method=self._method, settings=self._settings, **how)
        self._reload()
        return session

    def forget(self, label: str) -> "Session":
        """Removes a class as if it had never been learned; only closed-form methods can."""
        from pilot_tal.model.learn import forget

        session = forget(self.path, label, settings=self._settings)
        self._reload()
        return session

    def save(self, folder: str | Path) -> Path:
        """Copies the folder of a model that learns, with all that further learning needs, and goes on there."""
        from pilot_tal.model.sessions import copy_model

        self.path = copy_model(self.path, folder)
        return self.path

    def push_to_hub(self, repo: str, *, private: bool = True, with_backbone: bool = False) -> str:
        """Exports the model and uploads it to the Hugging Face hub as one commit.

        Args:
            repo: `user/name`; created if it is not there.
            private: Visibility of a new repository.
            with_backbone: Upload the ViT's weights as well.

        Returns:
            The address for `load_model`, pinned to the commit.
        """
        from pilot_tal.model.export import export_model, push_export
        from pilot_tal.model.load import ABOUT

        if (self.path / ABOUT).is_file():
            return push_export(self.path, repo, private)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            export_model(self.path, folder, after_task=self.tasks_done, with_backbone=with_backbone)
            return push_export(folder, repo, private)

    @property
    def history(self) -> "tuple[Session, ...]":
        """The sessions of `learn`; none for the model of a benchmark run or an export."""
        from pilot_tal.model.sessions import SESSIONS, read_history

        return read_history(self.path).sessions if (self.path / SESSIONS).is_file() else ()

    def _reload(self) -> None:
        from pilot_tal.model.load import load_model

        vars(self).update(vars(load_model(self.path, device=str(self.device))))

    def __repr__(self) -> str:
        if not self.tasks_done:
            return f"Model({self._method}, no classes yet)"
        record = self.record
        loss = "" if record.loss.name == NO_LOSS else f", loss={record.loss.name}"
        tasks = f"{self.tasks_done} of {record.num_tasks}"
        source = f"data={record.data.name}, backbone={record.backbone.name}, device={self.device}"
        return f"Model({record.method.name}{loss}, {len(self.classes)} classes, tasks={tasks}, {source})"

    def predict(
        self,
        images: ImageLike | Iterable[ImageLike],
        top: int = 5,
        batch_size: int = 32,
        reject: float | None = None,
    ) -> list[Prediction]:
        """Predicts the class of each image; a prediction never depends on the other images.

        Args:
            images: Paths, PIL images, or tensors as `transform` returns them; one or many.
            top: Number of best classes to return.
            batch_size: Images that pass the ViT at once.
            reject: Mark images as none of the classes, by a threshold that this share of the training images was
                below when they were held out; for methods with a density of features (plda).
        """
        if isinstance(images, (str, Path, Image.Image)) or (isinstance(images, Tensor) and images.ndim == 3):
            images = [images]
        if self.note:
            warnings.warn(self.note, UserWarning, stacklevel=2)
        return list(self.each(images, top, batch_size, reject))

    def each(
        self, images: Iterable[ImageLike], top: int = 5, batch_size: int = 32, reject: float | None = None
    ) -> Iterator[Prediction]:
        """As `predict`, but one by one, for more images than fit into memory."""
        if not self.classes:
            raise UserError("the model has no classes yet; teach it some with learn")
        for name, value in (("top", top), ("batch_size", batch_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name} must be a whole number of at least 1, got {value!r}")
        threshold = None if reject is None else self._threshold(reject)
        learner: Any = self.learner
        for x in self._batches(images, batch_size):
            scores = self.scores(x)
            order = scores.sort(dim=1, descending=True, stable=True).indices[:, :top]  # equal ones by class
            shares = self.learner.probabilities(scores).gather(1, order).tolist()
            rejected = [None] * len(x)
            if threshold is not None:
                rejected = (learner.log_density(self._computed(learner.embedding, x)) < threshold).tolist()
            for labels, row, unlike in zip(order.tolist(), shares, rejected, strict=True):
                best = tuple((self.classes[label], share) for label, share in zip(labels, row, strict=True))
                yield Prediction(*best[0], top=best, rejected=unlike)

    def _threshold(self, reject: float) -> float:
        """The log-density below which an image is rejected."""
        if not 0 < reject < 1:
            raise UserError(f"reject must be above 0 and below 1, got {reject:g}")
        learner: Any = self.learner
        if not hasattr(learner, "reject_below"):
            able = ", ".join(name for name, learner in LEARNERS.items() if hasattr(learner, "reject_below"))
            raise UserError(
                f"{self.record.method.title} has no density by which to reject an image; methods that have: {able}"
            )
        return learner.reject_below(reject)

    def features(self, images: Iterable[ImageLike], batch_size: int = 32) -> np.ndarray:
        """The features [images, dim] of the frozen backbone, before anything that was learned."""
        batches = self._batches(images, batch_size)
        found = [self._computed(lambda x: self.learner.backbone.features(x)[:, 0], x).cpu() for x in batches]
        return torch.cat(found).numpy()

    def scores(self, x: Tensor) -> Tensor:
        """The learner's own scores [B, classes] of images as `transform` returns them; the largest is the label."""
        return self._computed(self.learner.scores, x)

    @torch.no_grad()
    def _computed(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        with tensor_cores(self.device, self._precision), autocast(self.device, self._precision):
            return function(x.to(self.device, non_blocking=True)).float()

    def _batches(self, images: Iterable[ImageLike], batch_size: int) -> Iterator[Tensor]:
        tensors = (self._tensor(image) for image in images)
        while batch := list(itertools.islice(tensors, batch_size)):
            yield torch.stack(batch)

    def _tensor(self, image: Any) -> Tensor:
        if isinstance(image, (str, Path)):
            return self.transform(read_image(Path(image)))
        if isinstance(image, Image.Image):
            return self.transform(to_rgb(image))
        wanted = (3, *self.learner.backbone.img_size)
        if isinstance(image, Tensor) and tuple(image.shape) == wanted and image.is_floating_point():
            return image.float().cpu()
        raise UserError(
            f"an image must be a path, a PIL image or a tensor {list(wanted)} of floats as model.transform returns it, "
            f"got {type(image).__name__}"
        )

"""Batches whose order and random crops depend on seeds alone."""

import itertools
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from data_lt.errors import UserError
from pilot_tal.stream.seeds import derive_seed
from pilot_tal.stream.store import ImageStore

# A class of n images is drawn in proportion to n ** (1 - power).
SAMPLERS = {"natural": 0.0, "sqrt": 0.5, "balanced": 1.0}
_ERROR = f"{UserError.__module__}.{UserError.__qualname__}"


class _Samples(torch.utils.data.Dataset):
    """Transformed samples by (epoch, place); random transforms depend on seed, epoch and place alone."""

    def __init__(self, store: ImageStore, indices: list[int], labels: list[int], transform, seed: int | None):
        self.store, self.indices, self.labels = store, indices, labels
        self.transform, self.seed = transform, seed

    def __getitem__(self, key: tuple[int, ...]) -> tuple[Tensor, int, int]:
        place = key[1]
        image = self.store[self.indices[place]]
        if self.seed is None:
            return self.transform(image), self.labels[place], place
        with torch.random.fork_rng(devices=[]):  # the learner's own random numbers stay as they are, on any device
            torch.default_generator.manual_seed(derive_seed("augment", self.seed, *key))
            return self.transform(image), self.labels[place], place


class Batches:
    """Batches of some images of a store.

    Args:
        store: The images.
        indices: Which of them.
        labels: Their labels.
        transform: Makes a tensor of an image.
        batch_size: Images a batch.
        workers: Processes that decode and transform; the batches do not depend on it.
        pinned: Batches lie in page-locked memory, from which a GPU copies while it computes.
    """

    def __init__(
        self,
        store: ImageStore,
        indices: Sequence[int],
        labels: Sequence[int],
        transform: Callable[[Image.Image], Tensor],
        batch_size: int,
        workers: int = 0,
        pinned: bool = False,
    ):
        self.store, self.indices, self.labels = store, list(indices), list(labels)
        self.transform, self.batch_size, self.workers, self.pinned = transform, batch_size, workers, pinned

    def in_order(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(images, labels, places) in the given order, with a transform that has nothing random."""
        places = range(len(self.indices))
        chunks = [places[i : i + self.batch_size] for i in range(0, len(places), self.batch_size)]
        return self._load([[(0, place) for place in chunk] for chunk in chunks], None)

    def epochs(
        self, epochs: int, seed: int, drop_last: bool = False, limit: int | None = None, sampler: str = "natural"
    ) -> Callable[[int], Iterator[tuple[Tensor, Tensor]]]:
        """Gives `batches(epoch)`, to be called for epochs 0, 1, … in turn.

        Args:
            epochs: How many there will be.
            seed: Order and random transforms depend on it, the epoch and the image's place alone.
            drop_last: Leave out the last incomplete batch, if there is a full one.
            limit: At most so many batches an epoch.
            sampler: One of `SAMPLERS`.
        """
        plan = [self._shuffled(epoch, seed, drop_last, sampler)[:limit] for epoch in range(epochs)]
        stream = self._load(list(itertools.chain.from_iterable(plan)), seed)
        return lambda epoch: ((x, y) for x, y, _ in itertools.islice(stream, len(plan[epoch])))

    def steps(self, drop_last: bool = False, limit: int | None = None) -> int:
        """Batches per epoch."""
        whole, rest = divmod(len(self.indices), self.batch_size)
        steps = whole + (rest > 0 and not (drop_last and whole > 0))
        return steps if limit is None else min(limit, steps)

    def _shuffled(self, epoch: int, seed: int, drop_last: bool, sampler: str) -> list[list[tuple[int, ...]]]:
        generator = torch.Generator().manual_seed(derive_seed("order", seed, epoch))
        if sampler == "natural":
            order = torch.randperm(len(self.indices), generator=generator).tolist()
        else:
            counts = torch.bincount(torch.tensor(self.labels)).double()
            weights = counts[self.labels] ** -SAMPLERS[sampler]
            order = torch.multinomial(weights, len(weights), replacement=True, generator=generator).tolist()
        chunks = [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        if drop_last and len(chunks) > 1 and len(chunks[-1]) < self.batch_size:
            chunks.pop()
        drawn: Counter[int] = Counter()
        return [[self._draw(epoch, place, drawn) for place in chunk] for chunk in chunks]

    @staticmethod
    def _draw(epoch: int, place: int, drawn: Counter[int]) -> tuple[int, ...]:
        """Epoch and place of an image; with a number, so with other random crops, if the epoch has had it before."""
        drawn[place] += 1
        return (epoch, place) if drawn[place] == 1 else (epoch, place, drawn[place])

    def _load(self, chunks: list, seed: int | None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        samples = _Samples(self.store, self.indices, self.labels, self.transform, seed)
        options: dict[str, Any] = {}
        if self.workers:
            self.store.keep(self.indices)
            # Forked processes share the decoded images; others would get a copy each.
            options = {"multiprocessing_context": "fork"} if sys.platform == "linux" else {}
        # A generator of its own: the loader must not draw from the learner's random numbers.
        loader = torch.utils.data.DataLoader(
            samples,
            batch_sampler=chunks,
            num_workers=self.workers,
            pin_memory=self.pinned,
            generator=torch.Generator(),
            worker_init_fn=_leave_warnings_to_the_parent,
            **options,
        )
        try:
            yield from loader
        except UserError as error:
            # From a worker it comes wrapped in the worker's traceback; the sentence is the last line.
            raise UserError(str(error).strip().splitlines()[-1].removeprefix(f"{_ERROR}: ")) from error
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise UserError(
                "a process that decodes images was killed, most likely for want of memory; give workers=0 or fewer"
            ) from error


def _leave_warnings_to_the_parent(_: int) -> None:
    """SLURM's warning may go to every process of a job, and a forked one has its parent's handler."""
    if hasattr(signal, "SIGUSR2"):
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)

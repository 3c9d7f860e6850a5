"""Batches whose order and random crops depend on seeds alone."""

import hashlib
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from data_lt.errors import UserError
from pilot_tal.stream.store import ImageStore

# A class of n images is drawn in proportion to n ** (1 - power).
SAMPLERS = {"natural": 0.0, "sqrt": 0.5, "balanced": 1.0}
_ERROR = f"{UserError.__module__}.{UserError.__qualname__}"


def derive_seed(*parts: int | str) -> int:
    """A seed for one purpose, from the parts that name it; the same on every platform."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")


class _Samples(torch.utils.data.Dataset):
    """Transformed samples by (epoch, place); random transforms depend on seed, epoch and place alone."""

    def __init__(self, source: "Batches", seed: int | None):
        self.source, self.seed = source, seed

    def __getitem__(self, key: tuple[int, ...]) -> tuple[Tensor, int, int]:
        source, place = self.source, key[1]
        image = source.store[source.indices[place]]
        if self.seed is None:
            return source.transform(image), source.labels[place], place
        with torch.random.fork_rng(devices=[]):  # the learner's own random numbers stay as they are, on any device
            torch.default_generator.manual_seed(derive_seed("augment", self.seed, *key))
            return source.transform(image), source.labels[place], place


class Batches:
    """Batches of the images of a store with these indices, and their labels.

    The batches do not depend on the number of `workers` that decode and transform. With `pinned` they lie in
    page-locked memory, from which a GPU copies while it computes.
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
        return self._load(self._chunks([(0, place) for place in range(len(self.indices))]), None)

    def epochs(
        self, epochs: int, seed: int, drop_last: bool = False, limit: int | None = None, sampler: str = "natural"
    ) -> Callable[[int], Iterator[tuple[Tensor, Tensor]]]:
        """Gives `batches(epoch)`, to be called for epochs 0, 1, … in turn.

        Order and random transforms depend on the seed, the epoch and the image's place alone. `drop_last` leaves out
        the last incomplete batch, if there is a full one; `limit` is the most batches an epoch.
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
        drawn: Counter[int] = Counter()
        keys: list[tuple[int, ...]] = []
        for place in order:  # with a number, so with other random crops, if the epoch has had the image before
            drawn[place] += 1
            keys.append((epoch, place) if drawn[place] == 1 else (epoch, place, drawn[place]))
        chunks = self._chunks(keys)
        if drop_last and len(chunks) > 1 and len(chunks[-1]) < self.batch_size:
            chunks.pop()
        return chunks

    def _chunks(self, keys: list[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
        return [keys[i : i + self.batch_size] for i in range(0, len(keys), self.batch_size)]

    def _load(self, chunks: list, seed: int | None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        options: dict[str, Any] = {}
        if self.workers:
            self.store.keep(self.indices)
            # Forked processes share the decoded images; others would get a copy each.
            options = {"multiprocessing_context": "fork"} if sys.platform == "linux" else {}
        # A generator of its own: the loader must not draw from the learner's random numbers.
        loader = torch.utils.data.DataLoader(
            _Samples(self, seed),
            batch_sampler=chunks,
            num_workers=self.workers,
            pin_memory=self.pinned,
            generator=torch.Generator(),
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

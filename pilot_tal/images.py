"""From image files to batches: transforms, decoded images in memory, and an order that depends on seeds alone."""

import hashlib
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import pilot_tal._torchvision  # noqa: F401
from pilot_tal.errors import PilotTalError, unknown_name

CACHE_CHOICES = ("auto", "on", "off")
MEMORY_SHARE = 0.4  # of the free memory that decoded images may take with cache=auto
FREE_IF_UNKNOWN = 2 << 30
CGROUP = Path("/sys/fs/cgroup")
_ERROR = f"{PilotTalError.__module__}.{PilotTalError.__qualname__}"
TRANSFORMS = ("pilot", "coda", "characters")


def derive_seed(*parts: int | str) -> int:
    """A seed for one purpose, from the parts that name it; the same on every platform."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")


def build_transforms(name: str, size: int) -> tuple[Callable, Callable]:
    """Training and test transform for images of `size` pixels. Pixels stay in [0, 1], as in LAMDA-PILOT.

    `pilot` is LAMDA-PILOT's for all learners, `coda` its own for CODA-Prompt on ImageNet-R, and `characters`
    keeps whole, unmirrored characters.
    """
    from torchvision import transforms as T
    from torchvision.transforms import InterpolationMode as Mode

    larger = int(256 / 224 * size)
    known = {
        "pilot": (
            [T.RandomResizedCrop(size, scale=(0.05, 1.0), ratio=(3 / 4, 4 / 3)), T.RandomHorizontalFlip()],
            [T.Resize(larger, Mode.BICUBIC), T.CenterCrop(size)],
        ),
        "coda": (
            [T.RandomResizedCrop(size), T.RandomHorizontalFlip()],
            [T.Resize(larger), T.CenterCrop(size)],
        ),
        "characters": (
            [T.RandomResizedCrop(size, scale=(0.7, 1.0), ratio=(3 / 4, 4 / 3))],
            [T.Resize(size), T.CenterCrop(size)],
        ),
    }
    if name not in TRANSFORMS:
        raise unknown_name("transform", name, TRANSFORMS)
    train, test = known[name]
    return T.Compose([*train, T.ToTensor()]), T.Compose([*test, T.ToTensor()])


class ImageStore:
    """The images of a run by index, opened from disk or kept decoded in memory."""

    def __init__(self, root: Path, paths: Sequence[str], cache: str = "auto"):
        if cache not in CACHE_CHOICES:
            raise unknown_name("cache", cache, CACHE_CHOICES)
        self.root, self.paths = root, list(paths)
        self._kept: dict[int, Image.Image] | None = None
        if cache == "on" or (cache == "auto" and self._fits()):
            self._kept = {}

    def __getitem__(self, index: int) -> Image.Image:
        if self._kept is None:
            return self._open(index)
        if index not in self._kept:
            self._kept[index] = self._open(index)
        return self._kept[index]

    @property
    def in_memory(self) -> bool:
        """Whether decoded images are kept."""
        return self._kept is not None

    def keep(self, indices: Iterable[int]) -> None:
        """Decodes these images now, so that worker processes share them."""
        if self.in_memory:
            for index in indices:
                self[index]

    def _open(self, index: int) -> Image.Image:
        path = self.root / self.paths[index]
        try:
            with Image.open(path) as image:
                return image.convert("RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise PilotTalError(f"cannot read the image {path}: {error}") from error

    def _fits(self) -> bool:
        """Whether all images, decoded, fit into a share of the free memory; judged by every n-th image's size."""
        sample = self.paths[:: max(1, len(self.paths) // 32)]
        try:
            pixels = [Image.open(self.root / path).size for path in sample]
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            return False  # the image at fault is named when it is needed
        mean = sum(width * height for width, height in pixels) / max(1, len(pixels))
        return 3 * mean * len(self.paths) < MEMORY_SHARE * free_memory()


def free_memory() -> int:
    """Bytes of memory that are free, where the platform tells."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        free = FREE_IF_UNKNOWN
    try:  # a container may have less than its machine
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        return min(free, max(0, limit - used))
    except (OSError, ValueError):
        return free


class _Samples(torch.utils.data.Dataset):
    """Transformed samples by (epoch, place); random transforms depend on seed, epoch and place alone."""

    def __init__(self, store: ImageStore, indices: list[int], labels: list[int], transform, seed: int | None):
        self.store, self.indices, self.labels = store, indices, labels
        self.transform, self.seed = transform, seed

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int, int]:
        epoch, place = key
        image = self.store[self.indices[place]]
        if self.seed is None:
            return self.transform(image), self.labels[place], place
        with torch.random.fork_rng(devices=[]):  # the learner's own random numbers stay as they are, on any device
            torch.default_generator.manual_seed(derive_seed("augment", self.seed, epoch, place))
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
    """

    def __init__(
        self,
        store: ImageStore,
        indices: Sequence[int],
        labels: Sequence[int],
        transform: Callable[[Image.Image], Tensor],
        batch_size: int,
        workers: int = 0,
    ):
        self.store, self.indices, self.labels = store, list(indices), list(labels)
        self.transform, self.batch_size, self.workers = transform, batch_size, workers

    def in_order(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(images, labels, places) in the given order, with a transform that has nothing random."""
        places = range(len(self.indices))
        chunks = [places[i : i + self.batch_size] for i in range(0, len(places), self.batch_size)]
        return self._load([[(0, place) for place in chunk] for chunk in chunks], None)

    def epochs(
        self, epochs: int, seed: int, drop_last: bool = False, limit: int | None = None
    ) -> Callable[[int], Iterator[tuple[Tensor, Tensor]]]:
        """Gives `batches(epoch)`, to be called for epochs 0, 1, … in turn.

        Args:
            epochs: How many there will be.
            seed: Order and random transforms depend on it, the epoch and the image's place alone.
            drop_last: Leave out the last incomplete batch, if there is a full one.
            limit: At most so many batches an epoch.
        """
        plan = [self._shuffled(epoch, seed, drop_last)[:limit] for epoch in range(epochs)]
        stream = self._load(list(itertools.chain.from_iterable(plan)), seed)
        return lambda epoch: ((x, y) for x, y, _ in itertools.islice(stream, len(plan[epoch])))

    def steps(self, drop_last: bool = False, limit: int | None = None) -> int:
        """Batches an epoch."""
        return len(self._shuffled(0, 0, drop_last)[:limit])

    def _shuffled(self, epoch: int, seed: int, drop_last: bool) -> list[list[tuple[int, int]]]:
        generator = torch.Generator().manual_seed(derive_seed("order", seed, epoch))
        order = torch.randperm(len(self.indices), generator=generator).tolist()
        chunks = [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        if drop_last and len(chunks) > 1 and len(chunks[-1]) < self.batch_size:
            chunks.pop()
        return [[(epoch, place) for place in chunk] for chunk in chunks]

    def _load(self, chunks: list, seed: int | None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        samples = _Samples(self.store, self.indices, self.labels, self.transform, seed)
        options = {}
        if self.workers:
            self.store.keep(self.indices)
            # Forked processes share the decoded images; others would get a copy each.
            options = {"multiprocessing_context": "fork"} if sys.platform == "linux" else {}
        # A generator of its own: the loader must not draw from the learner's random numbers.
        loader = torch.utils.data.DataLoader(
            samples, batch_sampler=chunks, num_workers=self.workers, generator=torch.Generator(), **options
        )
        try:
            yield from loader
        except PilotTalError as error:
            # From a worker it comes wrapped in the worker's traceback; the sentence is the last line.
            raise PilotTalError(str(error).strip().splitlines()[-1].removeprefix(f"{_ERROR}: ")) from error

"""The images of a run by index, opened from disk or kept decoded in memory."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image

from data_lt.errors import unknown_name
from data_lt.pictures import picture_size, read_picture
from pilot_tal.stream.memory import free_memory

CACHE_CHOICES = ("auto", "on", "off")
MEMORY_SHARE = 0.4  # of the free memory that decoded images may take with cache=auto


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
        return read_picture(self.root / self.paths[index])

    def _fits(self) -> bool:
        """Whether all images, decoded, fit into a share of the free memory; judged by every n-th image's size."""
        sizes = [picture_size(self.root / path) for path in self.paths[:: max(1, len(self.paths) // 32)]]
        known = [width * height for width, height in filter(None, sizes)]  # others are named when they are needed
        return 3 * sum(known) / max(1, len(known)) * len(self.paths) < MEMORY_SHARE * free_memory()

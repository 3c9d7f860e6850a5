"""The images of a run by index, opened from disk or kept decoded in memory."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image

from data_lt.pictures import picture_size, read_picture
from pilot_tal.stream.memory import free_memory

CACHE_CHOICES = ("auto", "on", "off")
MEMORY_SHARE = 0.4  # of the free memory that decoded images may take with cache=auto


class ImageStore:
    """The images of a run by index, opened from disk or kept decoded in memory."""

    def __init__(self, root: Path, paths: Sequence[str], cache: str = "auto"):
        self.root, self.paths = root, list(paths)
        self._kept: dict[int, Image.Image] = {}
        self.in_memory = cache == "on" or (cache == "auto" and self._estimate() < MEMORY_SHARE * free_memory())
        """Whether decoded images are kept."""

    def __getitem__(self, index: int) -> Image.Image:
        image = self._kept.get(index) or read_picture(self.root / self.paths[index])
        if self.in_memory:
            self._kept[index] = image
        return image

    def keep(self, indices: Iterable[int]) -> None:
        """Decodes these images now, so that worker processes share them."""
        if self.in_memory:
            for index in indices:
                self[index]

    def decoded_bytes(self) -> int:
        """Memory that all images take if they are kept decoded; else 0."""
        return int(self._estimate()) if self.in_memory else 0

    def _estimate(self) -> float:
        """Bytes of all images, decoded; judged by every n-th image's size."""
        sizes = [picture_size(self.root / path) for path in self.paths[:: max(1, len(self.paths) // 32)]]
        known = [width * height for width, height in filter(None, sizes)]  # others are named when they are needed
        return 3 * sum(known) / max(1, len(known)) * len(self.paths)

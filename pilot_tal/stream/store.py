"""The images of a run by index, opened from disk or kept decoded in memory; and how much memory there is."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image

from data_lt.pictures import picture_size, read_picture

CACHE_CHOICES = ("auto", "on", "off")
MEMORY_SHARE = 0.4  # of the free memory that decoded images may take with cache=auto
FREE_IF_UNKNOWN = 2 << 30
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")
# Limit, use, and the memory.stat entry of cached files, in version 2 of control groups and in version 1.
_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


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
        missing = [index for index in indices if index not in self._kept] if self.in_memory else []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self.__getitem__, missing))

    def _estimate(self) -> float:
        """Bytes of all images, decoded; judged by every n-th image's size."""
        sizes = [picture_size(self.root / path) for path in self.paths[:: max(1, len(self.paths) // 32)]]
        known = [width * height for width, height in filter(None, sizes)]  # others are named when they are needed
        return 3 * sum(known) / max(1, len(known)) * len(self.paths)


def free_memory() -> int:
    """Bytes of memory that are free here, or in the container or job that this process is in."""
    free = FREE_IF_UNKNOWN
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        # What the system keeps of files can be had at any time, and counts as free.
        lines = dict(line.split(":") for line in MEMINFO.read_text(encoding="ascii").splitlines())
        free = 1024 * int(lines["MemAvailable"].split()[0])
    return min([free, *_left_in_groups()])


def _left_in_groups() -> Iterator[int]:
    """What the limit of each control group of this process leaves: its own, and those that this one is in."""
    own = {"": "/", "memory": "/"}
    with contextlib.suppress(OSError, ValueError):  # a system without them
        for line in OWN_CGROUPS.read_text(encoding="utf-8").splitlines():
            _, kinds, place = line.split(":", 2)
            own |= {kind: place for kind in kinds.split(",") if kind in own}
    for kind, (limit, used, files) in _FILES.items():
        top = CGROUPS / kind
        group = top / own[kind].lstrip("/")
        for folder in (group, *(parent for parent in group.parents if parent.is_relative_to(top))):
            with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                left = int((folder / limit).read_text()) - int((folder / used).read_text())
                with contextlib.suppress(OSError, ValueError, KeyError):
                    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                    left += int(stat[files])
                yield max(0, left)

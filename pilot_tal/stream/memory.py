"""How much memory this machine has left, or the container or job that this process is in."""

import os
from collections.abc import Iterator
from pathlib import Path

FREE_IF_UNKNOWN = 2 << 30
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")
# Limit, use, and the memory.stat entry of cached files, in version 2 of control groups and in version 1.
_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def free_memory() -> int:
    """Bytes of memory that are free, where the platform tells."""
    try:  # what the system keeps of files can be had at any time, and counts as free
        lines = dict(line.split(":") for line in MEMINFO.read_text(encoding="ascii").splitlines())
        free = 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, ValueError, KeyError, IndexError):
        free = _free_pages()
    return min([free, *_left_in_groups()])


def _left_in_groups() -> Iterator[int]:
    """What the limit of each control group of this process leaves: its own, and those that this one is in."""
    own = {"": "/", "memory": "/"}
    try:
        for line in OWN_CGROUPS.read_text(encoding="utf-8").splitlines():
            _, kinds, place = line.split(":", 2)
            own |= {kind: place for kind in kinds.split(",") if kind in own}
    except (OSError, ValueError):  # a system without them
        pass
    for kind, (limit, used, files) in _FILES.items():
        top = CGROUPS / kind
        group = top / own[kind].lstrip("/")
        for folder in (group, *(parent for parent in group.parents if parent.is_relative_to(top))):
            try:
                left = int((folder / limit).read_text()) - int((folder / used).read_text())
            except (OSError, ValueError):  # no such file, or "max"
                continue
            yield max(0, left + _kept_files(folder, files))


def _kept_files(folder: Path, name: str) -> int:
    try:
        return int(dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())[name])
    except (OSError, ValueError, KeyError):
        return 0


def _free_pages() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return FREE_IF_UNKNOWN

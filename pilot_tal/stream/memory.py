"""How much memory this machine, or its container, has left."""

import os
from pathlib import Path

FREE_IF_UNKNOWN = 2 << 30
CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def free_memory() -> int:
    """Bytes of memory that are free, where the platform tells."""
    try:  # what the system keeps of files can be had at any time, and counts as free
        lines = dict(line.split(":") for line in MEMINFO.read_text(encoding="ascii").splitlines())
        free = 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, ValueError, KeyError, IndexError):
        free = _free_pages()
    try:  # a container may have less than its machine
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        return min(free, max(0, limit - used + _kept_files()))
    except (OSError, ValueError):
        return free


def _kept_files() -> int:
    try:
        return int(dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())["inactive_file"])
    except (OSError, ValueError, KeyError):
        return 0


def _free_pages() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return FREE_IF_UNKNOWN

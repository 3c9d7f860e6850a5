"""Measures how long, and with how much memory, ImageNetR-LT is built from ImageNet-R's 30,000 names.

python scripts/bench_build.py

Counts everything from the start of the process: imports, reading the list, the split and the written manifest.
"""

import lzma
import resource
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

START = time.perf_counter()

from data_lt.cards import CARDS  # noqa: E402  (the imports are part of what is measured)
from data_lt.manifest import Manifest  # noqa: E402
from data_lt.prepare import make_recipe  # noqa: E402
from data_lt.split import split_pools  # noqa: E402

NAMES = Path(__file__).parent.parent / "tests/data_lt/official/imagenetr.txt.xz"


def main() -> None:
    card = CARDS["imagenetr_lt"]
    pools = defaultdict(list)
    for path in lzma.decompress(NAMES.read_bytes()).decode().splitlines():
        label, name = path.split("/")
        pools[label].append(name)
    manifest = Manifest(card.name, split_pools(pools, make_recipe(card)))
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "manifest.txt"
        manifest.write(written)
        same = written.read_bytes() == card.manifest_path.read_bytes()
    seconds = time.perf_counter() - START
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    names = sum(map(len, pools.values()))
    print(f"{names:,} names -> {manifest.header['train']:,} + {manifest.header['test']:,} images")
    print(f"{seconds:.2f} s (wanted: under 2), {peak:.0f} MB (wanted: under 200)")
    print("identical to the shipped manifest" if same else "NOT identical to the shipped manifest")


if __name__ == "__main__":
    main()

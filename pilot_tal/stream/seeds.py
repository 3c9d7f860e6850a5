"""Seeds for every purpose, from one seed of the run."""

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A seed for one purpose, from the parts that name it; the same on every platform."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")

"""Features of test images that never change, kept for the run."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_PARTS = ("known", "features")


class FeatureCache:
    """Features by test-image id, one table a key, in host memory.

    Which ids are known is kept on the host as well, so that a hit costs no synchronisation with a device.
    """

    def __init__(self):
        self._tables: dict[str, tuple[Tensor, Tensor]] = {}

    def clear(self) -> None:
        """Forgets everything."""
        self._tables.clear()

    def forget(self, key: str) -> None:
        """Forgets one table."""
        self._tables.pop(key, None)

    def state(self) -> dict[str, Tensor]:
        """The tables, flat. Features vary in the last digits with their batch, so a resumed run keeps them."""
        return {
            f"{part}.{key}": tensor
            for key, table in self._tables.items()
            for part, tensor in zip(_PARTS, table, strict=True)
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state` gave."""
        keys = {name.split(".", 1)[1] for name in state}
        self._tables = {key: (state[f"known.{key}"].clone(), state[f"features.{key}"].clone()) for key in keys}

    def get(self, key: str, ids: Tensor | None, inputs: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Features [B, dim] of `inputs`; only rows with unknown ids are computed. Without ids: all of them."""
        if ids is None:
            return compute(inputs)
        ids = ids.cpu()
        known, table = self._table(key, int(ids.max()) + 1 if len(ids) else 0)
        missing = ~known[ids]
        if missing.all():
            fresh = compute(inputs)
            self._store(key, ids, fresh)
            return fresh
        if missing.any():
            self._store(key, ids[missing], compute(inputs[missing.to(inputs.device)]))
            known, table = self._tables[key]
        return table[ids].to(inputs.device, non_blocking=True)

    def _table(self, key: str, size: int) -> tuple[Tensor, Tensor]:
        known, table = self._tables.get(key, (torch.zeros(0, dtype=torch.bool), torch.zeros(0, 0)))
        if size > len(known):
            grown = max(size, 2 * len(known))
            known = torch.cat((known, known.new_zeros(grown - len(known))))
            table = torch.cat((table, table.new_zeros(grown - len(table), table.shape[1])))
            self._tables[key] = known, table
        return known, table

    def _store(self, key: str, ids: Tensor, features: Tensor) -> None:
        known, table = self._tables[key]
        if table.shape[1] == 0:
            table = table.new_zeros(len(known), features.shape[1])
        table[ids] = features.detach().to("cpu", torch.float32)
        known[ids] = True
        self._tables[key] = known, table

"""Features of test images that never change, kept for the run."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor


class FeatureCache:
    """Features by test-image id, one table a key, in host memory.

    Which ids are known is kept on the host as well, so that a hit costs no synchronisation with a device.
    """

    def __init__(self):
        self._tables: dict[str, tuple[Tensor, Tensor]] = {}

    def clear(self) -> None:
        """Forgets everything."""
        self._tables.clear()

    def state(self) -> dict[str, Tensor]:
        """The tables, flat. Features vary in the last digits with their batch, so a resumed run keeps them."""
        known = {f"known.{key}": table[0] for key, table in self._tables.items()}
        return known | {f"features.{key}": table[1] for key, table in self._tables.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state` gave."""
        keys = [name.removeprefix("known.") for name in state if name.startswith("known.")]
        self._tables = {key: (state[f"known.{key}"].clone(), state[f"features.{key}"].clone()) for key in keys}

    def get(self, key: str, ids: Tensor | None, inputs: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Features [B, dim] of `inputs`; only rows with unknown ids are computed. Without ids: all of them."""
        if ids is None or not len(ids):
            return compute(inputs)
        ids = ids.cpu()
        known, table = self._tables.get(key, (torch.zeros(0, dtype=torch.bool), torch.zeros(0, 0)))
        if int(ids.max()) >= len(known):
            added = max(int(ids.max()) + 1, 2 * len(known)) - len(known)
            known, table = F.pad(known, (0, added)), F.pad(table, (0, 0, 0, added))
        missing = ~known[ids]
        if missing.any():
            fresh = compute(inputs if missing.all() else inputs[missing.to(inputs.device)])
            table = table if table.shape[1] else table.new_zeros(len(known), fresh.shape[1])
            known[ids[missing]] = True
            table[ids[missing]] = fresh.detach().to("cpu", torch.float32)
            self._tables[key] = known, table
            if missing.all():
                return fresh
        return table[ids].to(inputs.device, non_blocking=True)

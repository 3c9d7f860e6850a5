"""What `TAL` keeps between eager calls on the CPU, where the calls themselves are the cost."""

import numpy as np
import torch
from torch import Tensor

from pilot_tal import tal_math


class Eager:
    """What eager calls on the CPU keep: a step count, and for batches of one shape what NumPy needs.

    That is views, room for the shift, and the constants as arrays: a Python number is converted anew in each call.
    The shift is added to the logits; a sum keeps no tensor for its backward pass, so one shift serves all calls.
    """

    def __init__(self, updates: int = 0):
        self.updates = updates
        self.key = None

    def __reduce__(self):
        return Eager, (self.updates,)  # a copy must not view the memory of the original

    def prepare(self, key: tuple, Q: Tensor, lam: float, eps: float, log_alpha: float) -> None:
        """Views, room and constants for the batches and settings of this key."""
        rows, columns = key[0]
        self.key = None  # until all is there
        self.strength = Q.numpy()
        self.shift_tensor = torch.empty_like(Q)
        self.shift = self.shift_tensor.numpy()
        self.row_starts = np.arange(rows) * columns
        self.row_shares = np.full(rows, 1.0 / max(rows, 1))
        constants = (lam, tal_math.max_strength(lam), eps, log_alpha, 0.0)
        self.lam, self.max_strength, self.eps, self.log_alpha, self.zero = (
            np.array(value, self.strength.dtype) for value in constants
        )
        self.key = key

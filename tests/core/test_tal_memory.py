"""TAL keeps no more with every step, and a copy shares nothing with its original."""

import copy
import gc
import pickle

import numpy as np
import pytest
import torch
from tal_oracle import stream

from pilot_tal import TAL


@pytest.mark.parametrize("accumulate", [1, 2])
def test_no_memory_grows_with_the_steps(accumulate):
    tal = TAL(50, accumulate=accumulate)
    (batch,) = stream(50, 16, 1, dtype=torch.float32)
    kept = set()
    for step in range(1, 41):
        tal(*batch).backward()
        if step % 10 == 0:
            gc.collect()
            arrays = [o for o in gc.get_objects() if type(o) in (torch.Tensor, np.ndarray)]
            kept.add((len(arrays), sum(array.nbytes for array in arrays)))
            del arrays
    assert len(kept) == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda tal: pickle.loads(pickle.dumps(tal))])
def test_a_copy_goes_on_alike_and_apart(copied):
    tal = TAL(7)
    for logits, targets in stream(7, 8, 10, dtype=torch.float32):
        tal(logits, targets)
    twin = copied(tal)
    before = tal.Q.clone()
    rest = list(stream(7, 8, 5, seed=4, dtype=torch.float32))
    own = [twin(logits, targets).item() for logits, targets in rest]
    assert torch.equal(tal.Q, before) and tal.updates == 10
    assert own == [tal(logits, targets).item() for logits, targets in rest]
    assert torch.equal(twin.Q, tal.Q) and twin.updates == tal.updates == 15

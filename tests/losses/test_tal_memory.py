"""TAL keeps no more with every step, and a copy shares nothing with its original."""

import copy
import gc
import pickle
import tracemalloc

import pytest
import torch
from tal_oracle import stream

from pilot_tal import TAL


@pytest.mark.parametrize("accumulate", [1, 2])
def test_no_memory_grows_with_the_steps(accumulate):
    tal = TAL(50, accumulate=accumulate)
    (batch,) = stream(50, 16, 1, dtype=torch.float32)
    tensors, traced = set(), []
    tracemalloc.start()  # sees NumPy's arrays and Python's objects; tensors are counted by hand
    try:
        for step in range(1, 601):
            tal(*batch).backward()
            if step % 200 == 0:
                gc.collect()
                tensors.add(sum(type(o) is torch.Tensor for o in gc.get_objects()))
                traced.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(tensors) == 1
    assert traced[-1] - traced[0] < 400 * 50  # less than a byte for each class and step


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda tal: pickle.loads(pickle.dumps(tal))])
def test_copy_continues_identically_and_independently(copied):
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

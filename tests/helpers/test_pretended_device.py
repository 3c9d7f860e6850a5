"""The pretended device notices what a real one would stumble over or wait for."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.pretended_device import DEVICE, PretendedDevice

WAITING = {
    "item": lambda x: x[0, 0].item(),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "condition": lambda x: bool((x > 0).any()),
    "float": lambda x: float(x.sum()),
    "copied into a tensor of the host": lambda x: torch.empty(x.shape).copy_(x),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "bincount": lambda x: x.long().view(-1).bincount(),
    "unique": lambda x: x.unique(),
    "one_hot of unknown width": lambda x: F.one_hot(x.long()),
    "equal": lambda x: torch.equal(x, x),
}
FREE = {
    "arithmetic": lambda x: (x @ x.T).softmax(1).add_(1).clamp_min_(0),
    "a number of the host": lambda x: x * torch.tensor(2.0) + 1,
    "made there": lambda x: x + torch.zeros(3, device=x.device) + x.new_ones(3) + torch.zeros_like(x),
    "picked by rows": lambda x: x[torch.tensor([0, 1], device=x.device)],
    "sent there": lambda x: x + torch.ones(3).to(x.device),
    "where": lambda x: torch.where(x > 0, x, 0.0).argmax(1),
}
MIXED = {
    "sum": lambda x: x + torch.zeros(3),
    "product": lambda x: x @ torch.zeros(3, 2),
    "gather": lambda x: x.gather(1, torch.zeros(2, 1, dtype=torch.long)),
    "index": lambda x: x[torch.tensor([0, 1])],
    "cat": lambda x: torch.cat([x, torch.zeros(1, 3)]),
    "a table of the host": lambda x: torch.zeros(9)[x.long()],
}


def ones() -> torch.Tensor:
    return torch.ones(2, 3).to(DEVICE)


@pytest.mark.parametrize("name", WAITING)
def test_synchronising_operations_are_recorded(name):
    with PretendedDevice() as device:
        WAITING[name](ones())
    assert device.waits


@pytest.mark.parametrize("name", FREE)
def test_asynchronous_operations_keep_their_values(name):
    with PretendedDevice() as device:
        result = FREE[name](ones())
        assert not device.waits and str(result.device) == DEVICE
        assert torch.equal(result.cpu(), FREE[name](torch.ones(2, 3)))


@pytest.mark.parametrize("name", MIXED)
def test_two_devices_in_one_operation_are_refused(name):
    with PretendedDevice(), pytest.raises(AssertionError, match="mixes devices"):
        MIXED[name](ones())


def test_model_trains_as_on_the_host():
    torch.manual_seed(0)
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3))
    twin = copy.deepcopy(model)

    def train(model, x, y):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return model[3].weight

    expected = train(model, x, y).detach()
    with PretendedDevice() as device:
        weight = train(twin.to(DEVICE), x.to(DEVICE), y.to(DEVICE))
        assert not device.waits
        torch.testing.assert_close(weight.detach().cpu(), expected)

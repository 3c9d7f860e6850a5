"""No loss makes the host wait for a device, or mixes tensors of two."""

import copy

import pytest
import torch
from helpers.pretended_device import DEVICE, PretendedDevice

from pilot_tal.losses import LOSSES, build_loss
from pilot_tal.stream.task import TaskInfo

TASK = TaskInfo(0, 1, 0, 6, (60, 31, 12, 5, 2, 1), epoch_steps=4)


def begun(name, **options):
    loss = build_loss(name, **options)
    loss.begin_task(TASK)
    loss.begin_epoch(9, 10)
    return loss


def batches(steps=4):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield torch.randn(9, 6, generator=generator), torch.randint(0, 6, (9,), generator=generator)


@pytest.mark.parametrize("name", LOSSES)
def test_training_step_does_not_synchronise_and_equals_the_cpu(name):
    here = begun(name)
    expected = []
    for logits, targets in batches():
        logits.requires_grad_()
        loss = here(logits, targets)
        loss.backward()
        expected.append((loss.detach(), logits.grad))
    with PretendedDevice() as device:
        there, seen = begun(name).to(DEVICE), []
        for logits, targets in batches():
            logits, targets = logits.to(DEVICE).requires_grad_(), targets.to(DEVICE)
            loss = there(logits, targets)
            loss.backward()
            there.state_to_log()
            assert not device.waits, device.waits
            seen.append((loss.detach(), logits.grad))
        for result, wanted in zip(seen, expected, strict=True):
            for tensor, host in zip(result, wanted, strict=True):
                torch.testing.assert_close(tensor.cpu(), host)


@pytest.mark.parametrize("name", LOSSES)
def test_loss_can_move_to_a_device_during_a_task(name):
    here, there = begun(name), begun(name)
    expected = [here(*batch) for batch in batches()]
    (first, *others) = batches()
    seen = [there(*first)]
    with PretendedDevice():
        there.to(DEVICE)
        seen += [there(*(tensor.to(DEVICE) for tensor in batch)).cpu() for batch in others]
    torch.testing.assert_close(torch.stack(seen), torch.stack(expected))


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"reduction": "none"}, {"ignore_index": 3}, {"r": 0.5}])
def test_tal_never_synchronises_with_any_options(options):
    here, there = LOSSES["tal"](6, **options), LOSSES["tal"](6, **options)
    with PretendedDevice() as device:
        there.to(DEVICE)
        for logits, targets in batches(6):
            here(logits, targets)
            there(logits.to(DEVICE), targets.to(DEVICE))
        there.apply_update()
        assert not device.waits, device.waits
        here.apply_update()
        torch.testing.assert_close(there.Q.cpu(), here.Q)
        twin = copy.deepcopy(there.state_dict())
        back = LOSSES["tal"](6, **options)
        back.load_state_dict(twin)
        torch.testing.assert_close(back.Q, here.Q)


def test_tal_looks_at_the_values_on_a_device_if_it_is_asked_to():
    with PretendedDevice() as device:
        loss = LOSSES["tal"](6, validate=True).to(DEVICE)
        loss(*(tensor.to(DEVICE) for tensor in next(batches())))
        assert device.waits


def test_half_an_accumulation_moves_to_the_device_with_the_loss():
    here, there = LOSSES["tal"](6, accumulate=2), LOSSES["tal"](6, accumulate=2)
    (first, second) = batches(2)
    for batch in (first, second):
        here(*batch)
    there(*first)
    with PretendedDevice() as device:
        there.to(DEVICE)
        there(*(tensor.to(DEVICE) for tensor in second))
        assert not device.waits
        torch.testing.assert_close(there.Q.cpu(), here.Q)

"""No learner mixes tensors of two devices, and no training step makes the host wait for one."""

import pytest
import torch
from helpers.pretended_device import DEVICE, PretendedDevice
from learner_helpers import METHODS, batches, images, make, task_info, test_images

from pilot_tal.engine.loop import evaluate, train_task
from pilot_tal.learners import FIDELITIES
from pilot_tal.losses import build_loss

SIZES = (2, 2)


def through_two_tasks(method, fidelity, device, waits):
    """Trains, ends and evaluates both tasks on a device; gives the predictions, and the waits of the training steps."""
    torch.manual_seed(0)
    learner = make(method, SIZES, fidelity, tuned_epoch=1, **({"num_freeze_epochs": 0} if method == "lae" else {}))
    learner.backbone.to(device)
    learner.to(device)
    predicted, waited = [], []
    for index in range(len(SIZES)):
        torch.manual_seed(index)
        task = task_info(SIZES, index)
        x, y = images(task, per_class=3)
        train_task(
            learner,
            build_loss("tal").to(device),
            task,
            lambda epoch, x=x, y=y: batches(x, y, 4),
            epochs=learner.config.tuned_epoch,
            config=learner.config,
            device=device,
            on_begin=waits.clear,
        )
        waited += waits
        learner.end_task(lambda x=x, y=y: ((a.to(device), b.to(device)) for a, b in batches(x, y, 4)))
        x, y = test_images(SIZES[: index + 1], per_class=2)
        served = [(a, b, torch.arange(4 * n, 4 * n + len(a))) for n, (a, b) in enumerate(batches(x, y, 4))]
        predicted.append(evaluate(learner, iter(served), torch.device(device), "fp32")[1])
    return torch.cat(predicted), waited


@pytest.mark.parametrize(("method", "fidelity"), [(name, FIDELITIES[n % 2]) for n, name in enumerate(METHODS)])
def test_learner_stays_on_one_device_and_never_synchronises(method, fidelity):
    expected, _ = through_two_tasks(method, fidelity, "cpu", [])
    with PretendedDevice() as device:
        predicted, waited = through_two_tasks(method, fidelity, DEVICE, device.waits)
    assert torch.equal(predicted, expected)
    assert not waited, waited

"""The log of a task: every step, and the loss's state at intervals with the last one always."""

import itertools

import torch

from pilot_tal.losses import TaskLoss, build_loss
from pilot_tal.record.step_log import MOST_STATES, StepLog


class Counting(TaskLoss):
    """Its state is the number of steps it has seen."""

    name, title = "counting", "Counting"
    steps = 0

    def state_to_log(self):
        return {"Q": torch.tensor([float(self.steps), 0.25])}


def logged(steps: int) -> StepLog:
    criterion = Counting()
    log = StepLog(criterion)
    for step in range(steps):
        criterion.steps = step
        log.add(torch.tensor(step / 3), torch.tensor(0.5), step // 10, 0.1, torch.tensor(0.75))
    return log


def test_every_step_is_there_with_all_digits_of_float32():
    lines = logged(25).steps()
    assert [line["step"] for line in lines] == list(range(25))
    assert [line["epoch"] for line in lines] == [step // 10 for step in range(25)]
    assert all(torch.tensor(line["loss"]) == torch.tensor(line["step"] / 3) for line in lines)
    assert lines[0] == {"epoch": 0, "step": 0, "loss": 0.0, "aux": 0.5, "accuracy": 0.75, "lr": 0.1}


def test_states_are_thinned_out_evenly_and_the_last_stays():
    for steps in (1, 2, MOST_STATES, MOST_STATES + 1, 1000, 4321):
        states = logged(steps).states()
        places = [state["step"] for state in states]
        assert places[0] == 0 and places[-1] == steps - 1
        assert min(steps, MOST_STATES // 2) <= len(states) <= MOST_STATES + 1
        gaps = {b - a for a, b in itertools.pairwise(places[:-1])}
        assert len(gaps) <= 1
        assert all(state["Q"] == [float(state["step"]), 0.25] for state in states)


def test_loss_without_state_logs_none():
    log = StepLog(build_loss("ce"))
    log.add(torch.tensor(1.0))
    missing = {"aux": None, "accuracy": None, "lr": None}
    assert log.states() == [] and log.steps() == [{"epoch": 0, "step": 0, "loss": 1.0, **missing}]
    assert StepLog(build_loss("ce")).steps() == []


def test_non_finite_values_become_null():
    log = StepLog(build_loss("ce"))
    for value in (float("nan"), float("inf"), 1.0):
        log.add(torch.tensor(value), torch.tensor(0.0))
    assert [line["loss"] for line in log.steps()] == [None, None, 1.0]

"""Every option reaches what it is for: options of losses, seeds of batches and crops, weight decay."""

import math
import sys
from pathlib import Path

import pytest
import torch
from helpers.images import make_images
from helpers.tiny import settings

import pilot_tal as pt
from pilot_tal.config.grid import run_config, study_config
from pilot_tal.config.settings import method_config
from pilot_tal.engine import trainer as training
from pilot_tal.engine.jobs import Jobs
from pilot_tal.engine.launch import launch
from pilot_tal.engine.loop import build_optimizer
from pilot_tal.losses import LOSSES
from pilot_tal.record.run_dir import load_run
from pilot_tal.schema import settings_of
from pilot_tal.stream.batches import derive_seed

sys.path.append(str(Path(__file__).parents[1] / "losses"))
from tal_oracle import Oracle

OPTIONS = [(loss, option) for loss in LOSSES for option in settings_of(LOSSES[loss])]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))


def another_value(loss: str, name: str):
    option = settings_of(LOSSES[loss])[name]
    if option.kind is bool:
        return not option.default
    numbers = [number * (option.default or 1) for number in (0.5, 2, 0.9)] if option.kind is float else []
    for value in (*option.rule.choices, *numbers, 3.0, 3, 0.5):
        try:
            if option.check(value) != option.default:
                return value
        except pt.UserError:
            continue
    raise AssertionError(f"no other value of {loss}.{name}")


@pytest.fixture(scope="module")
def shared(images, tmp_path_factory):
    """Images and ViT, loaded once."""
    jobs = Jobs(run_config("l2p", "folder_lt", settings(images, tmp_path_factory.mktemp("runs"))))
    return jobs.trainer(jobs.all[0]).shared


@pytest.mark.parametrize(("loss", "option"), OPTIONS)
def test_every_option_of_every_loss_reaches_the_loss_that_is_trained(loss, option, shared, images, tmp_path):
    value = another_value(loss, option)
    more = ["tal.lam=auto"] if (loss, option) == ("tal", "memory_epochs") else []
    given = settings(images, tmp_path, f"loss={loss}", f"{loss}.{option}={value}", *more)
    jobs = Jobs(run_config("l2p", "folder_lt", given))
    (job,) = jobs.all
    trainer = training.Trainer(job.config, jobs.study.hardware, shared, job.record, job.path)
    assert getattr(trainer.criterion(), option) == value
    assert job.record.loss.options[option] == value


def test_two_runs_that_differ_in_lam_log_the_q_of_algorithm_1(images, tmp_path):
    given = settings(images, tmp_path, "losses=tal", "tal.lam=0.5,0.9", "seeds=1", "epochs=3", "batch_size=4", "jobs=1")
    study = study_config("l2p", "folder_lt", given)
    outcome = launch(study)
    logged = {}
    for job in Jobs(outcome.study).all:
        trainer, lam = Jobs(outcome.study).trainer(job), job.config.loss.options["lam"]
        states = [state for state in load_run(job.path).state_log() if state["task"] == 0]
        task = trainer.tasks[0]
        oracle = Oracle(task.num_classes, lam, r=1.0, alpha=1.0)
        batches = trainer.train_batches(task).epochs(3, derive_seed(1, 0))
        labels = [y.tolist() for epoch in range(3) for _, y in batches(epoch)]
        assert len(labels) == len(states)
        for y, state in zip(labels, states, strict=True):
            oracle.step([[0.0] * task.num_classes] * len(y), y)
            assert state["Q"] == pytest.approx(oracle.Q, rel=1e-5)
        logged[lam] = states[-1]["Q"]
    assert len(logged) == 2 and logged[0.5] != logged[0.9]


class Captured(Exception):
    """Ends a run after its first batches."""


@pytest.mark.parametrize("seed", [1, 2])
def test_batches_and_crops_follow_the_seed_of_the_run(seed, images, tmp_path, monkeypatch):
    """With order=tail_first the class order is the same for all seeds; only derived seeds tell the runs apart."""
    seen = []

    def capture(learner, criterion, task, batches, **_):
        seen.extend((epoch, x, y) for epoch in range(2) for x, y in batches(epoch))
        raise Captured

    monkeypatch.setattr(training, "train_task", capture)
    given = settings(images, tmp_path, "loss=ce", f"seed={seed}", "order=tail_first", "epochs=2", "batch_size=4")
    jobs = Jobs(run_config("l2p", "folder_lt", given))
    trainer = jobs.trainer(jobs.all[0])
    with pytest.raises(Captured):
        trainer.execute()
    task = trainer.tasks[0]
    indices = [index for label in range(task.first, task.stop) for index in trainer.train[label]]
    labels = [label for label in range(task.first, task.stop) for _ in trainer.train[label]]
    own = derive_seed(seed, task.index)
    steps = math.ceil(len(indices) / 4)
    for number, (epoch, x, y) in enumerate(seen):
        generator = torch.Generator().manual_seed(derive_seed("order", own, epoch))
        order = torch.randperm(len(indices), generator=generator).tolist()
        places = order[4 * (number % steps) :][:4]
        assert y.tolist() == [labels[place] for place in places]
        for place, image in zip(places, x, strict=True):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive_seed("augment", own, epoch, place))
                assert torch.equal(image, trainer.train_transform(trainer.shared.store[indices[place]]))
    assert len(seen) == 2 * steps


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_every_optimizer_decays_weights(kind):
    """Without a gradient, decay alone moves a weight: SGD and AdamW by lr · decay · w, Adam by lr (its own scale)."""
    config = method_config("l2p", optimizer=kind, weight_decay=0.1)
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = build_optimizer([{"params": [weight], "lr": 0.5}], config)
    weight.grad = torch.zeros(1)
    optimizer.step()
    assert float(weight.detach()) == pytest.approx(2 - {"sgd": 0.1, "adam": 0.5, "adamw": 0.1}[kind], rel=1e-5)

"""A training step multiplies what it has to and nothing more, by torch's own count."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pilot_tal.backbone import build_backbone
from pilot_tal.learners import build_learner
from pilot_tal.plan.defaults import method_config
from pilot_tal.stream.task import TaskInfo

FILE = Path(__file__).parents[2] / "scripts" / "bench_learners.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench_learners", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def vit():
    return build_backbone("deit_tiny_patch16_224", "random", 64)


def products(run) -> float:
    """Multiply-adds of linear layers and convolutions, the learner's own few included; attention is not counted."""
    with FlopCounterMode(display=False) as counter:
        run()
    return sum(counter.get_flop_counts()["Global"].values()) / 2


@pytest.mark.parametrize("method", ["l2p", "dualprompt", "coda_prompt", "lae", "mos"])
def test_no_product_is_done_twice_or_in_vain(method, bench, vit, monkeypatch):
    torch.manual_seed(0)
    config = method_config(method)
    learner = build_learner(method, vit, config, 40, 2, "fixed")
    task = TaskInfo(0, 2, 0, 20, (5,) * 20)
    learner.begin_task(task)
    learner.begin_epoch(config.tuned_epoch - 1, config.tuned_epoch)
    setting = bench.Bench(vit, torch.rand(2, 3, 64, 64), torch.tensor([0, 1]), 1, "fp32")
    work = bench.Work(vit, learner)
    whole = work._block
    monkeypatch.setattr(work, "_block", lambda *shape: (whole(*shape)[0], 0, whole(*shape)[2]))
    expected = work.row("training") * work.plain()
    counted = products(bench.training_step(setting, learner, task)) / 2
    assert counted == pytest.approx(expected, rel=0.01)
    ids = torch.arange(2)
    if method != "mos":  # whose evaluation needs the end of a task
        learner.scores(setting.x, ids)
        counted = products(lambda: learner.scores(setting.x, ids)) / 2
        assert counted == pytest.approx(work.row("evaluation, 2nd task") * work.plain(), rel=0.01)

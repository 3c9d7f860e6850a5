"""Each workaround alone: it repairs its defect and changes nothing else."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader
from upstream_helpers import DATA, context, needed

import pilot_tal._torchvision  # noqa: F401
from pilot_tal.upstream import workarounds


def test_only_needed_workarounds_are_active(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    assert needed(context("l2p", workers=None)) == set()
    assert needed(context("l2p", workers=2)) == {"fewer_workers"}
    assert needed(context("l2p", workers=None, data=DATA)) == {"our_data"}
    assert needed(context("l2p", workers=None, args={"init_cls": 4})) == {"few_classes"}
    assert needed(context("mos", workers=None, weights="random")) == {"no_download"}
    assert needed(context("mos", workers=None, weights="vit.pth", vit={"depth": 2})) == {"no_download", "other_vit"}
    assert needed(context("coda_prompt", on_cpu=False, workers=None)) == {"keep_small_task"}
    coda = context("coda_prompt", workers=None, args={"tuned_epoch": 1})
    assert needed(coda) == {"keep_small_task", "coda_leaf", "coda_one_epoch"}
    assert needed(context("fecam", workers=None)) == {"fecam_inverse"}
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert needed(context("l2p", workers=None)) == {"fewer_workers"}


def test_active_workarounds_are_logged(caplog):
    made = context("l2p")
    with caplog.at_level(logging.WARNING), made.patches:
        lines = workarounds.apply_workarounds(made)
    assert len(lines) == 1 and lines[0].startswith("workaround fewer_workers: ")
    assert lines[0] in caplog.text


def test_loaders_are_given_our_number_of_workers():
    made = context("l2p", workers=1)
    with made.patches:
        workarounds.fewer_workers(made)
        loader = DataLoader([1, 2], batch_size=2, num_workers=2, pin_memory=True)
        assert (loader.batch_size, loader.num_workers, loader.pin_memory) == (2, 1, False)
    assert DataLoader([1, 2], num_workers=2).num_workers == 2


@pytest.mark.parametrize(("images", "dropped"), [(3, False), (4, True), (9, True)])
def test_coda_keeps_a_task_smaller_than_a_batch(images, dropped):
    made = context("coda_prompt")
    with made.patches:
        workarounds.keep_small_task(made)
        assert DataLoader(range(images), batch_size=4, shuffle=True, drop_last=True).drop_last is dropped
        assert DataLoader(range(images), batch_size=4, drop_last=False).drop_last is False


def test_coda_may_add_in_place_on_the_cpu():
    made, plain = context("coda_prompt"), torch.zeros
    with made.patches:
        workarounds.coda_leaf(made)
        total = torch.zeros((1,), requires_grad=True).to("cpu")
        total += 1.0  # a leaf would refuse
        assert not torch.zeros(2).requires_grad
    assert torch.zeros is plain


def test_coda_may_train_one_epoch():
    made = context("coda_prompt", args={"tuned_epoch": 1})
    made.own.CosineSchedule = lambda optimizer, K: 1 / (K - 1)
    workarounds.coda_one_epoch(made)
    assert made.own.CosineSchedule(None, K=1) == 1
    assert made.own.CosineSchedule(None, K=5) == 0.25


def test_five_best_of_three_classes():
    class Learner(SimpleNamespace):
        def incremental_train(self, data):
            seen.append(self.topk)

        def _evaluate(self, pred, true):
            return {f"top{self.topk}": 1.0}

    seen = []
    learner = Learner(_known_classes=0, _cur_task=-1, topk=5)
    made = context("l2p", Learner, args={"init_cls": 3})
    workarounds.few_classes(made)
    data = SimpleNamespace(get_task_size=lambda task: 3)
    learner.incremental_train(data)
    assert learner._evaluate(None, None) == {"top3": 1.0, "top5": 1.0}
    learner._known_classes, learner._cur_task = 3, 0
    learner.incremental_train(data)
    assert seen == [3, 5]
    assert learner._evaluate(None, None) == {"top5": 1.0}


def test_pseudo_inverse_that_does_not_converge_is_tried_in_float64(monkeypatch):
    """What the first try would have taken for zero stays zero: here an eigenvalue of 1e-7."""
    plain = torch.linalg.pinv

    def stubborn(matrix, **kwargs):
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("did not converge")
        return plain(matrix, **kwargs)

    matrix = torch.diag(torch.tensor([1.0, 2.0, 1e-7]))
    expected = plain(matrix)
    monkeypatch.setattr(torch.linalg, "pinv", stubborn)
    made = context("fecam")
    with made.patches:
        workarounds.fecam_inverse(made)
        found = torch.linalg.pinv(matrix)
        assert torch.equal(torch.linalg.pinv(matrix.double()), plain(matrix.double()))
    torch.testing.assert_close(found, expected)
    assert found.dtype == torch.float32 and found.max() == 1
    assert torch.linalg.pinv is stubborn

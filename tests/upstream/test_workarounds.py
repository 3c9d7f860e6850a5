"""Each workaround alone: it repairs its defect and changes nothing else."""

import logging
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from upstream_helpers import context, needed

import pilot_tal._torchvision  # noqa: F401
from pilot_tal.upstream import workarounds
from pilot_tal.upstream.sites import LAMDA_PILOT, PYCIL


def test_only_needed_workarounds_are_active(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    assert needed(context(LAMDA_PILOT, "l2p", workers=None)) == set()
    assert needed(context(LAMDA_PILOT, "l2p", workers=2)) == {"fewer_workers"}
    assert needed(context(LAMDA_PILOT, "l2p", workers=None, args={"init_cls": 4})) == {"few_classes"}
    assert needed(context(LAMDA_PILOT, "mos", workers=None, weights="random")) == {"no_download"}
    assert needed(context(LAMDA_PILOT, "coda_prompt", on_cpu=False, workers=None)) == {"keep_small_task"}
    coda = context(LAMDA_PILOT, "coda_prompt", workers=None, args={"tuned_epoch": 1})
    assert needed(coda) == {"keep_small_task", "coda_leaf", "coda_one_epoch"}
    assert needed(context(PYCIL, "icarl", workers=None, data=None, weights="random")) == set()
    assert needed(context(LAMDA_PILOT, "icarl", workers=None)) == {"few_exemplars"}
    assert needed(context(LAMDA_PILOT, "dgr", workers=None)) == {"few_exemplars", "cuda_on_cpu"}
    assert needed(context(LAMDA_PILOT, "dgr", on_cpu=False, workers=None)) == {"few_exemplars"}
    assert needed(context(LAMDA_PILOT, "fecam", workers=None)) == {"fecam_inverse"}
    assert needed(context(PYCIL, "icarl", workers=None, data=None)) == set()
    assert needed(context(PYCIL, "icarl", workers=None)) == {"few_exemplars"}
    assert needed(context(PYCIL, "bic", workers=None)) == {"few_exemplars", "small_validation"}
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert needed(context(LAMDA_PILOT, "l2p", workers=None)) == {"fewer_workers"}


def test_active_workarounds_are_logged(caplog):
    made = context(LAMDA_PILOT, "l2p")
    with caplog.at_level(logging.WARNING), made.patches:
        lines = workarounds.apply_workarounds(made)
    assert len(lines) == 1 and lines[0].startswith("workaround fewer_workers: ")
    assert lines[0] in caplog.text


def test_loaders_are_given_our_number_of_workers():
    made = context(LAMDA_PILOT, "l2p", workers=1)
    with made.patches:
        workarounds.fewer_workers(made)
        loader = DataLoader([1, 2], batch_size=2, num_workers=2, pin_memory=True)
        assert (loader.batch_size, loader.num_workers, loader.pin_memory) == (2, 1, False)
    assert DataLoader([1, 2], num_workers=2).num_workers == 2


@pytest.mark.parametrize(("images", "dropped"), [(3, False), (4, True), (9, True)])
def test_coda_keeps_a_task_smaller_than_a_batch(images, dropped):
    made = context(LAMDA_PILOT, "coda_prompt")
    with made.patches:
        workarounds.keep_small_task(made)
        assert DataLoader(range(images), batch_size=4, shuffle=True, drop_last=True).drop_last is dropped
        assert DataLoader(range(images), batch_size=4, drop_last=False).drop_last is False


def test_coda_may_add_in_place_on_the_cpu():
    made, plain = context(LAMDA_PILOT, "coda_prompt"), torch.zeros
    with made.patches:
        workarounds.coda_leaf(made)
        total = torch.zeros((1,), requires_grad=True).to("cpu")
        total += 1.0  # a leaf would refuse
        assert not torch.zeros(2).requires_grad
    assert torch.zeros is plain


def test_coda_may_train_one_epoch():
    made = context(LAMDA_PILOT, "coda_prompt", args={"tuned_epoch": 1})
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
    made = context(LAMDA_PILOT, "l2p", Learner, args={"init_cls": 3})
    workarounds.few_classes(made)
    data = SimpleNamespace(get_task_size=lambda task: 3)
    learner.incremental_train(data)
    assert learner._evaluate(None, None) == {"top3": 1.0, "top5": 1.0}
    learner._known_classes, learner._cur_task = 3, 0
    learner.incremental_train(data)
    assert seen == [3, 5]
    assert learner._evaluate(None, None) == {"top5": 1.0}


def test_working_exemplar_selection_is_unchanged():
    class BaseLearner:
        def _construct_exemplar_unified(self, data, m):
            return "shared"

    class Learner(BaseLearner):
        def _construct_exemplar(self, data, m):
            return "its own"

    own = Learner._construct_exemplar
    with (made := context(LAMDA_PILOT, "memo", Learner)).patches:
        workarounds.few_exemplars(made)
        assert Learner._construct_exemplar is own and "_construct_exemplar_unified" in vars(Learner)
    assert "_construct_exemplar_unified" not in vars(Learner)


def test_prior_of_dgr_stays_on_the_cpu():
    made = context(LAMDA_PILOT, "dgr")
    with made.patches:
        workarounds.cuda_on_cpu(made)
        assert torch.FloatTensor([1.0]).cuda().is_cpu
    assert "cuda" not in vars(torch.Tensor)


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
    made = context(LAMDA_PILOT, "fecam")
    with made.patches:
        workarounds.fecam_inverse(made)
        found = torch.linalg.pinv(matrix)
        assert torch.equal(torch.linalg.pinv(matrix.double()), plain(matrix.double()))
    torch.testing.assert_close(found, expected)
    assert found.dtype == torch.float32 and found.max() == 1
    assert torch.linalg.pinv is stubborn


def test_cofima_averages_where_gradients_are_zero():
    old, new, share = torch.tensor([1.0, 1.0, 1e-3]), torch.tensor([3.0, 3.0, 3e-3]), 0.4
    fishers = iter([{"w": torch.tensor([0.0, 1e-4, 0.0])}, {"w": torch.tensor([0.0, 0.0, 1e-9])}])
    kind = type("Learner", (), {"getFisherDiagonal": lambda self, loader, optimizer: next(fishers)})
    workarounds.cofima_average(context(LAMDA_PILOT, "cofima", kind))
    first, second = (kind().getFisherDiagonal(None, None)["w"] for _ in range(2))
    both = ((1 - share) * first * old + share * second * new) / ((1 - share) * first + share * second)
    torch.testing.assert_close(both, torch.tensor([0.6 * 1 + 0.4 * 3, 1.0, 3e-3]))


def test_duct_gets_the_class_means_it_asks_for():
    made = context(LAMDA_PILOT, "duct", type("Learner", (SimpleNamespace,), {}))
    made.base.BaseLearner = type("BaseLearner", (), {})
    assert "duct_means" in needed(made)
    vectors = {label: np.tile([[label], [label + 1]], 3) for label in range(4)}
    learner = made.kind(_known_classes=0, _total_classes=2, batch_size=8)
    learner._extract_vectors = lambda loader: (loader.dataset, None)
    data = SimpleNamespace(get_dataset=lambda labels, source, mode: vectors[labels[0]])
    workarounds.duct_means(made)
    learner._compute_class_mean(data)
    assert learner._class_means.tolist() == [[0.5] * 3, [1.5] * 3]
    learner._known_classes, learner._total_classes = 2, 4
    learner._compute_class_mean(data)
    assert learner._class_means[:, 0].tolist() == [0.5, 1.5, 2.5, 3.5]
    made.base.BaseLearner._compute_class_mean = None  # a checkout in which it is mended
    assert "duct_means" not in needed(made)


@pytest.mark.parametrize("name", ["_construct_exemplar", "_construct_exemplar_unified"])
def test_small_classes_give_all_they_have(name):
    """The original chooses m of every class from known to total; where m is too many it is asked class by class."""
    chosen = {}

    class BaseLearner(SimpleNamespace):
        def _construct_exemplar(self, data, m):
            chosen.update(dict.fromkeys(range(self._known_classes, self._total_classes), m))

        _construct_exemplar_unified = _construct_exemplar

    learner = type("iCaRL", (BaseLearner,), {})(_known_classes=1, _total_classes=4)
    workarounds.few_exemplars(context(PYCIL, "icarl", type(learner)))
    data = SimpleNamespace(_train_targets=np.array([0, 1, 1, 2, 3, 3, 3, 3]))
    getattr(learner, name)(data, 3)
    assert chosen == {1: 2, 2: 1, 3: 3}
    assert (learner._known_classes, learner._total_classes) == (1, 4)
    getattr(learner, name)(data, 1)
    assert chosen == {1: 1, 2: 1, 3: 1}


def test_validation_size_is_limited_by_the_smallest_class():
    class DataManager(SimpleNamespace):
        def get_dataset_with_split(self, indices, source, mode, appendent=None, val_samples_per_class=0):
            return val_samples_per_class

    made = context(PYCIL, "bic")
    made.modules["utils.data_manager"].DataManager = DataManager
    workarounds.small_validation(made)
    data = DataManager(_train_targets=np.repeat(range(4), 9))
    options = {"source": "train", "mode": "train", "appendent": ([], np.array([0, 0, 0, 1, 1, 1]))}
    split = partial(data.get_dataset_with_split, np.arange(2, 4), **options)
    assert split(val_samples_per_class=5) == 2  # the exemplars, three of each, are the smallest
    data._train_targets = np.repeat(range(4), (9, 9, 9, 1))
    assert split(val_samples_per_class=5) == 1

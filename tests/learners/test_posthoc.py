"""Post-hoc corrections of the classifier, and what a run says about them and about its sampler."""

import math

import pytest
import torch
from helpers.images import make_images
from learner_helpers import make, test_images, train

import pilot_tal as pt
from data_lt.errors import UserError
from pilot_tal.config.grid import study_config
from pilot_tal.learners import LEARNERS
from pilot_tal.learners.posthoc import PostHoc, build_posthoc

FEATURES = torch.tensor([[1.0, 2.0]])
WEIGHT, BIAS = torch.tensor([[3.0, 4.0], [0.0, 2.0], [6.0, 8.0]]), torch.tensor([0.5, -0.5, 0.0])


def test_logit_adjustment_subtracts_the_log_prior_of_the_task():
    adjust = PostHoc("logit_adjustment", [2, 1], [3, 1, 7])  # priors 3/4 and 1/4 of task 1, 1 of task 2
    expected = [11.5 - math.log(0.75), 3.5 - math.log(0.25), 22.0]
    torch.testing.assert_close(adjust(FEATURES, WEIGHT, BIAS), torch.tensor([expected]))
    torch.testing.assert_close(adjust(FEATURES, WEIGHT[:2], BIAS[:2]), torch.tensor([expected[:2]]))


def test_tau_norm_compares_rows_of_length_one_without_bias():
    normalise = PostHoc("tau_norm", [2, 1], [3, 1, 7])
    torch.testing.assert_close(normalise(FEATURES, WEIGHT, BIAS), torch.tensor([[11 / 5, 2.0, 11 / 5]]))


def test_no_correction_and_an_unknown_one():
    assert build_posthoc("none", [2], [1, 1], "natural") is None
    with pytest.raises(UserError, match="tau_nrom"):
        build_posthoc("tau_nrom", [2], [1, 1], "natural")


@pytest.mark.parametrize("method", [name for name, learner in LEARNERS.items() if learner.linear_classifier])
def test_scores_of_every_linear_classifier_are_corrected_and_training_is_not(method):
    sizes = (2, 2)
    x, _ = test_images(sizes)
    scores, tensors = [], []
    for posthoc in (None, PostHoc("logit_adjustment", sizes, [1000, 1, 1000, 1])):
        torch.manual_seed(0)
        learner = make(method, sizes)
        learner.posthoc = posthoc
        for task in range(2):
            train(learner, sizes, task)
        scores.append(learner.probabilities(learner.scores(x)))
        tensors.append(learner.export_tensors())
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])
    rare = [1, 3]
    assert (scores[1][:, rare].sum(dim=1) > scores[0][:, rare].sum(dim=1)).all()


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))


def test_run_names_its_sampler_and_its_correction(images, tmp_path):
    tiny = {"backbone": "vit_tiny_patch16_224", "weights": "random", "img_size": 32, "tasks": 2, "device": "cpu"}
    given = {**tiny, "data_root": images, "output": tmp_path, "n_max": 6, "n_min": 2, "test_per_class": 2}
    study = pt.compare(
        "l2p",
        "folder_lt",
        losses="ce",
        seeds=1993,
        quick=True,
        references="none",
        posthoc=["none", "logit_adjustment"],
        **given,
    )
    run = pt.run("l2p", "folder_lt", loss="ce", quick=True, sampler="sqrt", posthoc="tau_norm", **given)
    frame = pt.load_runs(tmp_path).frame()
    found = set(zip(frame["sampler"], frame["posthoc"], strict=True))
    assert found == {("natural", "none"), ("natural", "logit_adjustment"), ("sqrt", "tau_norm")}
    assert len(study.frame()) == 2 and run.record.changed["sampler"] == ["sqrt", "natural"]
    model = pt.load_model(run.path)
    assert model.learner.posthoc.name == "tau_norm"


def test_default_runs_keep_their_names(images, tmp_path):
    given = {"data_root": images, "output": tmp_path, "tasks": 2, "device": "cpu", "img_size": 8, "n_max": 6}
    pixels = torch.nn.Sequential(torch.nn.AvgPool2d(4), torch.nn.Flatten())
    record = pt.run("simplecil", "folder_lt", backbone=pixels, n_min=2, test_per_class=2, **given).record
    assert record.conditions().keys() - record.identity()["conditions"].keys() == {"sampler", "posthoc"}


def test_methods_without_a_trained_classifier_refuse_the_settings():
    for method, item in (
        ("simplecil", "posthoc=tau_norm"),
        ("ranpac", "posthoc=tau_norm"),
        ("simplecil", "sampler=sqrt"),
    ):
        with pytest.raises(UserError, match=rf"of {method}: it is one of l2p"):
            study_config(method, "demo_lt", [item])
    with pytest.raises(UserError, match="plda trains nothing with a loss; leave sampler=sqrt out"):
        study_config("plda", "demo_lt", ["sampler=sqrt"])
    runs = study_config("l2p", "demo_lt", ["sampler=natural,sqrt", "seeds=1", "losses=ce"]).runs
    assert sorted((run.method, run.settings.sampler, "sampler" in run.changed) for run in runs) == [
        ("l2p", "natural", False),
        ("l2p", "sqrt", True),
        ("plda", "natural", False),
        ("simplecil", "natural", False),
    ]
    runs = study_config(
        "l2p,simplecil", "demo_lt", ["posthoc=none,tau_norm", "seeds=1", "losses=ce", "references=none"]
    ).runs
    assert [(run.method, run.settings.posthoc) for run in runs] == [
        ("l2p", "none"),
        ("l2p", "tau_norm"),
        ("simplecil", "none"),
    ]


@pytest.mark.parametrize(("sampler", "shares"), [("natural", (16, 4)), ("sqrt", (4, 2)), ("balanced", (1, 1))])
def test_prior_is_the_share_of_a_class_among_the_images_drawn(sampler, shares):
    found = build_posthoc("logit_adjustment", [2], [16, 4], sampler)
    torch.testing.assert_close(found.log_prior.exp(), torch.tensor(shares) / sum(shares))

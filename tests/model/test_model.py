"""A model says what its run said; where a batch voted there, what the run's learner says of one image alone."""

import warnings

import pytest
import torch
from model_helpers import photo, said

from data_lt.errors import UserError
from data_lt.pictures import read_picture
from pilot_tal import load_model
from pilot_tal.learners import FIDELITIES, LEARNERS
from pilot_tal.model.load import find_vit, read_stored, restore_learner

VOTERS = ("l2p", "dualprompt")  # with fidelity=pilot


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("method", LEARNERS)
def test_labels_are_those_of_the_run_or_of_batches_of_one(method, fidelity, workspace):
    run = workspace.run(method, fidelity)
    for task in (0, 1):
        model = load_model(run, after_task=task + 1)
        images, _, pred = said(run, task)
        files = [workspace.images / name for name in images]
        assert (model.note is not None) == (fidelity == "pilot" and method in VOTERS)
        if model.note:  # the learner itself, as it was trained, on one image after the other
            stored = read_stored(run, task + 1)
            learner = restore_learner(stored, find_vit(stored.record))
            x = [model.transform(read_picture(file)).unsqueeze(0) for file in files]
            pred = [int(learner.scores(one).argmax()) for one in x]
        assert len(model.classes) == (3, 6)[task]
        for batch_size in (1, 4, 32):
            results = model.predict(files, batch_size=batch_size)
            assert [model.classes.index(one.label) for one in results] == pred, batch_size


def test_labels_are_those_of_a_run_in_half_precision(workspace):
    run = workspace.run("coda_prompt", "pilot", "precision=bf16")
    images, _, pred = said(run, 1)
    model = load_model(run)
    assert [
        model.classes.index(one.label) for one in model.predict([workspace.images / name for name in images])
    ] == pred
    x = torch.stack([model.transform(read_picture(workspace.images / name)) for name in images])
    assert not torch.allclose(model.scores(x), model.learner.scores(x), atol=1e-4)  # it is computed so


@pytest.mark.parametrize("posthoc", ["logit_adjustment", "tau_norm"])
def test_labels_are_those_of_a_run_with_a_post_hoc_correction(posthoc, workspace):
    run = workspace.run("lae", "fixed", f"posthoc={posthoc}")
    images, _, pred = said(run, 1)
    model = load_model(run)
    files = [workspace.images / name for name in images]
    assert [model.classes.index(one.label) for one in model.predict(files)] == pred
    x = torch.stack([model.transform(read_picture(file)) for file in files])
    corrected, model.learner.posthoc = model.scores(x), None
    assert not torch.allclose(model.scores(x), corrected, atol=1e-4)


@pytest.mark.parametrize("method", LEARNERS)
def test_scores_are_shares_of_one_in_the_learners_order(method, workspace):
    run = workspace.run(method, "fixed")
    model = load_model(run)
    files = [workspace.images / name for name in said(run, 1)[0]]
    results = model.predict(files, top=99)
    x = torch.stack([model.transform(read_picture(file)) for file in files])
    own = model.learner.scores(x)
    for result, row in zip(results, own, strict=True):
        names, shares = zip(*result.top, strict=True)
        assert (result.label, result.score) == result.top[0] and sorted(names) == sorted(model.classes)
        assert sum(shares) == pytest.approx(1, abs=1e-5) and list(shares) == sorted(shares, reverse=True)
        assert all(0 <= share <= 1 for share in shares)
        assert [model.classes.index(name) for name in names] == row.argsort(descending=True).tolist()
    assert [one.top[:2] for one in results] == [one.top for one in model.predict(files, top=2)]


def test_scores_of_each_kind_of_learner(workspace):
    """Softmax of logits; the larger of two probabilities, and sums of two, divided by their sum."""
    scores = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    softmax = torch.tensor([[0.665241, 0.244728, 0.090031], [1 / 3] * 3])
    for method in LEARNERS:
        learner = load_model(workspace.run(method, "fixed")).learner
        if method in ("lae", "mos"):
            assert torch.allclose(learner.probabilities(scores[:1]), torch.tensor([[2 / 3, 1 / 3, 0.0]]))
        else:
            assert torch.allclose(learner.probabilities(scores), softmax, atol=1e-5)


def test_paths_pictures_and_tensors_are_the_same_images(workspace, tmp_path):
    model = load_model(workspace.run("lae"))
    files = [photo(tmp_path / f"{number}.png", number) for number in range(3)]
    wanted = model.predict(files)
    pictures = [read_picture(file) for file in files]
    tensors = [model.transform(picture) for picture in pictures]
    assert model.predict(pictures) == model.predict(tensors) == model.predict(torch.stack(tensors)) == wanted
    assert model.predict(str(files[0])) == model.predict(pictures[0]) == model.predict(tensors[0])
    assert model.predict([]) == [] and model.classes == tuple(model.record.stream.class_names)
    assert model.transform(pictures[0].convert("L").convert("RGB")).shape == (3, 32, 32)
    assert model.predict(pictures[0].convert("L")) == model.predict(pictures[0].convert("L").convert("RGB"))


def test_transform_is_the_runs_own_with_its_normalisation(workspace, tmp_path):
    file = photo(tmp_path / "one.png")
    run, plain = workspace.run("lae"), workspace.run("lae", "pilot", "normalize=none")
    pixels = load_model(plain).transform(read_picture(file))
    assert pixels.min() >= 0 and pixels.max() <= 1
    assert torch.allclose(load_model(run).transform(read_picture(file)), (pixels - 0.4) / 0.3, atol=1e-6)


@pytest.mark.parametrize("wrong", [3, None, torch.zeros(3, 8, 8), torch.zeros(3, 32, 32, dtype=torch.uint8)])
def test_non_image_is_rejected(wrong, workspace):
    with pytest.raises(UserError, match=r"an image must be a path, a PIL image or a tensor \[3, 32, 32\]"):
        load_model(workspace.run("lae")).predict([wrong])


@pytest.mark.parametrize("options", [{"top": 0}, {"batch_size": 0}, {"top": True}, {"batch_size": 1.5}])
def test_numbers_that_make_no_sense_are_refused(options, workspace):
    with pytest.raises(UserError, match="must be a whole number of at least 1"):
        load_model(workspace.run("lae")).predict(said(workspace.run("lae"), 0)[0], **options)


@pytest.mark.parametrize("method", VOTERS)
def test_model_of_a_batch_dependent_method_warns(method, workspace):
    run = workspace.run(method)
    image, model = workspace.images / said(run, 1)[0][0], load_model(run)
    with pytest.warns(UserWarning, match="scores each image alone"):
        model.predict(image)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_model(workspace.run(method, "fixed")).predict(image)


def test_repr_names_method_loss_classes_and_tasks(workspace):
    text = repr(load_model(workspace.run("lae"), after_task=1))
    assert all(part in text for part in ("lae", "loss=tal", "3 classes", "tasks=1 of 2", "demo_vit"))


def test_loading_does_not_change_the_random_state(workspace):
    run = workspace.run("coda_prompt")
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    load_model(run)
    assert torch.rand(1) == wanted

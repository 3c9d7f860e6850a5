"""Features of two runs in two dimensions: from the classifier's own input, for runs that can be compared."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from figures_features import check_pair, draw_features, features_of
from helpers.images import make_images
from helpers.vit import tiny_vit
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor

from data_lt.errors import UserError
from pilot_tal.config.defaults import method_config
from pilot_tal.learners import LEARNERS, build_learner
from pilot_tal.record.run_dir import load_run
from pilot_tal.schema import settings_of

ONE_LAYER = ("l2p", "dualprompt", "coda_prompt", "lae")


class FirstTwo:
    """Stands in for UMAP, which takes a minute to compile: the first two of the features."""

    def __init__(self, n_neighbors, random_state, n_jobs):
        assert (n_neighbors, random_state, n_jobs) == (5, 0, 1)

    def fit_transform(self, features):
        return features[:, :2]


@pytest.fixture
def umap(monkeypatch):
    module = ModuleType("umap")
    module.UMAP = FirstTwo
    monkeypatch.setitem(sys.modules, "umap", module)


def tiny_model(method: str) -> SimpleNamespace:
    small = {"prompt_param": [12, 4, 0.0], "M": 40, "size": 6, "top_k": 2}
    own = settings_of(LEARNERS[method].config_class)
    config = method_config(method, **{key: value for key, value in small.items() if key in own})
    torch.manual_seed(0)
    learner = build_learner(method, tiny_vit(depth=6), config, 6, 2, "fixed").eval()
    learner.grow_to([3, 6])
    return SimpleNamespace(
        learner=learner,
        record=SimpleNamespace(method=SimpleNamespace(title=LEARNERS[method].title)),
        transform=lambda image: pil_to_tensor(image.resize((8, 8), Image.Resampling.BILINEAR)).float() / 255,
        scores=learner.scores,
    )


@pytest.mark.parametrize("method", LEARNERS)
def test_features_are_what_the_classifier_sees_or_refused(method, tmp_path):
    files = sorted(make_images(tmp_path, classes=2, images=3).rglob("*.png"))
    model = tiny_model(method)
    if method not in ONE_LAYER:
        with pytest.raises(UserError, match=r"has no one feature of an image: .*l2p, dualprompt, coda_prompt, lae"):
            features_of(model, files)
        return
    features = torch.from_numpy(features_of(model, files, batch=4))
    assert features.shape == (6, model.learner.backbone.dim)
    scores = model.scores(torch.stack([model.transform(Image.open(file)) for file in files]))
    logits = model.learner.seen_logits(features, getattr(model.learner, "head", None) or model.learner.fc)
    if method == "lae":  # the larger of two probabilities, of which these are the one in training
        for module, same in ((model.learner.pets_emas, True), (model.learner.pets, False)):
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter += torch.randn_like(parameter)
            assert torch.equal(torch.from_numpy(features_of(model, files, batch=4)), features) == same
    else:
        torch.testing.assert_close(scores, logits, atol=1e-5, rtol=1e-5)


def test_two_runs_become_a_table_and_a_picture(runs, tmp_path, umap, capsys):
    paths = sorted(str(path.parent) for path in Path(runs).rglob("result.json"))
    draw_features(paths, tmp_path / "features.csv", tmp_path / "images")
    table = pd.read_csv(tmp_path / "features.csv")
    run = load_run(paths[0])
    last = run.record.stream.class_names[3:]
    assert list(table["loss"]) == ["ce"] * 6 + ["tal"] * 6 and set(table["class"]) == set(last)
    sizes = dict(zip(run.record.stream.class_names, run.record.stream.train_counts, strict=True))
    assert all(sizes[row["class"]] == row["images"] for _, row in table.iterrows())
    assert not np.allclose(table.loc[:5, ["x", "y"]], table.loc[6:, ["x", "y"]])
    picture = (tmp_path / "images" / "results_features.svg").read_bytes()
    draw_features(paths, tmp_path / "features.csv", tmp_path / "images")
    assert (tmp_path / "images" / "results_features.svg").read_bytes() == picture
    assert "results_features.svg" in capsys.readouterr().out


def test_what_cannot_be_compared_is_refused(runs, tmp_path, umap):
    ce, tal = (load_run(path.parent) for path in sorted(Path(runs).rglob("result.json")))
    check_pair(ce, tal)
    with pytest.raises(UserError, match="two losses and the same in all else"):
        check_pair(ce, ce)
    with pytest.raises(UserError, match="two losses and the same in all else"):
        check_pair(ce, replace(tal, record=replace(tal.record, seed=7)))
    with pytest.raises(UserError, match="is not finished"):
        check_pair(ce, replace(tal, finished=False))
    with pytest.raises(UserError, match="got 1"):
        draw_features([str(ce.path)], tmp_path / "features.csv", tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_umap_a_sentence_says_how_to_get_it(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    paths = sorted(str(path.parent) for path in Path(runs).rglob("result.json"))
    with pytest.raises(UserError, match=r"pip install 'pilot-tal\[figures\]'"):
        draw_features(paths, tmp_path / "features.csv", tmp_path)

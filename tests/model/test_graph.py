"""The classifier as an ONNX graph gives what the model gives, for batches of any size."""

import importlib.util
import json
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from helpers.cli import ROOT, command
from helpers.vit import tiny_vit
from model_helpers import photo

from data_lt.errors import UserError
from data_lt.pictures import read_picture
from pilot_tal import load_model
from pilot_tal.config.settings import method_config
from pilot_tal.learners import LEARNERS, build_learner
from pilot_tal.model.graph import Classifier, write_graph
from pilot_tal.schema import settings_of

SMALL = {"prompt_param": [12, 4, 0.0], "M": 40, "size": 6, "top_k": 2}


def scores_of(file, images: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(["scores"], {"images": images})[0]


@pytest.mark.parametrize("method", LEARNERS)
def test_every_learner_exports_a_graph_for_any_batch_size(method, tmp_path):
    own = settings_of(LEARNERS[method].config_class)
    config = method_config(method, **{key: value for key, value in SMALL.items() if key in own})
    torch.manual_seed(0)
    learner = build_learner(method, tiny_vit(depth=3), config, 6, 2)
    learner.grow_to([3, 6])
    with torch.no_grad():
        for tensor in learner.named_tensors().values():
            tensor.copy_((0.1 if method == "plda" else 1) * torch.randn_like(tensor))  # a likelihood soon saturates
        learner.tensors_replaced()
    learner.score_alone()
    learner.eval().requires_grad_(False)
    model = SimpleNamespace(
        learner=learner,
        statistics=((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
        classes=("a", "b", "c", "d", "e", "é"),
        record=SimpleNamespace(method=SimpleNamespace(title=method)),
    )
    write_graph(model, tmp_path / "model.onnx")
    content = (tmp_path / "model.onnx").read_bytes()
    assert str(ROOT).encode() not in content and b"site-packages" not in content  # nobody's business
    x = 3 * torch.randn(7, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    normalised = (x - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)) / torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
    wanted = learner.probabilities(learner.scores(normalised)).numpy()
    assert np.ptp(wanted, axis=0).max() > 1e-3  # the images differ
    for size in (1, 2, 7):
        given = scores_of(tmp_path / "model.onnx", x[:size].numpy())
        assert np.abs(given - wanted[:size]).max() < 1e-4
        assert given.argmax(axis=1).tolist() == wanted[:size].argmax(axis=1).tolist()


def test_export_command_writes_a_self_contained_graph(workspace, tmp_path):
    run = workspace.run("l2p")
    status, printed = command("export", run, "-o", tmp_path / "model", "--onnx")
    assert status == 0, printed
    model = load_model(tmp_path / "model")
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    assert "Normalize" in about["input"]["steps"][-1]
    picture = read_picture(photo(tmp_path / "one.png"))
    for step in model.transform.transforms[:-1]:
        picture = step(picture)
    given = scores_of(tmp_path / "model" / "model.onnx", picture.unsqueeze(0).numpy())[0]
    (result,) = model.predict(tmp_path / "one.png", top=6)
    assert [model.classes[i] for i in np.argsort(-given)] == [name for name, _ in result.top]
    assert sorted(given, reverse=True) == pytest.approx([score for _, score in result.top], abs=1e-4)
    session = onnxruntime.InferenceSession(str(tmp_path / "model" / "model.onnx"))
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == list(model.classes)
    assert "the whole classifier as an ONNX graph" in (tmp_path / "model" / "README.md").read_text()


def test_graph_with_other_predictions_is_not_kept(workspace, tmp_path, monkeypatch):
    run = workspace.run("simplecil")
    monkeypatch.setattr("pilot_tal.model.graph.TOLERANCE", -1)
    status, printed = command("export", run, "-o", tmp_path / "model", "--onnx")
    assert status == 2 and "the ONNX graph gives scores that are" in printed and not list(tmp_path.iterdir())


def test_data_dependent_graph_is_rejected(workspace, tmp_path, monkeypatch):
    monkeypatch.setattr(Classifier, "forward", lambda self, images: images.sum() if float(images.sum()) > 0 else images)
    with pytest.raises(UserError, match="LAE cannot be written as an ONNX graph"):
        write_graph(load_model(workspace.run("lae")), tmp_path / "model.onnx")


def test_missing_packages_are_one_sentence(workspace, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    status, printed = command("export", workspace.run("lae"), "-o", tmp_path / "model", "--onnx")
    assert status == 2 and "pip install '.[onnx]'" in printed and not list(tmp_path.iterdir())

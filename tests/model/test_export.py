"""An exported folder: the same model for someone else, whole or not at all, with a card that tells what it is."""

import html as entities
import json
import os
import pickletools
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from helpers.cli import ROOT, command
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from model_helpers import Workspace, photo, said
from safetensors.torch import load_file

from data_lt.errors import UserError
from pilot_tal import load_model
from pilot_tal.learners import LEARNERS
from pilot_tal.model.export import export_model, weights_note
from pilot_tal.model.load import read_about
from pilot_tal.record.run_dir import load_run, write_sealed

FRESH = """
import json, sys, warnings
warnings.simplefilter("ignore")
from pilot_tal import load_model
folders, image = json.loads(sys.argv[1])
print(json.dumps([load_model(folder).predict(image, top=99)[0].top for folder in folders]))
"""


def test_every_method_is_the_same_model_in_a_fresh_process_elsewhere(workspace, tmp_path):
    """With the ViT inside, and no configs, run or images to be found."""
    image = photo(tmp_path / "one.png")
    folders, wanted = [], []
    for method in LEARNERS:
        run = workspace.run(method)
        status, printed = command("export", run, "-o", tmp_path / method, "--with-backbone")
        assert status == 0 and f"model: {tmp_path / method}" in printed, printed
        model = load_model(run)
        wanted.append([list(pair) for pair in model.predict(image, top=99)[0].top])
        folders.append(str(tmp_path / method))
    package = tmp_path / "package"  # the code alone, without configs/ beside it
    for name in ("pilot_tal", "data_lt"):
        shutil.copytree(
            ROOT / name, package / name, ignore=shutil.ignore_patterns("__pycache__", "manifests", "assets")
        )
    environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FRESH, json.dumps([folders, str(image)])],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for method, given, expected in zip(LEARNERS, json.loads(done.stdout), wanted, strict=True):
        assert [name for name, _ in given] == [name for name, _ in expected], method
        assert [score for _, score in given] == pytest.approx([score for _, score in expected], abs=1e-6), method


def test_export_contains_the_documented_files(workspace, tmp_path):
    run = workspace.run("mos")
    folder = export_model(run, tmp_path / "model")
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "learner.safetensors", "model.json"]
    about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    for key in ("method", "loss", "seed", "data", "backbone", "stream"):
        assert about["record"][key] == record[key]
    stream = record["stream"]
    assert [one["name"] for one in about["classes"]] == stream["class_names"]
    assert [one["training_images"] for one in about["classes"]] == stream["train_counts"]
    assert [one["task"] for one in about["classes"]] == [1, 1, 1, 2, 2, 2]
    assert sum(one["part"] == "tail" for one in about["classes"]) == 3
    assert about["input"]["pixels"] == [32, 32] and "Normalize" in about["input"]["steps"][-1]
    assert about["versions"]["trained"]["packages"]["torch"] == torch.__version__
    assert about["metrics"] == load_run(run).metrics
    text = (folder / "model.json").read_text() + (folder / "README.md").read_text()
    assert str(workspace.folder) not in text and os.getcwd() not in text  # nobody's business
    assert len({file.stat().st_mode for file in folder.iterdir()}) == 1  # none is private, for it is to be handed on
    names = set(load_model(run).learner.named_tensors())
    assert set(load_file(folder / "learner.safetensors")) == names  # statistics of the classes are not needed


def test_after_an_earlier_task(workspace, tmp_path):
    run = workspace.run("lae")
    folder = export_model(run, tmp_path / "model", after_task=1)
    images, true, pred = said(run, 0)
    model = load_model(folder)
    assert model.tasks_done == 1 and len(model.classes) == 3
    labels = [model.classes.index(one.label) for one in model.predict([workspace.images / name for name in images])]
    assert labels == pred
    metrics = json.loads((folder / "model.json").read_text())["metrics"]
    assert metrics["a_last"] == pytest.approx(sum(t == p for t, p in zip(true, pred, strict=True)) / len(true))
    assert "the model after 1 of 2 tasks" in (folder / "README.md").read_text()
    with pytest.raises(UserError, match="holds the model after task 1 only"):
        load_model(folder, after_task=2)


def test_card_is_valid_and_lists_limitations(workspace, tmp_path):
    run = workspace.run("l2p")
    folder = export_model(run, tmp_path / "model")
    text = (folder / "README.md").read_text(encoding="utf-8")
    card = ModelCard(text)
    metrics = load_run(run).metrics
    data = card.data.to_dict()
    assert data["library_name"] == "pilot-tal" and data["pipeline_tag"] == "image-classification"
    given = {result.metric_name: result.metric_value for result in card.data.eval_results}
    for name, key in {"A_Mean": "a_mean", "A_Tail": "a_tail", "A_Head": "a_head", "Worst class": "worst_class"}.items():
        assert given[name] == pytest.approx(100 * metrics[key], abs=0.01)
    for part in ("Licence: not stated", "seed 1993", "fidelity pilot", "scores each image alone"):
        assert part in text.replace("\\", ""), part
    worst = json.loads((run / "run.json").read_text())["stream"]["class_names"][metrics["worst_class_label"]]
    assert f"| Worst class | {100 * metrics['worst_class']:.2f} | {worst}" in text


@pytest.mark.parametrize(
    ("weights", "said"),
    [("hub", "from timm's hub"), ("my.safetensors@1a2b", "my.safetensors with --weights"), ("random", "comes with")],
)
def test_export_without_the_vit_names_the_source_of_its_weights(weights, said, workspace, tmp_path):
    about = read_about(export_model(workspace.run("lae"), tmp_path / "model"))
    backbone = replace(about.record.backbone, name="deit_tiny_patch16_224", weights=weights)
    assert said in weights_note(replace(about, record=replace(about.record, backbone=backbone)))
    assert "in this folder" in weights_note(replace(about, files={**about.files, "vit.safetensors": "1a2b"}))


@pytest.fixture(scope="module")
def nasty(tmp_path_factory):
    """Classes whose names are Markdown, HTML and YAML."""
    workspace = Workspace(tmp_path_factory.mktemp("nasty"))
    names = [
        "<img src=x onerror=alert(1)>",
        "a|b|c",
        "**bold** [link](http:..x)",
        "--- {{x}} %}",
        "`tick` \\",
        "': - \"",
    ]
    for folder, name in zip(sorted(workspace.images.iterdir()), names, strict=True):
        folder.rename(folder.with_name(name))
    return workspace, names


def test_names_of_classes_are_data_in_the_card(nasty, tmp_path):
    workspace, names = nasty
    folder = export_model(workspace.run("simplecil"), tmp_path / "model")
    text = (folder / "README.md").read_text(encoding="utf-8")
    ModelCard(text)
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text.split("---\n", 2)[2])
    assert "<img" not in html and "<strong>" not in html and "href" not in html
    rows = html.split("<h2>Classes</h2>")[1].split("<tr>")[2:]
    assert len(rows) == 6 and all(row.count("<td>") == 6 for row in rows)
    shown = {entities.unescape(row.split("<td>")[2].split("</td>")[0]) for row in rows}
    assert shown == set(names)
    assert set(load_model(folder).classes) == set(names)


def test_nothing_is_half_written(workspace, tmp_path, monkeypatch):
    run = workspace.run("lae")
    monkeypatch.setattr("pilot_tal.model.export.model_card", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_model(run, tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_export_needs_a_new_folder_and_keeps_what_is_there(workspace, tmp_path):
    run = workspace.run("lae")
    earlier = export_model(run, tmp_path / "earlier")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.json").write_text('{"modelTopology": 1}')
    (tmp_path / "file").write_text("precious")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for output in (earlier, tmp_path / "mine", tmp_path / "file", run):
        status, printed = command("export", run, "-o", output)
        assert status == 2 and "give a new folder" in printed and printed.count("\n") == 1
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_export_keeps_hidden_files(workspace, tmp_path):
    run, folder = workspace.run("lae"), tmp_path / "clone"
    (folder / ".git").mkdir(parents=True)
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs")
    export_model(run, folder)
    assert (folder / ".gitattributes").read_text() == "*.safetensors filter=lfs" and (folder / "model.json").is_file()


def test_export_is_not_exported_again(workspace, tmp_path):
    folder = export_model(workspace.run("lae"), tmp_path / "model")
    status, printed = command("export", folder, "-o", tmp_path / "again")
    assert status == 2 and "is an exported model already" in printed and not (tmp_path / "again").exists()


def test_damaged_folders_are_one_sentence(workspace, tmp_path):
    whole = export_model(workspace.run("lae"), tmp_path / "model", with_backbone=True)

    def broken(change):
        folder = shutil.copytree(whole, tmp_path / "broken", dirs_exist_ok=True)
        change(folder)
        with pytest.raises(UserError) as error:
            load_model(folder)
        return str(error.value)

    def edit(**changes):
        def change(folder):
            about = json.loads((folder / "model.json").read_text()) | changes
            about.pop("checksum")
            write_sealed(folder / "model.json", about)

        return change

    def flip(old, new):
        file = "model.json"
        return lambda folder: (folder / file).write_text((folder / file).read_text().replace(old, new, 1))

    assert "learner.safetensors is missing or damaged" in broken(
        lambda f: (f / "learner.safetensors").write_bytes(b"x")
    )
    assert "vit.safetensors is missing or damaged" in broken(lambda f: (f / "vit.safetensors").unlink())
    assert "is not of format 2" in broken(edit(format=9))
    assert "checksum mismatch: edited or truncated); export the run again" in broken(flip("class 0", "class 9"))
    assert "is damaged (record must be" in broken(edit(record=3))
    assert "tasks_done is 7" in broken(edit(tasks_done=7))
    assert "not valid JSON" in broken(lambda f: (f / "model.json").write_text("{"))


def test_nothing_in_the_folder_is_a_pickle(workspace, tmp_path):
    folder = export_model(workspace.run("lae"), tmp_path / "model", with_backbone=True)
    for file in folder.iterdir():
        with pytest.raises(Exception):  # noqa: B017, whatever it says, it is no pickle
            list(pickletools.genops(file.read_bytes()))

"""What is no model, or not this model's ViT, is one sentence."""

import json
import shutil
from dataclasses import replace

import pytest
from helpers.vit import state_of
from model_helpers import photo
from safetensors.torch import load_file, save_file

from data_lt.errors import UserError
from pilot_tal import load_model
from pilot_tal.backbone.load import DEMO_WEIGHTS
from pilot_tal.backbone.weights import build_backbone
from pilot_tal.model.export import export_model
from pilot_tal.model.learn import learn
from pilot_tal.record.run_dir import read_run_record, read_sealed, write_sealed
from pilot_tal.record.run_record import EngineRecord
from pilot_tal.results import build_report


def test_folder_without_a_run_raises_user_error(tmp_path, workspace):
    with pytest.raises(UserError, match=r"neither a run directory .* nor an exported model"):
        load_model(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        load_model(tmp_path / "missing")
    run = workspace.run("lae")
    with pytest.raises(UserError, match=f"holds runs; give one of them, such as {run}"):
        load_model(run.parent)
    with pytest.raises(UserError, match="is empty"):
        load_model("")


def test_run_without_a_finished_task_raises_user_error(tmp_path, workspace):
    run = shutil.copytree(workspace.run("lae"), tmp_path / "run")
    shutil.rmtree(run / "checkpoint")
    with pytest.raises(UserError, match="folder checkpoint was removed"):
        load_model(run)
    (run / "result.json").unlink()
    shutil.rmtree(run / "predictions")
    with pytest.raises(UserError, match="no task is finished"):
        load_model(run)


def test_unknown_method_asks_for_plugins(tmp_path, workspace):
    run = shutil.copytree(workspace.run("lae"), tmp_path / "run")
    record = read_run_record(run)
    record = replace(record, method=replace(record.method, name="linear_probe"))
    write_sealed(run / "run.json", record.plain())
    write_sealed(run / "result.json", read_sealed(run / "result.json") | {"run": record.stamp})
    with pytest.raises(UserError, match=r"the method 'linear_probe' is .* with --plugins"):
        load_model(run)


@pytest.mark.parametrize("task", [0, -1, 3])
def test_missing_task_raises_user_error(task, workspace):
    with pytest.raises(UserError, match=f"has no model after task {task}; it has been through 2"):
        load_model(workspace.run("lae"), after_task=task)


def test_run_of_another_toolbox_raises_user_error(tmp_path, workspace):
    run = shutil.copytree(workspace.run("lae"), tmp_path / "run")
    record = replace(read_run_record(run), engine=EngineRecord("pilot", "LAMDA-PILOT"))
    write_sealed(run / "run.json", record.plain())
    with pytest.raises(UserError, match="trained by LAMDA-PILOT, which keeps its models itself"):
        load_model(run)


def test_damaged_tensors(tmp_path, workspace):
    run = shutil.copytree(workspace.run("lae"), tmp_path / "run")
    file = run / "checkpoint" / "task01.learner.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match="checksum mismatch"):
        load_model(run)
    load_model(run, after_task=1)


def test_missing_device_raises_user_error(workspace):
    with pytest.raises(UserError, match="device must be auto, cpu"):
        load_model(workspace.run("lae"), device="tpu")


def test_another_vit_than_the_one_trained_on(tmp_path, workspace):
    state = load_file(DEMO_WEIGHTS)
    state["norm.bias"][0] += 1
    save_file(state, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match=r"other.safetensors is not the one that .* was trained on \(checksum"):
        load_model(workspace.run("lae"), weights=tmp_path / "other.safetensors")
    shutil.copy(DEMO_WEIGHTS, tmp_path / "same.safetensors")
    load_model(workspace.run("lae"), weights=tmp_path / "same.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UserError, match="cannot read the weights"):
        load_model(workspace.run("lae"), weights=tmp_path / "broken.safetensors")


def test_weights_from_a_file_are_found_where_the_run_had_them_or_given(tmp_path, workspace):
    file = tmp_path / "my vit.safetensors"
    save_file(state_of(build_backbone("vit_tiny_patch16_224", "random", 32)), file)
    run = workspace.run("simplecil", "pilot", "backbone=vit_tiny_patch16_224", "img_size=32", f"weights={file}")
    image = photo(tmp_path / "one.png")
    wanted = load_model(run).predict(image)
    moved = file.rename(tmp_path / "elsewhere.safetensors")
    with pytest.raises(UserError, match=r"weights my vit.safetensors are not where the run had them; give the file"):
        load_model(run)
    assert load_model(run, weights=moved).predict(image) == wanted
    state = load_file(moved)
    state["norm.weight"] *= 2
    save_file(state, file)
    with pytest.raises(UserError, match="is not the one that"):
        load_model(run)


def test_missing_normalisation_is_reported_on_page_and_card(tmp_path, workspace):
    file = tmp_path / "vit.safetensors"
    save_file(state_of(build_backbone("vit_tiny_patch16_224", "random", 32)), file)
    settings = ("backbone=vit_tiny_patch16_224", "img_size=32", f"weights={file}", "normalize=none")
    run, told = workspace.run("simplecil", "pilot", *settings), "the weights of vit_tiny_patch16_224 expect mean 0.5"
    assert told in build_report([run], tmp_path / "report").read_text(encoding="utf-8")
    card = (export_model(run, tmp_path / "model") / "README.md").read_text(encoding="utf-8")
    assert told in card.replace("\\", "")


def test_random_weights_are_regenerated(workspace):
    run = workspace.run("simplecil", "pilot", "backbone=vit_tiny_patch16_224", "img_size=32", "weights=random")
    assert (
        load_model(run).learner.backbone.checksum == json.loads((run / "run.json").read_text())["backbone"]["checksum"]
    )


def test_exported_model_does_not_learn(tmp_path, workspace):
    folder = export_model(workspace.run("plda"), tmp_path / "model")
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(UserError, match="is an exported model"):
        learn(folder, tmp_path, settings=["backbone=demo_vit"])
    assert sorted(path.name for path in folder.iterdir()) == before

"""Models on the hub, by huggingface_hub's own client against a local server."""

import pytest
from helpers.cli import command
from hub_server import TOKEN, HubServer

import pilot_tal as pt
from data_lt.errors import UserError
from pilot_tal.model.export import export_model, push_export
from pilot_tal.model.load import fetch_export


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = HubServer()
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no_token"))
    yield server
    server.shutdown()


def test_pushed_model_is_the_same_when_loaded(hub, workspace):
    model = pt.load_model(workspace.run("simplecil"))
    address = model.push_to_hub("me/birds")
    files = sorted(workspace.images.rglob("*.png"))[:4]
    assert hub.repos["me/birds"]["private"] is True
    for name in (address, "hf://me/birds"):
        loaded = pt.load_model(name)
        assert loaded.classes == model.classes and loaded.predict(files) == model.predict(files)


def test_revision_is_pinned(hub, workspace):
    first = pt.load_model(workspace.run("simplecil"), after_task=1).push_to_hub("me/birds", private=False)
    second = pt.load_model(workspace.run("simplecil")).push_to_hub("me/birds", private=False)
    assert first != second and hub.repos["me/birds"]["private"] is False
    assert len(pt.load_model(first).classes) == 3
    assert len(pt.load_model(second).classes) == len(pt.load_model("hf://me/birds").classes) == 6
    with pytest.raises(UserError, match="no such revision"):
        pt.load_model("hf://me/birds@" + "0" * 8)


def test_changed_file_is_refused(hub, workspace):
    pt.load_model(workspace.run("simplecil")).push_to_hub("me/birds")
    _, files = hub.repos["me/birds"]["commits"][-1]
    files["learner.safetensors"] = files["learner.safetensors"][:-1] + b"x"
    with pytest.raises(UserError, match="checksum"):
        pt.load_model("hf://me/birds")


def test_missing_token_network_or_repository_raises_one_sentence(hub, workspace, tmp_path, monkeypatch):
    folder = export_model(workspace.run("simplecil"), tmp_path / "model")
    with pytest.raises(UserError, match="cannot fetch hf://me/nothing: it does not exist, or your token"):
        fetch_export("hf://me/nothing")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match="hf auth login"):
        push_export(folder, "me/birds")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match="hf auth login"):
        push_export(folder, "me/birds")
    hub.shutdown()
    hub.server_close()
    for call in (lambda: push_export(folder, "me/birds"), lambda: fetch_export("hf://me/birds")):
        with pytest.raises(UserError, match="network"):
            call()


@pytest.mark.parametrize("address", ["birds", "me/birds/x", "me/birds@", "../birds", ""])
def test_address_is_a_user_and_a_name(address):
    with pytest.raises(UserError, match="user/name"):
        fetch_export(f"hf://{address}")


def test_command_line_pushes_and_predicts(hub, workspace):
    run, photo = str(workspace.run("simplecil")), str(sorted(workspace.images.rglob("*.png"))[0])
    status, printed = command("export", run, "--push", "me/birds")
    assert status == 0 and "hf://me/birds@" in printed
    assert command("predict", "hf://me/birds", photo)[0] == 0
    status, printed = command("export", run)
    assert status == 2 and "--push" in printed

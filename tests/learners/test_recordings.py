"""Recorded runs of the original learners, played through ours."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pilot_tal.cli import app
from pilot_tal.errors import PilotTalError
from pilot_tal.recording import read_recording
from pilot_tal.replay import replay_file

RECORDINGS = Path(__file__).parent.parent / "recordings"
METHODS = ("l2p", "dualprompt", "coda_prompt", "lae", "mos")


def altered(path: Path, change, loss: str = "ce") -> Path:
    """A copy of the L2P recording, one loss only, after `change(meta, arrays)`."""
    other = {"ce": "tal.", "tal": "ce."}[loss]
    with np.load(RECORDINGS / "l2p.npz") as file:
        arrays = {name: file[name] for name in file.files if not name.startswith(other)}
    meta = json.loads(bytes(arrays.pop("meta")).decode())
    change(meta, arrays)
    np.savez(path, meta=np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8), **arrays)
    return path


@pytest.mark.parametrize("method", METHODS)
def test_replays_within_tolerance(method):
    reports = list(replay_file(RECORDINGS / f"{method}.npz"))
    assert [(r.loss, r.task) for r in reports] == [("ce", 0), ("ce", 1), ("tal", 0), ("tal", 1)]
    for report in reports:
        assert report.ok, report
        # Far inside the tolerance: a wrong detail cannot hide in it.
        assert report.losses < 2e-6
        assert report.states < 2e-4
        assert report.scores < 5e-6


def test_command_prints_every_task_and_succeeds(tmp_path):
    path = altered(tmp_path / "same.npz", lambda meta, arrays: None)
    result = CliRunner().invoke(app, ["replay", str(path)])
    assert result.exit_code == 0
    assert result.output.count("equal") == 2
    assert "all within tolerance" in result.output


@pytest.mark.parametrize(
    "name", ["ce.task1.losses", "ce.task0.state.backbone.head.bias", "tal.task1.eval.scores", "tal.task0.Q"]
)
def test_a_recording_that_differs_fails(tmp_path, name):
    def spoil(meta, arrays):
        arrays[name] = arrays[name] + 0.01

    path = altered(tmp_path / "spoiled.npz", spoil, loss=name.split(".")[0])
    result = CliRunner().invoke(app, ["replay", str(path)])
    assert result.exit_code == 1
    assert result.output.count("NOT WITHIN TOLERANCE") == 1


def test_a_bad_file_does_not_keep_the_others_from_being_played(tmp_path):
    good = altered(tmp_path / "good.npz", lambda meta, arrays: None)
    result = CliRunner().invoke(app, ["replay", str(tmp_path / "absent.npz"), str(good)])
    assert result.exit_code == 2
    assert "absent.npz does not exist" in result.output
    assert result.output.count("equal") == 2


def test_another_first_choice_fails(tmp_path):
    def spoil(meta, arrays):
        arrays["ce.task0.eval.pred"] = arrays["ce.task0.eval.pred"] ^ 1

    reports = list(replay_file(altered(tmp_path / "spoiled.npz", spoil)))
    assert [r.ok for r in reports] == [False, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda meta, arrays: meta["hp"].update(topk=3), "topk.*did you mean 'top_k'"),
        (lambda meta, arrays: meta["hp"].update(drop=0.5), "drop must be 0"),
        (lambda meta, arrays: meta["hp"].update(optimizer="lion"), "optimizer must be one of"),
        (lambda meta, arrays: meta["hp"].update(size="many"), "size"),
        (lambda meta, arrays: meta.update(method="l3p"), "did you mean 'l2p'"),
        (lambda meta, arrays: meta.update(per=[4, 4, 4]), "per must give"),
        (lambda meta, arrays: meta.update(depth=7), "depth=7"),
        (lambda meta, arrays: meta.update(warmup=1), "warmup"),
        (lambda meta, arrays: meta.pop("lam"), "lacks lam"),
        (lambda meta, arrays: arrays.pop("test1.x"), "lacks the array 'test1.x'"),
        (lambda meta, arrays: arrays.pop("vit.norm.bias"), "norm.bias"),
        (
            lambda meta, arrays: [arrays.pop(k) for k in list(arrays) if k.startswith("train1")],
            "no training batch",
        ),
    ],
)
def test_what_the_replay_does_not_know_is_one_sentence(tmp_path, change, message):
    path = altered(tmp_path / "odd.npz", change)
    with pytest.raises(PilotTalError, match=message):
        list(replay_file(path))


def test_files_that_are_no_recordings(tmp_path):
    (tmp_path / "text.npz").write_text("no zip")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    np.savez(tmp_path / "pickled.npz", meta=np.array([{"a": 1}], dtype=object))
    for name in ("text.npz", "other.npz", "pickled.npz", "absent.npz"):
        with pytest.raises(PilotTalError, match=name):
            read_recording(tmp_path / name)

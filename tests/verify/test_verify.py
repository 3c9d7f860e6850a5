"""Recorded runs of the original learners, verified with ours."""

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from helpers.cli import ROOT, command

from data_lt.errors import UserError
from pilot_tal.learners import LEARNERS
from pilot_tal.upstream.checkout import LEARNERS as UPSTREAM_LEARNERS
from pilot_tal.verify import verify
from pilot_tal.verify.recorded import RecordedMOS
from pilot_tal.verify.verify import read_recording, verify_file

RECORDINGS = Path(__file__).parent.parent / "recordings"
NAMES = sorted(path.stem for path in RECORDINGS.glob("*.npz"))


def altered(path: Path, change, loss: str = "ce") -> Path:
    """A copy of the L2P recording, one loss only, after `change(meta, arrays)`."""
    other = {"ce": "tal.", "tal": "ce."}[loss]
    with np.load(RECORDINGS / "l2p.npz") as file:
        arrays = {name: file[name] for name in file.files if not name.startswith(other)}
    meta = json.loads(bytes(arrays.pop("meta")).decode())
    change(meta, arrays)
    np.savez(path, meta=np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8), **arrays)
    return path


def test_every_learner_of_the_original_was_recorded():
    recorded = {read_recording(RECORDINGS / f"{name}.npz").meta.method for name in NAMES}
    assert recorded == {name for name in LEARNERS if name in UPSTREAM_LEARNERS or name == "aper"}


@pytest.mark.parametrize("name", NAMES)
def test_learner_agrees_with_the_original(name):
    recording = read_recording(RECORDINGS / f"{name}.npz")
    losses = ("ce", "tal") if LEARNERS[recording.meta.method].trains(recording.config()) else ("none",)
    reports = list(verify_file(recording.path))
    assert [(r.loss, r.task) for r in reports] == [(loss, t) for loss in losses for t in range(recording.meta.tasks)]
    for report in reports:
        assert report.ok, report


def test_mos_deviates_from_the_original_only_by_the_limit_of_its_merges(monkeypatch):
    """Our statistics and evaluation merge no adapters; docs/development/verification.md has the figures."""
    monkeypatch.setattr(verify, "learner_class", lambda method, fidelity: RecordedMOS)
    reports = list(verify_file(RECORDINGS / "mos.npz"))
    assert all(r.predictions and not r.problems for r in reports)
    assert [r.ok for r in reports] == [True, False, False] * 2
    assert 1e-3 < max(r.scores for r in reports) < 5e-3
    assert max(r.losses for r in reports) < 2e-4


def test_readme_calls_recorded_methods_verified():
    rows = re.findall(r"^\| `(\w+)` .*\| (yes|no[^|]*) \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    recorded = {read_recording(RECORDINGS / f"{name}.npz").meta.method for name in NAMES}
    assert {name for name, verified in rows if name in LEARNERS and verified == "yes"} == recorded


def test_recordings_name_commit_versions_and_seeds():
    for name in NAMES:
        meta = json.loads(bytes(np.load(RECORDINGS / f"{name}.npz")["meta"]))
        assert meta["commit"] == "5240714" and meta["seeds"] and {"torch", "timm", "numpy"} <= meta["versions"].keys()


def test_docs_state_the_tolerances():
    limits = [f"{limit:.0e}".replace("e-0", "e-") for limit in
              (verify.LOSS_TOLERANCE, verify.STATE_TOLERANCE, verify.SCORE_TOLERANCE)]  # fmt: skip
    for page in ("README.md", "docs/learners.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert f"losses to {limits[0]}, learned tensors to {limits[1]}, scores to {limits[2]}" in text


@pytest.mark.parametrize("name", NAMES)
def test_record_script_reproduces_the_recording(name, tmp_path):
    """Needs a checkout of LAMDA-PILOT (see tests/upstream/test_real_checkouts.py).

    The same packages on the same CPU give the same file. Elsewhere rounding differs: in RanPAC's regression in float32
    by 1.4e-5, in the features that MOS draws from a covariance by 1.8e-4, and Adam turns the rounding of TAL's first
    gradients into differences of up to 1e-4.
    """
    if not {"PILOT_TAL_PILOT", "PILOT_TAL_UPSTREAM_PYTHON"} <= os.environ.keys():
        pytest.skip("needs PILOT_TAL_PILOT, a checkout of LAMDA-PILOT, and PILOT_TAL_UPSTREAM_PYTHON")
    command = [os.environ["PILOT_TAL_UPSTREAM_PYTHON"], "-B", str(RECORDINGS / "record.py")]
    subprocess.run([*command, os.environ["PILOT_TAL_PILOT"], name, "--out", str(tmp_path)], check=True)
    made, kept = (np.load(folder / f"{name}.npz") for folder in (tmp_path, RECORDINGS))
    assert made.files == kept.files
    for key in set(kept.files) - {"meta"}:
        np.testing.assert_allclose(made[key], kept[key], rtol=1e-4, atol=3e-4, err_msg=key)


@pytest.mark.parametrize("task", [0, 1])
def test_missing_or_extra_losses_fail(tmp_path, task):
    """RanPAC trains in its first task alone: losses that are missing there, or recorded later, are a difference."""
    with np.load(RECORDINGS / "ranpac.npz") as file:
        arrays = {name: file[name] for name in file.files if not name.startswith("tal.")}
    losses = arrays.pop("ce.task0.losses")
    if task == 1:
        arrays |= {"ce.task0.losses": losses, "ce.task1.losses": losses}
    np.savez(tmp_path / "odd.npz", **arrays)
    assert [report.ok for report in verify_file(tmp_path / "odd.npz")] == [t != task for t in range(3)]


def test_another_ridge_fails(tmp_path):
    with np.load(RECORDINGS / "ranpac.npz") as file:
        arrays = {name: file[name] for name in file.files if not name.startswith("tal.")}
    arrays["ce.task1.log10_ridge"] = arrays["ce.task1.log10_ridge"] + 1
    np.savez(tmp_path / "odd.npz", **arrays)
    reports = list(verify_file(tmp_path / "odd.npz"))
    assert [(report.ok, report.worst_state) for report in reports][1] == (False, "log10_ridge")


def test_command_prints_every_task_and_succeeds(tmp_path):
    path = altered(tmp_path / "same.npz", lambda meta, arrays: None)
    status, printed = command("verify", str(path))
    assert status == 0
    assert printed.count("equal") == 3
    assert "all within tolerance" in printed


@pytest.mark.parametrize(
    "name", ["ce.task1.losses", "ce.task0.state.backbone.head.bias", "tal.task1.eval.scores", "tal.task0.Q"]
)
def test_recording_that_differs_fails(tmp_path, name):
    def spoil(meta, arrays):
        arrays[name] = arrays[name] + 0.01

    path = altered(tmp_path / "spoiled.npz", spoil, loss=name.split(".")[0])
    status, printed = command("verify", str(path))
    assert status == 1
    assert printed.count("NOT WITHIN TOLERANCE") == 1


def test_bad_file_does_not_stop_the_others(tmp_path):
    good = altered(tmp_path / "good.npz", lambda meta, arrays: None)
    status, printed = command("verify", str(tmp_path / "absent.npz"), str(good))
    assert status == 2
    assert "absent.npz: No such file" in printed
    assert printed.count("equal") == 3


def test_different_predictions_fail(tmp_path):
    def spoil(meta, arrays):
        arrays["ce.task0.eval.pred"] = arrays["ce.task0.eval.pred"] ^ 1

    reports = list(verify_file(altered(tmp_path / "spoiled.npz", spoil)))
    assert [r.ok for r in reports] == [False, True, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda meta, arrays: meta["hp"].update(optimizer="lion"), "optimizer must be one of"),
        (lambda meta, arrays: meta["hp"].update(size="many"), "size"),
        (lambda meta, arrays: meta.update(method="l3p"), "meta: method must be one of"),
        (lambda meta, arrays: meta.update(per=[4, 4, 4]), "meta: per must be a whole number"),
        (lambda meta, arrays: meta.update(tasks="text"), "meta: tasks must be a whole number from 1 to 10000"),
        (lambda meta, arrays: meta.update(lam=float("nan")), "meta: lam must be a number above 0 and below 1"),
        (lambda meta, arrays: meta.update(hp=3), "meta: hp must be a table"),
        (
            lambda meta, arrays: arrays.update({"train0.0.x": np.array(["text"])}),
            "cannot be verified, its arrays do not fit",
        ),
        (
            lambda meta, arrays: arrays.update({"train0.0.x": np.zeros((6, 2))}),
            "takes images",
        ),
        (
            lambda meta, arrays: arrays.update({"test1.y": np.zeros((1, 1, 1))}),
            "cannot be verified, its arrays do not fit",
        ),
        (lambda meta, arrays: meta.pop("lam"), "meta: lam is missing"),
        (lambda meta, arrays: arrays.pop("test1.x"), "lacks the array 'test1.x'"),
        (lambda meta, arrays: arrays.pop("vit.norm.bias"), "norm.bias"),
        (
            lambda meta, arrays: [arrays.pop(k) for k in list(arrays) if k.startswith("train1")],
            "no training batch",
        ),
    ],
)
def test_unknown_content_raises_one_sentence(tmp_path, change, message):
    path = altered(tmp_path / "odd.npz", change)
    with pytest.raises(UserError, match=message):
        list(verify_file(path))


def test_files_that_are_no_recordings(tmp_path):
    (tmp_path / "text.npz").write_text("no zip")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    np.savez(tmp_path / "pickled.npz", meta=np.array([{"a": 1}], dtype=object))
    np.savez(tmp_path / "deep.npz", meta=np.frombuffer(b"[" * 100_000, dtype=np.uint8))
    (tmp_path / "folder.npz").mkdir()
    for name in ("text.npz", "other.npz", "pickled.npz", "absent.npz", "deep.npz", "folder.npz"):
        with pytest.raises(UserError, match=name):
            read_recording(tmp_path / name)


@pytest.mark.parametrize("name", ["vit.pos_embed", "vit.patch_embed.proj.weight", "train0.0.y"])
def test_empty_array_of_a_recording_is_refused(name, tmp_path):
    def empty(_, arrays):
        arrays[name] = arrays[name].reshape(-1)[:0]

    status, printed = command("verify", altered(tmp_path / "empty.npz", empty))
    assert status == 2 and "error: " in printed


def test_fifo_raises(tmp_path):
    os.mkfifo(tmp_path / "fifo.npz")
    status, printed = command("verify", tmp_path / "fifo.npz")
    assert status == 2 and "not a regular file" in printed

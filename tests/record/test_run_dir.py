"""A run directory is read back as it was written, and what is wrong in it is named with the way out."""

import json
import os
from dataclasses import replace

import pytest

from data_lt.errors import UserError
from pilot_tal.record.run_dir import (
    find_runs,
    is_finished,
    load_run,
    read_run_record,
    read_sealed,
    write_sealed,
)
from pilot_tal.record.run_record import (
    BackboneRecord,
    DataRecord,
    EngineRecord,
    LossRecord,
    MethodRecord,
    RunRecord,
    StreamRecord,
)
from pilot_tal.record.writer import open_run

RECORD = RunRecord(
    engine=EngineRecord("native", "native"),
    method=MethodRecord("l2p", "L2P", "pilot", {"init_lr": 0.1}),
    loss=LossRecord("tal", "TAL", {"lam": 0.99}),
    seed=1993,
    data=DataRecord("cub_lt", "CUB-LT", "abc", {"law": "profile"}),
    backbone=BackboneRecord("vit", "random"),
    stream=StreamRecord("pilot", "none", "shuffled", (2, 1), ("a, b", 'c"d', "é"), (2, 0, 1), (5, 3, 1)),
    notes=("A note.",),
    environment=({"threads": 1},),
)
TRUE, PRED = [0, 1], [1, 1]
STEPS = [{"epoch": 0, "step": 0, "loss": 1.5, "aux": None, "lr": 0.1}]


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "runs" / RECORD.name
    write_run(path, ["x, y.jpg", "z.jpg"])
    return path


def write_run(path, images, tasks=1):
    with open_run(path) as writer:
        writer.write_record(RECORD)
        for task in range(tasks):
            writer.write_task(task, images, TRUE, PRED, steps=STEPS)
        writer.commit(RECORD, tasks)


def test_run_is_read_back(run):
    loaded = load_run(run)
    assert loaded.record == RECORD and not loaded.finished and loaded.tasks_done == 1
    ((true, pred),) = loaded.labels
    assert true.tolist() == TRUE and pred.tolist() == PRED
    assert loaded.step_log() == [{"task": 0, **STEPS[0]}] and loaded.state_log() == []
    assert loaded.metrics["a_last"] == 0.5 and loaded.metrics["tasks_done"] == 1
    names = RECORD.stream.class_names
    rows = [("x, y.jpg", names[TRUE[0]], names[PRED[0]]), ("z.jpg", names[TRUE[1]], names[PRED[1]])]
    assert [tuple(row) for row in loaded.predictions().itertuples(index=False)] == rows
    with pytest.raises(UserError, match="1 finished tasks"):
        loaded.predictions(1)
    assert find_runs([run.parent]) == [run] == find_runs([run])
    assert not is_finished(run)
    write_run(run, ["a.jpg", "b.jpg"], tasks=2)
    assert is_finished(run) and load_run(run).finished


def test_step_log_contains_no_nan(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"), open_run(tmp_path) as writer:
        writer.write_task(0, ["x.jpg"], [0], [0], steps=[{"loss": float("nan")}])
    assert not (tmp_path / "steps").exists()


def test_predictions_csv_escapes_formulas_and_reads_back(run):
    names = ["=cmd()/0.png", "'@b/1.png"]
    write_run(run, names)
    lines = (run / "predictions" / "task00.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert [line[0] for line in lines] == ["'", "'"]
    assert load_run(run).images(0) == names


def test_record_of_another_run_is_named(run):
    other = replace(RECORD, seed=1994, stream=replace(RECORD.stream, class_order=(0, 1, 2)))
    write_sealed(run / "run.json", other.plain())
    with pytest.raises(UserError, match=r"result\.json is damaged \(it belongs to another run than run\.json\)"):
        load_run(run)
    write_sealed(run / "run.json", replace(RECORD, environment=({"threads": 2},), notes=()).plain())
    assert load_run(run).tasks_done == 1


def test_new_run_has_no_results(tmp_path):
    assert not is_finished(tmp_path / "nothing")
    write_sealed(tmp_path / "run.json", RECORD.plain())
    loaded = load_run(tmp_path)
    assert (loaded.tasks_done, loaded.finished, loaded.metrics, loaded.labels) == (0, False, {}, [])


def test_run_name_depends_on_settings_that_change_the_result():
    same = [
        replace(RECORD, notes=(), environment=(), changed={"init_lr": [0.1, 0.2]}),
        replace(RECORD, loss=replace(RECORD.loss, title="Other")),
        replace(RECORD, backbone=replace(RECORD.backbone, checksum="known by now")),
        replace(RECORD, data=replace(RECORD.data, recipe={"law": "written out"})),
    ]
    assert {record.name for record in same} == {RECORD.name}
    assert RECORD.name.startswith("cub_lt-l2p-tal-s1993-")
    other = [
        replace(RECORD, seed=1),
        replace(RECORD, quick=True),
        replace(RECORD, engine=EngineRecord("pycil", "PyCIL")),
        replace(RECORD, engine=EngineRecord("native", "native", {"classifier": "nme"})),
        replace(RECORD, method=MethodRecord("lae", "LAE", "pilot", {"init_lr": 0.1})),
        replace(RECORD, method=MethodRecord("l2p", "L2P", "fixed", {"init_lr": 0.1})),
        replace(RECORD, method=MethodRecord("l2p", "L2P", "pilot", {"init_lr": 0.2})),
        replace(RECORD, loss=LossRecord("tal", "TAL", {"lam": 0.9})),
        replace(RECORD, loss=LossRecord("ce", "CE", {"lam": 0.99})),
        replace(RECORD, data=replace(RECORD.data, checksum="def")),
        replace(RECORD, data=replace(RECORD.data, name="folder_lt")),
        *(replace(RECORD, backbone=replace(RECORD.backbone, **change))
          for change in ({"name": "v"}, {"weights": "hub"}, {"img_size": 32}, {"precision": "bf16"})),
        *(replace(RECORD, stream=replace(RECORD.stream, **change))
          for change in ({"transform": "coda"}, {"normalize": "1/1"}, {"order": "head_first"}, {"task_sizes": (1, 2)})),
    ]  # fmt: skip
    assert len({record.name for record in [RECORD, *other]}) == 1 + len(other)


FILES = ["run.json", "result.json", "predictions/task00.csv", "steps/task00.jsonl"]
DAMAGES = {
    "cut at a byte": lambda content: content[:-3],
    "cut at a line": lambda content: b"".join(content.splitlines(keepends=True)[:-1]),
    "a line twice": lambda content: content + content.splitlines(keepends=True)[-1],
    "emptied": lambda content: b"",
    "garbage": lambda content: b"\xff\xfe\x00",
    "deeply nested": lambda content: b"[" * 100_000,
    "another digit": lambda content: content.replace(b"1", b"2", 1),
    "a list": lambda content: b"[]",
    "an object": lambda content: b"{}",
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damage_is_named_with_the_way_out(run, file, damage):
    (run / file).write_bytes(DAMAGES[damage]((run / file).read_bytes()))
    with pytest.raises(UserError) as caught:
        load_run(run)
    assert "\n" not in str(caught.value) and str(run) in str(caught.value)
    assert "to start over" in str(caught.value) or "of another run format" in str(caught.value)


@pytest.mark.parametrize("file", FILES[2:])
def test_missing_file_is_named(run, file):
    (run / file).unlink()
    with pytest.raises(UserError, match=rf"{file} is damaged \(cannot read it: No such file.*remove"):
        load_run(run)


def test_result_cannot_point_outside_its_run(run, tmp_path):
    """A result may name any file; only those of its own tasks are looked at."""
    (tmp_path / "other").write_text("not of the run\n")
    result = read_sealed(run / "result.json")
    for name in (str(tmp_path / "other"), "../../other", "steps/task01.jsonl"):
        result["files"][name] = {"bytes": 1, "sha256": "0"}
    write_sealed(run / "result.json", result)
    assert load_run(run).tasks_done == 1


def test_older_format_is_named_in_one_sentence(run):
    (run / "run.json").write_text(json.dumps({"format": 1, "dataset": "cub_lt"}))
    with pytest.raises(UserError, match=r"is of another run format \(1, this version has 2\)"):
        read_run_record(run)


@pytest.mark.parametrize(
    "change",
    [
        {"task_sizes": ()}, {"task_sizes": (3, 0)}, {"task_sizes": (1, 1)}, {"class_order": (0, 0, 1)},
        {"class_order": (0, 1)}, {"train_counts": (5, 3, -1)}, {"class_names": ("a",)},
    ],
)  # fmt: skip
def test_inconsistent_stream_is_refused(change):
    with pytest.raises(UserError, match=r"task_sizes|class_order|entries"):
        replace(RECORD.stream, **change)


def test_labels_out_of_range_are_named(run):
    with open_run(run) as writer:
        writer.write_task(0, ["x.jpg"], [0], [2])
        writer.commit(RECORD, 1)
    with pytest.raises(UserError, match="labels outside 0 … 1"):
        load_run(run)


def test_folders_without_runs_are_refused(tmp_path):
    for name in (tmp_path / "nowhere", ""):
        with pytest.raises(UserError, match="is not a directory"):
            find_runs([name])
    with pytest.raises(UserError, match="no runs found"):
        find_runs([tmp_path])
    with pytest.raises(UserError, match=r"has no file run\.json"):
        load_run(tmp_path)


def test_folder_that_vanishes_while_runs_are_searched_is_ignored(run, monkeypatch):
    scandir, gone = os.scandir, run.parent / "aaa"
    gone.mkdir()

    def vanishing(path):
        if gone.is_dir() and str(path) == str(gone):
            gone.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert find_runs([run.parent]) == [run] and not gone.exists()

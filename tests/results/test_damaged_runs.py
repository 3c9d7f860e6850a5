"""Damaged and foreign runs are named with the reason, and keep no other run from its report."""

import re

import pytest
from synthetic_runs import long_tailed_counts, write_comparison, write_run_directory

from data_lt.errors import UserError
from pilot_tal.metrics import summarize
from pilot_tal.record.run_dir import RESULT, read_sealed, write_sealed
from pilot_tal.results import build_report
from pilot_tal.results.grouping import load_study

SMALL = {"task_sizes": (4, 4), "counts": long_tailed_counts(8, 30, 3), "tests": 5, "steps_a_task": 5}


def _break(path, name, content):
    """Replaces a file of a run; None removes it."""
    file = path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    if content is not None:
        file.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("run.json", b'{"a": 1}', "is of another run format (None, this version has 2)"),
        ("run.json", b'{"format": 1}', "is of another run format (1, this version has 2)"),
        ("run.json", b"", "run.json is damaged"),
        ("result.json", b'{"tasks_do', "result.json is damaged"),
        ("result.json", b"[]", "result.json is damaged"),
        ("predictions/task00.csv", None, "task00.csv is damaged (cannot read it: No such file"),
        ("predictions/task01.csv", b"image,true,pred\n", "task01.csv is damaged (16 bytes instead of"),
        ("states/task00.jsonl", b"[1]\n", "task00.jsonl is damaged"),
        ("states/task01.jsonl", None, "task01.jsonl is damaged"),
    ],
)
def test_damaged_run_is_reported_and_the_others_are_read(tmp_path, name, content, reason):
    write_comparison(tmp_path / "runs", seeds=(1, 2), **SMALL)
    bad = write_run_directory(tmp_path / "runs", loss="tal", seed=3, **SMALL)
    _break(bad, name, content)
    study = load_study([tmp_path / "runs"])
    assert [variant.seeds for variant in study.groups[0].variants] == [[1, 2], [1, 2]]
    (remark,) = study.remarks
    assert (remark.kind, remark.values["run"]) == ("unreadable_run", bad.name) and reason in remark.values["reason"]
    assert bad.name in build_report(study, tmp_path / "report").read_text(encoding="utf-8")
    for paths in ([bad], [tmp_path / "runs", bad]):
        with pytest.raises(UserError, match=re.escape(reason)):
            load_study(paths)


def test_metrics_are_computed_from_the_predictions(tmp_path):
    path = write_run_directory(tmp_path, **SMALL)
    stored = read_sealed(path / RESULT)
    write_sealed(path / RESULT, {**stored, "metrics": {"a_tail": 7}})
    (group,) = load_study([path]).groups
    run = group.variants[0].runs[1993]
    stream = run.record.stream
    assert run.metrics == summarize(run.labels, stream.task_sizes, stream.train_counts, stream.class_order)


def test_folder_of_damaged_runs_raises(tmp_path):
    for seed in (1, 2):
        _break(write_run_directory(tmp_path, seed=seed, **SMALL), "run.json", b"{")
    with pytest.raises(UserError, match=r"run\.json is damaged"):
        load_study([tmp_path])

"""A run directory is read back as it was written, and what is wrong in it is named."""

import json

import pytest

from pilot_tal.errors import PilotTalError
from pilot_tal.rundir import RunInfo, find_runs, load_run, run_name, write_predictions, write_result, write_run

INFO = RunInfo(
    dataset="cub_lt",
    method="l2p",
    loss="tal",
    seed=1993,
    fidelity="pilot",
    task_sizes=(2, 1),
    class_names=("a, b", 'c"d', "é"),
    class_order=(2, 0, 1),
    train_counts=(5, 3, 1),
)


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "runs" / run_name("cub_lt", "l2p", "tal", 1993, {"lam": 0.99})
    write_run(path, INFO, {"lam": 0.99}, {"torch": "2"})
    write_predictions(path, 0, ["x, y.jpg", "z.jpg"], [0, 1], [1, 1])
    write_result(path, 1, False, {})
    return path


def test_a_run_is_read_back(run):
    loaded = load_run(run)
    assert loaded.info == INFO and loaded.config == {"lam": 0.99} and not loaded.finished
    ((true, pred),) = loaded.predictions
    assert true.tolist() == [0, 1] and pred.tolist() == [1, 1]
    assert loaded.step_log() == [] == loaded.tal_log()
    assert find_runs([run.parent]) == [run] == find_runs([run])


def test_the_name_changes_with_any_value_of_the_config():
    names = {run_name("d", "m", "l", 1, config) for config in ({"a": 1}, {"a": 2}, {"b": 1}, {"a": {"c": 1}})}
    assert len(names) == 4 and all(name.startswith("d-m-l-s1-") for name in names)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("run.json", "{", r"run.json is damaged \(not valid JSON.*remove .* to start this run anew"),
        ("run.json", '{"format": 9}', "is not of run format 1"),
        ("run.json", '{"format": 1, "dataset": "x"}', r"run.json is damaged \(it is incomplete"),
        ("run.json", "[]", "run.json is damaged"),
        ("run.json", "{}", "is not of run format 1"),
        ("result.json", "[]", r"result.json is damaged \(not a JSON object"),
        ("result.json", '{"tasks_done": true}', "tasks_done must be 0 to 2, got True"),
        ("result.json", '{"tasks_done": 1, "finished": "no"}', "finished must be true or false"),
        ("result.json", "[" * 100_000, "result.json is damaged"),
        ("environment.json", "[1]", "environment.json is damaged"),
        ("config.json", "null", "config.json is damaged"),
        ("result.json", '{"tasks_done": 7}', "tasks_done must be 0 to 2, got 7"),
        ("config.json", "", r"config.json is damaged \(not valid JSON"),
        ("predictions/task00.csv", "image,true,pred\nx,0,5\n", "has labels outside 0 … 1"),
        ("predictions/task00.csv", "image,true\nx,0\n", "must have the columns image, true, pred"),
        ("predictions/task00.csv", f"image,true,pred\nx,0,{10**30}\n", "with whole numbers"),
        ("predictions/task00.csv", "image,true,pred\n" + "x" * 200_000, "with whole numbers"),
        ("predictions/task00.csv", None, "cannot read .*task00.csv: No such file"),
    ],
)
def test_what_is_wrong_is_named(run, file, content, sentence):
    if content is None:
        (run / file).unlink()
    else:
        (run / file).write_text(content)
    with pytest.raises(PilotTalError, match=sentence):
        load_run(run)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("dataset", 1), ("method", None), ("loss", ["tal"]), ("fidelity", {}), ("engine", 2)),
        *(("seed", "1993"), ("seed", 1.5), ("task_sizes", 3), ("task_sizes", [3, 0]), ("task_sizes", [[2], 1])),
        *(("class_names", "abc"), ("class_names", [1, 2, 3]), ("class_order", [0, 1, None]), ("notes", "x")),
        *(("train_counts", [5, 3, -1]), ("train_counts", [5, 3, 10**30]), ("train_counts", ["5", 3, 1])),
    ],
)
def test_wrong_values_of_a_run_are_named(run, name, value):
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(content | {name: value}))
    with pytest.raises(PilotTalError, match=rf"run.json is damaged \({name} has a wrong value\); remove"):
        load_run(run)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"task": 0}\n{"task"\n', "line 2 is not valid JSON"),
        (b"[1]\n", "line 1 is not a JSON object"),
        (b"\xff\xfe\x00", "not a text file"),
    ],
)
def test_a_broken_log_is_named(run, content, reason):
    (run / "tal.jsonl").write_bytes(content)
    with pytest.raises(PilotTalError, match=rf"tal.jsonl is damaged \({reason}.*remove .* to start this run anew"):
        load_run(run).tal_log()


def test_folders_without_runs_are_refused(tmp_path):
    with pytest.raises(PilotTalError, match="is not a directory"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(PilotTalError, match="no runs found"):
        find_runs([tmp_path])
    with pytest.raises(PilotTalError, match=r"has no file run\.json"):
        load_run(tmp_path)

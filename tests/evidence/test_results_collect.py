"""Finished runs become lines of results/*.csv, once; and the studies are commands that can be run."""

import csv
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from results_studies import PLACES, planned_runs, read_studies, study_commands

import results
from data_lt.errors import UserError
from data_lt.manifest import read_manifest
from pilot_tal.config.grid import make_plan
from pilot_tal.record.run_dir import load_run
from pilot_tal.results.tal_state import mean_weights, read_states

STUDIES = read_studies(results.RESULTS)


@pytest.fixture
def kept(runs, tmp_path) -> Path:
    """The runs where a test may change them."""
    return Path(shutil.copytree(runs, tmp_path / "runs"))


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def loaded(runs: Path) -> dict:
    return {run.record.loss.name: run for run in map(load_run, sorted(p.parent for p in runs.rglob("result.json")))}


def test_two_runs_give_their_lines(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "STATES_OF", ("cub", "lae", "tal", "lam=0.9", "native", 1993))
    assert results.collect_runs("cub", runs, tmp_path) == 2
    found = loaded(runs)
    ce, tal = lines(tmp_path / "runs.csv")
    assert (ce["loss"], ce["options"], ce["weight"]) == ("ce", "", "") and (tal["loss"], tal["options"]) == (
        "tal",
        "lam=0.9",
    )
    for line, run in ((ce, found["ce"]), (tal, found["tal"])):
        same = {"study": "cub", "method": "lae", "engine": "native", "seed": "1993", "tasks": "2", "classes": "6"}
        assert {key: line[key] for key in same} == same and line["run"] == run.path.name
        for name in results.SCALARS:
            assert float(line[name]) == pytest.approx(run.metrics[name], abs=1e-6)
        steps = run.step_log()
        last = [np.mean([s["loss"] for s in steps if (s["task"], s["epoch"]) == (task, 1)]) for task in (0, 1)]
        assert float(line["train_loss"]) == pytest.approx(np.mean(last), abs=1e-6)
        assert float(line["steps"]) == np.mean([sum(s["task"] == task for s in steps) for task in (0, 1)])
    assert float(tal["weight"]) == pytest.approx(np.mean(mean_weights(found["tal"])), abs=1e-6)

    after = [line for line in lines(tmp_path / "tasks.csv") if line["loss"] == "tal"]
    wanted = found["tal"].metrics["accuracy_after_task"]
    assert [line["task"] for line in after] == ["1", "2"]
    assert [float(line["accuracy"]) for line in after] == pytest.approx(wanted, abs=1e-6)
    assert after[0]["old"] == ""  # the first task has no old classes

    stream, per_class = found["ce"].record.stream, found["ce"].metrics["per_class"]
    classes = {int(line["label"]): line for line in lines(tmp_path / "classes.csv") if line["loss"] == "ce"}
    for place, label in enumerate(stream.class_order):
        assert classes[label]["name"] == stream.class_names[place]
        assert int(classes[label]["images"]) == stream.train_counts[place]
        assert float(classes[label]["recall"]) == pytest.approx(per_class["accuracy"][place], abs=1e-6)

    states, state = lines(tmp_path / "states.csv"), read_states(found["tal"])[1]
    last = [line for line in states if (line["task"], line["step"]) == ("2", str(state.steps[-1] + 1))]
    wanted = {stream.class_order[k]: q for k, q in zip(state.labels, state.q[-1], strict=True)}
    assert {int(line["label"]): float(line["Q"]) for line in last} == pytest.approx(wanted, abs=1e-6)


def test_the_same_again_is_the_same_file_and_other_runs_stay(runs, tmp_path):
    results.collect_runs("pets", runs, tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.glob("*.csv")}
    assert set(first) == {"runs.csv", "tasks.csv", "classes.csv"}
    results.collect_runs("pets", runs, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.csv")} == first
    results.collect_runs("demo", runs, tmp_path)
    table = lines(tmp_path / "runs.csv")
    assert [line["study"] for line in table] == ["demo", "demo", "pets", "pets"]  # sorted, the old ones as they were
    assert [line for line in table if line["study"] == "pets"] == list(
        csv.DictReader(first["runs.csv"].decode().splitlines())
    )
    assert (tmp_path / "classes.csv").read_bytes() == first["classes.csv"]  # the demo's classes are not kept


def test_a_run_that_is_there_again_has_its_new_line_alone(runs, tmp_path):
    results.collect_runs("pets", runs, tmp_path)
    table = tmp_path / "runs.csv"
    before = table.read_bytes()
    text = before.decode()
    ce = text.splitlines()[1]
    table.write_text(text + ce.replace(",1993,", ",7,") + "\n" + ce.replace(",1993,", ",10,") + "\n", encoding="utf-8")
    table.write_text(table.read_text(encoding="utf-8").replace(ce, ce.replace("fixed", "old").replace("pilot", "old")))
    results.collect_runs("pets", runs, tmp_path)
    found = lines(table)
    assert [(line["loss"], line["seed"]) for line in found] == [
        ("ce", "7"),
        ("ce", "10"),
        ("ce", "1993"),
        ("tal", "1993"),
    ]
    assert [line["fidelity"] for line in found] == ["pilot"] * 4


def test_two_runs_that_the_tables_cannot_tell_apart_are_refused(kept, tmp_path):
    one = next(path.parent for path in kept.rglob("result.json"))
    shutil.copytree(one, kept / "twin")
    with pytest.raises(UserError, match="twin are of one method, loss and seed"):
        results.collect_runs("pets", kept, tmp_path)
    assert not list(tmp_path.glob("*.csv"))


def test_a_run_that_was_broken_off_is_timed_by_its_later_tasks(kept):
    run = next(iter(loaded(kept).values()))
    times = {"run.json": 1000, "result.json": 1600, "predictions/task00.csv": 400, "predictions/task01.csv": 1599}
    for name, when in times.items():
        os.utime(run.path / name, (when, when))
    assert results.minutes(run) == pytest.approx(20)
    os.utime(run.path / "predictions/task00.csv", (1300, 1300))
    assert results.minutes(run) == pytest.approx(10)


def test_unfinished_runs_are_left_out(kept, tmp_path):
    found = loaded(kept)
    for name in ("result.json", "predictions"):
        path = found["ce"].path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert results.collect_runs("pets", kept, tmp_path) == 1
    assert [line["loss"] for line in lines(tmp_path / "runs.csv")] == ["tal"]


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_is_a_plan(study):
    assert STUDIES[study]["title"]
    commands = study_commands(STUDIES[study], study, {place: place for place in (*PLACES, "few")})
    compared = [words for words in commands if words[0] == "compare"]
    assert compared and all("{" not in " ".join(words) for words in commands)
    for words in compared:
        assert f"output=runs/results/{study}" in words
        plan = make_plan(words[1], words[2], words[3:])
        assert plan.runs


def test_a_trial_is_told_by_its_training_losses(runs):
    run = loaded(runs)["ce"]
    losses = [np.mean([s["loss"] for s in run.step_log() if (s["task"], s["epoch"]) == (task, 1)]) for task in (0, 1)]
    told = results.trial_of(run)
    assert (told["loss_1"], told["loss_2"]) == tuple(pytest.approx(loss, abs=1e-3) for loss in losses)
    assert (told["method"], told["seed"], told["classes"]) == ("lae", 1993, 3)
    assert told["settings"] == "batch_size=4 tuned_epoch=2"


def test_what_was_tried_before_stays(tmp_path):
    one = {"method": "lae", "dataset": "CUB-LT", "settings": "", "seed": 1990, "loss_1": 2.0}
    other = {**one, "settings": "init_lr=0.1", "loss_1": 1.0}
    results.add_trials(tmp_path / "trials.csv", [one])
    results.add_trials(tmp_path / "trials.csv", [other])
    results.add_trials(tmp_path / "trials.csv", [{**other, "loss_1": 0.5}])  # the same again
    with (tmp_path / "trials.csv").open(encoding="utf-8", newline="") as file:
        assert [(row["settings"], row["loss_1"]) for row in csv.DictReader(file)] == [
            ("", "2.0"),
            ("init_lr=0.1", "0.5"),
        ]


def test_a_trial_needs_two_tasks(runs, monkeypatch):
    monkeypatch.setattr(results, "last_losses", lambda run: [0.5])
    run = loaded(runs)["ce"]
    with pytest.raises(UserError, match="has trained 1 tasks; a trial is told by the losses of two"):
        results.trial_of(run)


@pytest.mark.parametrize("study", ["cub", "flowers", "pets"])
def test_the_images_of_a_study_are_listed(study):
    (manifest,) = [word.partition("=")[2] for word in STUDIES[study]["data"].split() if word.startswith("manifest=")]
    split = read_manifest(results.ROOT / manifest)
    assert f"({len(split.class_names)} classes)" in STUDIES[study]["title"] and min(split.counts) == 2


def test_the_runs_of_a_study_are_counted():
    assert planned_runs(STUDIES["cub"], "cub") == 12 + 4 * 9 + 9  # LAE, four methods, three baselines; three seeds
    assert planned_runs(STUDIES["original"], "original") == 3 * 10 + 3 * 10
    assert planned_runs(STUDIES["ablation"], "ablation") == 3 * (1 + 4 * 3)


def test_the_original_runs_on_the_same_seeds_with_the_same_settings():
    commands = study_commands(STUDIES["original"], "original", {place: place for place in PLACES})
    ours, theirs = ([words for words in commands if words[0] == kind] for kind in ("compare", "upstream"))
    for mine, original in zip(ours, theirs, strict=True):
        (run, *_), seeds = (
            make_plan(*mine[1:3], mine[3:]).runs,
            [run.seed for run in make_plan(*mine[1:3], mine[3:]).runs],
        )
        assert original[original.index("--config") + 1] == f"exps/{mine[1]}.json"
        assert [int(original[i + 1]) for i, word in enumerate(original) if word == "--seed"] == seeds
        settings = dict(word.split("=") for word in original if "=" in word)
        mine_too = run.method_config
        assert float(settings["init_lr"]) == mine_too.init_lr and int(settings["batch_size"]) == mine_too.batch_size
        assert int(settings["tuned_epoch"]) == mine_too.tuned_epoch and run.settings.fidelity == "pilot"
        assert run.settings.tasks == 50 // int(settings["increment"]) and original[-1] == "runs/results/original"


def test_the_first_classes_of_a_folder_are_linked(tmp_path):
    for name in ("b", "a", "c"):
        (tmp_path / "photos" / name).mkdir(parents=True)
    for _ in range(2):  # again, it does nothing
        results.link_classes(tmp_path / "photos", tmp_path / "few", 2)
    assert sorted(path.name for path in (tmp_path / "few").iterdir()) == ["a", "b"]
    with pytest.raises(UserError, match="give photos=FOLDER"):
        results.link_classes(tmp_path / "none", tmp_path / "few", 2)


def test_a_study_is_run_with_what_the_caller_gives(monkeypatch, capsys):
    called = []

    def run(words, **_):
        called.append(words[3:])
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(results.subprocess, "run", run)
    assert results.run_study("cub", ["photos=P", "weights=W", "jobs=2"], "lae", dry_run=True) == 0 and not called
    assert results.run_study("cub", ["photos=P", "weights=W", "jobs=2"], "lae", dry_run=False) == 0
    (words,) = called
    assert words[:3] == ["compare", "lae", "cub_lt"] and {"data_root=P", "weights=W", "jobs=2"} <= set(words)
    assert capsys.readouterr().out.count("pilot-tal compare lae cub_lt") == 2
    with pytest.raises(UserError, match="key=value"):
        results.run_study("cub", ["photos"], "", dry_run=True)

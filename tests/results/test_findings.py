"""Findings: their kind, severity and numbers."""

import math

import numpy as np
import pytest
from synthetic_runs import long_tailed_counts, write_comparison, write_run_directory

from data_lt import CARDS, LongTailedSet, read_manifest
from data_lt.errors import UserError
from pilot_tal.config.grid import study_config
from pilot_tal.engine.jobs import native_record
from pilot_tal.metrics import Difference
from pilot_tal.record.run_dir import load_run
from pilot_tal.record.run_record import NO_LOSS
from pilot_tal.results.findings import (
    epoch_means,
    group_findings,
    headline,
    mean_weights,
    read_states,
    study_findings,
    verdict,
)
from pilot_tal.results.grouping import load_study
from pilot_tal.results.tables import departures, paper_numbers

SMALL = {"task_sizes": (6, 6), "counts": long_tailed_counts(12, 60, 3), "tests": 10, "steps_a_task": 1500}
TINY = {"task_sizes": (4, 4), "counts": long_tailed_counts(8, 30, 3), "tests": 5, "steps_a_task": 5}
CUB = read_manifest("cub_lt")


def of_group(root):
    """Kind → values of the findings on the only group; every finding must have a text."""
    (group,) = load_study([root]).groups
    found = group_findings(group)
    assert all(str(finding) for finding in found)
    return {finding.kind: finding.values for finding in found}


def shift(variant, metric, value):
    """Give all runs of a variant one value of a metric."""
    for run in variant.runs.values():
        run.metrics[metric] = value


def test_headline_has_difference_interval_and_seeds(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0), ("tal", 0.3)), **SMALL)
    study = load_study([tmp_path])
    found = study.groups[0].difference(study.groups[0].variants[1], "a_tail")
    (lead,) = headline(study)
    assert (lead.kind, lead.severity) == ("tail_change", "result")
    assert {key: lead.values[key] for key in ("mean", "low", "high", "n")} == vars(found)
    assert lead.values["loss"] == "TAL" and lead.values["verdict"] == verdict(found)
    assert f"{100 * found.mean:+.1f} points against CE" in str(lead)


@pytest.mark.parametrize(("ends", "expected"), [
    ((0.1, 0.2), "above"), ((-0.2, -0.1), "below"), ((-0.1, 0.2), "includes"), ((None, None), "one_seed"),
    ((0.02, 0.02), "constant"), ((1e-17, 1e-17), "constant"), ((1e-12, 0.2), "includes"),
])  # fmt: skip
def test_verdict_claims_no_more_than_the_interval(ends, expected):
    assert verdict(Difference(0.1, *ends, 1 if ends[0] is None else 3)) == expected


def test_several_groups_are_counted(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0), ("tal", 0.3)), **SMALL)
    write_comparison(tmp_path, method="lae", losses=(("ce", 0), ("tal", -0.4)), **SMALL)
    study = load_study([tmp_path])
    (lead,) = headline(study)
    means = [group.difference(group.variants[1], "a_tail").mean for group in study.groups]
    assert lead.kind == "tail_changes" and lead.values["comparisons"] == 2
    assert (lead.values["smallest"], lead.values["largest"]) == pytest.approx((min(means), max(means)))
    assert (lead.values["higher"], lead.values["lower"]) == (1, 1) and sum(lead.values["verdicts"].values()) == 2


def test_values_that_differ_in_the_last_bits_are_ties(tmp_path):
    for method in ("l2p", "lae"):
        write_comparison(tmp_path, method=method, **TINY)
    study = load_study([tmp_path])
    for group in study.groups:
        shift(group.variants[0], "a_tail", 0.3)
        shift(group.variants[1], "a_tail", math.nextafter(0.3, 1))
    (lead,) = headline(study)
    assert (lead.values["higher"], lead.values["lower"], lead.values["equal"]) == (0, 0, 2)
    assert lead.values["verdicts"]["constant"] == 2


def test_nothing_to_compare_names_the_cause(tmp_path):
    cases = {
        "unfinished": [{"tasks_done": 1}],
        "no_pairs": [{"loss": "tal"}],
        "no_loss": [{"method": "simplecil", "loss": NO_LOSS}],
    }
    for cause, runs in cases.items():
        for options in runs:
            write_run_directory(tmp_path / cause, **(TINY | options))
        (lead,) = headline(load_study([tmp_path / cause]))
        assert (lead.kind, lead.values["cause"]) == ("nothing_to_compare", cause) and str(lead)


def test_any_loss_can_be_the_baseline(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0), ("tal", 0.3), ("focal", 0.1)), **TINY)
    study = load_study([tmp_path]).with_baseline("focal")
    assert [(lead.values["loss"], lead.values["base"]) for lead in headline(study)] == [
        ("CE", "Focal"),
        ("TAL", "Focal"),
    ]
    with pytest.raises(UserError, match="ce, focal, tal"):
        study.with_baseline("ldam")


def test_no_finding_for_a_comparison_without_problems(tmp_path):
    write_comparison(tmp_path, dataset="folder_lt", method="lae", losses_by_epoch=(1.8, 0.4), **SMALL)
    assert of_group(tmp_path) == {}


def test_training_loss_near_ln_c_is_reported(tmp_path):
    options = SMALL | {"dataset": "folder_lt", "method": "lae"}
    write_comparison(tmp_path, losses=(("ce", 0),), losses_by_epoch=(1.9, 1.75), **options)
    write_comparison(tmp_path, losses=(("tal", 0),), losses_by_epoch=(1.9, 0.9), **options)
    found = of_group(tmp_path)["nothing_learned"]
    assert (found["variant"], found["cause"]) == ("CE", "training_loss")
    assert found["value"] == pytest.approx(1.75) and found["limit"] == pytest.approx(math.log(6))


@pytest.mark.parametrize(("loss", "limit"), [(0.69, math.log(2)), (0.6, None)])
def test_training_loss_is_judged_by_the_classes_of_the_task_it_was_logged_in(tmp_path, monkeypatch, loss, limit):
    """Methods that train in the first task only: two classes, though the last task has six."""
    write_comparison(tmp_path, losses=(("ce", 0),), **(SMALL | {"task_sizes": (2, 6)}))
    monkeypatch.setattr("pilot_tal.results.findings.epoch_means", lambda run, key: {0: np.array([1.0, loss])})
    (group,) = load_study([tmp_path]).groups
    found = [f.values["limit"] for f in group_findings(group) if f.kind == "nothing_learned"]
    assert found == ([] if limit is None else [pytest.approx(limit)])


def test_accuracy_near_chance_is_reported(tmp_path):
    write_run_directory(tmp_path, dataset="folder_lt", method="lae", **TINY)
    (group,) = load_study([tmp_path]).groups
    for accuracy, kinds in ((0.12, {"accuracy"}), (0.3, set())):
        shift(group.variants[0], "a_last", accuracy)
        found = [finding for finding in group_findings(group) if finding.kind == "nothing_learned"]
        assert {finding.values["cause"] for finding in found} == kinds
        assert all((f.values["value"], f.values["limit"], f.severity) == (0.12, 1 / 8, "warning") for f in found)


def test_below_the_training_free_reference_is_reported_paired_by_seed(tmp_path):
    write_comparison(tmp_path, losses=(("ce", -0.5), ("tal", 0.4)), seeds=(1, 2), **TINY)
    write_comparison(tmp_path, method="simplecil", losses=((NO_LOSS, 0),), seeds=(1, 2, 3), epochs=None, **TINY)
    study = load_study([tmp_path])
    trained, free = study.groups
    (found,) = [f.values for f in group_findings(trained) if f.kind == "below_reference"]
    by_hand = [
        trained.variants[0].runs[s].metrics["a_mean"] - free.variants[0].runs[s].metrics["a_mean"] for s in (1, 2)
    ]
    assert found["variants"] == {"CE": pytest.approx(sum(by_hand) / 2)}
    assert found["reference"] == free.method_title
    assert not [f for f in group_findings(free) if f.kind == "below_reference"]


def test_epoch_means_are_means_over_the_steps_of_each_task(tmp_path):
    path = write_run_directory(tmp_path, losses_by_epoch=(2.0, 1.0, 0.5), **TINY)
    assert [losses.tolist() for losses in epoch_means(load_run(path), "loss").values()] == [[2.0, 1.0, 0.5]] * 2


def test_too_few_steps_for_tal_are_reported_with_the_weights(tmp_path):
    write_comparison(tmp_path, **(SMALL | {"steps_a_task": 40}))
    runs = load_study([tmp_path]).groups[0].variants[1].runs.values()
    ends = [weight for run in runs for weight in mean_weights(run)]
    found = of_group(tmp_path)["not_calibrated"]
    assert len(ends) == 6 and (found["tasks"], found["of"]) == (6, 6)
    assert found["mean"] == pytest.approx(sum(ends) / 6) and found["largest"] == max(ends) < 0.5


def test_one_task_that_did_not_calibrate_is_reported(tmp_path):
    ends = ((2, 1.6), (2, 1.0), (4, 0.2))
    states = [[{"step": 0, "Q": [0.5] * size, "weights": [end] * size}] for size, end in ends]
    write_run_directory(tmp_path, loss="tal", states=states, **(TINY | {"task_sizes": (2, 2, 4)}))
    found = of_group(tmp_path)["not_calibrated"]
    assert (found["tasks"], found["of"], found["mean"]) == (1, 3, pytest.approx(0.2))


@pytest.mark.parametrize(("method", "fidelity", "expected"), [
    ("l2p", "pilot", True), ("dualprompt", "pilot", True), ("l2p", "fixed", False), ("lae", "pilot", False),
])  # fmt: skip
def test_batch_vote_only_where_there_is_one(tmp_path, method, fidelity, expected):
    write_comparison(tmp_path, method=method, fidelity=fidelity, **TINY)
    assert ("batch_vote" in of_group(tmp_path)) == expected


def test_demo_data_and_notes_of_runs_are_reported_once(tmp_path):
    write_comparison(tmp_path, notes=("A note.",), **TINY)
    (group,) = load_study([tmp_path]).groups
    kinds = [finding.kind for finding in group_findings(group)]
    assert kinds.count("demo_data") == kinds.count("run_note") == 1
    assert of_group(tmp_path)["run_note"] == {"text": "A note."}


def test_seeds_that_differ_are_reported(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0),), seeds=(1, 2, 3), **TINY)
    write_comparison(tmp_path, losses=(("tal", 0),), seeds=(3,), **TINY)
    found = of_group(tmp_path)
    assert found["one_seed"] == {"variants": ["TAL"]}
    assert (found["different_seeds"]["seeds"], found["different_seeds"]["base_seeds"]) == ([3], [1, 2, 3])


def test_data_that_differ_are_reported(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0),), seeds=(1, 2), **TINY)
    write_comparison(tmp_path, losses=(("tal", 0),), seeds=(1, 2), **(TINY | {"tests": 9}))
    assert of_group(tmp_path)["different_data"]["seeds"] == [1, 2]


def test_missing_baseline_is_reported(tmp_path):
    write_run_directory(tmp_path, loss="tal", **TINY)
    assert of_group(tmp_path)["no_baseline"] == {"variant": "TAL", "base": "CE"}


def test_unfinished_and_quick_runs_are_reported(tmp_path):
    path = write_run_directory(tmp_path, tasks_done=1, **TINY)
    write_comparison(tmp_path, seeds=(1,), **TINY)
    write_comparison(tmp_path, method="lae", quick=True, **TINY)
    found = {finding.kind: finding.values for finding in study_findings(load_study([tmp_path]))}
    assert found["unfinished_runs"] == {"runs": [f"{path.name} (1 of 2 tasks)"], "more": 0}
    assert found["quick_runs"] == {"n": 6}


def test_quick_runs_are_left_out_where_others_have_finished(tmp_path):
    write_comparison(tmp_path, method="lae", epochs=2, quick=True, **TINY)
    (lead,) = headline(load_study([tmp_path]))
    assert lead.kind == "tail_change" and not study_findings(load_study([tmp_path]))
    write_comparison(tmp_path, losses=(("ce", 0), ("tal", 0.3)), **TINY)
    (lead,) = headline(load_study([tmp_path]))
    assert lead.kind == "tail_change" and "L2P" in lead.values["where"]
    assert not any(run.record.quick for run in load_study([tmp_path]).runs)


def paper_runs(root, *items, quick=False, checksum=CUB.checksum):
    """CE and TAL of L2P on CUB-LT as the program records them, with settings from the command line."""
    data = LongTailedSet("cub_lt", "CUB-LT", root, CUB.frame(), CUB.class_names, checksum, CUB.header, CARDS["cub_lt"])
    for config in study_config("l2p", "cub_lt", ["seeds=1", "losses=ce,tal", *items], quick).runs:
        if config.method == "l2p":
            write_run_directory(root, record=native_record(config, data), tests=1, steps_a_task=2)
    (group,) = load_study([root]).groups
    return group


@pytest.mark.parametrize("items", [(), ("tasks=10",), ("n_max=40", "split_seed=1993", "folder=birds")])
def test_recorded_defaults_are_the_papers_setting(tmp_path, items):
    group = paper_runs(tmp_path, *items)
    assert len(group.variants) == 2 and all(paper_numbers(group, variant) for variant in group.variants)
    assert "not_the_papers" not in {finding.kind for finding in group_findings(group)}


@pytest.mark.parametrize(("items", "reason"), [
    (["--quick"], "a quick run of a few steps"),
    (["n_max=20", "--other"], "n_max 20 instead of 40"),
    (["manifest=mine.txt", "--other"], "manifest mine.txt"),
    (["--other"], "another split of the images"),
    (["weights=random"], "weights random instead of hub"),
    (["init_lr=0.1"], "init_lr 0.1 instead of 0.001875"),
    (["precision=bf16"], "precision bf16 instead of fp32"),
    (["epochs=5"], "5 epochs instead of 20"),
    (["init_cls=100", "increment=25"], "tasks of 100 + 25 + 25 + 25 + 25 classes instead of equal ones"),
])  # fmt: skip
def test_differences_from_the_papers_setting_are_named(tmp_path, items, reason):
    checksum = "0" * 64 if "--other" in items else CUB.checksum
    settings = [item for item in items if not item.startswith("--")]
    group = paper_runs(tmp_path, *settings, quick="--quick" in items, checksum=checksum)
    assert not any(paper_numbers(group, variant) for variant in group.variants)
    (found,) = [f.values for f in group_findings(group) if f.kind == "not_the_papers"]
    assert found["variants"] == ["CE", "TAL"] and reason in found["differences"]


def test_option_of_tal_keeps_the_papers_numbers_beside_ce(tmp_path):
    group = paper_runs(tmp_path, "tal.lam=0.9")
    assert [paper_numbers(group, variant) is None for variant in group.variants] == [False, True]
    (found,) = [f.values for f in group_findings(group) if f.kind == "not_the_papers"]
    assert found == {"variants": ["TAL"], "differences": ["lam 0.9 instead of 0.995"]}


@pytest.mark.parametrize(("record", "reason"), [
    ({"epochs": 5}, "5 epochs instead of 20"),
    ({"backbone": {"name": "deit_tiny"}}, "backbone deit_tiny instead of vit_base_patch16_224"),
    ({"backbone": {"name": "vit_base_patch16_224_l2p"}, "changed": {"vit.depth": [2, 12]}}, "vit.depth 2 instead of"),
    ({"epochs": None, "changed": {"tasks": [10, 5]}}, "an unknown number of epochs instead of 20"),
    ({"backbone": {"name": "pretrained_vit_base_patch16_224"}}, None),
])  # fmt: skip
def test_epochs_and_backbone_of_foreign_runs_are_compared(tmp_path, record, reason):
    options = {"counts": [9] * 200, "task_sizes": (40,) * 5, "tests": 1, **record}
    write_run_directory(tmp_path, dataset="cub_lt", **options)
    (group,) = load_study([tmp_path]).groups
    found = departures(group, group.variants[0])
    assert found == [] if reason is None else len(found) == 1 and reason in found[0]


def test_state_over_all_classes_seen_is_read_too(tmp_path):
    states = [[{"step": 0, "Q": [0.5] * 4 * (t + 1), "weights": [1.0] * 4 * (t + 1)}] for t in (0, 1)]
    path = write_run_directory(tmp_path, loss="tal", states=states, **TINY)
    assert [state.labels.tolist() for state in read_states(load_run(path))] == [list(range(4)), list(range(8))]

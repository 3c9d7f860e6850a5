"""The report claims no more than its runs show: ties, quick runs and mixed configurations."""

import math
from dataclasses import asdict

import pytest
from synthetic_runs import long_tailed_counts, write_comparison, write_run_directory

from data_lt import CARDS, LongTailedSet, read_manifest
from pilot_tal.config.grid import make_plan
from pilot_tal.engine.native_record import native_record
from pilot_tal.metrics import Difference
from pilot_tal.results import tables
from pilot_tal.results.grouping import load_study
from pilot_tal.results.paper import departures, paper_numbers
from pilot_tal.results.plots import difference_plots, level_plots
from pilot_tal.results.sentences import group_caveats, lead_sentences, study_caveats, verdict

SMALL = {"task_sizes": (4, 4), "counts": long_tailed_counts(8, 30, 3), "tests": 5, "steps_a_task": 5}


def shift(variant, metric, value):
    """Gives all runs of an variant one value of a metric."""
    for result in variant.runs.values():
        result.metrics[metric] = value


def test_no_verdict_from_an_interval_without_width():
    for mean in (0.0, 1e-17, 0.02, -0.02):
        said = verdict(Difference(mean, mean, mean, 3), "TAL")
        assert "does not vary over the seeds" in said and "helps" not in said and "harms" not in said
    assert "includes 0" in verdict(Difference(0.1, 1e-12, 0.2, 3), "TAL")


def test_values_that_differ_in_the_last_bits_are_ties(tmp_path):
    for method in ("l2p", "lae"):
        write_comparison(tmp_path, method=method, **SMALL)
    study = load_study([tmp_path])
    for setting in study.groups:
        shift(setting.variants[0], "a_tail", 0.3)
        shift(setting.variants[1], "a_tail", math.nextafter(0.3, 1))
    (lead,) = lead_sentences(study)
    assert "higher in 0, lower in 0, equal in 2." in lead
    assert "lies above 0 in 0, below 0 in 0 and includes 0 in 0. In 2 it has no width" in lead
    layout = tables.paper_layout_table(study)
    assert all(row[2].best for row in layout.rows) and all(row[2].top for row in layout.rows)
    tails = [row for row in tables.metrics_table(study.groups[0]).rows if row[0].text == "A_Tail"]
    assert [cell.best for cell in tails[0][1:3]] == [True, True]


def test_one_task_that_did_not_calibrate_is_said(tmp_path):
    options = SMALL | {"task_sizes": (2, 2, 4)}
    ends = ((2, 1.6), (2, 1.0), (4, 0.2))
    states = [[{"step": 0, "Q": [0.5] * size, "weights": [end] * size}] for size, end in ends]
    write_run_directory(tmp_path, loss="tal", states=states, **options)
    (setting,) = load_study([tmp_path]).groups
    said = " ".join(group_caveats(setting))
    assert "TAL did not calibrate in 1 of 3 tasks" in said and "(0.20 to 0.20)" in said


def test_quick_runs_stay_out_of_headlines_where_there_are_others(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0), ("tal", 0.3)), **SMALL)
    write_comparison(tmp_path, method="lae", epochs=2, quick=True, **SMALL)
    write_comparison(tmp_path, losses=(("ce", 0), ("tal", 0.6)), epochs=2, quick=True, **SMALL)
    study = load_study([tmp_path])
    (lead,) = lead_sentences(study)
    assert "Demo-LT with L2P in 2 tasks" in lead and "TAL changes" in lead
    assert "never bold: 12 quick runs" in " ".join(study_caveats(study))
    overview, layout = tables.overview_table(study), tables.paper_layout_table(study)
    for row in overview.rows:
        assert not ("quick=true" in row[4].text and any(cell.best for cell in row))
    assert any(cell.best for row in overview.rows for cell in row)
    assert [row[0].text for row in layout.rows] == [
        "L2P",
        "+ TAL",
        "L2P (epochs=2, quick=true)",
        "+ TAL",
        "LAE (quick=true)",
        "+ TAL",
    ]
    assert not any(cell.best or cell.top for row in layout.rows[2:] for cell in row)
    svg = difference_plots(study)[0].svg
    assert "L2P" in svg and "LAE" not in svg and "quick" not in svg
    assert all("L2P" in plot.svg and "LAE" not in plot.svg for plot in level_plots(study))


def test_a_report_on_quick_runs_only_compares_them(tmp_path):
    write_comparison(tmp_path, quick=True, **SMALL)
    study = load_study([tmp_path])
    assert lead_sentences(study)[0].startswith("On the tail, TAL changes accuracy by")
    assert study_caveats(study) == [] and len(difference_plots(study)) == 2
    assert any(cell.best for row in tables.overview_table(study).rows for cell in row)


def test_quick_tal_beside_full_ce_is_no_comparison(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0),), **SMALL)
    write_comparison(tmp_path, method="lae", quick=True, **SMALL)
    assert lead_sentences(load_study([tmp_path]))[0].startswith("All finished runs but quick ones use CE")


@pytest.mark.parametrize("other", [
    {"epochs": 1}, {"method": "lae", "epochs": 1}, {"options": {"lam": 0.9}},
])  # fmt: skip
def test_other_configurations_are_not_averaged(tmp_path, other):
    for options in ({"options": {"lam": 0.995}}, other):
        write_comparison(tmp_path, losses=(("tal", 0.3),), **(SMALL | options))
        write_comparison(tmp_path, losses=(("ce", 0),), **(SMALL | options | {"options": {}}))
    (lead,) = lead_sentences(load_study([tmp_path]))
    assert "over 2 comparisons, not averaged" in lead and "on average" not in lead


def test_methods_with_the_defaults_of_their_own_are_averaged(tmp_path):
    for method in ("l2p", "lae"):
        settings = asdict(make_plan(method, "cub_lt").runs[0].method_config)
        write_comparison(tmp_path, dataset="cub_lt", method=method, settings=settings, **SMALL)
    assert "on average over 2 comparisons" in lead_sentences(load_study([tmp_path]))[0]


def test_configurations_of_different_tasks_are_named(tmp_path):
    write_comparison(tmp_path, epochs=20, changed={"init_cls": [4, None]}, **SMALL)
    write_comparison(tmp_path, epochs=1, changed={"init_cls": [2, None]}, **(SMALL | {"task_sizes": (2, 2, 4)}))
    study = load_study([tmp_path])
    assert [row[0].text for row in tables.paper_layout_table(study).rows] == [
        "L2P (epochs=20)",
        "+ TAL",
        "L2P (epochs=1)",
        "+ TAL",
    ]
    assert [row[4].text for row in tables.overview_table(study).rows] == [
        f"{loss} (epochs={epochs})" for epochs in (20, 1) for loss in ("CE", "TAL")
    ]


CUB = read_manifest("cub_lt")


def paper_runs(root, *items, quick=False, checksum=CUB.checksum):
    """CE and TAL of L2P on CUB-LT as the program records them, with settings from the command line."""
    data = LongTailedSet("cub_lt", root, CUB.frame(), CUB.class_names, checksum, CUB.header, CARDS["cub_lt"])
    for config in make_plan("l2p", "cub_lt", ["seeds=1", *items], quick).runs:
        write_run_directory(root, record=native_record(config, data), tests=1, steps_a_task=2)
    (setting,) = load_study([root]).groups
    return setting


@pytest.mark.parametrize("items", [(), ("tasks=10",), ("n_max=40", "split_seed=1993", "folder=birds")])
def test_the_recorded_defaults_are_the_papers_setting(tmp_path, items):
    setting = paper_runs(tmp_path, *items)
    assert len(setting.variants) == 2 and all(paper_numbers(setting, variant) for variant in setting.variants)
    assert "Not the paper's" not in " ".join(group_caveats(setting))


@pytest.mark.parametrize(("items", "reason"), [
    (["--quick"], "a quick run of a few steps, 2 epochs instead of 20"),
    (["n_max=20", "--other"], "n_max 20 instead of 40"),
    (["law=exponential", "--other"], "law exponential instead of profile"),
    (["manifest=mine.txt", "--other"], "manifest mine.txt"),
    (["--other"], "another split of the images"),
    (["weights=random"], "weights random instead of hub"),
    (["init_lr=0.1"], "init_lr 0.1 instead of 0.001875"),
    (["batch_size=128"], "batch_size 128 instead of 16"),
    (["optimizer=sgd"], "optimizer sgd instead of adam"),
    (["size=20"], "size 20 instead of 10"),
    (["transform=coda"], "transform coda instead of pilot"),
    (["precision=bf16"], "precision bf16 instead of fp32"),
    (["order=head_first"], "order head_first instead of shuffled"),
    (["epochs=5"], "5 epochs instead of 20"),
])  # fmt: skip
def test_what_differs_from_the_papers_group_is_named(tmp_path, items, reason):
    checksum = "0" * 64 if "--other" in items else CUB.checksum
    settings = [item for item in items if not item.startswith("--")]
    setting = paper_runs(tmp_path, *settings, quick="--quick" in items, checksum=checksum)
    assert not any(paper_numbers(setting, variant) for variant in setting.variants)
    said = " ".join(group_caveats(setting))
    assert f"Not the paper's setting, so its numbers do not stand beside these: {reason}." in said


def test_an_option_of_tal_keeps_the_papers_numbers_beside_ce(tmp_path):
    setting = paper_runs(tmp_path, "tal.lam=0.9")
    assert [paper_numbers(setting, variant) is None for variant in setting.variants] == [False, True]
    said = " ".join(group_caveats(setting))
    assert "its numbers do not stand beside TAL: lam 0.9 instead of 0.995." in said


def test_unequal_tasks_are_not_the_papers(tmp_path):
    setting = paper_runs(tmp_path, "init_cls=100", "increment=25")
    assert departures(setting, setting.variants[0]) == [
        "tasks of 100 + 25 + 25 + 25 + 25 classes instead of equal ones"
    ]


def test_settings_of_a_checkout_are_compared_too(tmp_path):
    changed = {"init_lr": [0.5, 0.001875]}
    options = {"counts": long_tailed_counts(200, 40, 2), "task_sizes": (40,) * 5, "tests": 1, "steps_a_task": 2}
    backbone = {"name": "vit_base_patch16_224_l2p"}
    options |= {"dataset": "cub_lt", "seeds": (1,), "checksum": CUB.checksum, "backbone": backbone}
    write_comparison(tmp_path, engine="lamda-pilot", changed=changed, **options)
    (setting,) = load_study([tmp_path]).groups
    assert departures(setting, setting.variants[1]) == ["init_lr 0.5 instead of 0.001875"]

"""Runs are sorted into groups and variants, and only what belongs together is compared."""

import subprocess
import sys

import numpy as np
import pytest
from synthetic_runs import SEEDS, long_tailed_counts, write_comparison, write_run_directory

from pilot_tal.losses import LOSSES
from pilot_tal.record.run_record import NO_LOSS
from pilot_tal.results import build_report, tables
from pilot_tal.results.findings import group_findings, headline
from pilot_tal.results.grouping import load_study

SMALL = {"task_sizes": (4, 4), "counts": long_tailed_counts(8, 30, 3), "tests": 5, "steps_a_task": 5}


def labels(group):
    return [variant.label for variant in group.variants]


def test_one_comparison_is_one_group_with_two_variants(tmp_path):
    write_comparison(tmp_path, **SMALL)
    (group,) = load_study([tmp_path]).groups
    assert labels(group) == ["CE", "TAL"]
    assert [variant.seeds for variant in group.variants] == [list(SEEDS)] * 2
    assert group.title == "Demo-LT · L2P · 2 tasks · pilot"
    assert group.baseline(group.variants[1]) is group.variants[0]
    assert group.baseline(group.variants[0]) is None


def test_difference_is_paired_by_seed(tmp_path):
    write_comparison(tmp_path, **SMALL)
    (group,) = load_study([tmp_path]).groups
    ce, tal = group.variants
    by_hand = [tal.runs[s].metrics["a_tail"] - ce.runs[s].metrics["a_tail"] for s in SEEDS]
    found = group.difference(tal, "a_tail")
    assert found.mean == pytest.approx(np.mean(by_hand)) and found.n == 3


def test_groups_differ_by_dataset_method_tasks_and_fidelity(tmp_path):
    write_run_directory(tmp_path, **SMALL)
    write_run_directory(tmp_path, **(SMALL | {"task_sizes": (2, 2, 2, 2)}))
    write_run_directory(tmp_path, fidelity="fixed", **SMALL)
    write_run_directory(tmp_path, method="mos", **SMALL)
    write_run_directory(tmp_path, dataset="cub_lt", **SMALL)
    titles = [group.title for group in load_study([tmp_path]).groups]
    assert titles == [
        "CUB-LT · L2P · 2 tasks · pilot",
        "Demo-LT · L2P · 2 tasks · fixed",
        "Demo-LT · L2P · 2 tasks · pilot",
        "Demo-LT · L2P · 4 tasks · pilot",
        "Demo-LT · MOS · 2 tasks · pilot",
    ]


def test_engines_are_variants_compared_within_each_engine(tmp_path):
    write_comparison(tmp_path, **SMALL)
    write_comparison(tmp_path, engine="lamda-pilot", **SMALL)
    (group,) = load_study([tmp_path]).groups
    assert labels(group) == ["CE (native)", "TAL (native)", "CE (LAMDA-PILOT)", "TAL (LAMDA-PILOT)"]
    assert group.baseline(group.variants[3]) is group.variants[2]


def test_other_options_of_a_loss_are_another_variant_with_the_same_baseline(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0),), **SMALL)
    for lam in (0.99, 0.995):
        write_comparison(tmp_path, losses=(("tal", 0),), options={"lam": lam, "r": 1}, **SMALL)
    (group,) = load_study([tmp_path]).groups
    assert labels(group) == ["CE", "TAL (lam=0.99)", "TAL (lam=0.995)"]
    assert [group.baseline(variant) for variant in group.variants[1:]] == [group.variants[0]] * 2


def test_runs_with_other_training_settings_are_not_averaged_or_compared(tmp_path):
    write_comparison(tmp_path, epochs=20, **SMALL)
    write_comparison(tmp_path, losses=(("tal", 0.1),), epochs=2, **SMALL)
    (group,) = load_study([tmp_path]).groups
    assert labels(group) == ["TAL (epochs=2)", "CE (epochs=20)", "TAL (epochs=20)"]
    alone = next(variant for variant in group.variants if variant.label == "TAL (epochs=2)")
    assert group.baseline(alone) is None and group.pairs(alone) == []
    assert all(len(variant.seeds) == 3 for variant in group.variants)


def test_hardware_does_not_matter_and_a_repeated_run_is_reported(tmp_path):
    write_run_directory(tmp_path / "a", environment=({"device": "cpu"},), **SMALL)
    write_run_directory(tmp_path / "b", environment=({"device": "cuda"},), **SMALL)
    study = load_study([tmp_path])
    (group,) = study.groups
    assert labels(group) == ["CE"] and group.variants[0].seeds == [1993]
    (remark,) = study.remarks
    assert remark.kind == "repeated_run" and remark.values["run"] == remark.values["first"]


def test_unfinished_runs_are_in_no_mean(tmp_path):
    write_comparison(tmp_path, seeds=(1993, 1994), **SMALL)
    write_run_directory(tmp_path, loss="tal", seed=1995, tasks_done=1, **SMALL)
    (group,) = load_study([tmp_path]).groups
    tal = group.variants[1]
    assert tal.seeds == [1993, 1994] and [run.record.seed for run in tal.unfinished] == [1995]
    assert tal.spread("a_tail").n == 2


def test_group_of_unfinished_runs_is_not_finished(tmp_path):
    write_comparison(tmp_path, seeds=(1,), **SMALL)
    write_run_directory(tmp_path, method="lae", seed=1, tasks_done=1, **SMALL)
    study = load_study([tmp_path])
    assert [group.method for group in study.groups] == ["l2p", "lae"]
    assert [group.method for group in study.finished] == ["l2p"]


def test_runs_on_other_test_images_are_not_paired(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0),), **SMALL)
    write_comparison(tmp_path, losses=(("tal", 0),), **(SMALL | {"tests": 6}))
    (group,) = load_study([tmp_path]).groups
    assert group.pairs(group.variants[1]) == [] and group.difference(group.variants[1], "a_tail") is None


def test_other_training_images_are_another_group_with_counts_and_tail_of_its_own(tmp_path):
    forth, back = (long_tailed_counts(8, 40, 3)[::step] for step in (1, -1))
    write_comparison(tmp_path / "a", recipe={"n_max": 30}, checksum="0" * 64, **SMALL)
    write_comparison(tmp_path / "b", recipe={"n_max": 40}, checksum="1" * 64, **(SMALL | {"counts": forth}))
    (few, many) = load_study([tmp_path]).groups
    assert [labels(few), labels(many)] == [["CE", "TAL"]] * 2
    assert [variant.seeds for variant in few.variants + many.variants] == [list(SEEDS)] * 4
    assert few.title == "Demo-LT (3–30 images per class) · L2P · 2 tasks · pilot"
    assert many.title == "Demo-LT (3–40 images per class) · L2P · 2 tasks · pilot"
    assert many.classes().counts.tolist() == forth.tolist()
    write_comparison(tmp_path / "c", **(SMALL | {"counts": back}))
    groups = load_study([tmp_path]).groups
    assert {group.dataset_title for group in groups} == {f"Demo-LT (data {i})" for i in (1, 2, 3)}
    columns = tables.paper_layout_table(load_study([tmp_path])).frame.columns
    assert len({column[:2] for column in columns[1:]}) == len({group.slug for group in groups}) == 3
    tails = {group.slug: group.classes().tail.tolist() for group in groups if 40 in group.classes().counts}
    assert sorted(tails.values()) == [[False] * 4 + [True] * 4, [True] * 4 + [False] * 4]


def test_labels_contain_a_short_checksum_only_where_needed(tmp_path):
    digests = [f"{i}" * 64 for i in range(3)]
    for i, seed in enumerate((0, 1)):
        write_run_directory(tmp_path / f"told{i}", recipe={"seed": seed}, checksum=digests[i], **SMALL)
        options = SMALL | {"recipe": {"seed": 0}, "backbone": {"weights": f"a.bin@{digests[i][:16]}"}}
        write_run_directory(tmp_path / f"not{i}", checksum=digests[i], **options)
    (group,) = load_study([tmp_path / "told0", tmp_path / "told1"]).groups
    assert labels(group) == ["CE (split_seed=0)", "CE (split_seed=1)"]
    (group,) = load_study([tmp_path / "not0", tmp_path / "not1"]).groups
    assert labels(group) == [f"CE (checksum={d[:8]}, weights=a.bin@{d[:8]})" for d in digests[:2]]


def test_file_names_are_short_and_unique(tmp_path):
    for i in range(2):
        settings = {f"key_number_{k}": f"value {i} of {k}" for k in range(30)}
        write_comparison(tmp_path / str(i), seeds=(1,), settings=settings, dataset="a_long_name" * 9, **SMALL)
    study = load_study([tmp_path])
    slugs = [variant.slug for variant in study.groups[0].variants]
    assert len(set(slugs)) == 4 and max(map(len, [*slugs, study.groups[0].slug])) < 75
    assert build_report(study, tmp_path / "report").is_file()


def test_per_class_means_follow_the_original_class_through_every_order(tmp_path):
    paths = write_comparison(tmp_path, losses=(("ce", 0),), **SMALL)
    (group,) = load_study(paths).groups
    expected = np.zeros(8)
    for result in group.variants[0].runs.values():
        for label, original in enumerate(result.record.stream.class_order):
            expected[original] += result.metrics["per_class"]["accuracy"][label] / 3
    np.testing.assert_allclose(group.variants[0].by_class("accuracy"), expected)
    classes = group.classes()
    assert classes.names[0] == "class 000" and classes.counts.tolist() == SMALL["counts"].tolist()
    assert classes.tail.tolist() == [False] * 4 + [True] * 4


def test_non_ascii_names_get_unique_file_names(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0), ("损失甲", 0), ("损失乙", 0)), seeds=(1,), **SMALL)
    write_comparison(tmp_path, dataset="数据", seeds=(1,), **SMALL)
    write_comparison(tmp_path, dataset="资料", seeds=(1,), **SMALL)
    study = load_study([tmp_path])
    slugs = [group.slug for group in study.groups]
    assert len(set(slugs)) == 3 and all(slug.isascii() for slug in slugs)
    assert len({variant.slug for variant in study.groups[0].variants}) == 3


def test_training_free_method_has_loss_none_and_no_baseline(tmp_path):
    write_comparison(tmp_path, **SMALL)
    write_comparison(tmp_path, method="simplecil", losses=((NO_LOSS, 0),), epochs=None, **SMALL)
    study = load_study([tmp_path])
    untrained = study.groups[1]
    assert labels(untrained) == ["none"] and untrained.compared_variants() == []
    assert [row[0].text for row in tables.paper_layout_table(study).rows] == ["L2P", "+ TAL", untrained.method_title]
    kinds = [finding.kind for finding in group_findings(untrained)]
    assert "no_baseline" not in kinds
    assert [lead.values["loss"] for lead in headline(study)] == ["TAL"]


def test_losses_have_a_fixed_order_and_a_colour_each(tmp_path):
    names = [*LOSSES, NO_LOSS]
    write_comparison(tmp_path, losses=[(name, 0) for name in names], seeds=(1,), **SMALL)
    (group,) = load_study([tmp_path]).groups
    found = [variant.loss for variant in group.variants]
    kin = [name for name in found if name.startswith("tal")]
    assert found[:2] == [NO_LOSS, "ce"] and found[2 : 2 + len(kin)] == kin and sorted(found) == sorted(names)
    others = [variant.label for variant in group.variants[2 + len(kin) :]]
    assert others == sorted(others) and len({variant.colour for variant in group.variants}) == len(names)


def test_report_needs_no_torch_and_no_engine(demo_runs, tmp_path):
    code = f"""
import sys
from pilot_tal.results import build_report, print_summary
build_report([{str(demo_runs)!r}], {str(tmp_path / "report")!r})
print_summary([{str(demo_runs)!r}])
packages = ("torch", "timm", "pilot_tal.config", "pilot_tal.learners", "pilot_tal.losses", "pilot_tal.engine")
found = [name for name in packages if name in sys.modules]
assert not found, found
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_seed_and_every_class_name_can_be_read_back(tmp_path):
    names = ["narrow\u00a0space", "line\nbreak", "x" * 5000, *"abcde"]
    write_run_directory(tmp_path, seed=2**32 - 1, class_names=names, **SMALL)
    (group,) = load_study([tmp_path]).groups
    assert group.variants[0].seeds == [2**32 - 1] and group.classes().names[:2] == ["narrow space", "line break"]


@pytest.mark.parametrize(("lams", "expected"), [
    ((0.9, 0.91, 0.92, 0.93, 0.994, 0.995), ["CE", "TAL (lam=0.995)"]),
    ((0.9, 0.91, 0.92, 0.93, 0.94, 0.95), ["CE", "TAL (lam=0.9)"]),
])  # fmt: skip
def test_plots_show_one_of_many_variants_of_a_loss(tmp_path, lams, expected):
    small = {"task_sizes": (4, 4), "counts": long_tailed_counts(8, 30, 3), "tests": 5, "steps_a_task": 5, "seed": 1}
    write_run_directory(tmp_path, **small)
    for lam in lams:
        changed = {} if lam == 0.995 else {"lam": [lam, 0.995]}
        write_run_directory(tmp_path, loss="tal", options={"lam": lam}, changed=changed, **small)
    (group,) = load_study([tmp_path]).groups
    assert len(group.finished_variants()) == 7
    assert [variant.label for variant in group.featured_variants()] == expected

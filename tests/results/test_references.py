"""What trains nothing and what sees all classes at once stand beside the losses, and confusions have names."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from sklearn.metrics import confusion_matrix
from synthetic_runs import long_tailed_counts, write_comparison, write_run_directory

from pilot_tal.record.run_record import NO_LOSS
from pilot_tal.results import print_summary, tables
from pilot_tal.results.display import percent
from pilot_tal.results.grouping import load_study
from pilot_tal.results.page import _references
from pilot_tal.results.plots_overview import levels
from pilot_tal.results.plots_tasks import accuracy_after_task
from pilot_tal.results.sentences import lead_sentences
from pilot_tal.results.svg import style

SMALL = {"task_sizes": (4, 4), "counts": long_tailed_counts(8, 30, 3), "tests": 5, "steps_a_task": 5, "seeds": (1, 2)}
NOTHING = {"losses": ((NO_LOSS, -0.2),), "epochs": None}


def setting_of(root, method="l2p", tasks=2):
    return next(s for s in load_study([root]).groups if (s.method, len(s.task_sizes)) == (method, tasks))


@pytest.fixture
def full(tmp_path):
    """CE and TAL in two tasks, what trains nothing, and all classes at once."""
    write_comparison(tmp_path, **SMALL)
    write_comparison(tmp_path, method="simplecil", **SMALL, **NOTHING)
    write_comparison(tmp_path, **(SMALL | {"task_sizes": (8,)}))
    return tmp_path


def test_baselines_and_bounds_stand_beside_the_losses(full):
    setting, untrained = setting_of(full), setting_of(full, "simplecil")
    names = [f"{untrained.method_title} (no loss)", "Joint: CE", "Joint: TAL"]
    assert [reference.title for reference in setting.references] == names
    table = tables.metrics_table(setting)
    assert [column[0] for column in table.columns][1:6] == ["CE", "TAL", *names]
    row = next(row for row in table.rows if row[0].text == "A_Tail")
    assert dict(row[3].values)["mean"] == pytest.approx(100 * untrained.variants[0].spread("a_tail").mean)
    joint = setting_of(full, tasks=1)
    assert dict(row[5].values)["mean"] == pytest.approx(100 * joint.variants[1].spread("a_tail").mean)
    assert not any(cell.best for row in table.rows for cell in row[3:6])
    told = _references(setting)
    assert (
        f"{names[0]} {percent(untrained.variants[0].spread('a_mean').mean, 1)} % (tail" in told and "Joint: TAL" in told
    )
    assert [row[1].text for row in tables.tasks_table(setting).rows[:3]] == ["CE", "TAL", names[0]]


def test_they_stand_in_plots_and_on_the_terminal(full):
    study = load_study([full])
    setting = study.groups[0]
    with style():
        plot = accuracy_after_task(setting, setting.finished_variants())
        dots = levels(study, "a_tail")
    for title in ("(no loss)", "Joint: CE", "Joint: TAL"):
        assert title in plot.svg and title in dots.svg
    assert "its upper bound" in plot.caption
    out = StringIO()
    print_summary(study, Console(file=out, width=160))
    assert out.getvalue().count("it is not the paper's benchmark") == 1  # though it holds for each setting
    first = out.getvalue().split("Demo-LT · ")[1]
    assert "(no loss)" in first and "Joint: TAL" in first


def test_a_bound_is_in_no_headline_where_it_bounds_something(full, tmp_path_factory):
    (lead,) = lead_sentences(load_study([full]))
    assert "in 2 tasks" in lead and "comparisons" not in lead
    alone = tmp_path_factory.mktemp("alone")
    write_comparison(alone, **(SMALL | {"task_sizes": (8,)}))
    (lead,) = lead_sentences(load_study([alone]))
    assert "in 1 task)" in lead


@pytest.mark.parametrize("other", [
    {"task_sizes": (2, 2, 4)}, {"counts": [9] * 8}, {"dataset": "cub_lt"}, {"backbone": {"name": "other"}},
    {"backbone": {"weights": "random"}}, {"quick": True},
])  # fmt: skip
def test_baselines_of_other_data_tasks_or_vit_are_none(tmp_path, other):
    write_comparison(tmp_path, **SMALL)
    write_comparison(tmp_path, method="simplecil", **(SMALL | NOTHING | other))
    assert setting_of(tmp_path).references == []


@pytest.mark.parametrize("other", [{"method": "lae"}, {"fidelity": "fixed"}, {"counts": [9] * 8}, {"quick": True}])
def test_bounds_are_of_the_same_method_and_data(tmp_path, other):
    write_comparison(tmp_path, **SMALL)
    write_comparison(tmp_path, **(SMALL | {"task_sizes": (8,)} | other))
    assert setting_of(tmp_path).references == []


def test_what_trains_nothing_needs_neither_baseline_nor_bound(full):
    write_comparison(full, method="simplecil", **(SMALL | NOTHING | {"task_sizes": (8,)}))
    assert setting_of(full, "simplecil").references == []


def test_confusion_is_that_of_scikit_learn_over_all_seeds_and_orders(tmp_path):
    paths = write_comparison(tmp_path, losses=(("ce", 0),), **(SMALL | {"seeds": (1, 2, 3)}))
    (setting,) = load_study(paths).groups
    expected = np.zeros((8, 8))
    for run in setting.variants[0].runs.values():
        order = np.array(run.record.stream.class_order)
        true, pred = (order[labels] for labels in run.labels[-1])
        expected += confusion_matrix(true, pred, labels=range(8), normalize="true") / 3
    np.testing.assert_allclose(setting.variants[0].confusion(), expected)
    pairs = setting.variants[0].most_confused(5)
    wrong = expected - np.diag(np.diag(expected))
    assert [share for *_, share in pairs] == pytest.approx(sorted(wrong.ravel(), reverse=True)[:5])
    for true, pred, share in pairs:
        assert true != pred and share == pytest.approx(expected[true, pred])


def test_the_most_confused_pairs_are_named(tmp_path):
    write_comparison(tmp_path, **SMALL)
    setting = setting_of(tmp_path)
    table = tables.confused_table(setting)
    pairs = setting.variants[0].most_confused()
    assert len(pairs) == 10 and len(table.rows) == 20
    true, pred, share = pairs[0]
    counts = SMALL["counts"]
    shown = ["CE", f"class {true:03d}", f"class {pred:03d}", str(counts[true]), str(counts[pred]), f"{100 * share:.1f}"]
    assert [cell.text for cell in table.rows[0]] == shown


def test_no_confusion_no_pairs(tmp_path):
    write_run_directory(tmp_path, task_sizes=(1,), counts=[3], tests=2)
    (setting,) = load_study([tmp_path]).groups
    assert setting.variants[0].most_confused() == [] and tables.confused_table(setting).rows == []


def test_each_task_has_its_numbers(tmp_path):
    write_comparison(tmp_path, **SMALL)
    setting = setting_of(tmp_path)
    table = tables.tasks_table(setting)
    runs = setting.variants[1].runs.values()
    for task, row in ((0, table.rows[1]), (1, table.rows[3])):
        assert [cell.text for cell in row[:2]] == [str(task + 1), "TAL"]
        for key, cell in zip(("accuracy", "tail", "old", "new"), row[2:], strict=True):
            values = [v for run in runs if (v := run.metrics[f"{key}_after_task"][task]) is not None]
            expected = pytest.approx(100 * np.mean(values)) if values else None
            assert dict(cell.values)[""] == expected
    assert table.rows[0][4].text == "–"  # no old classes after the first task

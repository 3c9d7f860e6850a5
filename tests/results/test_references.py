"""Training-free methods are rows of their own beside the losses, and lines in plots."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from sklearn.metrics import confusion_matrix
from synthetic_runs import long_tailed_counts, write_comparison, write_run_directory

from pilot_tal.record.run_record import NO_LOSS
from pilot_tal.results import print_summary, tables
from pilot_tal.results.drawing import style
from pilot_tal.results.findings import headline
from pilot_tal.results.grouping import load_study
from pilot_tal.results.plots import accuracy_by_class, after_task, group_tradeoff

SMALL = {"task_sizes": (4, 4), "counts": long_tailed_counts(8, 30, 3), "tests": 5, "steps_a_task": 5, "seeds": (1, 2)}
FREE = {"losses": ((NO_LOSS, -0.2),), "epochs": None}
TITLES = ["SimpleCIL"]


def group_of(root, method="l2p", tasks=2):
    return next(s for s in load_study([root]).groups if (s.method, len(s.task_sizes)) == (method, tasks))


@pytest.fixture
def full(tmp_path):
    """CE and TAL in two tasks, and a training-free method."""
    write_comparison(tmp_path, **SMALL)
    write_comparison(tmp_path, method="simplecil", **SMALL, **FREE)
    return tmp_path


def test_references_are_rows_of_the_tables(full):
    group, free = group_of(full), group_of(full, "simplecil")
    assert [reference.title for reference in group.references] == TITLES
    table = tables.metrics_table(group)
    assert [row[0].text for row in table.rows] == ["CE", "TAL", *TITLES]
    tails = [row[list(table.frame.columns).index("A_Tail")].values["mean"] for row in table.rows]
    assert tails[2] == pytest.approx(100 * free.variants[0].spread("a_tail").mean)
    assert [row[1].text for row in tables.tasks_table(group).rows[:3]] == ["CE", "TAL", "SimpleCIL"]
    overview = tables.overview_table(load_study([full]))
    assert [row[1].text for row in overview.rows if row[4].text == "none"] == ["SimpleCIL"]
    assert ("SimpleCIL", "Accuracy") in tables.classes_table(group).frame.columns


def test_references_are_lines_of_the_plots(full):
    group = group_of(full)
    free = group.references[0].variant
    with style():
        plot = after_task(group, group.finished_variants())
        by_class = accuracy_by_class(group, group.finished_variants())
        tradeoff = group_tradeoff(group)
    lines = {line.get_label(): line for line in plot.figure.axes[0].lines}
    assert lines["SimpleCIL"].get_ydata() == pytest.approx(100 * free.mean_over_seeds("accuracy_after_task"))
    assert {*TITLES} <= lines.keys()
    assert "SimpleCIL" in {line.get_label() for line in by_class.figure.axes[1].lines}
    assert {"CE", "TAL", *TITLES} <= {line.get_label() for line in tradeoff.figure.axes[0].lines}


def test_references_are_on_the_terminal_and_shared_findings_once(full):
    out = StringIO()
    print_summary(load_study([full]), Console(file=out, width=160))
    first = out.getvalue().split("Demo-LT · ")[1]
    assert all(title in first for title in TITLES)
    assert out.getvalue().count("not the paper's benchmark") == 1


def test_joint_training_is_a_group_of_its_own(full):
    write_comparison(full, **(SMALL | {"task_sizes": (8,)}))
    assert group_of(full).references[1:] == group_of(full, tasks=1).references == []
    (lead,) = (finding for finding in headline(load_study([full])) if finding.kind != "none_reaches_reference")
    assert (lead.kind, lead.values["comparisons"]) == ("tail_changes", 2)


@pytest.mark.parametrize(("level", "groups"), [(0.3, [1]), (0.02, []), (-0.2, [])])
def test_headline_names_the_reference_that_no_loss_reaches(tmp_path, level, groups):
    """TAL is about 0.05 above CE; a reference between the two is reached."""
    write_comparison(tmp_path, **SMALL)
    write_comparison(tmp_path, method="simplecil", **SMALL, losses=((NO_LOSS, level),), epochs=None)
    study = load_study([tmp_path])
    found = [finding for finding in headline(study) if finding.kind == "none_reaches_reference"]
    assert [finding.values["groups"] for finding in found] == groups
    if found:
        ce, tal = (variant.spread("a_mean").mean for variant in group_of(tmp_path).variants)
        free = group_of(tmp_path, "simplecil").variants[0].spread("a_mean").mean
        assert found[0].values["level"] == pytest.approx(free)
        assert found[0].values["nearest"] == pytest.approx(max(ce, tal) - free)
        assert "SimpleCIL" in str(found[0])
        write_comparison(tmp_path, method="lae", **SMALL)
        several = headline(load_study([tmp_path]))[-1]
        assert (several.values["groups"], several.values["of"]) == (2, 2)


def test_headline_names_the_reference_with_a_single_loss(tmp_path):
    write_comparison(tmp_path, **SMALL, losses=(("ce", 0.0),))
    write_comparison(tmp_path, method="simplecil", **SMALL, losses=((NO_LOSS, 0.3),), epochs=None)
    kinds = [finding.kind for finding in headline(load_study([tmp_path]))]
    assert kinds == ["nothing_to_compare", "none_reaches_reference"]


@pytest.mark.parametrize("other", [
    {"task_sizes": (2, 2, 4)}, {"counts": [9] * 8}, {"dataset": "cub_lt"}, {"backbone": {"name": "other"}},
    {"backbone": {"weights": "random"}}, {"quick": True},
])  # fmt: skip
def test_references_have_the_same_data_tasks_and_vit(tmp_path, other):
    write_comparison(tmp_path, **SMALL)
    write_comparison(tmp_path, method="simplecil", **(SMALL | FREE | other))
    assert group_of(tmp_path).references == []


def test_training_free_method_of_two_fidelities_is_one_reference(tmp_path):
    write_comparison(tmp_path, **SMALL)
    write_comparison(tmp_path, method="simplecil", **(SMALL | FREE | {"fidelity": "fixed"}))
    (other,) = group_of(tmp_path).references
    assert other.variant.record.method.fidelity == "fixed"
    write_comparison(tmp_path, method="simplecil", **SMALL, **FREE)
    (same,) = group_of(tmp_path).references
    assert same.variant.record.method.fidelity == "pilot"


def test_training_free_method_has_no_references(full):
    write_comparison(full, method="simplecil", **(SMALL | FREE | {"task_sizes": (8,)}))
    assert group_of(full, "simplecil").references == []


def test_confusion_is_that_of_scikit_learn_over_all_seeds_and_orders(tmp_path):
    paths = write_comparison(tmp_path, losses=(("ce", 0),), **(SMALL | {"seeds": (1, 2, 3)}))
    (group,) = load_study(paths).groups
    expected = np.zeros((8, 8))
    for run in group.variants[0].runs.values():
        order = np.array(run.record.stream.class_order)
        true, pred = (order[labels] for labels in run.labels[-1])
        expected += confusion_matrix(true, pred, labels=range(8), normalize="true") / 3
    np.testing.assert_allclose(group.variants[0].confusion(), expected)
    pairs = group.variants[0].most_confused(5)
    wrong = expected - np.diag(np.diag(expected))
    assert [share for *_, share in pairs] == pytest.approx(sorted(wrong.ravel(), reverse=True)[:5])
    for true, pred, share in pairs:
        assert true != pred and share == pytest.approx(expected[true, pred])


def test_most_confused_pairs_are_named(tmp_path):
    write_comparison(tmp_path, **SMALL)
    group = group_of(tmp_path)
    table = tables.confused_table(group)
    (true, pred, share), *rest = group.variants[0].most_confused()
    assert len(rest) == 9 and len(table.rows) == 20
    counts = SMALL["counts"]
    shown = ["CE", f"class {true:03d}", f"class {pred:03d}", str(counts[true]), str(counts[pred]), f"{100 * share:.1f}"]
    assert [cell.text for cell in table.rows[0]] == shown


def test_no_confused_pairs_without_errors(tmp_path):
    write_run_directory(tmp_path, task_sizes=(1,), counts=[3], tests=2)
    (group,) = load_study([tmp_path]).groups
    assert group.variants[0].most_confused() == [] and tables.confused_table(group).rows == []


def test_tasks_table_has_the_metrics_after_each_task(tmp_path):
    write_comparison(tmp_path, **SMALL)
    group = group_of(tmp_path)
    table = tables.tasks_table(group)
    runs = group.variants[1].runs.values()
    for task, row in ((0, table.rows[1]), (1, table.rows[3])):
        assert [cell.text for cell in row[:2]] == [str(task + 1), "TAL"]
        for key, cell in zip(("accuracy", "tail", "old", "new"), row[2:], strict=True):
            values = [v for run in runs if (v := run.metrics[f"{key}_after_task"][task]) is not None]
            assert cell.values[""] == (pytest.approx(100 * np.mean(values)) if values else None)
    assert table.rows[0][4].text == "–"  # no old classes after the first task

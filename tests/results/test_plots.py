"""What the plots show: the data behind the drawn lines and images."""

import numpy as np
import pytest
from synthetic_runs import long_tailed_counts, write_comparison, write_run_directory

from pilot_tal.metrics import mean_interval
from pilot_tal.results.drawing import Plot, figure, style
from pilot_tal.results.grouping import load_study
from pilot_tal.results.plots import (
    accuracy_by_class,
    after_task,
    confusion,
    difference_by_class,
    group_tradeoff,
    precision_recall_by_task,
    prompts_picked,
    study_plots,
    tal_over_steps,
    task_matrix,
    training_curves,
)

SMALL = {"task_sizes": (4, 3, 3), "counts": long_tailed_counts(10, 30, 3), "tests": 5, "steps_a_task": 5}


@pytest.fixture
def group(tmp_path):
    write_comparison(tmp_path, losses_by_epoch=(2.0, 1.0, 0.5), **SMALL)
    (found,) = load_study([tmp_path]).groups
    return found


@pytest.fixture(autouse=True)
def look():
    with style():
        yield


def test_numbers_in_texts_are_not_cut():
    shown, (axes,) = figure(2)
    axes.plot([0, 1.23456789], [0.025, 0.075], label="lam=0.995")
    axes.set_title("init_lr=0.001875")
    axes.set_yticks([0.025, 0.075])
    axes.legend()
    svg = Plot("name", "title", "caption", shown).inline("p0")
    for text in ("lam=0.995", "init_lr=0.001875", ">0.025<", ">0.075<"):
        assert text in svg


@pytest.mark.parametrize(("panel", "name", "metric"), [
    (0, "all classes", "accuracy_after_task"), (1, "tail so far", "tail_after_task"),
    (2, "old classes", "old_after_task"), (3, "new classes", "new_after_task"),
])  # fmt: skip
def test_each_panel_over_tasks_shows_the_metric_that_it_names(group, panel, name, metric):
    axes = after_task(group, group.variants).figure.axes[panel]
    assert axes.get_ylabel() == f"{name}, %"
    for line, variant in zip(axes.lines[::3], group.variants, strict=True):  # each line has two caps
        values = [variant.runs[seed].metrics[metric] for seed in variant.seeds]
        expected = 100 * np.array(values, dtype=float).mean(axis=0)
        np.testing.assert_allclose(line.get_ydata(), expected)
    old, new = (group.variants[0].mean_over_seeds(f"{part}_after_task") for part in ("old", "new"))
    assert np.isnan(old[0]) and abs(old[1:] - new[1:]).max() > 0.01, "old and new classes differ"


def test_task_matrix_has_after_task_as_rows(group):
    matrix = group.variants[0].mean_over_seeds("task_matrix")
    texts = {text.get_position(): text.get_text() for text in task_matrix(group.variants[0]).figure.axes[0].texts}
    assert len(texts) == 6
    assert texts[0.5, 2.5] == f"{100 * matrix[2, 0]:.0f}" and (2.5, 0.5) not in texts


def test_precision_minus_recall_is_a_mean_over_the_classes_of_a_task(group):
    lines = precision_recall_by_task(group, group.variants).figure.axes[0].lines
    for line, variant in zip(lines, group.variants, strict=False):  # then the line at 0
        expected = []
        for first, stop in ((0, 4), (4, 7), (7, 10)):
            gaps = []
            for run in variant.runs.values():
                per_class = run.metrics["per_class"]
                pairs = zip(per_class["precision"][first:stop], per_class["accuracy"][first:stop], strict=True)
                known = [precision - recall for precision, recall in pairs if precision is not None]
                gaps.append(sum(known) / len(known))
            expected.append(100 * sum(gaps) / len(gaps))
        assert line.get_ydata().tolist() == pytest.approx(expected)


def test_accuracy_by_class_is_sorted_by_training_images(group):
    counts, accuracy = accuracy_by_class(group, group.variants).figure.axes
    assert counts.patches[0].get_data().values.tolist() == sorted(SMALL["counts"], reverse=True)
    classes = group.classes()
    expected = 100 * group.variants[0].by_class("accuracy")[classes.order]
    np.testing.assert_allclose(accuracy.lines[0].get_ydata(), expected)


def test_difference_by_class_shows_the_paired_differences(group):
    plot = difference_by_class(group, group.variants[1])
    expected = 100 * group.class_differences(group.variants[1])[group.classes().order]
    np.testing.assert_allclose(plot.figure.axes[0].patches[-1].get_data().values, expected)


def test_tradeoff_has_a_mean_across_and_a_tail_along_with_intervals(group):
    axes = group_tradeoff(group).figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("A_Mean, %", "A_Tail, %")
    lines = {line.get_label(): line for line in axes.lines}
    for variant in group.variants:
        x, y = (100 * variant.spread(key).mean for key in ("a_mean", "a_tail"))
        assert (lines[variant.label].get_xdata()[0], lines[variant.label].get_ydata()[0]) == pytest.approx((x, y))
    bar = mean_interval(list(group.variants[0].values("a_mean").values()))
    assert axes.lines[0].get_xdata() == pytest.approx([100 * bar.low, 100 * bar.high])


def test_overview_compares_methods_and_losses(tmp_path):
    for method in ("l2p", "lae"):
        write_comparison(tmp_path, method=method, **SMALL)
    study = load_study([tmp_path])
    plots = {plot.name: plot for plot in study_plots(study)}
    assert set(plots) == {"tradeoff-1", "changes-a-tail", "changes-a-mean"}
    labels = {line.get_label() for line in plots["tradeoff-1"].figure.axes[0].lines}
    assert {"CE", "TAL", "L2P", "LAE"} <= labels
    dots = [line.get_xdata()[0] for line in plots["changes-a-tail"].figure.axes[0].lines if line.get_marker() == "o"]
    expected = [100 * g.difference(g.variants[1], "a_tail").mean for g in study.groups]
    assert dots == pytest.approx(expected)


def test_long_class_names_keep_their_ends(tmp_path):
    names = [f"a very long species name {i}" for i in range(4)]
    write_run_directory(tmp_path, task_sizes=(4,), counts=[4, 3, 2, 1], tests=2, class_names=names)
    (group,) = load_study([tmp_path]).groups
    axes = confusion(group, group.variants[0]).figure.axes[0]
    ticks = [tick.get_text() for tick in axes.get_yticklabels()]
    assert len(set(ticks)) == 4 and max(map(len, ticks)) == 18


@pytest.mark.parametrize(("classes", "named"), [(30, True), (31, False)])
def test_confusion_matrix_names_up_to_30_classes(tmp_path, classes, named):
    write_run_directory(tmp_path, task_sizes=(classes,), counts=list(range(classes, 0, -1)), tests=3)
    (group,) = load_study([tmp_path]).groups
    shown = confusion(group, group.variants[0]).figure
    shown.draw_without_rendering()
    axes, bar = shown.axes
    ticks = [tick.get_text() for tick in axes.get_yticklabels()]
    assert (ticks == group.classes().names) == named
    assert named or all(tick.strip("−").isdigit() for tick in ticks)
    assert "%" in bar.get_ylabel()
    order = group.classes().order
    expected = 100 * group.variants[0].confusion()[np.ix_(order, order)]
    np.testing.assert_allclose(axes.images[0].get_array(), expected)


def test_training_loss_is_drawn_per_epoch_and_task(group):
    (plot,) = training_curves(group.variants)
    lines = [line for line in plot.figure.axes[0].lines if len(line.get_xdata()) == 3]
    assert [line.get_ydata().tolist() for line in lines] == [[2.0, 1.0, 0.5]] * 6
    assert [line.get_xdata().tolist() for line in lines[:3]] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_no_training_loss_without_a_log(tmp_path):
    write_run_directory(tmp_path, **SMALL)
    assert list(training_curves(load_study([tmp_path]).groups[0].variants)) == []


def weights_drawn(tmp_path, steps_a_task):
    """The axes of α·w in the one plot of a run with TAL."""
    write_run_directory(tmp_path, loss="tal", steps_a_task=steps_a_task)
    (plot,) = tal_over_steps(load_study([tmp_path]).groups[0].variants)
    return plot.figure.axes[1]


def test_alpha_w_of_1_is_visible_when_it_was_not_reached(tmp_path):
    weights = weights_drawn(tmp_path, steps_a_task=5)
    low, high = weights.get_ylim()
    curves = [line.get_ydata() for line in weights.lines if len(line.get_ydata()) == 5]
    assert low == 0 and high > 1 and len(curves) == 2 * 5 and max(map(max, curves)) < 0.1


@pytest.mark.parametrize(("steps", "marker"), [(1, "o"), (5, "None")])
def test_task_of_one_step_shows_as_a_point(tmp_path, steps, marker):
    curves = [line for line in weights_drawn(tmp_path, steps).lines if line.get_linestyle() in "---"]
    markers = {line.get_marker() for line in curves if len(line.get_ydata()) == steps and line.get_markersize() == 3}
    assert markers == {marker}


def test_training_accuracy_is_beside_the_test_accuracy_on_the_new_classes(tmp_path):
    write_comparison(tmp_path, losses_by_epoch=(2.0, 1.0), accuracies_by_epoch=(0.25, 0.75), **SMALL)
    (group,) = load_study([tmp_path]).groups
    (plot,) = training_curves(group.variants)
    _, below = plot.figure.axes
    curves = [line for line in below.lines if line.get_marker() != "D" and line.get_linestyle() != ":"]
    assert [line.get_ydata().tolist() for line in curves] == [[25, 75]] * 6, "two variants, three tasks"
    diamonds = [line for line in below.lines if line.get_marker() == "D"]
    for line, variant in zip(diamonds, group.variants, strict=True):
        assert line.get_xdata().tolist() == [2, 4, 6], "at the end of each task"
        np.testing.assert_allclose(line.get_ydata(), 100 * variant.mean_over_seeds("new_after_task"))


PICKS = [(10, [10, 10, 0, 0]), (10, [10, 9, 1, 0]), (20, [20, 1, 19, 0])]


@pytest.mark.parametrize("fidelity", ["pilot", "fixed"])
def test_prompt_usage_is_the_share_of_the_images_of_each_task(tmp_path, fidelity):
    write_comparison(tmp_path, losses=[("ce", 0)], prompts=PICKS, fidelity=fidelity, **SMALL)
    (group,) = load_study([tmp_path]).groups
    (plot,) = prompts_picked(group, group.variants)
    shares = plot.figure.axes[0].images[0].get_array()
    assert shares.tolist() == [[100, 100, 0, 0], [100, 90, 10, 0], [100, 5, 95, 0]]
    assert "3, 3, 3 of 4 prompts make up 90 %" in plot.caption and "would be 2 if" in plot.caption
    assert ("by vote" in plot.caption) == (fidelity == "pilot")


def test_variants_that_pick_the_same_prompts_share_a_plot(tmp_path):
    write_comparison(tmp_path, losses=[("ce", 0), ("tal", 2)], prompts=PICKS, **SMALL)
    (group,) = load_study([tmp_path]).groups
    (plot,) = prompts_picked(group, group.variants)
    assert plot.title == "Prompts picked: CE, TAL"


def test_prompt_usage_needs_a_log(group):
    assert list(prompts_picked(group, group.variants)) == []

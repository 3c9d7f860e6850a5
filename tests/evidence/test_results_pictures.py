"""The pictures of the results show what the tables say."""

import numpy as np
import pytest
from figures_results import ablation, options_of, over_classes, over_steps, over_tasks, overview
from made_up import SEEDS, everything, run, write
from results_page import Evidence

from pilot_tal.results.svg import style


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    return Evidence(everything(tmp_path_factory.mktemp("results")))


def drawn(draw, evidence):
    with style():
        return draw(evidence)


def test_the_overview_has_every_cell_and_the_pooled_row(evidence):
    shown, caption = drawn(overview, evidence)
    tail, mean = shown.axes
    labels = [label.get_text() for label in tail.get_yticklabels()]
    methods = ["L2P", "DualPrompt", "CODA-Prompt", "LAE", "MOS"]
    assert labels == ["CUB-LT (4)", *methods, "Flowers-LT (4)", "LAE", "MOS", "Pets-LT (4)", "LAE", "MOS", "Pooled"]
    for axes, metric in ((tail, "a_tail"), (mean, "a_mean")):
        marks = {round(line.get_ydata()[0], 2): line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 1}
        assert marks[4 - 0.24] == pytest.approx(evidence.difference(metric, "tal", study="cub", method="lae").mean)
        assert marks[12.24] == pytest.approx(evidence.pooled(metric, "balanced_softmax")[0].mean)
        assert len(marks) == 9 + 9 + 3 + 3  # TAL and TAL-auto in nine cells, balanced softmax in three, pooled
        bars = {
            round(line.get_ydata()[0], 2): tuple(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2
        }
        found = evidence.difference(metric, "tal_auto", study="pets", method="mos")
        assert bars[11.0] == pytest.approx((found.low, found.high))
    titles = [text.get_text() for text in shown.legends[0].get_texts()]
    assert titles == ["TAL", "TAL-auto", "Balanced softmax"] and "95 % intervals" in caption


def test_accuracy_over_tasks_is_the_mean_over_seeds(evidence):
    shown, _ = drawn(over_tasks, evidence)
    table = evidence.table("tasks")
    own = table[(table.study == "cub") & (table.method == "l2p") & (table.loss == "tal")]
    line = shown.axes[0].containers[1].lines[0]
    assert list(line.get_ydata()) == pytest.approx([100 * own[own.task == t].accuracy.mean() for t in range(1, 6)])
    assert sum(axes.get_visible() for axes in shown.axes) == 9


def test_classes_are_dots_at_their_training_images(tmp_path):
    key = {"study": "pets", "method": "lae", "options": "", "engine": "native", "seed": 1993}
    found = {  # training images, then recall and precision of one run and of another
        "ce": {0: (40, (0.9, 0.8), (0.7, 0.6)), 1: (2, (0.0, ""), (0.2, 0.5)), 2: (10, (0.0, ""), (0.0, ""))},
        "tal": {label: (images, (0.5, 0.1), (0.5, 0.5)) for label, images in ((0, 40), (1, 2), (2, 10))},
    }
    rows = [
        {**key, "loss": loss, "seed": seed, "label": label, "images": images, "recall": both[0], "precision": both[1]}
        for loss, classes in found.items()
        for label, (images, *runs) in classes.items()
        for seed, both in zip(SEEDS, runs, strict=False)
    ]
    shown, _ = drawn(
        over_classes, Evidence(write(tmp_path, runs=[run("pets", "lae", "ce", 1, tail=0, mean=0)], classes=rows))
    )
    recall, precision = (np.asarray(axes.collections[0].get_offsets()) for axes in shown.axes[:2])
    assert recall == pytest.approx(np.array([(2, 10), (10, 0), (40, 80)]))
    assert precision == pytest.approx(np.array([(2, 50), (40, 70)]))  # a class that is never predicted has none
    tal = np.asarray(shown.axes[1].collections[1].get_offsets())
    assert tal == pytest.approx(np.array([(2, 50), (40, 30)]))  # nor with TAL where CE does not predict it


def test_states_part_head_from_tail(evidence):
    shown, caption = drawn(over_steps, evidence)
    table = evidence.table("states")
    sizes = table.groupby("label").images.first().sort_values(kind="stable")
    tail = set(sizes.index[:20])
    last = table[(table.task == 1) & (table.step == 160)]
    head_line, *_ = [line for line in shown.axes[1].lines if line.get_label() == "head classes"]
    assert head_line.get_ydata()[-1] == pytest.approx(last[~last.label.isin(tail)].weight.mean())
    assert "TAL, LAE on CUB-LT (4), seed 1993" in caption and "5 tasks" in caption
    ends = [line.get_xdata()[0] for line in shown.axes[0].lines if line.get_linestyle() == ":"]
    assert ends == [160, 320, 480, 640]


def test_the_heat_map_writes_each_change_at_its_place_and_stars_what_is_sure(tmp_path):
    rows = [run("ablation", "lae", "ce", seed, tail=0.4, mean=0.6) for seed in SEEDS]
    gains = {"": (1, 1.1, 0.9), "lam=0.9": (-2, -2, -2), "r=2.0": (5, -5, 3), "lam=0.9;r=2.0": (0, 0, 0)}
    for options, values in {**gains, "lam=0.9;start=steady": (70, 70, 70)}.items():
        for seed, gain in zip(SEEDS, values, strict=True):
            rows.append(run("ablation", "lae", "tal", seed, tail=0.4, mean=0.6 + gain / 100, options=options))
    shown, caption = drawn(ablation, Evidence(write(tmp_path, runs=rows)))
    cells = {tuple(text.get_position()): text.get_text() for text in shown.axes[0].texts}
    # From above λ = 0.9 and 0.995, from the left r = 1 and 2.
    assert cells == {(0.5, 0.5): "−2.0*", (0.5, 1.5): "+1.0*", (1.5, 0.5): "0.0", (1.5, 1.5): "+1.0"}
    assert "LAE on the demo" in caption and "3 seeds" in caption


def test_options_that_are_not_named_are_the_losss_own():
    assert options_of("") == {"lam": 0.995, "r": 1.0} and options_of("r=0.5") == {"lam": 0.995, "r": 0.5}
    assert options_of("lam=0.9;r=2") == {"lam": 0.9, "r": 2.0}
    assert options_of("lam=auto") == options_of("lam=0.9;start=steady") == {}


def test_nothing_is_drawn_of_nothing(tmp_path):
    evidence = Evidence(write(tmp_path, runs=[run("cub", "lae", "ce", 1993, tail=0.4, mean=0.5)]))
    assert [drawn(draw, evidence) for draw in (overview, over_tasks, over_classes, over_steps, ablation)] == [None] * 5

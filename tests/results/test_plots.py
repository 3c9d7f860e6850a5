"""What the plots show."""

import pytest
from synthetic_runs import write_run_directory

from pilot_tal.results import plots_tal
from pilot_tal.results.grouping import load_study
from pilot_tal.results.svg import figure, style, to_svg


def test_numbers_in_texts_are_not_cut():
    with style():
        shown, (axes,) = figure(2)
        axes.plot([0, 1.23456789], [0.025, 0.075], label="lam=0.995")
        axes.set_title("init_lr=0.001875")
        axes.set_yticks([0.025, 0.075])
        axes.legend()
        svg = to_svg(shown)
    for text in ("lam=0.995", "init_lr=0.001875", ">0.025<", ">0.075<"):
        assert text in svg


def weights_drawn(tmp_path, monkeypatch, steps_a_task):
    """The axes of α·w in the one plot of a run with TAL."""
    write_run_directory(tmp_path, loss="tal", steps_a_task=steps_a_task)
    drawn = []
    monkeypatch.setattr(plots_tal, "to_svg", lambda shown: drawn.append(shown) or "<svg/>")
    (setting,) = load_study([tmp_path]).finished
    list(plots_tal.tal_over_steps(setting.finished_variants()))
    (shown,) = drawn
    return shown.axes[1]


def test_the_line_of_calibration_is_in_sight_when_it_was_not_reached(tmp_path, monkeypatch):
    weights = weights_drawn(tmp_path, monkeypatch, steps_a_task=5)
    low, high = weights.get_ylim()
    assert low == 0 and high > 1 and max(line.get_ydata()[-2] for line in weights.lines[:2]) < 0.1


@pytest.mark.parametrize(("steps", "marked"), [(1, True), (5, False)])
def test_a_task_of_one_step_shows_as_a_point(tmp_path, monkeypatch, steps, marked):
    for line in weights_drawn(tmp_path, monkeypatch, steps).lines[:2]:
        places = [place for place, value in enumerate(line.get_ydata()) if value == value]
        assert line.get_markevery() == (places if marked else []) and line.get_marker() == "o"

"""Several values of a loss's options: the grid, its best cell, and what single variants stand for it."""

import itertools

import pytest
from synthetic_runs import long_tailed_counts, write_comparison, write_run_directory

from pilot_tal.results import build_report, plots_ablation, tables
from pilot_tal.results.ablation import featured_variants, grids
from pilot_tal.results.formats import to_csv
from pilot_tal.results.grouping import load_study
from pilot_tal.results.plots_ablation import ablation_plots
from pilot_tal.results.svg import style

SMALL = {"task_sizes": (4, 4), "counts": long_tailed_counts(8, 30, 3), "tests": 5, "steps_a_task": 5, "seeds": (1, 2)}
DEFAULTS = {"lam": 0.995, "r": 1.0, "start": "zero", "update": "plain"}


def write_grid(root, **varied):
    """CE, and TAL with every combination of the options given."""
    write_comparison(root, losses=(("ce", 0),), **SMALL)
    for number, values in enumerate(itertools.product(*varied.values())):
        given = dict(zip(varied, values, strict=True))
        changed = {key: [value, DEFAULTS[key]] for key, value in given.items() if value != DEFAULTS[key]}
        gain = ((("tal", 0.1 * number)),)
        write_comparison(root, losses=gain, options=DEFAULTS | given, changed=changed, **SMALL)
    (setting,) = load_study([root]).groups
    return setting


def drawn(setting):
    with style():
        return list(ablation_plots(setting))


def test_no_options_no_grid(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0), ("tal", 0), ("focal", 0)), **SMALL)
    (setting,) = load_study([tmp_path]).groups
    assert grids(setting) == [] and tables.ablation_table(setting) is None and drawn(setting) == []
    assert featured_variants(setting) == setting.finished_variants()


def test_two_options_make_a_heat_map_for_each_metric(tmp_path):
    setting = write_grid(tmp_path, lam=(0.9, 0.99, 0.995), r=(1.0, 0.5))
    (grid,) = grids(setting)
    assert grid.values == {"r": ["0.5", "1.0"], "lam": ["0.9", "0.99", "0.995"]}
    ((name, plane),) = grid.planes()
    assert name == "" and [[variant.own_options_label for variant in row] for row in plane] == [
        [f"lam={lam}, r={r}" for r in ("0.5", "1.0")] for lam in ("0.9", "0.99", "0.995")
    ]
    plots = drawn(setting)
    assert [plot.title for plot in plots] == ["A_Mean of TAL over r × lam", "A_Tail of TAL over r × lam"]
    for plot, metric in zip(plots, ("a_mean", "a_tail"), strict=True):
        best = max(grid.variants, key=lambda variant: variant.spread(metric).mean)
        assert grid.best(metric) is best
        assert f"Framed: the highest of 6 ({plot.title[:6]} {100 * best.spread(metric).mean:.1f}" in plot.caption
        assert f"with {best.own_options_label}). It was chosen after the fact" in plot.caption
        for variant in grid.variants:
            assert f">{100 * variant.spread(metric).mean:.1f}<" in plot.svg


def test_a_cell_shows_level_change_and_interval(tmp_path):
    setting = write_grid(tmp_path, lam=(0.9, 0.995), r=(0.5, 1.0))
    variant = grids(setting)[0].variants[0]
    level, change, interval = plots_ablation._cell_text(setting, variant, "a_tail", 2).split("\n")
    found = setting.difference(variant, "a_tail")
    assert level == f"{100 * variant.spread('a_tail').mean:.1f}"
    shown = [f"{100 * value:+.1f}".replace("-", "−") for value in (found.mean, found.low, found.high)]
    assert [change, *interval.split(" to ")] == [text if float(text[1:]) else "0.0" for text in shown]
    assert plots_ablation._cell_text(setting, variant, "a_tail", 5).count("\n") == 1
    assert plots_ablation._cell_text(setting, None, "a_tail", 2) == ""


def test_missing_cells_stay_empty(tmp_path):
    write_grid(tmp_path, lam=(0.9, 0.995), r=(0.5,))
    setting = write_grid(tmp_path, lam=(0.995,), r=(1.0,))
    ((_, plane),) = grids(setting)[0].planes()
    assert [[variant is None for variant in row] for row in plane] == [[False, False], [True, False]]
    assert build_report([tmp_path], tmp_path / "report").is_file()


def test_a_third_option_gives_a_plane_each(tmp_path):
    setting = write_grid(tmp_path, start=("zero", "steady"), r=(0.5, 1.0), lam=(0.9, 0.99, 0.995))
    planes = grids(setting)[0].planes()
    assert [name for name, _ in planes] == ["r=0.5", "r=1.0"]
    plots = drawn(setting)
    assert len(plots) == len({plot.name for plot in plots}) == 4
    assert [plot.title for plot in plots][:2] == [f"A_Mean of TAL over start × lam (r={r})" for r in ("0.5", "1.0")]


def test_options_varied_one_at_a_time_draw_no_empty_plane(tmp_path):
    write_grid(tmp_path, lam=(0.9, 0.995), r=(1.0,), start=("zero",), update=("plain",))
    write_grid(tmp_path, lam=(0.995,), r=(0.5,), start=("zero",), update=("plain",))
    write_grid(tmp_path, lam=(0.995,), r=(1.0,), start=("steady",), update=("plain",))
    setting = write_grid(tmp_path, lam=(0.995,), r=(1.0,), start=("zero",), update=("normalized",))
    (grid,) = grids(setting)
    assert len(grid.values) == 4
    planes = grid.planes()
    assert 0 < len(planes) < 4 and all(any(variant for row in plane for variant in row) for _, plane in planes)


def test_one_option_makes_a_curve(tmp_path):
    setting = write_grid(tmp_path, lam=(0.995, 0.99, 0.9))
    (plot,) = drawn(setting)
    (grid,) = grids(setting)
    assert [variant.own_options_label for variant in grid.curve()] == ["lam=0.9", "lam=0.99", "lam=0.995"]
    assert plot.title == "TAL over lam" and "Ringed: the highest of 3" in plot.caption


def test_options_in_words_stand_behind_numbers(tmp_path):
    setting = write_grid(tmp_path, lam=("auto", 0.9, 0.99))
    assert grids(setting)[0].values == {"lam": ["0.9", "0.99", "auto"]}


def test_the_table_holds_every_cell_and_bold_is_the_best_of_a_grid(tmp_path):
    setting = write_grid(tmp_path, lam=(0.9, 0.99), r=(0.5, 1.0))
    table = tables.ablation_table(setting)
    (grid,) = grids(setting)
    assert [[cell.text for cell in row[:4]] for row in table.rows] == [
        ["TAL", lam, r, "2"] for lam in ("0.9", "0.99") for r in ("0.5", "1.0")
    ]
    for column, metric in ((4, "a_mean"), (5, "a_tail")):
        assert [row[column].best for row in table.rows] == [variant is grid.best(metric) for variant in grid.variants]
    assert "chosen after the fact" in table.title and to_csv(table).count("\n") == 5


@pytest.mark.parametrize(("lams", "expected"), [
    ((0.9, 0.91, 0.92, 0.93, 0.994, 0.995), ["CE", "TAL (lam=0.995)"]),
    ((0.9, 0.91, 0.92, 0.93, 0.94, 0.95), ["CE", "TAL (lam=0.9)"]),
])  # fmt: skip
def test_of_a_large_grid_single_plots_show_the_default(tmp_path, lams, expected):
    setting = write_grid(tmp_path, lam=lams)
    assert [variant.label for variant in featured_variants(setting)] == expected
    page = build_report([tmp_path], tmp_path / "report").read_text(encoding="utf-8")
    assert f"show {', '.join(expected)}; the tables show 5 more" in page
    assert page.count('<div class="tiles">') == 1


def test_engines_and_conditions_are_grids_of_their_own(tmp_path):
    write_grid(tmp_path, lam=(0.9, 0.995))
    for lam in (0.9, 0.995):
        write_run_directory(tmp_path, loss="tal", engine="lamda-pilot", options=DEFAULTS | {"lam": lam},
                            **{key: value for key, value in SMALL.items() if key != "seeds"})  # fmt: skip
    (setting,) = load_study([tmp_path]).groups
    assert [{variant.engine for variant in grid.variants} for grid in grids(setting)] == [{"native"}, {"lamda-pilot"}]
    plots = [plot.name for plot in drawn(setting)]
    assert len(plots) == len(set(plots)) == 2

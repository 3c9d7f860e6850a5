"""Several values of a loss's options: the grid, its table and plots, and the variants that represent it."""

import itertools

import pytest
from synthetic_runs import long_tailed_counts, write_comparison, write_run_directory

from pilot_tal.results import build_report, tables
from pilot_tal.results.drawing import style
from pilot_tal.results.grouping import load_study
from pilot_tal.results.groups import winner
from pilot_tal.results.options import featured_variants, grids, option
from pilot_tal.results.plots_overview import options_plots

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
    (group,) = load_study([root]).groups
    return group


def drawn(group):
    with style():
        return list(options_plots(group))


def test_variants_of_different_losses_are_no_grid(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0), ("tal", 0), ("focal", 0)), **SMALL)
    (group,) = load_study([tmp_path]).groups
    assert grids(group) == [] and tables.options_table(group) is None and drawn(group) == []
    assert featured_variants(group) == group.finished_variants()


def test_two_options_are_in_the_table_only(tmp_path):
    group = write_grid(tmp_path, lam=(0.9, 0.99, 0.995), r=(1.0, 0.5))
    (grid,) = grids(group)
    assert grid.options == ["lam", "r"]
    labels = [variant.own_options_label for variant in grid.variants]
    assert labels == [f"lam={lam}, r={r}" for lam in (0.9, 0.99, 0.995) for r in (0.5, 1.0)]
    assert drawn(group) == [] and len(tables.options_table(group).rows) == 6


def test_one_option_makes_a_curve(tmp_path):
    group = write_grid(tmp_path, lam=(0.995, 0.99, 0.9))
    (plot,) = drawn(group)
    (grid,) = grids(group)
    expected = {option(variant, "lam"): 100 * variant.spread("a_tail").mean for variant in grid.variants}
    axes = plot.figure.axes[1]
    assert axes.lines[0].get_ydata() == pytest.approx([expected[lam] for lam in ("0.9", "0.99", "0.995")])
    bars = [segment[:, 1] for segment in axes.collections[0].get_segments()]
    differences = [group.difference(variant, "a_tail") for variant in grid.variants]
    assert [high - low for low, high in bars] == pytest.approx([100 * (d.high - d.low) for d in differences])


def test_option_values_are_sorted_numbers_before_words(tmp_path):
    group = write_grid(tmp_path, lam=("auto", 10, 0.9, 9))
    assert [option(variant, "lam") for variant in grids(group)[0].variants] == ["0.9", "9", "10", "auto"]


def test_table_holds_every_variant_of_a_grid(tmp_path):
    group = write_grid(tmp_path, lam=(0.9, 0.99), r=(0.5, 1.0))
    table = tables.options_table(group)
    assert [[cell.text for cell in row[:4]] for row in table.rows] == [
        ["TAL", lam, r, "2"] for lam in ("0.9", "0.99") for r in ("0.5", "1.0")
    ]
    for column, metric in ((4, "a_mean"), (5, "a_tail")):
        best = winner(group.variants[1:], metric)
        assert [row[column].bold for row in table.rows] == [variant is best for variant in group.variants[1:]]


@pytest.mark.parametrize(("lams", "expected"), [
    ((0.9, 0.91, 0.92, 0.93, 0.994, 0.995), ["CE", "TAL (lam=0.995)"]),
    ((0.9, 0.91, 0.92, 0.93, 0.94, 0.95), ["CE", "TAL (lam=0.9)"]),
])  # fmt: skip
def test_plots_show_one_variant_of_a_large_grid(tmp_path, lams, expected):
    group = write_grid(tmp_path, lam=lams)
    assert [variant.label for variant in featured_variants(group)] == expected
    page = build_report([tmp_path], tmp_path / "report").read_text(encoding="utf-8")
    assert page.count('<div class="tiles">') == 1


def test_engines_and_conditions_are_grids_of_their_own(tmp_path):
    write_grid(tmp_path, lam=(0.9, 0.995))
    for lam in (0.9, 0.995):
        write_run_directory(tmp_path, loss="tal", engine="lamda-pilot", options=DEFAULTS | {"lam": lam},
                            **{key: value for key, value in SMALL.items() if key != "seeds"})  # fmt: skip
    (group,) = load_study([tmp_path]).groups
    assert [{variant.engine for variant in grid.variants} for grid in grids(group)] == [{"native"}, {"lamda-pilot"}]
    plots = [plot.name for plot in drawn(group)]
    assert len(plots) == len(set(plots)) == 2

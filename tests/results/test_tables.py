"""Tables: their numbers, what is bold, their conditions, and their three formats."""

import csv
import io
from io import StringIO

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console
from sklearn.metrics import recall_score
from synthetic_runs import SEEDS, long_tailed_counts, write_comparison, write_run_directory

from pilot_tal.record.run_dir import load_run
from pilot_tal.results import print_summary, tables
from pilot_tal.results.formats import Cell, Table, clean, latex, make_frame, points
from pilot_tal.results.grouping import load_study
from pilot_tal.results.study import winner
from pilot_tal.results.tables import caption, conditions, paper_table

FULL_CUB = {"dataset": "cub_lt", "counts": long_tailed_counts(200, 40, 2), "tests": 2, "steps_a_task": 3}
SMALL = {"task_sizes": (4, 4), "counts": long_tailed_counts(8, 30, 3), "tests": 5, "steps_a_task": 2}


def rows(table):
    return list(csv.DictReader(io.StringIO(table.to_csv())))


def assign(variant, metric, values):
    for seed, value in zip(variant.seeds, values, strict=True):
        variant.runs[seed].metrics[metric] = value


def test_csv_holds_the_unrounded_numbers_of_the_predictions(demo_runs):
    (ce, tal) = rows(tables.overview_table(load_study([demo_runs])))
    expected = {}
    for loss in ("ce", "tal"):
        for path in demo_runs.glob(f"*-{loss}-*"):
            run = load_run(path)
            recall = recall_score(*run.labels[-1], average=None)
            smallest = np.lexsort((run.record.stream.class_order, run.record.stream.train_counts))[:25]
            expected.setdefault(loss, []).append((recall.mean(), recall[smallest].mean()))
    for row, loss in ((ce, "ce"), (tal, "tal")):
        means, deviations = np.mean(expected[loss], axis=0), np.std(expected[loss], axis=0, ddof=1)
        assert float(row["A_Mean mean"]) == pytest.approx(100 * means[0], rel=1e-12)
        assert float(row["A_Tail mean"]) == pytest.approx(100 * means[1], rel=1e-12)
        assert float(row["A_Tail std"]) == pytest.approx(100 * deviations[1], rel=1e-9)
    change = float(tal["Change of A_Tail (95 % interval) mean"])
    assert change == pytest.approx(float(tal["A_Tail mean"]) - float(ce["A_Tail mean"]))
    assert ce["Change of A_Tail (95 % interval) mean"] == ""
    assert float(tal["Change of A_Tail (95 % interval) seeds"]) == 3


def test_bold_needs_an_interval_against_the_runner_up_that_excludes_0(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0), ("tal", 0), ("focal", 0)), **SMALL)
    (group,) = load_study([tmp_path]).groups
    ce, tal, focal = group.variants
    assign(ce, "a_tail", (0.1, 0.1, 0.1))
    assign(focal, "a_tail", (0.50, 0.60, 0.55))
    for lead, expected in (((0.02, 0.03, 0.04), tal), ((0.02, -0.03, 0.04), None), ((0.0, 0.0, 0.0), None)):
        assign(tal, "a_tail", [value + more for value, more in zip((0.50, 0.60, 0.55), lead, strict=True)])
        assert winner(group.variants, "a_tail") is expected
        table = tables.metrics_table(group)
        column = list(table.frame.columns).index("A_Tail")
        assert [row[0].text for row in table.rows if row[column].bold] == (["TAL"] if expected else [])
    for variant, values in zip(group.variants, ((0.1, 0.2, 0.3), (0.05, 0.14, 0.23), (0.5, 0.5, 0.5)), strict=True):
        assign(variant, "forgetting", values)
    assert winner(group.variants, "forgetting") is tal, "lower is better"
    assert winner([variant.only([SEEDS[0]]) for variant in group.variants], "a_tail") is None, "one seed"


def test_a_last_is_left_out_where_it_equals_a_mean(tmp_path):
    write_comparison(tmp_path / "even", **SMALL)
    write_comparison(tmp_path / "uneven", **(SMALL | {"tests": [1, 2, 3, 4, 5, 6, 7, 8]}))
    for name, shown in (("even", False), ("uneven", True)):
        study = load_study([tmp_path / name])
        for table in (
            tables.overview_table(study),
            *(f(study.groups[0]) for f in (tables.metrics_table, tables.changes_table)),
        ):
            assert ("A_Last" in table.frame.columns) == shown
        assert "wAvg" in tables.metrics_table(study.groups[0]).frame.columns


def test_conditions_are_complete_and_in_the_latex_caption(tmp_path):
    environment = {
        "pilot_tal": "1.2",
        "python": "3.11",
        "packages": {"torch": "2.9"},
        "device": "cpu",
        "images": "/my/birds",
    }
    settings = {"batch_size": 16, "optimizer": "adam", "init_lr": 0.002, "scheduler": "constant"}
    backbone = {"img_size": 160, "precision": "bf16", "checksum": "ab" * 32}
    options = {"environment": (environment,), "settings": settings, "backbone": backbone, "checksum": "cd" * 32}
    write_comparison(tmp_path, epochs=7, **SMALL, **options)
    study = load_study([tmp_path])
    found = conditions(study.groups)
    assert found["Backbone"].startswith("vit_base_patch16_224") and "abababababab" in found["Backbone"]
    expected = {
        "Image size": "160 pixels", "Normalisation": "none", "Epochs": "7", "Batch size": "16", "Optimizer": "adam",
        "Learning rate": "0.002, constant", "Tasks": "2 of 4 classes", "Class order": "shuffled", "Fidelity": "pilot",
        "Precision": "bf16", "Images": "/my/birds", "Data checksum": "cdcdcdcdcdcd", "Seeds": "1993, 1994, 1995",
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert all(text in found["Software"] for text in ("pilot_tal 1.2", "torch 2.9", "Python 3.11"))
    total = sum(SMALL["counts"])
    assert f"8 classes, {total} training images (30 to 3 per class), 40 test images" in found["Dataset"]
    text = tables.overview_table(study).to_latex()
    line = next(line for line in text.splitlines() if line.startswith(r"\caption"))
    assert latex(caption(study.groups)) in line and "Batch size: 16" in line and "/my/birds" not in line


def test_conditions_name_every_changed_setting(tmp_path):
    """Those with a row of their own once, options of the loss not at all."""
    changed = {"sampler": ["balanced", "natural"], "top_k": [3, 5], "tuned_epoch": [7, 20], "lam": [0.9, 0.995]}
    write_run_directory(tmp_path, epochs=7, loss="tal", options={"lam": 0.9}, changed=changed, **SMALL)
    found = conditions(load_study([tmp_path]).groups)
    assert found["Other settings"] == "sampler=balanced, top_k=3" and found["Epochs"] == "7"


def test_conditions_that_differ_are_listed(tmp_path):
    for epochs in (1, 2, 3, 4, 5, 6):
        write_run_directory(tmp_path, epochs=epochs, **SMALL)
    assert conditions(load_study([tmp_path]).groups)["Epochs"] == "1 / 2 / 3 / 4 / 2 more"


def test_all_numbers_of_the_paper_are_there():
    table = paper_table()
    assert len(table) == 5 * 3 * 2 * 2
    assert {key[0] for key in table} == {"l2p", "dualprompt", "coda_prompt", "lae", "mos"}
    assert {key[1:3] for key in table} == {(d, t) for d in ("cub_lt", "imagenetr_lt", "food101_lt") for t in (5, 10)}
    assert all(0 < n.a_tail < n.a_mean < 1 for n in table.values())
    # The paper's claim: TAL is higher in every cell, which a slip in copying would likely break.
    for (method, dataset, tasks, loss), numbers in table.items():
        if loss == "tal":
            base = table[method, dataset, tasks, "ce"]
            assert numbers.a_mean > base.a_mean and numbers.a_tail > base.a_tail
    sums = {
        loss: sum(100 * (n.a_mean + n.a_tail) for key, n in table.items() if key[3] == loss) for loss in ("ce", "tal")
    }
    assert sums == {"ce": pytest.approx(3304.56), "tal": pytest.approx(3498.56)}


def test_papers_numbers_are_beside_the_same_setting_only(tmp_path):
    write_comparison(tmp_path, seeds=(1, 2), task_sizes=(40,) * 5, **FULL_CUB)
    write_comparison(tmp_path, seeds=(1, 2), task_sizes=(40,) * 5, fidelity="fixed", **FULL_CUB)
    found = rows(tables.overview_table(load_study([tmp_path])))
    shown = {(row["Fidelity"], row["Loss"]): (row["Paper A_Mean"], row["Paper A_Tail"]) for row in found}
    assert shown["fixed", "CE"] == shown["fixed", "TAL"] == ("", "")
    assert [float(x) for x in shown["pilot", "CE"]] == pytest.approx([74.22, 57.20])
    assert [float(x) for x in shown["pilot", "TAL"]] == pytest.approx([75.91, 61.19])
    out = StringIO()
    print_summary([tmp_path], Console(file=out, width=140))
    assert out.getvalue().count("Paper A_Tail") == 1 and "75.9" in out.getvalue()


def test_layout_of_the_papers_table(tmp_path):
    for method, gain in (("l2p", 0.3), ("lae", -0.3)):
        for sizes in ((40,) * 5, (20,) * 10):
            losses = (("ce", 0), ("tal", gain))
            write_comparison(tmp_path, method=method, losses=losses, task_sizes=sizes, **FULL_CUB)
    study = load_study([tmp_path])
    table = tables.paper_layout_table(study)
    assert [row[0].text for row in table.rows] == ["L2P", "+ TAL", "LAE", "+ TAL"]
    assert list(table.frame.columns) == [
        ("Method", "", ""),
        *(("CUB-LT", tasks, metric) for tasks in ("5-task", "10-task") for metric in ("A_Mean", "A_Tail")),
    ]
    l2p, lae = study.groups[0], study.groups[2]
    for row, (group, place) in zip(table.rows, ((l2p, 0), (l2p, 1), (lae, 0), (lae, 1)), strict=True):
        for cell, key in ((row[1], "a_mean"), (row[2], "a_tail")):
            variant = group.variants[place]
            assert cell.values[""] == pytest.approx(100 * variant.spread(key).mean)
            assert cell.bold == (winner(group.variants, key) is variant)
    text = table.to_latex()
    assert r"\multicolumn{4}{c}{CUB-LT}" in text and r"\multicolumn{2}{c}{10-task}" in text
    assert r"$A_{\mathrm{Tail}}$" in text and r"\textbf{" in text and r"\toprule" in text


def test_loss_without_ce_is_named_with_its_method(tmp_path):
    small = {"counts": [9] * 4, "task_sizes": (2, 2), "tests": 2, "steps_a_task": 2, "seeds": (1,)}
    write_comparison(tmp_path, losses=(("tal", 0), ("focal", 0)), **small)
    write_comparison(tmp_path, fidelity="fixed", **small)
    table = tables.paper_layout_table(load_study([tmp_path]))
    assert [row[0].text for row in table.rows] == ["L2P (fixed)", "+ TAL", "L2P (pilot) + TAL", "L2P (pilot) + Focal"]


def test_settings_that_distinguish_methods_are_named(tmp_path):
    write_comparison(tmp_path, epochs=20, **SMALL)
    write_comparison(tmp_path, epochs=1, **SMALL)
    table = tables.paper_layout_table(load_study([tmp_path]))
    assert [row[0].text for row in table.rows] == ["L2P (epochs=1)", "+ TAL", "L2P (epochs=20)", "+ TAL"]


def test_classes_are_sorted_by_training_images_and_differences_are_signed(demo_runs):
    (group,) = load_study([demo_runs]).groups
    table = tables.classes_table(group)
    found = rows(table)
    counts = [int(row["Training images"]) for row in found]
    assert counts == sorted(counts, reverse=True) and len(found) == 50
    assert [row["Part"] for row in found] == ["head"] * 25 + ["tail"] * 25
    for row in found[::7]:
        expected = float(row["TAL Accuracy"]) - float(row["CE Accuracy"])
        assert float(row["TAL − CE Accuracy"]) == pytest.approx(expected, abs=1e-9)
    assert {row[-1].text[0] for row in table.rows if row[-1].text != "0.0"} == {"+", "−"}


def test_class_differences_use_the_shared_seeds_only(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0),), seeds=(1, 2), **SMALL)
    write_comparison(tmp_path, losses=(("tal", 0.2),), seeds=(1, 2, 3, 4), **SMALL)
    (group,) = load_study([tmp_path]).groups
    ce, tal = group.variants
    expected = np.zeros(8)
    for seed in (1, 2):
        for run, sign in ((tal.runs[seed], 1), (ce.runs[seed], -1)):
            for label, original in enumerate(run.record.stream.class_order):
                expected[original] += sign * run.metrics["per_class"]["accuracy"][label] / 2
    np.testing.assert_allclose(group.class_differences(tal), expected, atol=1e-12)
    everything = tal.by_class("accuracy") - ce.by_class("accuracy")
    assert np.abs(everything - expected).max() > 1e-3, "all seeds would give other numbers"


def test_columns_of_equal_names_are_distinguished(tmp_path):
    for sizes in ((4, 4), (5, 3), (3, 3)):
        write_comparison(tmp_path, seeds=(1,), task_sizes=sizes, counts=[9] * sum(sizes), tests=2, steps_a_task=2)
    columns = tables.paper_layout_table(load_study([tmp_path])).frame.columns
    assert {column[:2] for column in columns[1:]} == {
        ("Demo-LT", "2-task (4+4)"),
        ("Demo-LT", "2-task (5+3)"),
        ("Demo-LT", "2-task (3+3)"),
    }


SPECIAL = "\\{}[]()$&#_%~^<>|*`!+-.\"'\n\t &;:/=−±α·×…a1"
HOSTILE = (SPECIAL, "*a* _b_ `c` ~d~ [e](f) <g> &amp; \\| %h $i$ #j", "\\input{k} \\\\ ^^M")
names = st.text(st.sampled_from(SPECIAL) | st.characters(exclude_categories=["Cs"]), max_size=40)


@given(names)
@example(HOSTILE[0])
@example(HOSTILE[1])
def test_markdown_prints_every_name_literally(name):
    table = Table("t", name, make_frame([f"c{name}", "x"], [[name, Cell("1", bold=True)]]))
    tokens = MarkdownIt("commonmark").enable("table").parse(table.to_markdown())
    cells = [tokens[i + 1] for i, token in enumerate(tokens) if token.type in ("th_open", "td_open")]
    text = ["".join(part.content for part in cell.children) for cell in cells]
    assert text == [clean(f"c{name}"), "x", clean(name), "1"]


@given(names)
@example(HOSTILE[0])
@example(HOSTILE[1])
@example(HOSTILE[2])
def test_latex_escapes_every_special_character(name):
    text = latex(name).replace("{[}", "").replace("{]}", "").replace("{*}", "")
    for escape in (
        "textbackslash",
        "textasciitilde",
        "textasciicircum",
        "textless",
        "textgreater",
        "textbar",
        "ldots",
    ):
        text = text.replace(f"\\{escape}{{}}", "")
    for escape in (
        r"\{",
        r"\}",
        r"\$",
        r"\&",
        r"\#",
        r"\_",
        r"\%",
        "$-$",
        r"$\pm$",
        r"$\alpha$",
        r"$\cdot$",
        r"$\times$",
    ):
        text = text.replace(escape, "")
    assert not set(text) & set("\\{}$&#_%~^<>|\n")


def test_latex_rows_have_as_many_cells_as_columns(mixed_runs):
    for make in (tables.overview_table, tables.paper_layout_table):
        table = make(load_study([mixed_runs]))
        body = table.to_latex().split(r"\midrule", 1)[1].splitlines()
        lines = [line for line in body if line.endswith(r"\\")]
        assert len(lines) == len(table.rows)
        for line in lines:
            assert line.replace(r"\&", "").count("&") == len(table.frame.columns) - 1


def test_no_latex_row_begins_like_an_argument_of_the_row_before():
    text = Table("t", "title", make_frame(["[a]", "x"], [["[a]", "1"], ["*b", "1"]])).to_latex()
    rows = [line.split(" & ")[0] for line in text.splitlines() if line.endswith(r"\\")]
    assert rows == ["{[}a{]}", "{[}a{]}", "{*}b"]


FORMULAS = ["=cmd()", "+1", "-1", "@SUM(1)", "'=1", "''", "＝A1", "\t=1", "\r=1", "a", 'x;=1,"y"', "=1\n"]


@pytest.mark.parametrize("name", FORMULAS)
def test_formula_like_names_are_guarded_and_can_be_read_back(name):
    numbers = Cell("−1.00", values={"": -1.0, "none": None})
    table = Table("t", "title", make_frame([name, "x", "n"], [[Cell(name), numbers, -3]]))
    head, line = csv.reader(io.StringIO(table.to_csv(), newline=""))
    assert line[1:] == ["-1.0", "", "-3"]
    for text in (head[0], line[0]):
        assert not text.startswith(tuple("=+-@\t\r\n＝＋－＠")) and text.removeprefix("'") in (name, name.strip())


@given(st.text(max_size=20))
def test_csv_keeps_every_name(name):
    table = Table("t", "title", make_frame(["c"], [[Cell(name)]]))
    (_, (text,)) = csv.reader(io.StringIO(table.to_csv(), newline=""))
    assert text.removeprefix("'") == name and not text.startswith(tuple("=+-@\t\r\n"))


def test_formula_like_class_names_are_guarded_in_csv(tmp_path):
    names = ["=cmd()", "+1", "-1", "@SUM(1)"]
    small = {"counts": [9, 5, 4, 3], "task_sizes": (2, 2), "tests": 2, "steps_a_task": 2}
    write_comparison(tmp_path, seeds=(1,), class_names=names, **small)
    (group,) = load_study([tmp_path]).groups
    found = rows(tables.classes_table(group))
    assert [row["Class"] for row in found] == [f"'{name}" for name in names]
    assert [row["Training images"] for row in found] == ["9", "5", "4", "3"]


def test_no_signed_zero():
    assert points(0.00001) == points(-0.00001) == "0.00"
    assert (points(0.012), points(-0.012)) == ("+1.20", "−1.20")


def test_rounding_ignores_the_last_bits():
    by_seeds, by_classes = 0.25 - 0.2225, sum([0.0275] * 20) / 20
    assert by_seeds != by_classes  # in the last bits
    assert points(by_seeds, 1) == points(by_classes, 1) == "+2.8"

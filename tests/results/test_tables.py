"""Tables: their numbers, their best, and their three formats."""

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
from synthetic_runs import long_tailed_counts, write_comparison

from pilot_tal.record.run_dir import load_run
from pilot_tal.results import tables
from pilot_tal.results.display import clean, points
from pilot_tal.results.formats import Entry, Table, latex, name_cell, to_csv, to_latex, to_markdown
from pilot_tal.results.grouping import load_study
from pilot_tal.results.paper import paper_table
from pilot_tal.results.summary import print_summary

FULL_CUB = {"dataset": "cub_lt", "counts": long_tailed_counts(200, 40, 2), "tests": 2, "steps_a_task": 3}


def rows(table):
    return list(csv.DictReader(io.StringIO(to_csv(table))))


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
    assert tal["Change of A_Tail (95 % interval) seeds"] == "3"


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
    assert (table["l2p", "cub_lt", 5, "ce"].a_mean, table["mos", "food101_lt", 10, "tal"].a_tail) == (
        0.7422,
        0.3373,
    )
    sums = {
        loss: sum(100 * (n.a_mean + n.a_tail) for key, n in table.items() if key[3] == loss) for loss in ("ce", "tal")
    }
    assert sums == {"ce": pytest.approx(3304.56), "tal": pytest.approx(3498.56)}


def test_the_papers_numbers_stand_beside_the_same_group_only(tmp_path):
    write_comparison(tmp_path, seeds=(1, 2), task_sizes=(40,) * 5, **FULL_CUB)
    write_comparison(tmp_path, seeds=(1, 2), task_sizes=(40,) * 5, fidelity="fixed", **FULL_CUB)
    found = rows(tables.overview_table(load_study([tmp_path])))
    shown = {(row["Fidelity"], row["Loss"]): (row["Paper A_Mean"], row["Paper A_Tail"]) for row in found}
    assert shown["fixed", "CE"] == shown["fixed", "TAL"] == ("", "")
    assert [float(x) for x in shown["pilot", "CE"]] == pytest.approx([74.22, 57.20])
    assert [float(x) for x in shown["pilot", "TAL"]] == pytest.approx([75.91, 61.19])
    out = StringIO()
    print_summary([tmp_path], Console(file=out, width=140))
    printed = out.getvalue()
    assert printed.count("Paper A_Tail") == 1 and "75.9" in printed and "61.2" in printed


def test_layout_of_the_papers_table(tmp_path):
    for method, gain in (("l2p", 0.3), ("lae", -0.3)):
        for sizes in ((40,) * 5, (20,) * 10):
            losses = (("ce", 0), ("tal", gain))
            write_comparison(tmp_path, method=method, losses=losses, task_sizes=sizes, seeds=(1,), **FULL_CUB)
    table = tables.paper_layout_table(load_study([tmp_path]))
    assert [row[0].text for row in table.rows] == ["L2P", "+ TAL", "LAE", "+ TAL"]
    assert table.columns == [
        ("Method",),
        *(("CUB-LT", tasks, metric) for tasks in ("5-task", "10-task") for metric in ("A_Mean", "A_Tail")),
    ]
    assert [[cell.best for cell in row[1:]] for row in table.rows] == [
        [False] * 4, [True] * 4, [True] * 4, [False] * 4,
    ]  # fmt: skip
    assert [cell.top for row in table.rows for cell in row] == [False] * 5 + [False] + [True] * 4 + [False] * 10
    text = to_latex(table)
    assert r"\multicolumn{4}{c}{CUB-LT}" in text and r"\multicolumn{2}{c}{10-task}" in text
    assert r"\cmidrule(lr){2-5}" in text and r"\cmidrule(lr){4-5}" in text
    assert r"$A_{\mathrm{Tail}}$" in text and r"\underline{\textbf{" in text


def test_a_loss_without_ce_is_named_with_its_method(tmp_path):
    small = {"counts": [9] * 4, "task_sizes": (2, 2), "tests": 2, "steps_a_task": 2, "seeds": (1,)}
    write_comparison(tmp_path, losses=(("tal", 0), ("focal", 0)), **small)
    write_comparison(tmp_path, fidelity="fixed", **small)
    table = tables.paper_layout_table(load_study([tmp_path]))
    assert [row[0].text for row in table.rows] == [
        "L2P (fixed)",
        "+ TAL",
        "L2P (pilot) + TAL",
        "L2P (pilot) + Focal",
    ]
    assert to_latex(table).count("midrule\n\\midrule") == 0


def test_best_forgetting_is_the_lowest(demo_runs):
    (setting,) = load_study([demo_runs]).groups
    table = tables.metrics_table(setting)
    row = next(row for row in table.rows if row[0].text == "Forgetting")
    values = [dict(cell.values)["mean"] for cell in row[1:3]]
    assert [cell.best for cell in row[1:3]] == [value == min(values) for value in values]
    assert "Many" not in {row[0].text for row in table.rows}  # no class has more than 100 images


def test_classes_stand_in_order_of_their_training_images(demo_runs):
    (setting,) = load_study([demo_runs]).groups
    found = rows(tables.classes_table(setting))
    counts = [int(row["Training images"]) for row in found]
    assert counts == sorted(counts, reverse=True) and len(found) == 50
    assert [row["Part"] for row in found] == ["head"] * 25 + ["tail"] * 25
    for row in found[::7]:
        expected = float(row["TAL Accuracy"]) - float(row["CE Accuracy"])
        assert float(row["TAL − CE Accuracy"]) == pytest.approx(expected, abs=1e-9)


def test_columns_of_equal_names_are_told_apart(tmp_path):
    write_comparison(tmp_path, seeds=(1,), task_sizes=(4, 4), counts=[9] * 8, tests=2, steps_a_task=2)
    write_comparison(tmp_path, seeds=(1,), task_sizes=(5, 3), counts=[9] * 8, tests=2, steps_a_task=2)
    write_comparison(tmp_path, seeds=(1,), task_sizes=(3, 3), counts=[9] * 6, tests=2, steps_a_task=2)
    columns = tables.paper_layout_table(load_study([tmp_path])).columns
    assert {column[:2] for column in columns[1:]} == {
        ("Demo-LT (8 classes)", "2-task (4+4)"),
        ("Demo-LT (8 classes)", "2-task (5+3)"),
        ("Demo-LT (6 classes)", "2-task"),
    }


SPECIAL = "\\{}[]()$&#_%~^<>|*`!+-.\"'\n\t &;:/=−±α·×…a1"
HOSTILE = (SPECIAL, "*a* _b_ `c` ~d~ [e](f) <g> &amp; \\| %h $i$ #j", "\\input{k} \\\\ ^^M")
names = st.text(st.sampled_from(SPECIAL) | st.characters(exclude_categories=["Cs"]), max_size=40)


@given(names)
@example(HOSTILE[0])
@example(HOSTILE[1])
def test_markdown_prints_every_name_literally(name):
    table = Table("t", name, [(f"c{name}",), ("x",)], 1, [[Entry(name), Entry("1", best=True)]])
    tokens = MarkdownIt("commonmark").enable("table").parse(to_markdown(table))
    cells = [tokens[i + 1] for i, token in enumerate(tokens) if token.type in ("th_open", "td_open")]
    text = ["".join(part.content for part in cell.children) for cell in cells]
    assert text == [clean(f"c{name}"), "x", clean(name), "1"]


@given(names)
@example(HOSTILE[0])
@example(HOSTILE[1])
@example(HOSTILE[2])
def test_latex_escapes_every_special_character(name):
    text = latex(name)
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
    for table in (tables.overview_table, tables.paper_layout_table):
        made = table(load_study([mixed_runs]))
        body = to_latex(made).split(r"\midrule", 1)[1].splitlines()
        lines = [line for line in body if line.endswith(r"\\")]
        assert len(lines) == len(made.rows)
        for line in lines:
            assert line.replace(r"\&", "").count("&") == len(made.columns) - 1


@pytest.mark.parametrize(("name", "printed"), [("[a]", "{[}a]"), ("*b", "{*}b"), ("a[*]", "a[*]"), ("", "")])
def test_no_latex_row_begins_like_an_argument_of_the_row_before(name, printed):
    table = Table("t", "title", [(name,), ("x",)], 1, [[Entry(name), Entry("1")]] * 2)
    rows = [line for line in to_latex(table).splitlines() if line.endswith(r"\\")]
    assert [row.split(" & ")[0] for row in rows] == [printed] * 3


def test_differences_of_classes_have_a_sign(demo_runs):
    (setting,) = load_study([demo_runs]).groups
    shown = [row[-1].text for row in tables.classes_table(setting).rows]
    assert {text[0] for text in shown if text != "0.0"} == {"+", "−"}


FORMULAS = ["=cmd()", "+1", "-1", "@SUM(1)", "'=1", "''", "＝A1", "\t=1", "\r=1", "a", 'x;=1,"y"', "=1\n"]


@pytest.mark.parametrize("name", FORMULAS)
def test_a_spreadsheet_runs_no_name_and_a_reader_gets_it_back(name):
    numbers = Entry("−1.00", values=(("", -1.0), ("none", None)))
    table = Table("t", "title", [(name,), ("x",), ("n",)], 1, [[Entry(name), numbers, name_cell(-3)]])
    head, line = csv.reader(io.StringIO(to_csv(table), newline=""))
    assert line[1:] == ["-1.0", "", "-3"]  # numbers stay numbers
    for text in (head[0], line[0]):
        assert not text.startswith(tuple("=+-@\t\r\n＝＋－＠"))
        assert text.removeprefix("'") == name.strip() or text.removeprefix("'") == name
    assert f'"{line[0]}"'.replace('"y"', '""y""') in to_csv(table)  # quoted whatever the separator is


@given(st.text(max_size=20))
def test_every_name_comes_back_from_the_csv(name):
    table = Table("t", "title", [("c",)], 1, [[Entry(name)]])
    (_, (text,)) = csv.reader(io.StringIO(to_csv(table), newline=""))
    assert text.removeprefix("'") == name and not text.startswith(tuple("=+-@\t\r\n"))


def test_hostile_class_names_stand_guarded_in_the_tables(tmp_path):
    names = ["=cmd()", "+1", "-1", "@SUM(1)"]
    small = {"counts": [9, 5, 4, 3], "task_sizes": (2, 2), "tests": 2, "steps_a_task": 2}
    write_comparison(tmp_path, seeds=(1,), class_names=names, **small)
    (setting,) = load_study([tmp_path]).groups
    found = rows(tables.classes_table(setting))
    assert [row["Class"] for row in found] == [f"'{name}" for name in names]
    assert [row["Training images"] for row in found] == ["9", "5", "4", "3"]


def test_no_signed_zero():
    assert points(0.00001) == points(-0.00001) == "0.00"
    assert (points(0.012), points(-0.012)) == ("+1.20", "−1.20")


def test_one_number_reached_in_two_ways_is_shown_alike():
    by_seeds, by_classes = 0.25 - 0.2225, sum([0.0275] * 20) / 20
    assert by_seeds != by_classes  # in the last bits
    assert points(by_seeds, 1) == points(by_classes, 1) == "+2.8"

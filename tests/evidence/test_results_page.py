"""docs/results.md is what results/*.csv says: on the committed tables, and number by number on made-up ones."""

import re

import pandas as pd
from helpers.cli import ROOT
from made_up import arms, everything, page_of
from results_evidence import change, directions
from results_page import seeds_of, write_page

from pilot_tal.metrics import Difference

T_2, T_1 = 4.302653, 12.706205  # Student's 97.5 % quantiles with two and with one degree of freedom


def test_the_committed_page_is_rebuilt_from_the_committed_tables(tmp_path):
    """Tables, page and pictures are committed together, or not at all."""
    docs = ROOT / "docs"
    there = {path.name for path in docs.glob("images/results_*.svg")}
    if not (ROOT / "results" / "runs.csv").is_file():
        assert not there and not (docs / "results.md").exists() and not list(ROOT.glob("results/*.csv"))
        return
    page = write_page(ROOT / "results", tmp_path)
    assert (docs / "results.md").read_text(encoding="utf-8") == page.read_text(encoding="utf-8")
    assert there == {path.name for path in tmp_path.glob("images/*.svg")} and "results_overview.svg" in there
    for name in there:
        assert (docs / "images" / name).read_bytes() == (tmp_path / "images" / name).read_bytes(), name


def test_means_and_paired_changes_by_hand(tmp_path):
    page = page_of(tmp_path, arms("cub", "lae", ce=(40, 50, 60), tal=(45, 52, 68)))
    half = T_2 * 3 / 3**0.5  # the differences 5, 2 and 8 have a deviation of 3
    interval = f"+5.0 [−{half - 5:.1f}, +{half + 5:.1f}]"
    assert f"| CUB-LT (4) | LAE | 50.0 | 55.0 | {interval} | 60.0 | 65.0 | {interval} | 3 |" in page
    assert f"| LAE | TAL | 55.0 ± 11.8 | 65.0 ± 11.8 | 75.0 ± 11.8 | {interval} | {interval} | 3 |" in page
    assert f"| TAL | CE | {interval} | {interval} | {interval} | 1 up, 0 down | 1 up" in page
    assert "| LAE | CE | 50.0 ± 10.0 | 60.0 ± 10.0 | 70.0 ± 10.0 |  |  | 3 |" in page


def test_only_shared_seeds_are_compared(tmp_path):
    page = page_of(tmp_path, arms("cub", "lae", ce=(40, 50, 60), tal=(45, 52)))
    assert f"+3.5 [−{T_1 * 1.5 - 3.5:.1f}, +{T_1 * 1.5 + 3.5:.1f}]" in page  # 5 and 2: half is t·(3/√2)/√2
    assert "| LAE | 45.0 | 48.5 | +3.5 [" in page  # the levels are of the same seeds


def test_one_seed_has_no_interval_and_a_missing_cell_is_a_dash(tmp_path):
    rows = arms("cub", "lae", ce=(40,), tal=(45,)) + arms("flowers", "mos", ce=(40, 50, 60))
    page = page_of(tmp_path, rows)
    assert "| CUB-LT (4) | LAE | 40.0 | 45.0 | +5.0 | 50.0 | 55.0 | +5.0 | 1 |" in page
    assert "| Flowers-LT (4) | MOS | 50.0 | – | – | 60.0 | – | – | 3 |" in page
    alone = "changes by +5.0, a single value, without an interval"
    assert f"- **TAL in place of CE**, over 1 cell (a dataset with a method): A_Tail {alone}; A_Head {alone}; " in page
    assert "| TAL | CE | +5.0 | +5.0 | +5.0 | 1 up, 0 down |" in page and "nan" not in page


def test_a_tie_is_neither_higher_nor_lower():
    assert directions([0.5, 1e-4, -1e-4, -0.2, 0.05]) == "higher in 2, lower in 1 of 5"


def test_every_study_names_its_fidelity_and_settings(tmp_path):
    rows = arms("cub", "lae", ce=(40, 50, 60))
    rows += [{**line, "fidelity": "pilot"} for line in arms("demo", "lae", ce=(1, 2, 3))]
    page = page_of(tmp_path, rows)
    assert "### CUB-LT (4 classes)\n\nFidelity `fixed`; `epochs=20 threads=1`.\n\n|" in page
    assert "### Demo (4 classes)\n\nFidelity `pilot`.\n\n|" in page


def test_where_no_class_is_rare_there_is_no_tail(tmp_path):
    rows = arms("supervised_5_balanced", "lae", ce=(40, 50, 60), tal=(45, 52, 68))
    table = page_of(tmp_path, rows).split("### Five")[1].split("\n\n")[2]
    assert table.splitlines()[0] == "| Method | Loss | A_Mean | A_Mean change | Seeds |"


def test_changes_are_written_with_a_sign_and_a_true_minus():
    assert change(None) == "–" and change(Difference(-0.04, None, None, 1)) == "0.0"
    assert change(Difference(-1.26, -2.0, 0.5, 3)) == "−1.3 [−2.0, +0.5]"


def test_an_end_that_rounds_to_zero_keeps_its_side():
    assert change(Difference(1.5, -0.03, 3.0, 3)) == "+1.5 [−0.0, +3.0]"
    assert change(Difference(1.5, 0.03, 3.0, 3)) == "+1.5 [+0.0, +3.0]"
    assert change(Difference(1.5, 0.0, 3.0, 3)) == "+1.5 [0.0, +3.0]"


def test_every_picture_is_shown_where_its_data_are_and_only_there(tmp_path):
    folder, docs = everything(tmp_path / "results", classes=12, tasks=2), tmp_path / "docs"
    page = write_page(folder, docs).read_text(encoding="utf-8")
    assert page.startswith("# ") and page.index("```bash\n") < page.index("## ", 2)  # as every page of the docs
    shown = re.findall(r"!\[.+\]\(images/(\w+)\.svg\)", page)
    assert shown == [f"results_{name}" for name in ("overview", "tasks", "classes", "states", "ablation")]
    assert sorted(shown) == sorted(path.stem for path in docs.glob("images/*.svg"))
    before = {path.stem: path.read_bytes() for path in docs.glob("images/*.svg")}
    for name in ("tasks", "classes", "states"):
        (folder / f"{name}.csv").unlink()
    page = write_page(folder, docs).read_text(encoding="utf-8")
    after = {path.stem: path.read_bytes() for path in docs.glob("images/*.svg")}
    assert after == {name: before[name] for name in ("results_ablation", "results_overview")}  # the same to the byte
    assert "results_tasks" not in page


def test_the_page_says_what_is_still_to_be_run(tmp_path):
    page = page_of(tmp_path, arms("cub", "lae", ce=(40, 50, 60), tal=(45, 52, 68)))
    (sentence,) = [line for line in page.splitlines() if "still to come" in line]
    assert (
        "CUB-LT (4 classes):" not in sentence
        and "Flowers-LT (4 classes): 0 of 6; Pets-LT (4 classes): 0 of 6" in sentence
    )


def test_every_study_has_its_command_with_what_it_wants_from_the_caller(tmp_path):
    rows = arms("cub", "lae", ce=(40, 50, 60)) + arms("demo", "lae", ce=(1, 2, 3))
    page = page_of(tmp_path, rows)
    command = "`python scripts/results.py run cub weights=WEIGHTS`"
    assert f"| CUB-LT (4 classes) | {command} | 3 | 1993 to 1995 | 0.3 |" in page  # three runs of six minutes
    assert "| Demo (4 classes) | `python scripts/results.py run demo` | 3 | 1993 to 1995 | 0.3 |" in page


def test_seeds_with_gaps_are_all_named():
    assert seeds_of(pd.Series([1995, 1993, 1994, 1993])) == "1993 to 1995"
    assert seeds_of(pd.Series([1993, 1995, 1996])) == "1993, 1995, 1996" and seeds_of(pd.Series([1, 2])) == "1, 2"


def test_the_images_behind_the_table_are_counted(tmp_path):
    """Of the committed manifests: 360 training images of birds, no tail class with more than six."""
    folder = everything(tmp_path / "results", classes=12, tasks=2)
    assert "Training images" not in write_page(folder, tmp_path / "docs").read_text(encoding="utf-8")
    (folder / "manifests").mkdir()
    (folder / "manifests" / "cub.txt").write_bytes((ROOT / "results" / "manifests" / "cub.txt").read_bytes())
    page = write_page(folder, tmp_path / "docs").read_text(encoding="utf-8")
    assert "| CUB-LT (4) | 40 | 360 | 2 to 40 | 2 to 6 | 20 |" in page

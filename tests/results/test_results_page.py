"""docs/results.md is what results/*.csv says: on the committed tables, and number by number on made-up ones."""

import re

import pytest
from helpers.cli import ROOT
from made_up import SEEDS, everything, run, write
from results_evidence import Evidence, change, directions
from results_found import verdict
from results_page import write_page

from pilot_tal.metrics import Difference

T_2, T_1 = 4.302653, 12.706205  # Student's 97.5 % quantiles with two and with one degree of freedom


def arms(study, method, **losses) -> list[dict]:
    """Runs on the three seeds: for each loss a list of A_Tail in percent; A_Mean is 10 points above."""
    return [
        run(study, method, loss, seed, tail=value / 100, mean=value / 100 + 0.1)
        for loss, values in losses.items()
        for seed, value in zip(SEEDS, values, strict=False)
    ]


def page_of(tmp_path, rows) -> str:
    return write_page(write(tmp_path / "results", runs=rows), tmp_path / "docs").read_text(encoding="utf-8")


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
    assert f"| CUB-LT | LAE | 50.0 | 55.0 | {interval} | 60.0 | 65.0 | {interval} | 3 |" in page
    assert f"| LAE | TAL | 55.0 ± 11.8 | 65.0 ± 11.8 | 75.0 ± 11.8 | {interval} | {interval} | 3 |" in page
    assert f"| TAL | CE | {interval} | {interval} | {interval} | higher in 1, lower in 0 of 1 |" in page
    assert "| LAE | CE | 50.0 ± 10.0 | 60.0 ± 10.0 | 70.0 ± 10.0 |  |  | 3 |" in page


def test_only_shared_seeds_are_compared(tmp_path):
    page = page_of(tmp_path, arms("cub", "lae", ce=(40, 50, 60), tal=(45, 52)))
    assert f"+3.5 [−{T_1 * 1.5 - 3.5:.1f}, +{T_1 * 1.5 + 3.5:.1f}]" in page  # 5 and 2: half is t·(3/√2)/√2
    assert "| LAE | 45.0 | 48.5 | +3.5 [" in page  # the levels are of the same seeds


def test_one_seed_has_no_interval_and_a_missing_cell_is_a_dash(tmp_path):
    rows = arms("cub", "lae", ce=(40,), tal=(45,)) + arms("flowers", "mos", ce=(40, 50, 60))
    page = page_of(tmp_path, rows)
    assert "| CUB-LT | LAE | 40.0 | 45.0 | +5.0 | 50.0 | 55.0 | +5.0 | 1 |" in page
    assert "| Flowers-LT | MOS | 50.0 | – | – | 60.0 | – | – | 3 |" in page
    assert "- **TAL** against CE, over 1 cell (LAE): one value has no interval." in page and "nan" not in page
    assert "| TAL | CE | +5.0 | +5.0 | +5.0 | higher in 1, lower in 0 of 1 |" in page


def test_the_pooled_interval_is_over_cells_by_hand(tmp_path):
    rows = arms("cub", "lae", ce=(40, 50, 60), tal=(45, 52, 68)) + arms(
        "pets", "mos", ce=(40, 50, 60), tal=(41, 51, 61)
    )
    evidence = Evidence(write(tmp_path, runs=rows))
    pooled, means = evidence.pooled("a_tail", "tal")
    assert means == pytest.approx([5, 1]) and (pooled.mean, pooled.n) == (pytest.approx(3), 2)
    half = T_1 * 8**0.5 / 2**0.5  # 5 and 1 have a deviation of √8
    assert (pooled.low, pooled.high) == (pytest.approx(3 - half, abs=1e-4), pytest.approx(3 + half, abs=1e-4))
    page = page_of(tmp_path, rows)
    assert (
        f"| TAL | CE | +3.0 [−{half - 3:.1f}, +{half + 3:.1f}] |" in page and "higher in 2, lower in 0 of 2 |" in page
    )
    unsure = "A_Tail, A_Mean and A_Head not told from equal."
    assert f"- **TAL** against CE, over 2 cells (LAE and MOS): {unsure}" in page


def test_cells_that_agree_leave_the_interval_to_the_seeds(tmp_path):
    rows = arms("cub", "lae", ce=(40, 50, 60), tal=(41, 52, 63)) + arms(
        "pets", "mos", ce=(40, 50, 60), tal=(41, 52, 63)
    )
    pooled, means = Evidence(write(tmp_path, runs=rows)).pooled("a_tail", "tal")
    half = T_2 / 3**0.5  # 1, 2 and 3 have a deviation of 1
    assert means == pytest.approx([2, 2]) and pooled.mean == pytest.approx(2)
    assert (pooled.low, pooled.high) == (pytest.approx(2 - half, abs=1e-4), pytest.approx(2 + half, abs=1e-4))


def test_two_losses_are_compared_where_both_were_run(tmp_path):
    rows = arms("cub", "lae", ce=(40, 50, 60), tal=(45, 52, 68), balanced_softmax=(50, 58, 74))
    rows += arms("pets", "lae", ce=(40, 50, 60), tal=(41, 51, 61), balanced_softmax=(40, 50, 61))
    rows += arms("pets", "mos", ce=(40, 50, 60), tal=(80, 80, 80))
    page = page_of(tmp_path, rows)
    assert "- **Balanced softmax**, which is told the classes' frequencies, against TAL, over 2 cells (LAE): " in page
    (row,) = [line for line in page.splitlines() if line.startswith("| Balanced softmax | TAL |")]
    # by 5, 6 and 6 on CUB, by −1, −1 and 0 on Pets
    assert row.startswith("| Balanced softmax | TAL | +2.5 [") and row.endswith("| higher in 1, lower in 1 of 2 |")


def test_other_engines_options_and_baselines_are_not_pooled(tmp_path):
    rows = arms("cub", "lae", ce=(40, 50, 60), tal=(45, 52, 68)) + arms("cub", "ranpac", ce=(1, 2, 3), tal=(9, 9, 9))
    other = arms("cub", "mos", ce=(40, 50, 60), tal=(90, 90, 90))
    rows += [{**line, "engine": "lamda-pilot"} for line in other]
    rows += [{**line, "options": "lam=0.9"} for line in other]
    assert Evidence(write(tmp_path, runs=rows)).pooled("a_tail", "tal")[1] == pytest.approx([5])


@pytest.mark.parametrize(
    ("tail", "head", "sentence"),
    [
        ((0.1, 4), (-4, -0.1), "A_Tail higher and A_Head lower."),
        ((0.1, 4), (-4, 0.1), "A_Tail higher; A_Head not told from equal."),
        ((0, 4), (-4, 0), "A_Tail and A_Head not told from equal."),
        ((None, None), (None, None), "one value has no interval."),
    ],
)
def test_sentences_follow_the_interval(tail, head, sentence):
    assert verdict({"A_Tail": Difference(1.0, *tail, 3), "A_Head": Difference(-1.0, *head, 3)}) == sentence


def test_a_tie_is_neither_higher_nor_lower():
    assert directions([0.5, 1e-4, -1e-4, -0.2, 0.05]) == "higher in 2, lower in 1 of 5"


def test_methods_are_set_against_the_best_prototypes(tmp_path):
    rows = arms("cub", "lae", ce=(40, 50, 60))
    assert "What does training buy?" not in page_of(tmp_path, rows)
    rows += arms("cub", "simplecil", none=(50, 55, 60)) + arms("cub", "ranpac", ce=(55, 60, 65))
    assert "What does training buy?" in page_of(tmp_path, rows) and "Against the best" not in page_of(tmp_path, rows)
    rows += arms("cub", "ease", ce=(30, 30, 30)) + arms("cub", "coda_prompt", ce=(20,))  # of which one seed says little
    rows += arms("cub", "l2p", ce=(20, 26, 29)) + arms("cub", "mos", ce=(60, 65, 70.1))
    page = page_of(tmp_path, rows)
    # against RanPAC: LAE by −15, −10 and −5, whose interval holds 0; L2P by −35, −34 and −36; MOS by 5, 5 and 5.1
    told = "lower in 1 of 3 cells (by 35.0 points), higher in 1 (by 5.0 points) and not told from equal in 1."
    assert told in page
    names = "| SimpleCIL | RanPAC | EASE | L2P | DualPrompt | CODA-Prompt | LAE | MOS |"
    assert f"| Dataset | Metric {names}\n" in page
    assert "| CUB-LT | A_Tail | 55.0 | 60.0 | 30.0 | 25.0 | – | 20.0 | 50.0 | 65.0 |" in page
    assert "| CUB-LT | A_Mean | 65.0 | 70.0 | 40.0 | 35.0 | – | 30.0 | 60.0 | 75.0 |" in page


def test_several_prototype_gaps_are_told_from_the_smallest_to_the_largest(tmp_path):
    rows = arms("cub", "simplecil", none=(50, 55, 60)) + arms("cub", "lae", ce=(40, 45, 50))
    rows += arms("cub", "ranpac", ce=(1, 2, 3)) + arms("cub", "ease", ce=(1, 2, 3))
    page = page_of(tmp_path, rows + arms("cub", "l2p", ce=(20, 25, 30)))
    assert "lower in 2 of 2 cells (by 10.0 to 30.0 points), higher in 0 and not told from equal in 0." in page


def test_calibration_is_told_with_the_steps_it_had(tmp_path):
    rows = [
        run("cub", "lae", "tal", seed, tail=0.4, mean=0.5, weight=w)
        for seed, w in zip(SEEDS, (0.2, 0.3, 0.25), strict=True)
    ]
    rows += [run("cub", "mos", "tal_auto", SEEDS[0], tail=0.4, mean=0.5, weight=1.4, steps=40.0)]
    rows += [run("demo", "l2p", "tal", SEEDS[0], tail=0.4, mean=0.5, weight=0.9)]  # the demo is not of the photographs
    page = page_of(tmp_path, rows)
    assert "| LAE | 20 | 0.20 to 0.30 | – |\n| MOS | 40 | – | 1.40 to 1.40 |\n\n" in page


def test_a_batch_that_holds_a_whole_task_leaves_nothing_temporal(tmp_path):
    rows = [run("cub", "lae", "tal", seed, tail=0.4, mean=0.5, weight=0.2, steps=20.0) for seed in SEEDS]
    rows += [run("cub", "mos", "tal", seed, tail=0.4, mean=0.5, weight=0.2, steps=40.0) for seed in SEEDS]
    rows += [run("pets", "l2p", "tal", seed, tail=0.4, mean=0.5, weight=0.2, steps=5.0) for seed in SEEDS]
    page = page_of(tmp_path, rows)  # with 20 epochs of CUB; how many the pets have is not said
    assert " With LAE one batch holds all images of a task, with few exceptions: " in page
    assert "nothing temporal" not in page_of(tmp_path / "mos", rows[3:6])


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


def test_an_unwelcome_change_is_told_as_plainly(tmp_path):
    rows = [line for m in ("l2p", "lae", "mos") for line in arms("cub", m, ce=(40, 50, 60), tal=(38, 48, 58))]
    rows += arms("pets", "lae", ce=(40, 50, 60), tal=(37, 47, 57))
    page = page_of(tmp_path, rows)
    assert "(L2P, LAE and MOS): A_Tail, A_Mean and A_Head lower." in page
    assert "higher in 0, lower in 4 of 4" in page


def test_changes_are_written_with_a_sign_and_a_true_minus():
    assert change(None) == "–" and change(Difference(-0.04, None, None, 1)) == "0.0"
    assert change(Difference(-1.26, -2.0, 0.5, 3)) == "−1.3 [−2.0, +0.5]"


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
    assert "CUB-LT" not in sentence and "Flowers-LT (4 classes) 0 of 6; Pets-LT (4 classes) 0 of 6" in sentence

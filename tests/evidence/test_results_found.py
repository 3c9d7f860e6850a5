"""What docs/results.md says was found, number by number on made-up tables."""

import pytest
from made_up import SEEDS, arms, page_of, run, write
from results_evidence import Evidence
from results_found import moves

from pilot_tal.metrics import Difference

T_2, T_1 = 4.302653, 12.706205  # Student's 97.5 % quantiles with two and with one degree of freedom


def sentence(page: str, start: str) -> str:
    """The one finding that begins so; empty if there is none."""
    found = [line for line in page.splitlines() if line.startswith(f"- **{start}")]
    assert len(found) < 2
    return found[0] if found else ""


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
    interval = f"+3.0 [−{half - 3:.1f}, +{half + 3:.1f}]"
    assert f"| TAL | CE | {interval} |" in page and "| 2 up, 0 down | 2 up, 0 down" in page
    assert sentence(page, "TAL in place").startswith(
        f"- **TAL in place of CE**, over 2 cells (a dataset with a method): A_Tail changes by {interval}, which may be "
    )


def test_cells_that_agree_leave_the_interval_to_the_seeds(tmp_path):
    rows = arms("cub", "lae", ce=(40, 50, 60), tal=(41, 52, 63)) + arms(
        "pets", "mos", ce=(40, 50, 60), tal=(41, 52, 63)
    )
    pooled, means = Evidence(write(tmp_path, runs=rows)).pooled("a_tail", "tal")
    half = T_2 / 3**0.5  # 1, 2 and 3 have a deviation of 1
    assert means == pytest.approx([2, 2]) and pooled.mean == pytest.approx(2)
    assert (pooled.low, pooled.high) == (pytest.approx(2 - half, abs=1e-4), pytest.approx(2 + half, abs=1e-4))


def test_a_method_with_many_datasets_counts_once_among_the_methods(tmp_path):
    rows = arms("cub", "l2p", ce=(40, 50, 60), tal=(48, 58, 68))
    rows += arms("cub", "lae", ce=(40, 50, 60), tal=(42, 52, 62)) + arms("pets", "lae", ce=(1, 2, 3), tal=(3, 4, 5))
    page = page_of(tmp_path, rows)
    half = T_1 * 3  # 8 and 2: a deviation of √18, a standard error of 3
    assert f"| Mean of the methods | +5.0 [−{half - 5:.1f}, +{half + 5:.1f}] |" in page
    assert "| TAL | CE | +4.0 [" in page  # the cells 8, 2 and 2
    assert "| LAE | +2.0 [+2.0, +2.0] |" in page


def test_two_losses_are_compared_where_both_were_run(tmp_path):
    rows = arms("cub", "lae", ce=(40, 50, 60), tal=(45, 52, 68), balanced_softmax=(50, 58, 74))
    rows += arms("pets", "lae", ce=(40, 50, 60), tal=(41, 51, 61), balanced_softmax=(40, 50, 61))
    rows += arms("pets", "mos", ce=(40, 50, 60), tal=(80, 80, 80))
    page = page_of(tmp_path, rows)
    (row,) = [line for line in page.splitlines() if line.startswith("| Balanced softmax | TAL |")]
    # by 5, 6 and 6 on CUB, by −1, −1 and 0 on Pets
    assert row.startswith("| Balanced softmax | TAL | +2.5 [") and "| 1 up, 1 down |" in row


def test_a_loss_that_knows_the_sizes_stands_beside_the_others_on_the_same_cells(tmp_path):
    rows = arms("cub", "lae", ce=(40, 50, 60), tal=(45, 55, 65), tal_auto=(46, 56, 66), balanced_softmax=(49, 59, 69.1))
    rows += arms("pets", "mos", ce=(40, 50, 60), tal=(80, 90, 95), tal_auto=(80, 90, 95))  # without balanced softmax
    said = sentence(page_of(tmp_path, rows), "A loss that is told")
    assert "In the 1 cells" not in said and "In the one cell" in said
    assert (
        "(LAE), A_Tail changes by +5.0, +6.0 and +9.0 and A_Mean changes by +5.0, +6.0 and +9.0 in this order" in said
    )
    assert said.endswith("A_Tail rises by 3.0 [+2.9, +3.2]; A_Mean rises by 3.0 [+2.9, +3.2].")
    assert "one batch holds a whole task" in said  # made-up runs have 20 steps in 20 epochs
    more = [{**line, "steps": 40.0} for line in rows]
    assert "one batch holds" not in sentence(page_of(tmp_path / "more", more), "A loss that is told")
    fewer = arms("cub", "lae", ce=(40, 50, 60), tal=(45, 55, 65), balanced_softmax=(49, 59, 69))
    assert not sentence(page_of(tmp_path / "fewer", fewer), "A loss that is told")


def test_other_engines_options_and_baselines_are_not_pooled(tmp_path):
    rows = arms("cub", "lae", ce=(40, 50, 60), tal=(45, 52, 68)) + arms("cub", "ranpac", ce=(1, 2, 3), tal=(9, 9, 9))
    other = arms("cub", "mos", ce=(40, 50, 60), tal=(90, 90, 90))
    rows += [{**line, "engine": "lamda-pilot"} for line in other]
    rows += [{**line, "options": "lam=0.9"} for line in other]
    assert Evidence(write(tmp_path, runs=rows)).pooled("a_tail", "tal")[1] == pytest.approx([5])


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((0.1, 4.0), "A_Tail rises by 2.0 [+0.1, +4.0]"),
        ((-0.1, 4.0), "A_Tail changes by +2.0 [−0.1, +4.0], which may be chance"),
        ((0.0, 4.0), "A_Tail changes by +2.0 [0.0, +4.0], which may be chance"),
        ((None, None), "A_Tail changes by +2.0, a single value, without an interval"),
    ],
)
def test_sentences_follow_the_interval(ends, said):
    assert moves("A_Tail", Difference(2.0, *ends, 3)) == said


def test_an_unwelcome_change_is_told_as_plainly(tmp_path):
    rows = [line for m in ("l2p", "lae", "mos") for line in arms("cub", m, ce=(40, 50, 60), tal=(38, 48, 58))]
    rows += arms("pets", "lae", ce=(40, 50, 60), tal=(34, 44, 54))
    page = page_of(tmp_path, rows)
    said = sentence(page, "TAL in place")
    half = 3.182446 * 1  # Student's quantile with three degrees of freedom; 2, 2, 2 and 6 have a standard error of 1
    for name in ("A_Tail", "A_Head", "A_Mean"):
        assert f"{name} changes by −3.0 [−{half + 3:.1f}, +{half - 3:.1f}], which may be chance" in said
    assert "A_Tail is higher in 0, lower in 4 of 4 cells and A_Mean is higher in 0, lower in 4 of 4 cells." in said
    assert "With L2P, A_Tail is higher in 0, lower in 1 of 1 cells" in sentence(page, "Where TAL does not help")
    both = [line for m in ("l2p", "lae") for line in arms("cub", m, ce=(40, 50, 60), tal=(38, 48, 57.9))]
    assert "A_Tail falls by 2.0 [−2.2, −1.9]; A_Head falls by 2.0" in page_of(tmp_path / "sure", both)


def test_a_method_without_gain_is_named_with_what_may_be_the_reason(tmp_path):
    rows = arms("cub", "lae", ce=(40, 50, 60), tal=(45, 52, 68))
    assert not sentence(page_of(tmp_path, rows), "Where TAL")
    rows += arms("cub", "mos", ce=(40, 50, 60), tal=(40, 49, 58)) + arms(
        "pets", "mos", ce=(40, 50, 60), tal=(40, 50, 60)
    )
    said = sentence(page_of(tmp_path, rows), "Where TAL")
    assert "With MOS, A_Tail is higher in 0, lower in 1 of 2 cells (" in said and "After every later task MOS" in said
    assert "LAE" not in said


def test_the_best_tail_of_all_losses_stands_beside_training_nothing(tmp_path):
    rows = arms("cub", "lae", ce=(40, 50, 60), tal=(51, 51, 51)) + arms("cub", "l2p", ce=(1, 2, 3))
    assert not sentence(page_of(tmp_path, rows), "Against training nothing")
    rows += arms("cub", "simplecil", none=(52, 52, 52))
    rows += arms("pets", "mos", ce=(60, 60, 60)) + arms("pets", "simplecil", none=(50, 50, 50))
    said = sentence(page_of(tmp_path, rows), "Against training nothing")
    assert "52.0 against 51.0 on CUB-LT (4) (LAE with TAL), 50.0 against 60.0 on Pets-LT (4) (MOS with CE)." in said
    assert said.endswith("It is ahead on 1 of 2 datasets.")


def test_the_papers_cells_are_counted_beside_ours(tmp_path):
    rows = arms("cub", "lae", ce=(40, 50, 60), tal=(45, 52, 68)) + arms(
        "pets", "lae", ce=(40, 50, 60), tal=(39, 49, 59)
    )
    said = sentence(page_of(tmp_path, rows), "Beside the paper")
    assert "A_Tail in 30 of 30 and A_Mean in 30 of 30 cells. Here: A_Tail in 1 of 2 and A_Mean in 1 of 2." in said


def test_smaller_batches_stand_beside_the_methods_own(tmp_path):
    rows = arms("cub", "lae", ce=(40, 50, 60), tal=(45, 55, 65), tal_auto=(44, 54, 64))
    rows = [{**line, "weight": 0.17 if line["loss"] == "tal" else ""} for line in rows]
    assert "## Smaller batches" not in page_of(tmp_path, rows)
    more = arms("batches", "lae", ce=(50, 60, 70), tal=(53, 63, 73.1), tal_auto=(52, 63, 70))
    rows += [{**line, "steps": 96.0, "weight": 0.59 if line["loss"] == "tal" else ""} for line in more]
    page = page_of(tmp_path, rows)
    said = sentence(page, "With more steps")
    assert said.startswith("- **With more steps a task** (batches of 16, LAE on CUB-LT (4)). CE's own A_Tail is")
    assert "A_Tail is 60.0 in place of 50.0. TAL: A_Tail rises by 3.0 [" in said
    assert "TAL-auto: A_Tail changes by +1.7 [" in said
    section = page.split("## Smaller batches")[1].split("\n## ")[0]
    own, small = [line for line in section.splitlines() if line.startswith("| LAE")]
    assert own.startswith("| LAE | 128 | 20 | 0.17 | 50.0 | +5.0 [+5.0, +5.0] | +4.0 [+4.0, +4.0] | 60.0 | +5.0")
    assert small.startswith("| LAE | 16 | 96 | 0.59 | 60.0 | +3.0 [+2.9, +3.2] | +1.7 [") and "| 70.0 | +3.0 [" in small
    assert "| TAL | CE | +5.0 [+5.0, +5.0] |" in page  # the small batches are not pooled with the rest


def test_the_demo_has_a_sentence_of_its_own(tmp_path):
    rows = arms("demo", "lae", ce=(40, 50, 60), tal=(38, 48, 58.1)) + arms(
        "demo", "l2p", ce=(40, 50, 60), tal=(38, 48, 58)
    )
    said = sentence(page_of(tmp_path, rows), "On the demo")
    assert said.startswith("- **On the demo**, over 2 methods. TAL: A_Tail falls by 2.0 [−2.2, −1.8]; A_Mean falls by ")


def test_methods_are_set_against_training_nothing(tmp_path):
    rows = arms("cub", "lae", ce=(40, 50, 60))
    assert "What does training buy?" not in page_of(tmp_path, rows)
    rows += arms("cub", "ranpac", ce=(55, 60, 65)) + arms("cub", "ease", ce=(30, 30, 30))
    assert "What does training buy?" in page_of(tmp_path, rows) and "Against SimpleCIL" not in page_of(tmp_path, rows)
    rows += arms("cub", "simplecil", none=(55, 60, 65)) + arms("cub", "coda_prompt", ce=(20,))  # one seed says little
    rows += arms("cub", "l2p", ce=(20, 26, 29)) + arms("cub", "mos", ce=(60, 65, 70.1))
    page = page_of(tmp_path, rows)
    # LAE by −15, −10 and −5, whose interval holds 0; L2P by −35, −34 and −36; MOS by 5, 5 and 5.1
    assert "lower in 1 of 3 cells (by 35.0 points), higher in 1 (by 5.0 points); in 1 the interval holds 0." in page
    names = "| SimpleCIL | RanPAC | EASE | L2P | DualPrompt | CODA-Prompt | LAE | MOS |"
    assert f"| Dataset | Metric {names}\n" in page
    assert "| CUB-LT (4) | A_Tail | 60.0 | 60.0 | 30.0 | 25.0 | – | 20.0 | 50.0 | 65.0 |" in page
    assert "| CUB-LT (4) | A_Mean | 70.0 | 70.0 | 40.0 | 35.0 | – | 30.0 | 60.0 | 75.0 |" in page


def test_several_gaps_are_told_from_the_smallest_to_the_largest(tmp_path):
    rows = arms("cub", "simplecil", none=(50, 55, 60)) + arms("cub", "lae", ce=(40, 45, 50))
    page = page_of(tmp_path, rows + arms("cub", "l2p", ce=(20, 25, 30)))
    assert "lower in 2 of 2 cells (by 10.0 to 30.0 points), higher in 0; in 0 the interval holds 0." in page


def test_calibration_is_told_with_the_steps_it_had(tmp_path):
    rows = [
        run("cub", "lae", "tal", seed, tail=0.4, mean=0.5, weight=w)
        for seed, w in zip(SEEDS, (0.2, 0.3, 0.22), strict=True)
    ]
    rows += [run("cub", "mos", "tal_auto", SEEDS[0], tail=0.4, mean=0.5, weight=1.4, steps=40.0)]
    rows += [run("demo", "l2p", "tal", SEEDS[0], tail=0.4, mean=0.5, weight=0.9)]  # the demo is not of the photographs
    page = page_of(tmp_path, rows)
    assert "| LAE | 20 | 0.24 | – |\n| MOS | 40 | – | 1.40 |\n\n" in page
    assert "the paper's CUB-LT has 1,258 images, so in 10 tasks about 126 each, and LAE's batch is 128." in page


def test_a_batch_that_holds_a_whole_task_is_named(tmp_path):
    rows = [run("cub", "lae", "tal", seed, tail=0.4, mean=0.5, weight=0.2, steps=20.0) for seed in SEEDS]
    rows += [run("cub", "mos", "tal", seed, tail=0.4, mean=0.5, weight=0.2, steps=40.0) for seed in SEEDS]
    rows += [run("pets", "l2p", "tal", seed, tail=0.4, mean=0.5, weight=0.2, steps=5.0) for seed in SEEDS]
    page = page_of(tmp_path, rows)  # with 20 epochs of CUB; how many the pets have is not said
    assert " With LAE one batch holds all images of a task, with few exceptions: " in page
    assert "one batch holds" not in page_of(tmp_path / "mos", rows[3:6])

"""The sections on one question each say what their runs say, and are left out without them."""

import csv

import pytest
from made_up import SEEDS, page_of, run

import results

T_2 = 4.302653  # Student's 97.5 % quantile with two degrees of freedom
HALF = T_2 * 3 / 3**0.5  # of an interval around three differences with a deviation of 3, such as 2, 5 and 8
COSTS = {
    "cost_of_loss": [{"batch": 32, "classes": 20, "ce": 34.0, "tal": 153.0}],
    "cost_of_runs": [{"method": "lae", "epochs": 20, "rounds": 8, "percent": -0.31, "error": 0.65}],
}


def arm(study, loss, means, method="lae", **more) -> list[dict]:
    """Runs on the three seeds by their A_Mean in percent; the tail lies 10 points below."""
    pairs = zip(SEEDS, means, strict=True)
    return [run(study, method, loss, seed, mean=value / 100, tail=value / 100 - 0.1, **more) for seed, value in pairs]


def test_what_was_not_run_has_no_section(tmp_path):
    page = page_of(tmp_path, arm("cub", "ce", (40, 50, 60)) + arm("cub", "tal", (45, 52, 68)))
    for title in ("## The demo", "## Ours and the original", "## Supervised", "## What TAL costs"):
        assert title not in page


def test_ours_and_the_original_are_paired_by_seed(tmp_path):
    near = arm("original", "ce", (45, 52, 68)) + arm("original", "ce", (40, 50, 60), engine="lamda-pilot")
    page = page_of(tmp_path, near)
    interval = f"+5.0 [−{HALF - 5:.1f}, +{HALF + 5:.1f}]"
    assert f"| LAE | 55.0 | 50.0 | {interval} | 45.0 | 40.0 | {interval} | 3 |" in page
    assert "Of 2 differences no interval leaves out 0 (by chance alone 0.1 would be expected)" in page
    assert "of one seed's difference in A_Mean the standard deviation is 3.0 points." in page  # 5, 2 and 8
    assert "Mean of the methods" not in page
    assert f"over the methods, A_Mean changes by {interval}, which may be chance; the training loss" in page
    assert "the training loss of the last epoch changes by +0.000 [+0.000, +0.000]." in page
    far = [line | {"method": "l2p", "a_mean": line["a_mean"] + 0.2 * (line["engine"] == "native")} for line in near]
    page = page_of(tmp_path / "far", near + far)
    assert "Of 4 differences the interval leaves out 0 for A_Mean of L2P (by chance alone 0.2" in page
    assert "| Mean of the methods |  |  | +15.0 [" in page  # 5 and 25
    more = [line | {"train_loss": 0.5 + 0.01 * (line["engine"] == "native") * (line["seed"] - 1993)} for line in near]
    half = T_2 * 0.01 / 3**0.5  # 0, 0.01 and 0.02
    assert f"changes by +0.010 [−{half - 0.01:.3f}, +{half + 0.01:.3f}]" in page_of(tmp_path / "more", more)


def test_an_original_without_ours_is_not_compared(tmp_path):
    assert "\n## Ours and" not in page_of(tmp_path, arm("original", "ce", (40, 50, 60), engine="lamda-pilot"))


@pytest.mark.parametrize(
    ("tal", "sentence"),
    [
        (
            (42, 49, 61),
            "On the balanced sets no interval leaves out 0: TAL on 5 classes +0.7 [−3.1, +4.5], TAL-auto on 5",
        ),
        ((45, 55, 65.1), "On the balanced sets the interval leaves out 0 for TAL on 5 classes (+5.0 [+4.9, +5.2])."),
        ((35, 45, 54.9), "On the balanced sets the interval leaves out 0 for TAL on 5 classes (−5.0 [−5.2, −4.9])."),
    ],
)
def test_only_the_balanced_sets_speak_for_or_against_the_theory(tmp_path, tal, sentence):
    rows = arm("supervised_5_balanced", "ce", (40, 50, 60)) + arm("supervised_5_balanced", "tal", tal)
    assert "On the balanced sets" not in page_of(tmp_path / "early", rows)  # TAL-auto is still to come
    rows += arm("supervised_5_balanced", "tal_auto", (40, 50, 61))
    rows += arm("supervised_10_long_tailed", "ce", (40, 50, 60)) + arm("supervised_10_long_tailed", "tal", (50, 60, 71))
    page = page_of(tmp_path, rows)
    assert sentence in page
    changes = "+10.3 [+8.9, +11.8] | –"
    assert f"| 10 | long-tailed | 50.0 | {changes} | 40.0 | {changes} | 3 |" in page
    assert "| 5 | balanced | 50.0 | " in page and " |  |  |  | 3 |" in page  # no class is rare there


def test_what_a_loss_gains_beyond_a_balanced_set(tmp_path):
    rows = []
    for kind, gains in (("balanced", (1, 2, 3)), ("long_tailed", (4, 5, 6.1))):
        rows += arm(f"supervised_5_{kind}", "ce", (40, 50, 60))
        rows += arm(f"supervised_5_{kind}", "tal", [a + b for a, b in zip((40, 50, 60), gains, strict=True)])
    assert (
        "TAL changes A_Mean of the long-tailed set more than that of the balanced one by +3.0 [+2.9, +3.2] on 5"
        in page_of(tmp_path, rows)
    )


def test_losses_on_the_demo_are_pooled_over_methods_and_sorted_by_the_mean(tmp_path):
    rows = []
    for method, gain in (("lae", 2), ("l2p", 4)):
        for loss, factor in (("ce", 0), ("tal", -1), ("focal", 1), ("balanced_softmax", 3)):
            rows += arm("demo", loss, [value + factor * gain for value in (40, 50, 60)], method)
    rows += arm("demo", "tal", (99, 99, 99), "mos")  # without CE to compare with
    rows += arm("demo", "ldam", (99, 99, 99), "lae")  # not with L2P, so not beside the others
    section = page_of(tmp_path, rows).split("## The demo: the losses side by side")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert [line.split(" | ")[0] for line in lines] == ["| Balanced softmax", "| Focal", "| TAL"]
    half = 12.706205 * 1  # t with one degree of freedom; 2 and 4 have a standard error of 1
    interval = f"+3.0 [−{half - 3:.1f}, +{half + 3:.1f}]"
    assert lines[1] == f"| Focal | nothing | {interval} | {interval} | {interval} | 2 up, 0 down |"
    assert lines[2].startswith("| TAL | the counts so far | −3.0") and lines[2].endswith("| 0 up, 2 down |")


def test_costs_stand_beside_the_papers(tmp_path):
    rows = arm("cub", "ce", (40, 50, 60)) + arm("cub", "tal", (45, 52, 68))
    page = page_of(tmp_path, rows, **COSTS)
    assert "| 32 × 20 | 34 | 153 | 4.5 | 108 | 429 | 4.0 |" in page
    assert "| LAE | 20 | 8 | −0.31 % (± 0.65) |" in page
    assert "`python scripts/results.py cost --epochs 20 --rounds 8`" in page
    assert "The loss, forward" not in page_of(tmp_path / "one", rows, cost_of_runs=COSTS["cost_of_runs"])


def test_costs_are_measured_into_tables_that_the_page_reads(tmp_path, monkeypatch):
    asked = []

    def overheads(*given):
        asked.append(given)
        return [1.0, 3.0]

    monkeypatch.setattr("bench_overhead.measure", overheads)
    results.measure_cost(tmp_path, repeats=1, rounds=2, epochs=3)
    assert asked.pop(0)[3] == ["threads=1", "epochs=3"] and asked.pop(0)[3] == ["threads=1", "epochs=3"]
    results.measure_cost(tmp_path, repeats=1, rounds=2)
    found = {}
    for name, like in COSTS.items():
        with (tmp_path / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            found[name] = list(csv.DictReader(file))
        assert list(found[name][0]) == list(like[0])
    assert len(found["cost_of_loss"]) == 16 and all(float(line["ce"]) > 0 for line in found["cost_of_loss"])
    assert [(method, dataset, rounds) for method, dataset, rounds, _ in asked] == [
        ("l2p", "demo_lt", 2),
        ("lae", "demo_lt", 2),
    ]
    measured = {"method": "l2p", "epochs": "12", "rounds": "2", "percent": "2.0", "error": "1.0"}
    assert found["cost_of_runs"][0] == measured  # as many epochs as the demo has
    rows = arm("cub", "ce", (40, 50, 60)) + arm("cub", "tal", (45, 52, 68))
    assert "| L2P | 12 | 2 | +2.00 % (± 1.00) |" in page_of(tmp_path / "page", rows, **found)

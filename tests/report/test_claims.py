"""The report claims no more than its runs show: ties, quick runs and mixed configurations."""

import json
import math

from synthetic_runs import long_tailed_counts, write_comparison, write_run_directory

from pilot_tal.metrics import Difference
from pilot_tal.report import tables
from pilot_tal.report.study import load_study
from pilot_tal.report.words import lead_sentences, setting_caveats, verdict

SMALL = {"task_sizes": (4, 4), "counts": long_tailed_counts(8, 30, 3), "tests": 5, "steps_a_task": 5}


def shift(arm, metric, value):
    """Gives all runs of an arm one value of a metric."""
    for result in arm.results.values():
        result.metrics[metric] = value


def test_no_verdict_from_an_interval_without_width():
    for mean in (0.0, 1e-17, 0.02, -0.02):
        said = verdict(Difference(mean, mean, mean, 3), "TAL")
        assert "does not vary over the seeds" in said and "helps" not in said and "harms" not in said
    assert "includes 0" in verdict(Difference(0.1, 1e-12, 0.2, 3), "TAL")


def test_values_that_differ_in_the_last_bits_are_ties(tmp_path):
    for method in ("l2p", "lae"):
        write_comparison(tmp_path, method=method, **SMALL)
    study = load_study([tmp_path])
    for setting in study.settings:
        shift(setting.arms[0], "a_tail", 0.3)
        shift(setting.arms[1], "a_tail", math.nextafter(0.3, 1))
    (lead,) = lead_sentences(study)
    assert "higher in 0, lower in 0, equal in 2." in lead
    assert "lies above 0 in 0, below 0 in 0 and includes 0 in 0. In 2 it has no width" in lead
    layout = tables.paper_layout_table(study)
    assert all(row[2].best for row in layout.rows) and all(row[2].top for row in layout.rows)
    tails = [row for row in tables.metrics_table(study.settings[0]).rows if row[0].text == "A_Tail"]
    assert [cell.best for cell in tails[0][1:3]] == [True, True]


def test_one_task_that_did_not_calibrate_is_said(tmp_path):
    options = SMALL | {"task_sizes": (2, 2, 4)}
    path = write_run_directory(tmp_path, loss="tal", **options)
    lines = [
        {"task": task, "step": 0, "alpha": 1.0, "Q": [0.5] * size, "weights": [end] * size}
        for task, size, end in ((0, 2, 1.6), (1, 2, 1.0), (2, 4, 0.2))
    ]
    (path / "tal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (setting,) = load_study([tmp_path]).settings
    said = " ".join(setting_caveats(setting))
    assert "Too few steps for TAL to calibrate in 1 of 3 tasks" in said and "(0.20 to 0.20)" in said

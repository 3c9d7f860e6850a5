"""The sentences of the report: what came out, and what was not reached."""

import pytest
from synthetic_runs import long_tailed_counts, write_comparison, write_run_directory

from data_lt.errors import UserError
from pilot_tal.metrics import Difference
from pilot_tal.record.run_dir import load_run
from pilot_tal.results.grouping import load_study
from pilot_tal.results.paper import departures
from pilot_tal.results.sentences import group_caveats, lead_sentences, study_caveats, verdict
from pilot_tal.results.tal_state import mean_weights, read_states

SMALL = {"task_sizes": (6, 6), "counts": long_tailed_counts(12, 60, 3), "tests": 10, "steps_a_task": 1500}


def caveats(root):
    (setting,) = load_study([root]).groups
    return " ".join(group_caveats(setting))


def test_lead_names_difference_interval_and_seeds(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0), ("tal", 0.3)), **SMALL)
    study = load_study([tmp_path])
    (setting,) = study.groups
    found = setting.difference(setting.variants[1], "a_tail")
    (sentence,) = lead_sentences(study)
    assert sentence.startswith(f"On the tail, TAL changes accuracy by {100 * found.mean:+.1f} points against CE")
    low, high = (f"{100 * x:+.1f}".replace("-", "−") for x in (found.low, found.high))
    assert f"95 % interval {low} to {high}, 3 seeds" in sentence


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.1, 0.2, "lies above 0: TAL helps"),
        (-0.2, -0.1, "lies below 0: TAL harms"),
        (-0.1, 0.2, "includes 0: these runs do not show that TAL changes the tail"),
        (None, None, "an observation, not a result"),
    ],
)
def test_verdict_says_no_more_than_the_interval(low, high, words):
    assert words in verdict(Difference(0.1, low, high, 1 if low is None else 3), "TAL")


def test_harm_is_said_as_plainly_as_help(tmp_path):
    write_comparison(
        tmp_path, losses=(("ce", 0), ("tal", -0.6)), tests=40, **{k: SMALL[k] for k in SMALL if k != "tests"}
    )
    (sentence,) = lead_sentences(load_study([tmp_path]))
    assert "changes accuracy by −" in sentence and "TAL harms the tail here" in sentence


def test_several_settings_are_counted(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0), ("tal", 0.3)), **SMALL)
    write_comparison(tmp_path, method="lae", losses=(("ce", 0), ("tal", -0.4)), **SMALL)
    (sentence,) = lead_sentences(load_study([tmp_path]))
    assert "on average over 2 comparisons" in sentence and "higher in 1, lower in 1" in sentence


def test_nothing_to_compare_is_said(tmp_path):
    write_run_directory(tmp_path / "a", tasks_done=1, **SMALL)
    assert lead_sentences(load_study([tmp_path / "a"])) == ["No run has finished, so there is nothing to compare yet."]
    write_run_directory(tmp_path / "b", **SMALL)
    assert "no other loss" in lead_sentences(load_study([tmp_path / "b"]))[0]
    write_run_directory(tmp_path / "c", loss="tal", **SMALL)
    assert "nothing to compare" in lead_sentences(load_study([tmp_path / "c"]))[0]
    assert "no finished and otherwise equal CE run" in caveats(tmp_path / "c")


def test_a_comparison_in_one_task_alone_is_not_called_none(tmp_path):
    """CE task by task, and CE and TAL with all classes at once, which is a bound and in no headline."""
    write_comparison(tmp_path, losses=(("ce", 0),), **SMALL)
    write_comparison(
        tmp_path, losses=(("ce", 0), ("tal", 0.3)), **(SMALL | {"task_sizes": (sum(SMALL["task_sizes"]),)})
    )
    (lead,) = lead_sentences(load_study([tmp_path]))
    assert lead == "Only the runs with all classes in one task can be compared with CE; see their tables."


def test_a_good_comparison_off_the_demo_has_no_caveat(tmp_path):
    write_comparison(tmp_path, dataset="folder_lt", method="lae", **SMALL)
    assert caveats(tmp_path) == ""


def test_too_few_steps_are_said_with_the_number(tmp_path):
    write_comparison(tmp_path, **(SMALL | {"steps_a_task": 40}))
    runs = load_study([tmp_path]).groups[0].variants[1].runs.values()
    ends = [weight for run in runs for weight in mean_weights(run)]
    assert len(ends) == 6 and max(ends) < 0.5
    said = caveats(tmp_path)
    assert "TAL did not calibrate in 6 of 6 tasks over all seeds" in said
    assert f"the mean α·w over the classes is {sum(ends) / 6:.2f} on average" in said


def test_missing_log_of_the_state_is_said(tmp_path):
    write_comparison(tmp_path, states=[], **SMALL)
    assert "whether it calibrated is not known" in caveats(tmp_path)


def test_demo_batch_vote_and_notes_are_said(tmp_path):
    write_comparison(tmp_path, notes=("A quick run.",), **SMALL)
    said = caveats(tmp_path)
    assert "it is not the paper's benchmark" in said
    assert "each batch vote" in said
    assert said.count("A quick run.") == 1


@pytest.mark.parametrize(("method", "fidelity", "expected"), [
    ("dualprompt", "pilot", True), ("l2p", "fixed", False), ("lae", "pilot", False),
])  # fmt: skip
def test_batch_vote_only_where_there_is_one(tmp_path, method, fidelity, expected):
    write_comparison(tmp_path, method=method, fidelity=fidelity, **SMALL)
    assert ("each batch vote" in caveats(tmp_path)) == expected


def test_seeds_are_watched(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0),), seeds=(1, 2, 3), **SMALL)
    write_comparison(tmp_path, losses=(("tal", 0),), seeds=(3,), **SMALL)
    said = caveats(tmp_path)
    assert "One seed only (TAL)" in said
    assert "TAL has seed 3, CE seeds 1, 2, 3: their means stand on different seeds" in said


def test_other_data_is_said(tmp_path):
    write_comparison(tmp_path, losses=(("ce", 0),), seeds=(1, 2), **SMALL)
    write_comparison(tmp_path, losses=(("tal", 0),), seeds=(1, 2), **(SMALL | {"tests": 9}))
    assert "did not see the same data with seeds 1, 2" in caveats(tmp_path)


def test_unfinished_runs_are_named(tmp_path):
    path = write_run_directory(tmp_path, tasks_done=1, **SMALL)
    (said,) = study_caveats(load_study([tmp_path]))
    assert said == f"Unfinished and in no mean: {path.name} (1 of 2 tasks done)."


def test_what_keeps_a_run_from_the_papers_group_is_said(tmp_path):
    write_comparison(tmp_path, dataset="cub_lt", method="lae", fidelity="fixed", epochs=2,
                     **(SMALL | {"task_sizes": (3, 3, 2, 2, 2)}))  # fmt: skip
    assert (
        "Not the paper's setting, so its numbers do not stand beside these: 12 classes instead of 200, fidelity "
        "fixed instead of pilot, 2 epochs instead of 20." in caveats(tmp_path)
    )


@pytest.mark.parametrize(("record", "reason"), [
    ({"epochs": 5}, "5 epochs instead of 20"),
    ({"backbone": {"name": "deit_tiny"}}, "backbone deit_tiny instead of vit_base_patch16_224"),
    ({"backbone": {"name": "vit_base_patch16_224_l2p"}, "changed": {"vit.depth": [2, 12]}}, "vit.depth 2 instead of"),
    ({"epochs": None, "changed": {"tasks": [10, 5]}}, "an unknown number of epochs instead of 20"),
    ({"backbone": {"name": "pretrained_vit_base_patch16_224"}}, None),
])  # fmt: skip
def test_epochs_and_backbone_are_looked_at(tmp_path, record, reason):
    options = {"counts": [9] * 200, "task_sizes": (40,) * 5, "tests": 1, **record}
    write_run_directory(tmp_path, dataset="cub_lt", **options)
    (setting,) = load_study([tmp_path]).groups
    found = departures(setting, setting.variants[0])
    assert found == [] if reason is None else len(found) == 1 and reason in found[0]


def test_state_over_all_classes_seen_is_read_too(tmp_path):
    states = [[{"step": 0, "Q": [0.5] * 6 * (t + 1), "weights": [1.0] * 6 * (t + 1)}] for t in (0, 1)]
    path = write_run_directory(tmp_path, loss="tal", states=states, **SMALL)
    assert [state.labels.tolist() for state in read_states(load_run(path))] == [list(range(6)), list(range(12))]


@pytest.mark.parametrize(("row", "sentence"), [
    ({"step": 0, "Q": [1.0], "weights": [1.0]}, "task 0 has 6 classes, but 1 values a line"),
    ({"Q": [1.0] * 6, "weights": [1.0] * 6}, "needs step, Q and weights"),
])  # fmt: skip
def test_a_log_that_does_not_fit_is_refused(tmp_path, row, sentence):
    path = write_run_directory(tmp_path, loss="tal", states=[[row], [row]], **SMALL)
    with pytest.raises(UserError, match=sentence):
        mean_weights(load_run(path))

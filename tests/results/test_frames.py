"""The DataFrames of a study: contents, pairing and intervals, computed by hand."""

import math

import numpy as np
import pytest
from synthetic_runs import write_run_directory

from data_lt.errors import UserError
from pilot_tal.metrics import DEFINITIONS
from pilot_tal.results import load_study

T_2 = 4.302652729911275  # Student's 0.975 quantile with two degrees of freedom


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for seed in (1993, 1994, 1995):
        write_run_directory(root, loss="ce", seed=seed)
    for seed in (1994, 1995, 1993, 1996):
        write_run_directory(root, loss="tal", seed=seed)
    return load_study([root])


def test_frame_has_one_row_per_run_with_every_metric(study):
    frame = study.frame()
    assert len(frame) == 7 and set(DEFINITIONS) <= set(frame.columns)
    assert frame.groupby("loss")["seed"].apply(sorted).to_dict() == {
        "ce": [1993, 1994, 1995],
        "tal": [1993, 1994, 1995, 1996],
    }
    for run in study.runs:
        row = frame[frame["run"] == run.path.name].iloc[0]
        assert row["a_tail"] == run.metrics["a_tail"]


def test_per_class_averages_to_a_mean_and_a_tail(study):
    table = study.per_class()
    for run in study.runs:
        rows = table[table["run"] == run.path.name]
        assert list(rows["training_images"]) == list(run.record.stream.train_counts)
        assert rows["accuracy"].mean() == pytest.approx(run.metrics["a_mean"])
        tail = rows[rows["part"] == "tail"]
        assert tail["accuracy"].mean() == pytest.approx(run.metrics["a_tail"])
        assert tail["training_images"].max() <= rows[rows["part"] == "head"]["training_images"].min()


@pytest.mark.parametrize("metric", [key for key in DEFINITIONS if key != "many"])  # no class has over 100 images
@pytest.mark.parametrize("baseline", ["ce", "tal"])
def test_differences_are_paired_by_shared_seeds(study, metric, baseline):
    frame, found = study.frame(), study.differences(baseline)
    (row,) = found[found["metric"] == metric].to_dict("records")
    other = {"ce": "tal", "tal": "ce"}[baseline]
    by_seed = frame.pivot(index="seed", columns="loss", values=metric).dropna()
    values = (by_seed[other] - by_seed[baseline]).to_numpy()
    half = T_2 * values.std(ddof=1) / math.sqrt(3)
    assert row["n"] == 3 == len(values), "seeds are the unit, not seeds times classes"
    assert (row["mean"], row["low"], row["high"]) == pytest.approx(
        (values.mean(), values.mean() - half, values.mean() + half)
    )


def test_unknown_baseline_names_the_losses(study):
    with pytest.raises(UserError, match="ce, tal"):
        study.differences("focal")


def test_study_shows_its_table(study):
    assert "7 finished and 0 unfinished" in repr(study) and "tal" in repr(study)
    assert study._repr_html_().count("<tr") == 3


def test_setting_that_varies_is_a_column(tmp_path):
    write_run_directory(tmp_path, loss="ce", seed=1993)
    only = load_study([tmp_path]).frame()
    assert "epochs" not in only.columns and np.isfinite(only["a_mean"]).all()


def test_any_loss_may_be_the_baseline_of_a_report(study, tmp_path):
    root = study.runs[0].path.parent
    against_tal = load_study([root], baseline="tal")
    assert against_tal.differences()["loss"].unique().tolist() == ["ce"]
    (group,) = against_tal.groups
    (compared,) = group.compared_variants()
    assert compared.loss == "ce" and group.baseline_title == "TAL"
    usual, other = study.groups[0], group
    forward = usual.difference(usual.compared_variants()[0], "a_tail")
    assert other.difference(compared, "a_tail").mean == pytest.approx(-forward.mean)
    assert "CE − TAL" in against_tal.report(tmp_path / "page").read_text()
    with pytest.raises(UserError, match="no run was trained with the baseline 'focal'"):
        load_study([root], baseline="focal")

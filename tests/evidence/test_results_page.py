"""Every table of measured results equals results/runs.csv, and the changes in it are paired by seed."""

import sys

import pandas as pd
import pytest
from helpers.cli import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import results


@pytest.mark.parametrize("page", results.PAGES, ids=lambda page: page.name)
def test_tables_equal_the_collected_runs(page):
    text = page.read_text(encoding="utf-8")
    assert results.MARK.search(text) and results.filled(text) == text


def test_changed_run_changes_the_page(tmp_path, monkeypatch):
    frame = pd.read_csv(results.RUNS, keep_default_na=False)
    frame["a_mean"] += 0.1
    frame.to_csv(tmp_path / "runs.csv", index=False)
    monkeypatch.setattr(results, "RUNS", tmp_path / "runs.csv")
    page = results.PAGES[0].read_text(encoding="utf-8")
    assert results.filled(page) != page


def test_changes_are_paired_on_shared_seeds():
    ours = pd.DataFrame({"seed": [1, 2, 3, 9], "a_mean": [0.5, 0.6, 0.7, 0.0]})
    base = pd.DataFrame({"seed": [3, 2, 1], "a_mean": [0.6, 0.55, 0.5]})
    found = results._difference(ours, base, "a_mean")
    half = 4.302653 * 5 / 3**0.5  # t(0.975, 2) · s / √3 of the differences 0, 5 and 10
    assert found.n == 3 and found.mean == pytest.approx(5)
    assert found.low == pytest.approx(5 - half, abs=1e-4) and found.high == pytest.approx(5 + half, abs=1e-4)


def test_collect_reads_finished_runs(demo_run, tmp_path):
    table = tmp_path / "runs.csv"
    assert results.collect_runs([str(demo_run)], table) == 1
    assert results.collect_runs([str(demo_run)], table) == 1, "collected again, a run replaces its own row"
    row = pd.read_csv(table, keep_default_na=False).iloc[0]
    assert row["method"] == "simplecil" and row["loss"] == "none" and 0 <= row["a_tail"] <= 1


@pytest.fixture
def demo_run(tmp_path):
    from helpers.cli import command

    status, printed = command("run", "simplecil", "demo_lt", f"output={tmp_path / 'runs'}", "tasks=2", "device=cpu")
    assert status == 0, printed
    return tmp_path / "runs"

"""The benchmark scripts run to their end; their figures need an idle machine."""

import os
import subprocess
import sys

import pytest
from helpers.cli import ROOT

from pilot_tal.config.grid import run_config


@pytest.mark.slow
def test_learn_prints_its_figure_last(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(ROOT / "scripts/bench.py"), "learn", "--backbone", "vit_tiny_patch16_224"]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("after 1,000 classes: ")


def test_bench_extends_two_runs_to_20_epochs_and_its_settings_are_known(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import bench

    assert bench.at_full({5: 110.0, 10: 210.0}) == 410.0
    given = bench.parse(["pilot", "n_max=8"])
    given.vit = tmp_path / "vit.pth"
    given.vit.touch()
    for method in bench.METHODS:
        _, name, dataset, *settings = bench.command(given, "bf16", method, 5, "runs")
        (run,) = run_config(name, dataset, settings).runs
        assert (run.method, run.settings.precision, run.method_config.tuned_epoch) == (method, "bf16", 5)
        theirs = bench.command(given, "LAMDA-PILOT", method, 5, "runs")
        assert theirs[0] == "upstream" and {"data.n_max=8", "tuned_epoch=5", "init_cls=40"} <= {*theirs}

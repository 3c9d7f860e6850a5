"""The benchmark scripts run to their end; their figures need an idle machine."""

import os
import subprocess
import sys

import pytest
from helpers.cli import ROOT
from helpers.images import make_images

from pilot_tal.config.grid import run_config

FOLDER = ["folder_lt", "backbone=demo_vit", "weights=bundled", "n_max=4", "n_min=2", "test_per_class=2", "tasks=2"]
OVERHEAD = ["--rounds", "1", "--method", "lae", "--dataset", *FOLDER, "epochs=1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bench", "arguments", "closing"),
    [
        ("loss", ["--rounds", "1", "--calls", "1"], "largest ratio "),
        ("overhead", OVERHEAD, "overhead of TAL over a "),
        ("report", ["--runs", "2", "--groups", "1"], "2 runs in 1 groups: "),
    ],
)
def test_benchmark_prints_its_figure_last(bench, arguments, closing, tmp_path):
    images = [f"data_root={make_images(tmp_path / 'photos')}"] if "folder_lt" in arguments else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(ROOT / "scripts/bench.py"), bench, *arguments, *images]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(closing)


def test_bench_pilot_extends_two_runs_to_20_epochs_and_its_settings_are_known(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import bench_pilot

    assert bench_pilot.at_full({5: 110.0, 10: 210.0}) == 410.0
    monkeypatch.setattr(sys, "argv", ["bench_pilot.py", "--repo", "checkout", "--data", "n_max=8"])
    given = bench_pilot.parse()
    for method in bench_pilot.METHODS:
        _, _, _, _, name, dataset, *settings = bench_pilot.ours(given, method, 5, "runs", "bf16")
        (run,) = run_config(name, dataset, settings).runs
        assert (run.method, run.settings.precision, run.method_config.tuned_epoch) == (method, "bf16", 5)

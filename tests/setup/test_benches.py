"""The benchmark scripts run to their end; their figures need an idle machine."""

import os
import subprocess
import sys

import pytest
from helpers.cli import ROOT
from helpers.images import make_images

FOLDER = ["folder_lt", "backbone=demo_vit", "weights=bundled", "n_max=4", "n_min=2", "test_per_class=2", "tasks=2"]
OVERHEAD = ["--rounds", "1", "--method", "lae", "--dataset", *FOLDER, "epochs=1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "closing"),
    [
        ("bench_loss.py", ["--repeats", "1", "--calls", "1"], "largest ratio "),
        ("bench_report.py", ["--runs", "2", "--groups", "1"], "2 runs in 1 groups: "),
        ("bench_overhead.py", OVERHEAD, "overhead of TAL over a "),
    ],
)
def test_benchmark_prints_its_figure_last(script, arguments, closing, tmp_path):
    images = [f"data_root={make_images(tmp_path / 'photos')}"] if "folder_lt" in arguments else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(ROOT / "scripts" / script), *arguments, *images]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(closing)

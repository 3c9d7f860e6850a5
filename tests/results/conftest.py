"""Runs and reports that several tests look at."""

from pathlib import Path

import pytest
from synthetic_runs import long_tailed_counts, write_comparison, write_run_directory

from pilot_tal.results import build_report

EVIL = '<script>alert("x")</script> $x_1$ | a*b_c* \\input{b} & 100% #1 ~^ {\x00\n\u202e `tick` [l](javascript:1)'


@pytest.fixture(scope="session")
def demo_runs(tmp_path_factory) -> Path:
    """CE and TAL on three seeds, 50 classes in 5 tasks."""
    root = tmp_path_factory.mktemp("demo") / "runs"
    write_comparison(root)
    return root


@pytest.fixture(scope="session")
def demo_report(demo_runs) -> Path:
    return build_report([demo_runs], demo_runs.parent / "report")


@pytest.fixture(scope="session")
def mixed_runs(tmp_path_factory) -> Path:
    """Several settings, losses, engines and fidelities, hostile names, and runs that did not finish."""
    root = tmp_path_factory.mktemp("mixed") / "runs"
    small = {"task_sizes": (7, 7, 7), "counts": long_tailed_counts(21, 60, 3), "tests": 8, "steps_a_task": 40}
    small["class_names"] = [f"{EVIL} {i}" for i in range(21)]
    losses = (("ce", 0.0), ("tal", 0.2), ("balanced_softmax", 0.3))
    write_comparison(root, losses=losses, notes=(f"Note {EVIL}",), **small)
    write_comparison(root, engine="lamda-pilot", **small)
    write_comparison(root, method="lae", losses=(("ce", 0.0), ("tal", -0.35)), **small)
    write_comparison(root, fidelity="fixed", seeds=(1993,), **small)
    write_run_directory(root, loss="tal", fidelity="fixed", seed=1994, tasks_done=2, **small)
    write_run_directory(root, loss="tal", fidelity="fixed", seed=1995, tasks_done=0, **small)
    write_comparison(root, dataset=EVIL, method=EVIL, losses=(("ce", 0.0), (EVIL, 0.1)), seeds=(1, 2), **small)
    return root


@pytest.fixture(scope="session")
def mixed_report(mixed_runs) -> Path:
    return build_report([mixed_runs], mixed_runs.parent / "report")

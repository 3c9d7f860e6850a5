"""Damaged and foreign runs are named with the reason, and keep no other run from its report."""

import json

import pytest
from synthetic_runs import long_tailed_counts, write_run_directory

from pilot_tal.errors import PilotTalError
from pilot_tal.report.tal_state import read_states
from pilot_tal.rundir import load_run

SMALL = {"task_sizes": (4, 4), "counts": long_tailed_counts(8, 30, 3), "tests": 5, "steps_a_task": 5}
STATE = {"task": 0, "step": 0, "Q": [1.0] * 4, "weights": [1.0] * 4}


@pytest.mark.parametrize("wrong", [{"task": [0]}, {"task": "0"}, {"step": 10**30}, {"step": None}, {"Q": [{}] * 4}])
def test_a_state_of_wrong_values_is_damaged(tmp_path, wrong):
    path = write_run_directory(tmp_path, loss="tal", **SMALL)
    (path / "tal.jsonl").write_text(json.dumps(STATE | wrong) + "\n")
    with pytest.raises(PilotTalError, match=r"tal\.jsonl is damaged .*remove .* to start this run anew"):
        read_states(load_run(path))

"""The upstream pages name every call site and every workaround of the code."""

import os
import re
from pathlib import Path

import pytest
from helpers.cli import ROOT
from upstream_helpers import DATA, context, needed

from pilot_tal.upstream.checkout import LEARNERS, TESTED_COMMIT, locate

PAGES = (ROOT / "docs/upstream.md", ROOT / "docs/development/upstream.md")
PAGE = "".join(page.read_text(encoding="utf-8") for page in PAGES)
ROW = re.compile(r"^\| `(\w+)` \| `([\w/.]+):(\d+)` `([\w.]+)` \| (.+) \| (swapped|stays) \|$", re.MULTILINE)


def test_every_call_site_is_in_the_table():
    expected = [
        (name, learner.file, site.function, site.what, site.fate)
        for name, learner in LEARNERS.items()
        for site in learner.sites
    ]
    found = [(name, file, function, what, fate) for name, file, _, function, what, fate in ROW.findall(PAGE)]
    assert sorted(found) == sorted(expected)


def test_learners_are_listed_by_their_logits():
    rows = dict(re.findall(r"^\| (masked|task) \| .+ \| (.+) \|$", PAGE, re.MULTILINE))
    found = {columns: re.findall(r"`(\w+)`", names) for columns, names in rows.items()}
    masked = [name for name, learner in LEARNERS.items() if learner.masked]
    assert found == {"masked": masked, "task": [name for name in LEARNERS if name not in masked]}


def test_every_workaround_is_in_the_table():
    made = {"weights": "vit.pth", "vit": {"depth": 2}, "data": DATA, "args": {"init_cls": 2, "tuned_epoch": 1}}
    table = PAGE[PAGE.index("## Workarounds") : PAGE.index("## What was tested")]
    active = needed(context("coda_prompt", **made)) | needed(context("fecam", **made))
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == active


def test_tested_commit_is_named():
    assert f"LAMDA-PILOT at {TESTED_COMMIT}" in PAGE


def test_lines_equal_those_of_a_real_checkout():
    if "PILOT_TAL_PILOT" not in os.environ:
        pytest.skip("needs a real checkout: set PILOT_TAL_PILOT (see docs/development/upstream.md)")
    lines = {(file, int(line)) for _, file, line, *_ in ROW.findall(PAGE)}
    for learner in LEARNERS.values():
        for span, _ in locate(Path(os.environ["PILOT_TAL_PILOT"]), learner):
            assert (learner.file, span.start) in lines

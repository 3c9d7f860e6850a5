"""The upstream pages name every call site and every workaround of the code."""

import os
import re
from pathlib import Path

import pytest
from helpers.cli import ROOT

from pilot_tal.upstream.seams import check_seams
from pilot_tal.upstream.sites import COLUMNS, LAMDA_PILOT, TOOLBOXES
from pilot_tal.upstream.workarounds import WORKAROUNDS

PAGES = (ROOT / "docs/upstream.md", ROOT / "docs/development/upstream.md")
PAGE = "".join(page.read_text(encoding="utf-8") for page in PAGES)
ROW = re.compile(r"^\| `(\w+)` \| `([\w/.]+):(\d+)` `([\w.]+)` \| (.+) \| (swapped|stays) \|$", re.MULTILINE)
CALL = r"(cross_entropy|CrossEntropyLoss|nll_loss|NLLLoss)\("
CHECKOUTS = {"lamda-pilot": "PILOT_TAL_PILOT", "pycil": "PILOT_TAL_PYCIL"}


def test_every_call_site_is_in_the_table():
    expected = [
        (name, learner.file, site.function, site.what, site.fate)
        for toolbox in TOOLBOXES
        for name, learner in toolbox.learners.items()
        for site in learner.sites
    ]
    found = [(name, file, function, what, fate) for name, file, _, function, what, fate in ROW.findall(PAGE)]
    assert sorted(found) == sorted(expected)


def test_logits_of_each_learner_are_in_the_table():
    rows = re.findall(r"^\| (\w+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
    found = {columns: (text, re.findall(r"`(\w+)`", names)) for columns, text, names in rows if columns in COLUMNS}
    learners = LAMDA_PILOT.learners.items()
    expected = {c: (text, [name for name, known in learners if known.columns == c]) for c, text in COLUMNS.items()}
    assert found == expected


def test_no_cross_entropy_of_lamda_pilot_is_left_out():
    """Compares the number on the page with a checkout, if there is one."""
    known = {(learner.file, site.function) for learner in LAMDA_PILOT.learners.values() for site in learner.sites}
    count = sum(len(learner.sites) for learner in LAMDA_PILOT.learners.values())
    assert f"all {count} cross-entropies of the checkout" in PAGE
    if CHECKOUTS["lamda-pilot"] in os.environ:
        files = sorted(Path(os.environ[CHECKOUTS["lamda-pilot"]]).rglob("*.py"))
        lines = [(f, line) for f in files for line in f.read_text().splitlines() if re.search(CALL, line)]
        assert len(lines) == count and {f"models/{f.name}" for f, _ in lines} == {file for file, _ in known}


def test_every_workaround_is_in_the_table():
    table = PAGE[PAGE.index("## Workarounds") : PAGE.index("## What was tested")]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {*WORKAROUNDS}


def test_tested_commits_are_named():
    assert all(f"{toolbox.title} at {toolbox.tested_commit}" in PAGE for toolbox in TOOLBOXES)


@pytest.mark.parametrize("toolbox", TOOLBOXES, ids=lambda toolbox: toolbox.engine)
def test_lines_equal_those_of_a_real_checkout(toolbox):
    name = CHECKOUTS[toolbox.engine]
    if name not in os.environ:
        pytest.skip(f"needs a real checkout: set {name} (see docs/development/upstream.md)")
    lines = {(file, int(line)) for _, file, line, *_ in ROW.findall(PAGE)}
    for learner in toolbox.learners.values():
        for span, _ in check_seams(Path(os.environ[name]), toolbox, learner):
            assert (learner.file, span.start) in lines

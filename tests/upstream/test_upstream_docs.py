"""docs/upstream.md names every call site and every workaround, as the code has them."""

import os
import re
from pathlib import Path

import pytest
from upstream_world import ROOT

from pilot_tal.upstream.seams import check_seams
from pilot_tal.upstream.sites import TOOLBOXES
from pilot_tal.upstream.workarounds import BEFORE, ON_LEARNER

PAGE = (ROOT / "docs/upstream.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| `([\w/.]+):(\d+)` `([\w.]+)` \| (.+) \| (swapped|stays) \|$", re.MULTILINE)
CHECKOUTS = {"lamda-pilot": "PILOT_TAL_PILOT", "pycil": "PILOT_TAL_PYCIL"}


def test_every_call_site_is_in_the_table():
    expected = [
        (name, learner.file, site.function, site.what, "swapped" if site.swap else "stays")
        for toolbox in TOOLBOXES
        for name, learner in toolbox.learners.items()
        for site in learner.sites
    ]
    found = [(name, file, function, what, fate) for name, file, _, function, what, fate in ROW.findall(PAGE)]
    assert sorted(found) == sorted(expected)


def test_every_workaround_is_in_the_table():
    table = PAGE[PAGE.index("## Workarounds") : PAGE.index("## What was seen")]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {*BEFORE, *ON_LEARNER}


def test_the_tested_commits_are_named():
    assert all(f"{toolbox.title} at {toolbox.tested_commit}" in PAGE for toolbox in TOOLBOXES)


@pytest.mark.parametrize("toolbox", TOOLBOXES, ids=lambda toolbox: toolbox.engine)
def test_the_lines_are_those_of_a_real_checkout(toolbox):
    name = CHECKOUTS[toolbox.engine]
    if name not in os.environ:
        pytest.skip(f"needs a real checkout: set {name} (see docs/upstream.md)")
    lines = {(file, int(line)) for _, file, line, *_ in ROW.findall(PAGE)}
    for learner in toolbox.learners.values():
        for located in check_seams(Path(os.environ[name]), toolbox, learner):
            assert (learner.file, located.first_line) in lines

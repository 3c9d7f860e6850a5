"""The page of the losses says what the registry says, and its figures are those of the picture."""

import re
import sys

import pytest
from helpers.cli import ROOT

from data_lt import load_manifest
from pilot_tal.losses import LOSSES
from pilot_tal.schema import defaults_of

PAGE = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")


def shown(value) -> str:
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def test_the_table_names_every_loss_its_options_and_what_it_knows():
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| `")]
    found = {row[0].strip("`"): (row[2], row[3]) for row in rows if len(row) == 4 and row[0].strip("`") in LOSSES}
    wanted = {
        name: (", ".join(f"`{key}` {shown(value)}" for key, value in defaults_of(loss).items()), loss.knows)
        for name, loss in LOSSES.items()
    }
    assert found == wanted and list(found) == list(LOSSES)


def test_every_loss_names_its_source():
    sources = PAGE[PAGE.index("## Where the formulas") : PAGE.index("## TAL")]
    assert set(re.findall(r"`(\w+)`[,:]", sources)) == set(LOSSES) - {"ce", "tal_auto"}


@pytest.mark.parametrize(("name", "batch", "end"), [("tal", 16, 0.88), ("tal", 128, 0.33), ("tal_auto", 16, 1.04)])
def test_the_figures_of_the_page_are_those_of_the_picture(name, batch, end, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    from figures import weights_over_a_task

    train = load_manifest("cub_lt").query("split == 'train'")
    counts = sorted(train["label"].value_counts(), reverse=True)[::10]
    assert f"{end:.2f}" in PAGE
    assert float(weights_over_a_task(name, counts, batch)[1][-1].mean()) == pytest.approx(end, abs=0.005)
    assert "images/tal_memory.svg" in PAGE and (ROOT / "docs" / "images" / "tal_memory.svg").is_file()

"""docs/losses.md agrees with the registry, and its figures with the plots."""

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


def test_table_lists_every_loss_with_options_and_prior():
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| `")]
    found = {row[0].strip("`"): (row[2], row[3]) for row in rows if len(row) == 4 and row[0].strip("`") in LOSSES}
    wanted = {
        name: (", ".join(f"`{key}` {shown(value)}" for key, value in defaults_of(loss).items()), loss.prior)
        for name, loss in LOSSES.items()
    }
    assert found == wanted and list(found) == list(LOSSES)


def test_every_loss_has_a_source():
    sources = PAGE[PAGE.index("## Sources") : PAGE.index("## TAL")]
    assert set(re.findall(r"`(\w+)`[,:]", sources)) == set(LOSSES) - {"ce", "tal_auto"}


@pytest.mark.parametrize(("name", "batch", "end"), [("tal", 16, 0.88), ("tal", 128, 0.33), ("tal_auto", 16, 1.04)])
def test_figures_in_the_text_equal_those_of_the_plot(name, batch, end, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    from figures import weights_over_a_task

    train = load_manifest("cub_lt").query("split == 'train'")
    counts = sorted(train["label"].value_counts(), reverse=True)[::10]
    assert f"{end:.2f}" in PAGE
    assert float(weights_over_a_task(name, counts, batch)[1][-1].mean()) == pytest.approx(end, abs=0.005)
    assert "images/tal_memory.svg" in PAGE and (ROOT / "docs" / "images" / "tal_memory.svg").is_file()


def test_back_loading_figures_equal_the_simulation(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    from figures import POSITIVES, STEPS, back_loading, positive_steps, strengths

    found = {name: strengths(positive_steps(name)) for name in ("early", "even", "late")}
    for name, (convolution, own) in {"early": (-150.3, 6.8), "even": (-97.7, 28.3), "late": (-45.2, 53.5)}.items():
        assert found[name]["count"][-1] == POSITIVES and len(found[name]["count"]) == STEPS + 1
        assert float(found[name]["strength"][-1]) == pytest.approx(convolution, abs=0.05)
        assert float(found[name]["tal"][-1]) == pytest.approx(own, abs=0.05)
        assert f"{convolution}".replace("-", "−") in PAGE and f"{own}" in PAGE
    for early, late in (("early", "even"), ("even", "late")):  # what the theorem asks for
        assert (found[early]["count"] >= found[late]["count"]).all()
    assert (ROOT / "docs" / "images" / "back_loading.svg").read_text(encoding="utf-8") == back_loading()

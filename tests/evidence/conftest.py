"""The scripts that make docs/results.md, as modules; and two tiny runs."""

import sys
from pathlib import Path

import pytest
from helpers.cli import ROOT, command
from helpers.images import make_images
from helpers.tiny import settings

sys.path.insert(0, str(ROOT / "scripts"))


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Path:
    """CE and TAL with LAE on six classes; tests leave them as they are."""
    folder = tmp_path_factory.mktemp("tiny")
    images, more = make_images(folder / "photos"), ("epochs=2", "seeds=1993", "tal.lam=0.9", "batch_size=4")
    status, printed = command("compare", "lae", "folder_lt", *settings(images, folder / "runs", *more))
    assert status == 0, printed
    return folder / "runs"

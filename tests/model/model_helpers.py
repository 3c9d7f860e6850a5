"""Tiny finished runs through the command line, each trained once, and what they said of their test images."""

import csv
from functools import cache
from pathlib import Path

import numpy as np
from helpers.cli import command
from helpers.images import make_images
from PIL import Image

from pilot_tal.config.settings import method_config
from pilot_tal.learners import LEARNERS
from pilot_tal.record.run_dir import find_runs
from pilot_tal.schema import settings_of

CLASSES = 6
SMALL = {"M": 60, "crct_epochs": 2, "size": 6, "top_k": 2, "tuned_epoch": 3}  # where a method has it
BASE = {
    **{"backbone": "demo_vit", "weights": "bundled", "n_max": 6, "n_min": 2, "test_per_class": 3},
    **{"tasks": 2, "batch_size": 5, "device": "cpu", "normalize": "0.4/0.3"},
}


class Workspace:
    """A folder of photographs, and the runs trained on them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.images = make_images(folder / "photos", CLASSES)
        self._once = cache(self._run)

    def run(self, method: str, fidelity: str = "pilot", *more: str) -> Path:
        """A finished run, for all tests that want it; they leave it as it is."""
        return self._once(method, fidelity, *more)

    def _run(self, method: str, fidelity: str, *more: str) -> Path:
        own = settings_of(LEARNERS[method].config_class)
        wanted = {**BASE, **{key: value for key, value in SMALL.items() if key in own}, "fidelity": fidelity}
        if LEARNERS[method].trains(method_config(method)):
            wanted["loss"] = "tal"  # the others take none
        wanted |= dict(item.split("=", 1) for item in more)
        output = self.folder / "runs" / "-".join((method, fidelity, *more)).replace("/", "_")[-80:]
        items = [f"{key}={value}" for key, value in wanted.items()]
        status, printed = command("run", method, "folder_lt", *items, f"data_root={self.images}", f"output={output}")
        assert status == 0, printed
        (path,) = find_runs([output])
        return path


def said(run: Path, task: int) -> tuple[list[str], list[int], list[int]]:
    """Images, true and predicted labels after a task (from 0)."""
    with (run / "predictions" / f"task{task:02d}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["image"] for row in rows], [int(row["true"]) for row in rows], [int(row["pred"]) for row in rows]


def photo(file: Path, seed: int = 0) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.RandomState(seed).randint(0, 255, (40, 50, 3), dtype=np.uint8)).save(file)
    return file

"""A real checkout, where the environment says that there is one:

PILOT_TAL_PILOT           a checkout of LAMDA-PILOT (commit 5240714)
PILOT_TAL_UPSTREAM_PYTHON the interpreter that scripts/setup_upstream.sh has made (default .venv-upstream)
"""

import math
import os
from pathlib import Path

import pytest
import torch
from helpers.cli import ROOT
from helpers.images import make_images
from upstream_helpers import run_command, snapshot

import pilot_tal._torchvision  # noqa: F401  (before timm)
from pilot_tal.record.run_dir import find_runs, load_run
from pilot_tal.upstream.checkout import LEARNERS, locate

PYTHON = Path(os.environ.get("PILOT_TAL_UPSTREAM_PYTHON", ROOT / ".venv-upstream/bin/python"))
DATA = ("data.n_max=8", "data.n_min=2", "data.test_per_class=3", "init_cls=4", "increment=4")
# LAE has five blocks written into its code, and all have a width of 768.
VIT = {"img_size": 32, "depth": 5, "mlp_ratio": 0.25}
TUNED, ALIGNED = ("tuned_epoch=2",), ("epochs=2", "ca_epochs=1")
PILOT = {
    "l2p": TUNED,
    "dualprompt": TUNED,
    "coda_prompt": (*TUNED, "prompt_param=[8,4,0.0]"),
    "lae": (*TUNED, "num_freeze_epochs=1"),
    "mos": (*TUNED, "crct_epochs=2"),
    "simplecil": (),
    "aper_adapter": TUNED,
    "aper_finetune": TUNED,
    "aper_ssf": TUNED,
    "aper_vpt": TUNED,
    "ranpac": (*TUNED, "M=64"),
    "fecam": TUNED,
    "ease": ("init_epochs=2",),
    "finetune": ("init_epoch=2", "epochs=1"),
    "slca": ALIGNED,
}
CONFIGS = {"aper_adapter": "aper_aperpter", "aper_vpt": "aper_vpt_deep"}  # where they are not the learner's name


def checkout(name: str) -> Path:
    if name not in os.environ:
        pytest.skip(f"needs a real checkout: set {name} (see docs/development/upstream.md)")
    return Path(os.environ[name])


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Images of eight classes and files of small random ViT weights, by width."""
    checkout("PILOT_TAL_PILOT")
    from timm.models.vision_transformer import VisionTransformer

    path = tmp_path_factory.mktemp("real")
    make_images(path / "images", classes=8, images=16, size=(10, 12))
    torch.manual_seed(0)
    for width in (128, 768):
        vit = VisionTransformer(patch_size=16, embed_dim=width, num_heads=width // 64, num_classes=0, **VIT)
        torch.save(vit.state_dict(), path / f"{width}.pth")
    return path


def test_every_learner_is_tried():
    assert set(PILOT) == set(LEARNERS)


@pytest.mark.parametrize("width", [768, 128])
@pytest.mark.parametrize("learner", PILOT)
def test_two_tasks_with_both_losses(learner, width, inputs, tmp_path):
    repo, known = checkout("PILOT_TAL_PILOT"), LEARNERS[learner]
    before = snapshot(repo)
    losses = ("--loss", "ce", "--loss", "tal") if known.trains else ()
    done = run_command(
        "upstream", "--repo", repo, "--config", f"exps/{CONFIGS.get(learner, learner)}.json", *losses,
        "--dataset", "folder_lt", "--data-root", inputs / "images", "--device", "cpu", "--workers", 0,
        "--python", PYTHON, "--weights", inputs / f"{width}.pth", *DATA, "batch_size=8", *PILOT[learner], cwd=tmp_path,
    )  # fmt: skip
    assert done.status == 0, done.out + done.err
    assert snapshot(repo) == before
    runs = [load_run(path) for path in find_runs([tmp_path / "runs"])]
    assert all(run.finished and len(run.labels) == 2 for run in runs)
    if not known.trains:
        assert [run.record.loss.name for run in runs] == ["none"] and not runs[0].step_log()
        return
    ce, tal = runs
    assert len(ce.step_log()) == len(tal.step_log()) > 0
    assert all(math.isfinite(line["loss"]) for run in runs for line in run.step_log())
    once = known.sites[0].what.endswith("the only one that is trained")
    seen = {line["task"]: len(line["Q"]) for line in tal.state_log()}
    assert seen == ({0: 4} if once else {0: 4, 1: 4})


def test_all_call_sites_are_there():
    repo = checkout("PILOT_TAL_PILOT")
    for learner in LEARNERS.values():
        assert len(locate(repo, learner)) == len(learner.sites)

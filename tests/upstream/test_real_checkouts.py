"""Real checkouts, where the environment says that there are some:

PILOT_TAL_PILOT           a checkout of LAMDA-PILOT (commit 5240714)
PILOT_TAL_PYCIL           a checkout of PyCIL (commit f3509b8)
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
from pilot_tal.upstream import sites
from pilot_tal.upstream.seams import check_seams, find_toolbox
from pilot_tal.upstream.sites import LAMDA_PILOT

PYTHON = Path(os.environ.get("PILOT_TAL_UPSTREAM_PYTHON", ROOT / ".venv-upstream/bin/python"))
DATA = ("data.n_max=8", "data.n_min=2", "data.test_per_class=3", "init_cls=4", "increment=4")
# Many learners have the width 768 written into their code, LAE five blocks too.
VIT = {"img_size": 32, "depth": 5, "mlp_ratio": 0.25}
TUNED, SHORT = ("tuned_epoch=2",), ("init_epoch=2", "epochs=1", "memory_size=24")
ALIGNED = ("epochs=2", "ca_epochs=1")
FOSTER = ("init_epochs=2", "boosting_epochs=1", "compression_epochs=1", "memory_per_class=4")
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
    "cofima": ALIGNED,
    "duct": ("epochs=2", "epc_re=1"),
    "icarl": SHORT,
    "der": SHORT,
    "foster": FOSTER,
    "memo": SHORT,
    "dgr": SHORT,
    "coil": ("epochs=2", "memory_size=24"),
}
PYCIL = {
    "replay": SHORT,
    "icarl": SHORT,
    "der": SHORT,
    "memo": SHORT,
    "bic": ("epochs=2", "memory_size=24", "split_ratio=0.3"),
    "foster": FOSTER,
    "tagfex": (*SHORT, "proj_hidden_dim=32", "proj_output_dim=16"),
}
TOOLBOXES = {"pilot": (LAMDA_PILOT, PILOT, "PILOT_TAL_PILOT"), "pycil": (sites.PYCIL, PYCIL, "PILOT_TAL_PYCIL")}
CONFIGS = {"aper_adapter": "aper_aperpter", "aper_vpt": "aper_vpt_deep"}  # where they are not the learner's name


def checkout(name: str) -> Path:
    if name not in os.environ:
        pytest.skip(f"needs a real checkout: set {name} (see docs/upstream.md)")
    return Path(os.environ[name])


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Images of eight classes and a file of small random ViT weights."""
    if not {"PILOT_TAL_PILOT", "PILOT_TAL_PYCIL"} & os.environ.keys():
        pytest.skip("needs a real checkout: set PILOT_TAL_PILOT or PILOT_TAL_PYCIL (see docs/upstream.md)")
    from timm.models.vision_transformer import VisionTransformer

    path = tmp_path_factory.mktemp("real")
    make_images(path / "images", classes=8, images=16, size=(10, 12))
    torch.manual_seed(0)
    torch.save(VisionTransformer(patch_size=16, embed_dim=768, num_heads=12, num_classes=0, **VIT).state_dict(),
               path / "vit.pth")  # fmt: skip
    return path


def settings(box: str, learner: str) -> tuple[str, ...]:
    vit = tuple(f"vit.{name}={value}" for name, value in VIT.items()) if box == "pilot" else ()
    # SimpleCIL's batch is a number in its file, which its config has too and does not use.
    return (*DATA, "batch_size=8", *vit, *TOOLBOXES[box][1][learner])


def test_every_learner_is_tried():
    assert all(set(tried) == set(toolbox.learners) for toolbox, tried, _ in TOOLBOXES.values())


@pytest.mark.parametrize(
    ("box", "learner"), [(box, name) for box, (_, tried, _) in TOOLBOXES.items() for name in tried]
)
def test_two_tasks_with_both_losses(box, learner, inputs, tmp_path):
    toolbox, _, variable = TOOLBOXES[box]
    repo, known = checkout(variable), toolbox.learners[learner]
    before = snapshot(repo)
    weights = ("--weights", inputs / "vit.pth") if box == "pilot" else ()
    losses = ("--loss", "ce", "--loss", "tal") if known.trains else ()
    done = run_command(
        "upstream", "--repo", repo, "--config", f"exps/{CONFIGS.get(learner, learner)}.json", *losses,
        "--dataset", "folder_lt", "--data-root", inputs / "images", "--device", "cpu", "--workers", 0,
        "--python", PYTHON, *weights, *settings(box, learner), cwd=tmp_path,
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
    assert seen == ({0: 4} if once else {0: 4, 1: 8 if known.growing else 4})


@pytest.mark.parametrize("name", ["PILOT_TAL_PILOT", "PILOT_TAL_PYCIL"])
def test_all_seams_are_there(name):
    repo = checkout(name)
    toolbox = find_toolbox(repo)
    for learner in toolbox.learners.values():
        assert len(check_seams(repo, toolbox, learner)) == len(learner.sites)

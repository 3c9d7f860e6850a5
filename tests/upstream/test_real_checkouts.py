"""Real checkouts, where the environment says that there are some:

PILOT_TAL_PILOT           a checkout of LAMDA-PILOT (commit 5240714)
PILOT_TAL_PYCIL           a checkout of PyCIL (commit f3509b8)
PILOT_TAL_UPSTREAM_PYTHON the interpreter that scripts/setup_upstream.sh has made (default .venv-upstream)
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from upstream_world import ROOT, make_images, run_command, snapshot

import pilot_tal._torchvision  # noqa: F401  (before timm)
from pilot_tal.rundir import find_runs, load_run
from pilot_tal.task import TaskInfo
from pilot_tal.upstream.plan import Request, make_jobs
from pilot_tal.upstream.seams import check_seams, find_toolbox

PYTHON = Path(os.environ.get("PILOT_TAL_UPSTREAM_PYTHON", ROOT / ".venv-upstream/bin/python"))
DATA = ("data.n_max=8", "data.n_min=2", "data.test_per_class=3", "init_cls=4", "increment=4")
# Three of the five learners have the width 768 and five blocks written into their code.
VIT = {"img_size": 32, "depth": 5, "mlp_ratio": 0.25}
PILOT = {
    "l2p": ("tuned_epoch=2",),
    "dualprompt": ("tuned_epoch=2",),
    "coda_prompt": ("tuned_epoch=2", "prompt_param=[8,4,0.0]"),
    "lae": ("tuned_epoch=2", "num_freeze_epochs=1"),
    "mos": ("tuned_epoch=2", "crct_epochs=2"),
}
SHORT = ("init_epoch=2", "epochs=1", "memory_size=24")
PYCIL = {
    "replay": SHORT,
    "icarl": SHORT,
    "der": SHORT,
    "memo": SHORT,
    "bic": ("epochs=2", "memory_size=24", "split_ratio=0.3"),
    "foster": ("init_epochs=2", "boosting_epochs=1", "compression_epochs=1", "memory_per_class=4"),
    "tagfex": (*SHORT, "proj_hidden_dim=32", "proj_output_dim=16"),
}


def checkout(name: str) -> Path:
    if name not in os.environ:
        pytest.skip(f"needs a real checkout: set {name} (see docs/upstream.md)")
    return Path(os.environ[name])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Images of eight classes and a file of small random ViT weights."""
    if not {"PILOT_TAL_PILOT", "PILOT_TAL_PYCIL"} & os.environ.keys():
        pytest.skip("needs a real checkout: set PILOT_TAL_PILOT or PILOT_TAL_PYCIL (see docs/upstream.md)")
    from timm.models.vision_transformer import VisionTransformer

    path = tmp_path_factory.mktemp("real")
    make_images(path / "images", classes=8, images=16)
    torch.manual_seed(0)
    torch.save(VisionTransformer(patch_size=16, embed_dim=768, num_heads=12, num_classes=0, **VIT).state_dict(),
               path / "vit.pth")  # fmt: skip
    return path


def settings(learner: str) -> tuple[str, ...]:
    vit = tuple(f"vit.{name}={value}" for name, value in VIT.items())
    return (*DATA, "batch_size=8", *(vit + PILOT[learner] if learner in PILOT else PYCIL[learner]))


@pytest.mark.parametrize("learner", [*PILOT, *PYCIL])
def test_two_tasks_with_both_losses(learner, world, tmp_path):
    repo = checkout("PILOT_TAL_PILOT" if learner in PILOT else "PILOT_TAL_PYCIL")
    before = snapshot(repo)
    weights = ("--weights", world / "vit.pth") if learner in PILOT else ()
    done = run_command(
        "upstream", "--repo", repo, "--config", f"exps/{learner}.json", "--loss", "ce", "--loss", "tal",
        "--dataset", "folder_lt", "--data-root", world / "images", "--device", "cpu", "--workers", 0,
        "--python", PYTHON, *weights, *settings(learner), cwd=tmp_path,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert snapshot(repo) == before
    ce, tal = (load_run(path) for path in find_runs([tmp_path / "runs"]))
    assert ce.finished and tal.finished and len(tal.predictions) == 2
    assert len(ce.step_log()) == len(tal.step_log()) > 0
    last = [line for line in tal.tal_log() if line["task"] == 1][-1]
    assert len(last["Q"]) == (4 if learner in PILOT else 8)


@pytest.mark.parametrize("name", ["PILOT_TAL_PILOT", "PILOT_TAL_PYCIL"])
def test_all_seams_are_there(name):
    repo = checkout(name)
    toolbox = find_toolbox(repo)
    for learner in toolbox.learners.values():
        assert len(check_seams(repo, toolbox, learner)) == len(learner.sites)


@pytest.mark.parametrize("loss", ["ce", "tal"])
@pytest.mark.parametrize("learner", PILOT)
def test_native_and_upstream_agree_on_the_first_task(learner, loss, world, tmp_path):
    """From the same start and with the same batches, every loss of the first task agrees to 1e-4."""
    repo = checkout("PILOT_TAL_PILOT")
    request = Request(repo, f"exps/{learner}.json", [loss], "folder_lt", (), world / "images", tmp_path, "cpu", 0,
                      str(world / "vit.pth"), overrides=settings(learner))  # fmt: skip
    job = make_jobs(request)[0]
    job.write()
    recorder = Path(__file__).with_name("record_first_task.py")
    command = [str(PYTHON), "-B", str(recorder), str(job.file), str(tmp_path / "kept.npz")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    run = load_run(job.run_dir)
    theirs = [line["loss"] for line in run.step_log() if line["task"] == 0]
    ours = native_losses(learner, loss, job.args, run.info, np.load(tmp_path / "kept.npz"), world / "vit.pth")
    difference = np.abs(np.array(theirs) - ours).max()
    print(f"{learner} {loss}: {len(ours)} losses, largest difference {difference:.1e}", file=sys.__stdout__)
    assert difference < 1e-4


def native_losses(learner, loss, args, info, kept, weights) -> np.ndarray:
    """Our learner on the kept batches, from the kept start."""
    from pilot_tal.backbone import build_from_state
    from pilot_tal.learners import build_learner, load_method_config
    from pilot_tal.losses import build_loss
    from pilot_tal.training import train_task

    known = vars(load_method_config(learner))
    chosen = {name: value for name, value in args.items() if name in known}
    if learner == "mos":
        chosen["adapter_dropout"] = 0.0
    config = load_method_config(learner, overrides=chosen)
    backbone = build_from_state(torch.load(weights, weights_only=True), 12)
    native = build_learner(learner, backbone, config, info.num_classes, info.num_tasks, "pilot")
    task = TaskInfo(0, info.num_tasks, 0, info.task_sizes[0], info.train_counts[: info.task_sizes[0]])

    @torch.no_grad()
    def take_start() -> None:
        for name, tensor in native.named_tensors().items():
            tensor.copy_(torch.from_numpy(kept[f"start.{name}"]))

    def batches(epoch: int):
        place = 0
        while f"x.{epoch}.{place}" in kept:
            yield torch.from_numpy(kept[f"x.{epoch}.{place}"]), torch.from_numpy(kept[f"y.{epoch}.{place}"])
            place += 1

    losses: list[torch.Tensor] = []
    train_task(native, build_loss(loss), task, batches, epochs=args["tuned_epoch"], config=config, device="cpu",
               on_begin=take_start, on_step=lambda step: losses.append(step.loss))  # fmt: skip
    return torch.stack(losses).numpy()

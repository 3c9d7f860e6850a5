"""The tensors of the original evaluated by our learners, and the other way round: every prediction must be equal.

Needs a checkout of LAMDA-PILOT (see test_real_checkouts.py). With PILOT_TAL_CUB, the folder of CUB's class folders, and
PILOT_TAL_DEIT, a file of DeiT-Tiny's weights, four classes of CUB are evaluated as well.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_real_checkouts import PYTHON, checkout

import pilot_tal._torchvision  # noqa: F401  (before timm)
from data_lt import prepare
from pilot_tal.backbone.load import DEMO_VIT, DEMO_WEIGHTS
from pilot_tal.config.grid import run_config
from pilot_tal.engine.jobs import native_record
from pilot_tal.engine.trainer import Trainer, load_shared
from pilot_tal.record.run_dir import load_run
from pilot_tal.upstream.plan import make_jobs

METHODS = {"l2p": 16, "dualprompt": 24, "coda_prompt": 16, "lae": 16, "mos": 16}
"""Methods and batch sizes; a first task must fill a batch of CODA-Prompt."""


pytestmark = pytest.mark.skipif("PILOT_TAL_PILOT" not in os.environ, reason="needs PILOT_TAL_PILOT, a checkout")


@dataclass
class Setup:
    """Images, weights, and how both sides name them."""

    dataset: str
    root: Path
    weights: Path
    heads: int
    per_task: int
    native: dict[str, object]


def demo_setup(tmp: Path) -> Setup:
    return Setup("demo_lt", tmp / "data", DEMO_WEIGHTS, DEMO_VIT["num_heads"], 10, {})


def cub_setup(tmp: Path) -> Setup:
    if not {"PILOT_TAL_CUB", "PILOT_TAL_DEIT"} <= os.environ.keys():
        pytest.skip("needs PILOT_TAL_CUB and PILOT_TAL_DEIT")
    for folder in sorted(Path(os.environ["PILOT_TAL_CUB"]).iterdir())[:4]:
        (tmp / "data" / folder.name).mkdir(parents=True)
        for file in sorted(folder.glob("*.jpg"))[:30]:
            shutil.copy(file, tmp / "data" / folder.name)
    weights = Path(os.environ["PILOT_TAL_DEIT"])
    native = {"backbone": "deit_tiny_patch16_224", "weights": weights}
    return Setup("folder_lt", tmp / "data", weights, 3, 2, {**native, "n_max": 20, "n_min": 10, "test_per_class": 10})


class TensorsOfEveryTask(Trainer):
    """Keeps what was learned after each task."""

    def checkpoint(self, learner, task):
        self.tensors = [*getattr(self, "tensors", []), learner.export_tensors()]
        return super().checkpoint(learner, task)


def our_trainer(method: str, setup: Setup, output: Path) -> TensorsOfEveryTask:
    settings = {**setup.native, "loss": "ce", "seed": 7, "epochs": 1, "transform": "pilot", "normalize": "none",
                "init_cls": setup.per_task, "increment": setup.per_task, "data_root": setup.root, "output": output,
                "threads": 1, "device": "cpu", "batch_size": METHODS[method]}  # fmt: skip
    study = run_config(method, setup.dataset, [f"{name}={value}" for name, value in settings.items()])
    config = study.runs[0]
    data = prepare(config.dataset, str(setup.root), config.data)
    shared = load_shared(config, study.hardware, data, torch.device("cpu"))
    record = native_record(config, data)
    return TensorsOfEveryTask(config, study.hardware, shared, record, output / record.name)


def run_original(method: str, setup: Setup, folder: Path, direction: str):
    """The original's run, with the tensors of its tasks written to or read from `folder`."""
    data = tuple(f"data.{k}={setup.native[k]}" for k in ("n_max", "n_min", "test_per_class") if k in setup.native)
    settings = ("tuned_epoch=2", f"batch_size={METHODS[method]}", f"init_cls={setup.per_task}",
                f"increment={setup.per_task}", *data)  # fmt: skip
    settings += {"lae": ("num_freeze_epochs=1",), "mos": ("crct_epochs=2",), "coda_prompt": ("shuffle=true",)}.get(
        method, ()
    )
    job = make_jobs(checkout("PILOT_TAL_PILOT"), f"exps/{method}.json", settings, losses=["ce"], dataset=setup.dataset,
                    seeds=(7,), data_root=setup.root, output=folder / direction, device="cpu", workers=0,
                    weights=str(setup.weights))[0]  # fmt: skip
    job = replace(job, vit={**job.vit, "num_heads": setup.heads})  # the demo's have 32 columns
    job.write()
    script = Path(__file__).with_name("cross_evaluate.py")
    done = subprocess.run([str(PYTHON), "-B", str(script), str(job.file), str(folder), direction],
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return load_run(job.run_dir).labels


@pytest.mark.parametrize("make_setup", [demo_setup, cub_setup])
@pytest.mark.parametrize("method", METHODS)
def test_ours_predicts_as_the_original_with_its_tensors(method, make_setup, tmp_path):
    setup = make_setup(tmp_path)
    theirs = run_original(method, setup, tmp_path, "write")
    trainer = our_trainer(method, setup, tmp_path / "ours")
    assert len(theirs) == len(trainer.tasks)
    snapshots: dict[str, torch.Tensor] = {}
    changed = total = 0
    for task in trainer.tasks:
        tensors = {k: torch.from_numpy(v) for k, v in np.load(tmp_path / f"task{task.index}.npz").items()}
        # As MOS took them: later evaluations have merged the stored ones.
        snapshots |= {k: v for k, v in tensors.items() if k.startswith(f"backbone.adapter_list.{task.index}.")}
        learner = trainer.build()
        learner.import_tensors({**tensors, **snapshots}, trainer.record.stream.task_sizes[: task.index + 1])
        _, true, pred = trainer.evaluate(learner, task)
        first, second = theirs[task.index][1], np.load(tmp_path / f"second{task.index}.npy")
        assert np.array_equal(true, theirs[task.index][0])
        assert np.array_equal(pred, second), f"task {task.index}: {(pred != second).sum()} of {len(pred)} differ"
        changed, total = changed + int((pred != first).sum()), total + len(pred)
    print(f"{method}: {changed} of {total} predictions of the first evaluation differ")
    assert changed == 0 or method == "mos"


@pytest.mark.parametrize("make_setup", [demo_setup, cub_setup])
@pytest.mark.parametrize("method", METHODS)
def test_original_predicts_as_ours_with_our_tensors(method, make_setup, tmp_path):
    setup = make_setup(tmp_path)
    trainer = our_trainer(method, setup, tmp_path / "ours")
    ours = load_run(trainer.execute()).labels
    for index, tensors in enumerate(trainer.tensors):
        np.savez(tmp_path / f"task{index}.npz", **{name: tensor.numpy() for name, tensor in tensors.items()})
    theirs = run_original(method, setup, tmp_path, "read")
    for index, ((_, expected), (_, pred)) in enumerate(zip(ours, theirs, strict=True)):
        assert np.array_equal(pred, expected), f"task {index}: {(pred != expected).sum()} of {len(pred)} differ"

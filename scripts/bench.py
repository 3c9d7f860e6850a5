"""The benchmarks of docs/development/benchmarks.md: `python scripts/bench.py NAME [OPTIONS]`, -h lists them."""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import pilot_tal as pt
from pilot_tal.backbone.load import load_backbone
from pilot_tal.config.settings import method_config
from pilot_tal.stream.task import TaskInfo

ROOT = Path(__file__).resolve().parents[1]
METHODS = ("l2p", "dualprompt", "coda_prompt", "lae", "mos")
DEIT_TINY = "deit_tiny_patch16_224"
NEW, IMAGES, MEASURED = 10, 20, 32  # of `learn`: classes of a session, images per class, images of the forward pass
FEW, MORE, FULL = 5, 10, 20  # epochs of `pilot`: measured, and extended to


def learn(given: argparse.Namespace) -> None:
    """CPU time of a session of `pilot-tal learn` with PLDA after 10, 100 and 1,000 classes, on random features."""
    torch.set_num_threads(1)
    vit = load_backbone(given.backbone, "random")
    with torch.no_grad():
        started = time.process_time()
        vit.features(torch.rand(MEASURED, 3, *vit.img_size), 3)
        forward = (time.process_time() - started) / MEASURED * NEW * IMAGES
    print(f"{given.backbone}: forward passes of {NEW * IMAGES} images {forward:.1f} s")
    for before in (10, 100, 1000):
        learner: Any = pt.create_learner("plda", vit, before + NEW, 2)
        for task, (first, stop) in enumerate(((0, before), (before, before + NEW))):
            learner.begin_task(TaskInfo(task, 2, first, stop, (IMAGES,) * (stop - first)))
            labels = torch.arange(first, stop).repeat_interleave(IMAGES)
            means = torch.randn(stop - first, learner.feature_dim)
            features = means[labels - first] + torch.randn(len(labels), learner.feature_dim)
            features = torch.nn.functional.normalize(features, dim=1)
            if task == 0:  # not measured
                learner.moments.add(features, labels)
                learner.validated += len(features)
        started = time.process_time()
        learner.add(features, labels)
        used = time.process_time() - started
        size = sum(tensor.nbytes for tensor in learner.checkpoint_state().values()) / 1e6
        times = 1 + used / forward
        print(f"after {before:,} classes: {used:.1f} s, in all {times:.2f} times the forward passes; {size:.0f} MB")


def pilot(given: argparse.Namespace) -> None:
    """CPU minutes of whole runs of this engine and of LAMDA-PILOT at 20 epochs: DeiT-Tiny, TAL, one thread.

    One run of each engine in turn, each a process of its own, at 5 and at 10 epochs. A run of e epochs takes a + b·e
    (multiples of 5: LAE freezes three fifths of its epochs), so two of them give the time at 20. Both engines get the
    same images, tasks, batch sizes and weights; start-up and evaluation are included. Settings are those of the data.
    """
    import timm

    with tempfile.TemporaryDirectory() as folder:
        given.vit = f"{folder}/vit.pth"  # with positions for the size of the images
        options = {"pretrained": given.weights != "random", "pretrained_cfg_overlay": {"file": given.weights}}
        model = timm.create_model(DEIT_TINY, num_classes=0, img_size=given.img_size, **options)
        torch.save(model.state_dict(), given.vit)
        for method in given.methods.split(","):
            found: dict[str, float] = {}
            for engine in ("LAMDA-PILOT", *given.precisions.split(",")):
                times = {}
                for epochs in (FEW, MORE):
                    start = resource.getrusage(resource.RUSAGE_CHILDREN)
                    words = command(given, engine, method, epochs, f"{folder}/{engine}-{method}-{epochs}")
                    words = [sys.executable, "-m", "pilot_tal", *words]
                    done = subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)})
                    end = resource.getrusage(resource.RUSAGE_CHILDREN)
                    times[epochs] = end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime
                    if done.returncode:
                        sys.exit(f"failed: {' '.join(words)}")
                found[engine] = at_full(times)
            theirs = found.pop("LAMDA-PILOT")
            own = (f"{name} {time / 60:.1f} min ({theirs / time:.2f} times as fast)" for name, time in found.items())
            print(f"{method:<12} LAMDA-PILOT {theirs / 60:.1f} min, {', '.join(own)}", flush=True)


def command(given: argparse.Namespace, engine: str, method: str, epochs: int, output: str) -> list[str]:
    """The command of a run of LAMDA-PILOT, or of this engine in a precision."""
    batch = f"batch_size={method_config(method).batch_size}"
    if engine == "LAMDA-PILOT":
        share = given.classes // given.tasks
        run = ["upstream", "--repo", given.repo, "--config", f"exps/{method}.json", "--loss", "tal", "--seed", "1993"]
        run += ["--dataset", given.dataset, "--data-root", given.data_root, "--output", output, "--device", "cpu"]
        run += ["--weights", given.vit, "--python", given.python, f"tuned_epoch={epochs}", batch]
        run += [f"init_cls={share}", f"increment={share}"]
        return [*run, *(f"data.{item}" for item in given.settings)]
    run = ["run", method, given.dataset, "loss=tal", f"tasks={given.tasks}", f"epochs={epochs}", batch, "threads=1"]
    run += [f"backbone={DEIT_TINY}", f"weights={given.vit}", f"img_size={given.img_size}", "normalize=none"]
    return [*run, f"precision={engine}", f"data_root={given.data_root}", f"output={output}", "device=cpu",
            *given.settings]  # fmt: skip


def at_full(times: dict[int, float]) -> float:
    """Seconds at 20 epochs, from those at two numbers of epochs."""
    return times[MORE] + (FULL - MORE) * (times[MORE] - times[FEW]) / (MORE - FEW)


OPTIONS: dict[Callable[[argparse.Namespace], None], dict[str, Any]] = {
    learn: {"--backbone": "vit_small_patch16_224.augreg_in21k"},
    pilot: {
        **{"--repo": "LAMDA-PILOT", "--dataset": "cub_lt", "--data-root": "data", "--classes": 200, "--tasks": 5},
        **{"--img-size": 224, "--weights": "random", "--methods": ",".join(METHODS), "--precisions": "fp32,bf16"},
        "--python": str(ROOT / ".venv-upstream" / "bin" / "python"),
    },
}


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    for bench, options in OPTIONS.items():
        own = commands.add_parser(bench.__name__, description=bench.__doc__)
        own.set_defaults(bench=bench)
        for name, default in options.items():
            own.add_argument(name, default=default, type=type(default), help=f"default {default}")
        if bench is pilot:
            own.add_argument("settings", nargs="*", metavar="key=value")
    return parser.parse_args(words)


if __name__ == "__main__":
    asked = parse()
    asked.bench(asked)

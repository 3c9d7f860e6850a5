"""Speed of the learners with prompts and adapters beside timm's blocks of the same ViT.

    python scripts/bench_learners.py [--model deit_tiny_patch16_224] [--batch 32] [--steps 5]

`timm` is the time of what a batch needs at least, run through timm's blocks with nothing learned in them, on as many
tokens as the learner has (L2P: 25 more): for a training step of L2P, DualPrompt and CODA-Prompt a forward pass for the
query, a prompted forward pass and a backward pass to the first block's input; for LAE and MOS no query; for LAE while
frozen one forward pass; for an evaluation from the second task on one (LAE: two; MOS, `fixed`: one,
as the features under earlier adapters are cached). `share` is that time divided by the learner's; above 100 % is.
faster. Both take turns, and the median of each counts.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import pilot_tal._torchvision  # noqa: F401
from pilot_tal.backbone import FrozenViT, build_backbone
from pilot_tal.config.defaults import method_config
from pilot_tal.engine.loop import build_optimizer
from pilot_tal.learners import Learner, TrainedConfig, build_learner
from pilot_tal.losses import build_loss
from pilot_tal.stream.task import TaskInfo

METHODS = ("l2p", "dualprompt", "coda_prompt", "lae", "mos")
CLASSES = 20


@dataclass
class Bench:
    """A ViT, a batch, and how often each is measured."""

    backbone: FrozenViT
    x: torch.Tensor
    y: torch.Tensor
    steps: int

    def through(self, tokens: int, backward: bool) -> None:
        """The batch with more tokens through timm's blocks; `backward` to the first block's input."""
        vit = self.backbone.vit
        with torch.set_grad_enabled(backward):
            x = vit._pos_embed(vit.patch_embed(self.x))
            x = torch.cat([x[:, :1].expand(-1, tokens, -1), x], dim=1).requires_grad_(backward)
            loss = vit.norm(vit.blocks(x))[:, 0].sum()
            if backward:
                loss.backward()

    def compare(self, name: str, run: Callable[[], None], forwards: int, tokens: int, backward: bool) -> None:
        """Prints the median seconds of `run` and of the `forwards` that it needs at least."""

        def least() -> None:
            for _ in range(forwards - backward):
                self.through(0 if backward else tokens, backward=False)
            if backward:
                self.through(tokens, backward=True)

        rounds = [[_seconds(kind) for kind in (least, run)] for _ in range(self.steps + 1)][1:]  # the first warms up
        limit, own = (statistics.median(times) for times in zip(*rounds, strict=True))
        speed = f"{len(self.x) / own:>9.1f} {limit / own:>7.0%}"
        print(f"{name:<34} {1000 * own:>7.1f} {1000 * limit:>7.1f} {speed}", flush=True)


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def training_step(bench: Bench, learner: Learner, task: TaskInfo) -> Callable[[], None]:
    criterion = build_loss("tal")
    criterion.begin_task(task)
    assert isinstance(learner.config, TrainedConfig)
    optimizer = build_optimizer(learner.param_groups(), learner.config)

    def step() -> None:
        logits, aux = learner.observe(bench.x)
        loss = criterion(logits, bench.y) + aux
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        learner.after_step()

    return step


def measure(bench: Bench, method: str) -> None:
    torch.manual_seed(0)
    changes: dict[str, Any] = {"crct_epochs": 1} if method == "mos" else {}
    config: Any = method_config(method, **changes)
    fidelity = "fixed" if method == "mos" else "pilot"
    learner = build_learner(method, bench.backbone, config, 2 * CLASSES, 2, fidelity)
    tasks = [TaskInfo(i, 2, i * CLASSES, (i + 1) * CLASSES, (5,) * CLASSES) for i in range(2)]
    prompts = config.top_k * config.length if method == "l2p" else 0
    learner.begin_task(tasks[0])
    phases = [("frozen epochs", 0, 1), ("training", config.tuned_epoch - 1, 1)]
    for name, epoch, forwards in phases if method == "lae" else [("training", 0, 1 if method == "mos" else 2)]:
        learner.begin_epoch(epoch, config.tuned_epoch)
        step = training_step(bench, learner, tasks[0])
        bench.compare(f"{method} {name}", step, forwards, prompts, backward=name == "training")
    learner.end_task(lambda: [(bench.x, bench.y)])
    ids = torch.arange(len(bench.x))
    learner.scores(bench.x, ids)
    learner.begin_task(tasks[1])
    if method == "mos":
        learner.end_task(lambda: [(bench.x, bench.y + CLASSES)])

    def evaluate() -> None:
        if method == "mos":  # what a finished task costs the old images: its one new adapter
            learner.cache.forget("adapter1")
        learner.scores(bench.x, ids)

    bench.compare(f"{method} evaluation, 2nd task", evaluate, 2 if method == "lae" else 1, prompts, backward=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_tiny_patch16_224", help="timm name of the ViT")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5, help="measurements of each kind")
    options = parser.parse_args()
    backbone = build_backbone(options.model, "random", None)
    assert isinstance(backbone, FrozenViT), "prompts need a ViT"
    x = torch.rand(options.batch, 3, *backbone.img_size)
    bench = Bench(backbone, x, torch.arange(options.batch) % CLASSES, options.steps)
    print(f"{options.model}, batch {options.batch}, {torch.get_num_threads()} threads")
    print(f"{'what':<34} {'ms':>7} {'timm':>7} {'images/s':>9} {'share':>7}")
    for method in METHODS:
        measure(bench, method)


if __name__ == "__main__":
    main()

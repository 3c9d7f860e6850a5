"""Speed of every learner beside a plain timm forward of the same ViT, in one run.

    python scripts/bench_learners.py [--model deit_tiny_patch16_224] [--batch 32] [--steps 5] [--device cpu]

The columns say how much of the frozen ViT's own speed is left:

    forwards  plain forwards in whose time the learner is through with a batch
    limit     plain forwards that a batch needs if a backward pass costs as much as a forward: three for a training step
              of L2P, DualPrompt and CODA-Prompt (query, prompted forward, backward to the prompts), two for LAE and MOS
              (no query), one for LAE while frozen; one for an evaluation from the second task on (LAE: two, online and
              offline; MOS, `fixed`: one, the newest adapter, as those before are cached)
    share     time of the limit divided by the time measured; above 100 % means faster
    timm      the same limit measured: each of those forwards, and each forward with its backward pass, run through
              timm's blocks with nothing learned in them, on as many tokens as the learner has (L2P: 25 more)
    share     the same for it

Plain forward, limit and learner take turns, and the median of each is reported, so that a busy machine slows all alike.
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
from pilot_tal.config.settings import PRECISIONS
from pilot_tal.engine.loop import autocast, build_optimizer, tensor_cores
from pilot_tal.learners import Learner, TrainedConfig, build_learner
from pilot_tal.losses import build_loss
from pilot_tal.stream.task import TaskInfo

METHODS = ("l2p", "dualprompt", "coda_prompt", "lae", "mos")


@dataclass
class Bench:
    """What is measured on, and how often."""

    backbone: FrozenViT
    x: torch.Tensor
    y: torch.Tensor
    steps: int
    precision: str

    @property
    def device(self) -> torch.device:
        return self.x.device

    def clock(self, run: Callable[[], object]) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    @torch.no_grad()
    def plain(self) -> None:
        """timm's own forward of the same ViT on the same batch."""
        with tensor_cores(self.device, self.precision), autocast(self.device, self.precision):
            self.backbone.vit(self.x)

    def through(self, tokens: int, backward: bool) -> None:
        """Some more tokens through timm's blocks; with `backward` also the gradient of the first block's input."""
        vit = self.backbone.vit
        with tensor_cores(self.device, self.precision), torch.set_grad_enabled(backward):
            with autocast(self.device, self.precision):
                x = vit._pos_embed(vit.patch_embed(self.x))
                x = torch.cat([x[:, :1].expand(-1, tokens, -1), x], dim=1).requires_grad_(backward)
                loss = vit.norm(vit.blocks(x))[:, 0].float().sum()
            if backward:
                loss.backward()

    def compare(self, run: Callable[[], object], limit: Callable[[], object]) -> tuple[float, ...]:
        """Median seconds of the plain forward, of the limit and of `run`, taken in turns after a warm-up."""
        kinds = (self.plain, limit, run)
        for kind in kinds:
            kind()
        rounds = [[self.clock(kind) for kind in kinds] for _ in range(self.steps)]
        return tuple(statistics.median(times) for times in zip(*rounds, strict=True))


def training_step(bench: Bench, learner: Learner, task: TaskInfo) -> Callable[[], None]:
    criterion = build_loss("tal")
    criterion.begin_task(task)
    assert isinstance(learner.config, TrainedConfig)
    optimizer = build_optimizer(learner.param_groups(), learner.config)

    def step() -> None:
        with tensor_cores(bench.device, bench.precision):
            with autocast(bench.device, bench.precision):
                logits, aux = learner.observe(bench.x)
            loss = criterion(logits.float(), bench.y + 0) + aux
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
        optimizer.step()
        learner.after_step()

    return step


def measure(bench: Bench, method: str) -> None:
    classes, fidelity = 20, "fixed" if method == "mos" else "pilot"
    torch.manual_seed(0)
    changes: dict[str, Any] = {"crct_epochs": 1} if method == "mos" else {}
    config: Any = method_config(method, **changes)
    learner = build_learner(method, bench.backbone, config, 2 * classes, 2, fidelity).to(bench.device)
    tasks = [TaskInfo(i, 2, i * classes, (i + 1) * classes, (5,) * classes) for i in range(2)]
    batch, prompts = len(bench.x), config.top_k * config.length if method == "l2p" else 0

    def row(name: str, run: Callable[[], object], forwards: int, backward: bool) -> None:
        def limit() -> None:
            for _ in range(forwards - 2 if backward else forwards):  # the query, or what is evaluated
                bench.through(0 if backward else prompts, backward=False)
            if backward:
                bench.through(prompts, backward=True)

        plain, least, own = bench.compare(run, limit)
        shares = (
            f"{forwards:>6} {100 * forwards * plain / own:>7.0f} % {least / plain:>6.2f} {100 * least / own:>7.0f} %"
        )
        measured = f"{method:<12} {name:<22} {batch / own:>9.1f} {own / plain:>9.2f}"
        print(f"{measured} {shares}", flush=True)

    learner.begin_task(tasks[0])
    phases = [("frozen epochs", 0, 1), ("training", config.tuned_epoch - 1, 2)]
    for name, epoch, forwards in phases if method == "lae" else [("training", 0, 2 if method == "mos" else 3)]:
        learner.begin_epoch(epoch, config.tuned_epoch)
        row(name, training_step(bench, learner, tasks[0]), forwards, backward=forwards > 1)
    learner.end_task(lambda: [(bench.x, bench.y)])
    ids = torch.arange(batch)
    learner.scores(bench.x, ids)
    learner.begin_task(tasks[1])
    if method == "mos":
        learner.end_task(lambda: [(bench.x, bench.y + classes)])

    def evaluate() -> None:
        if method == "mos":  # what a finished task costs the old images: its one new adapter
            learner.cache.forget("adapter1")
        with tensor_cores(bench.device, bench.precision), autocast(bench.device, bench.precision):
            learner.scores(bench.x, ids)

    row("evaluation, 2nd task", evaluate, 2 if method == "lae" else 1, backward=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_tiny_patch16_224", help="timm name of the ViT")
    parser.add_argument("--weights", default="random", help="random, hub or a file")
    parser.add_argument("--img-size", type=int, default=None)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5, help="measurements of each kind")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32", choices=PRECISIONS)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    options = parser.parse_args()
    backbone = build_backbone(options.model, options.weights, options.img_size).to(options.device)
    assert isinstance(backbone, FrozenViT), "prompts need a ViT"
    x = torch.rand(options.batch, 3, *backbone.img_size, device=options.device)
    y = torch.arange(options.batch, device=options.device) % 20
    bench = Bench(backbone, x, y, options.steps, options.precision)
    plain = statistics.median(bench.clock(bench.plain) for _ in range(max(options.steps, 3)))
    print(
        f"{options.model} at {backbone.img_size[0]}, batch {options.batch}, {options.device}, "
        f"{options.precision}, {torch.get_num_threads()} threads; plain forward {options.batch / plain:.1f} images/s"
    )
    columns = f"{'limit':>6} {'share':>9} {'timm':>6} {'share':>9}"
    print(f"{'method':<12} {'what':<22} {'images/s':>9} {'forwards':>9} {columns}")
    for method in options.methods:
        measure(bench, method)


if __name__ == "__main__":
    main()

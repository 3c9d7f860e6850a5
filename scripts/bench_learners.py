"""Speed and memory of every learner beside a plain timm forward of the same ViT, in one run.

    python scripts/bench_learners.py [--model deit_tiny_patch16_224] [--batch 32] [--steps 5] [--device cpu]

A training step of a prompt learner needs at least a query forward, a prompted forward and a backward pass through
activations only: about three plain forwards. The columns say how much of that limit is reached:

    limit    plain forwards a batch needs: three for a training step of L2P, DualPrompt and CODA-Prompt, two for LAE
             and MOS (no query), one for LAE while frozen; one for an evaluation from the second task on (LAE: two,
             online and offline; MOS, `fixed`: one, the newest adapter, as those before are cached)
    share    time of the limit divided by the time measured; above 100 % means faster than the plain forwards
    work     what has to be multiplied, counted in plain forwards: the learner's own tokens, keys and adapters are in
             it, and that a backward pass through attention is five products for two; what the last block computes of
             tokens that nobody reads, or before the first learned tensor, is not
    share    the same for it

Plain forward and learner take turns, and the median of each is reported, so that a busy machine slows both alike.
"""

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

import pilot_tal._torchvision  # noqa: F401
from pilot_tal.backbone import FrozenViT, build_backbone
from pilot_tal.engine.loop import PRECISIONS, autocast, build_optimizer, tensor_cores
from pilot_tal.learners import Learner, build_learner
from pilot_tal.losses import build_loss
from pilot_tal.plan.defaults import method_config
from pilot_tal.stream.task import TaskInfo

METHODS = ("l2p", "dualprompt", "coda_prompt", "lae", "mos")
BACKWARD_ATTENTION = 2.5  # the scores again and four gradients, beside scores and mixture of the forward pass


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

    def compare(self, run: Callable[[], object]) -> tuple[float, float]:
        """Median seconds of the plain forward and of `run`, taken in turns after a warm-up."""
        self.plain()
        run()
        pairs = [(self.clock(self.plain), self.clock(run)) for _ in range(self.steps)]
        return tuple(statistics.median(times) for times in zip(*pairs, strict=True))


class Work:
    """Products (multiply-adds of an image) that a learner cannot do without."""

    def __init__(self, vit: FrozenViT, learner: Learner):
        block = vit.vit.blocks[0]
        self.dim, self.depth = vit.dim, vit.depth
        self.tokens = vit.vit.patch_embed.num_patches + 1
        self.qkv, self.proj = block.attn.qkv.weight.numel(), block.attn.proj.weight.numel()
        self.mlp = block.mlp.fc1.weight.numel() + block.mlp.fc2.weight.numel()
        self.patches = (self.tokens - 1) * vit.vit.patch_embed.proj.weight.numel()
        self.method, config = learner.name, learner.config
        self.prompts = config.top_k * config.length if self.method == "l2p" else 0
        self.width = config.ffn_num if self.method == "mos" else 0
        self.keys: dict[int, int] = {}  # of a prefix, by block
        if self.method == "dualprompt":
            self.keys = dict.fromkeys(learner.g_blocks, config.g_prompt_length)
            self.keys |= dict.fromkeys(learner.e_blocks, config.top_k * config.length)
        elif self.method == "coda_prompt":
            self.keys = dict.fromkeys((block for block, _ in learner._layers()), int(config.prompt_param[1]) // 2)
        elif self.method == "lae":
            self.keys = dict.fromkeys(learner.blocks, config.pet_length)

    def plain(self) -> float:
        """timm's forward."""
        every = self.tokens * (self.qkv + self.proj + self.mlp) + 2 * self.tokens**2 * self.dim
        return self.patches + self.depth * every

    def query(self) -> float:
        """A frozen forward that gives CLS alone."""
        return self.patches + sum(sum(self._block(i, self.tokens, 1, {}, 0)) for i in range(self.depth))

    def forward(self) -> float:
        """A forward with what the learner adds, after the patches."""
        return sum(sum(self._block(i, *self._added())) for i in range(self.depth))

    def backward(self) -> float:
        """Back to the first learned tensor; gradients of adapters are a third product beside two of activations."""
        total = 0.0
        for block in range(self.depth):
            linear, attention, adapters = self._block(block, *self._added())
            if block == 0 and self.method == "mos":
                linear = attention = 0  # the adapter beside the first MLP is where it ends
            elif block == 0 and not self.prompts:
                linear -= self.tokens * self.qkv  # the first prefix needs no gradient of its block's input
            total += linear + BACKWARD_ATTENTION * attention + 2 * adapters
        return total

    def _added(self) -> tuple[int, int, dict[int, int], int]:
        return self.tokens + self.prompts, max(1, self.prompts), self.keys, self.width

    def _block(self, block: int, tokens: int, kept: int, keys: dict[int, int], width: int) -> tuple[int, int, int]:
        """Products of a block's linear layers, attention and adapter."""
        rows = kept if block == self.depth - 1 else tokens
        linear = tokens * self.qkv * 2 // 3 + rows * (self.qkv // 3 + self.proj + self.mlp)
        own = keys.get(block, 0)
        seen = tokens + own * (2 if self.method == "lae" else 1)  # its prefix has a softmax of its own as well
        return linear, 2 * rows * seen * self.dim, 2 * rows * self.dim * width

    def row(self, name: str) -> float:
        """What a row of the table needs, in plain forwards."""
        if name == "training":
            needed = self.forward() + self.backward()
            needed += self.patches if self.method in ("lae", "mos") else self.query()
        elif name == "frozen epochs":
            needed = self.patches + self.forward()
        else:
            needed = self.patches + self.forward() * (2 if self.method == "lae" else 1)
        return needed / self.plain()


def training_step(bench: Bench, learner: Learner, task: TaskInfo) -> Callable[[], None]:
    criterion = build_loss("tal")
    criterion.begin_task(task)
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


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """The profiler's own lines come from below Python, so the file itself is turned away meanwhile."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def peak_memory(bench: Bench, run: Callable[[], object]) -> float:
    """MB that a call allocates on top of what is there: by CUDA's counters, or torch's profiler on a CPU."""
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    activities = [torch.profiler.ProfilerActivity.CPU]
    with silent(), torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        run()
    level = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    return peak / 2**20


def measure(bench: Bench, method: str) -> None:
    classes, fidelity = 20, "fixed" if method == "mos" else "pilot"
    torch.manual_seed(0)
    config = method_config(method, **({"crct_epochs": 1} if method == "mos" else {}))
    learner = build_learner(method, bench.backbone, config, 2 * classes, 2, fidelity).to(bench.device)
    tasks = [TaskInfo(i, 2, i * classes, (i + 1) * classes, (5,) * classes) for i in range(2)]
    batch, work = len(bench.x), Work(bench.backbone, learner)

    def row(name: str, times: tuple[float, float], forwards: float, memory: float) -> None:
        plain, own = times
        needed = work.row(name)
        limit = f"{forwards:>6.0f} {100 * forwards * plain / own:>7.0f} %"
        least = f"{needed:>6.2f} {100 * needed * plain / own:>7.0f} %"
        measured = f"{method:<12} {name:<22} {batch / own:>9.1f} {own / plain:>9.2f}"
        print(f"{measured} {limit} {least} {memory:>9.0f}", flush=True)

    learner.begin_task(tasks[0])
    phases = [("frozen epochs", 0, 1), ("training", config.tuned_epoch - 1, 2)]
    for name, epoch, forwards in phases if method == "lae" else [("training", 0, 2 if method == "mos" else 3)]:
        learner.begin_epoch(epoch, config.tuned_epoch)
        step = training_step(bench, learner, tasks[0])
        row(name, bench.compare(step), forwards, peak_memory(bench, step))
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

    row("evaluation, 2nd task", bench.compare(evaluate), 2 if method == "lae" else 1, peak_memory(bench, evaluate))


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
    x = torch.rand(options.batch, 3, *backbone.img_size, device=options.device)
    y = torch.arange(options.batch, device=options.device) % 20
    bench = Bench(backbone, x, y, options.steps, options.precision)
    plain = statistics.median(bench.clock(bench.plain) for _ in range(max(options.steps, 3)))
    print(
        f"{options.model} at {backbone.img_size[0]}, batch {options.batch}, {options.device}, "
        f"{options.precision}, {torch.get_num_threads()} threads; plain forward {options.batch / plain:.1f} images/s"
    )
    columns = f"{'limit':>6} {'share':>9} {'work':>6} {'share':>9} {'peak MB':>9}"
    print(f"{'method':<12} {'what':<22} {'images/s':>9} {'forwards':>9} {columns}")
    for method in options.methods:
        measure(bench, method)


if __name__ == "__main__":
    main()

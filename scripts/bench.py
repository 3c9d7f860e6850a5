"""The benchmarks of docs/development/benchmarks.md: `python scripts/bench.py NAME [OPTIONS]`, -h lists them."""

import argparse
import itertools
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import pilot_tal as pt
from pilot_tal.backbone.load import load_backbone
from pilot_tal.config.settings import method_config
from pilot_tal.engine.loop import build_optimizer
from pilot_tal.stream.task import TaskInfo

METHODS = ("l2p", "dualprompt", "coda_prompt", "lae", "mos")
CLASSES = 20  # per task of `learners`
NEW, IMAGES, MEASURED = 10, 20, 32  # of `learn`: classes of a session, images per class, images of the forward pass
REPORT = """
import sys
from pilot_tal.results import build_report
build_report([sys.argv[1]], sys.argv[2], plots=bool(sys.argv[3]))
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])  # ru_maxrss would include this process's parent
"""


def seconds(run: Callable[[], object]) -> float:
    """Wall-clock time of a call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def loss(given: argparse.Namespace) -> None:
    """TAL beside cross-entropy, forward and backward. The two take turns, and the fastest block of calls counts."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"microseconds per call, forward + backward, one thread; torch {torch.__version__}")
    print(f"{'batch':>5} {'classes':>7} {'CE':>9} {given.loss:>9} {'ratio':>6}")
    ratios = []
    for batch, classes in itertools.product((32, 64, 128, 256), (5, 20, 100, 500)):
        other: Any = pt.create_loss(given.loss)
        other.begin_task(TaskInfo(0, 1, 0, classes, (1,) * classes))
        logits, targets = torch.randn(batch, classes, requires_grad=True), torch.randint(0, classes, (batch,))

        def block(criterion: Any, logits: torch.Tensor = logits, targets: torch.Tensor = targets) -> None:
            for _ in range(given.calls):
                logits.grad = None
                criterion(logits, targets).backward()

        blocks = [partial(block, kind) for kind in (torch.nn.CrossEntropyLoss(), other)]
        rounds = [[seconds(run) for run in blocks] for _ in range(given.rounds)]
        ce, own = (1e6 * min(times) / given.calls for times in zip(*rounds, strict=True))
        ratios.append(own / ce)
        print(f"{batch:>5} {classes:>7} {ce:>9.1f} {own:>9.1f} {ratios[-1]:>6.2f}", flush=True)
    print(f"largest ratio {max(ratios):.2f}, at 256 x 500 {ratios[-1]:.2f}")


def overhead(given: argparse.Namespace) -> None:
    """CPU time of whole runs with TAL beside whole runs with CE, which take turns; the first round is not counted."""
    found = []
    for number in range(given.rounds + 1):
        used = {}
        for name in ("ce", "tal") if number % 2 == 0 else ("tal", "ce"):
            with tempfile.TemporaryDirectory() as output:
                start = time.process_time()
                settings = dict(item.split("=", 1) for item in given.settings)
                pt.run(given.method, given.dataset, loss=name, seed=1993, threads=1, output=output, **settings)
                used[name] = time.process_time() - start
        found.append(100 * (used["tal"] / used["ce"] - 1))
        print(f"round {number}: CE {used['ce']:.2f} s, TAL {used['tal']:.2f} s, {found[-1]:+.2f} %", flush=True)
    error = statistics.stdev(found[1:]) / given.rounds**0.5 if given.rounds > 1 else float("nan")
    mean = statistics.mean(found[1:])
    print(f"overhead of TAL over a whole {given.method} run: {mean:+.2f} % (standard error {error:.2f})")


def learners(given: argparse.Namespace) -> None:
    """Prompt and adapter learners beside timm's blocks of the same ViT, with nothing learned in them.

    `timm` is the time of what a batch needs at least, on as many tokens as the learner has (L2P: 25 more): for a
    training step of L2P, DualPrompt and CODA-Prompt a forward pass for the query, a prompted forward pass and a
    backward pass to the first block's input; for LAE and MOS no query; for LAE while frozen one forward pass; for an
    evaluation from the second task on one (LAE: two; MOS, `fixed`: one, as the features under earlier adapters are
    cached). `share` is that time divided by the learner's; above 100 % is faster.
    """
    backbone: Any = load_backbone(given.backbone, "random")
    x, y = torch.rand(given.batch, 3, *backbone.img_size), torch.arange(given.batch) % CLASSES
    print(f"{given.backbone}, batch {given.batch}, {torch.get_num_threads()} threads")
    print(f"{'what':<34} {'ms':>7} {'timm':>7} {'images/s':>9} {'share':>7}")

    def timm_blocks(tokens: int, backward: bool) -> None:
        vit = backbone.vit
        with torch.set_grad_enabled(backward):
            inner = vit._pos_embed(vit.patch_embed(x))
            inner = torch.cat([inner[:, :1].expand(-1, tokens, -1), inner], dim=1).requires_grad_(backward)
            total = vit.norm(vit.blocks(inner))[:, 0].sum()
            if backward:
                total.backward()

    def compare(name: str, run: Callable[[], None], forwards: int, tokens: int, backward: bool) -> None:
        def least() -> None:
            for _ in range(forwards - backward):
                timm_blocks(0 if backward else tokens, backward=False)
            if backward:
                timm_blocks(tokens, backward=True)

        rounds = [[seconds(kind) for kind in (least, run)] for _ in range(given.rounds + 1)][1:]  # the first warms up
        limit, own = (statistics.median(times) for times in zip(*rounds, strict=True))
        speed = f"{len(x) / own:>9.1f} {limit / own:>7.0%}"
        print(f"{name:<34} {1000 * own:>7.1f} {1000 * limit:>7.1f} {speed}", flush=True)

    for method in METHODS:
        torch.manual_seed(0)
        _measure(method, backbone, x, y, compare)


def _measure(method: str, backbone: Any, x: torch.Tensor, y: torch.Tensor, compare: Callable[..., None]) -> None:
    """Compares the training steps of a learner, and its evaluation in the second task."""
    mos = method == "mos"
    changes: dict[str, Any] = {"crct_epochs": 1, "fidelity": "fixed"} if mos else {"fidelity": "pilot"}
    learner: Any = pt.create_learner(method, backbone, 2 * CLASSES, 2, **changes)
    config: Any = method_config(method)
    tasks = [TaskInfo(i, 2, i * CLASSES, (i + 1) * CLASSES, (5,) * CLASSES) for i in range(2)]
    prompts = config.top_k * config.length if method == "l2p" else 0
    criterion: Any = pt.create_loss("tal")
    learner.begin_task(tasks[0])
    criterion.begin_task(tasks[0])
    phases = [("frozen epochs", 0, 1), ("training", config.tuned_epoch - 1, 1)]
    for name, epoch, forwards in phases if method == "lae" else [("training", 0, 1 if mos else 2)]:
        learner.begin_epoch(epoch, config.tuned_epoch)
        optimizer = build_optimizer(learner.param_groups(), learner.config)

        def step(optimizer: torch.optim.Optimizer = optimizer) -> None:
            logits, aux = learner.observe(x)
            optimizer.zero_grad(set_to_none=True)
            (criterion(logits, y) + aux).backward()
            optimizer.step()
            learner.after_step()

        compare(f"{method} {name}", step, forwards, prompts, backward=name == "training")
    learner.end_task(lambda: [(x, y)])
    ids = torch.arange(len(x))
    learner.scores(x, ids)
    learner.begin_task(tasks[1])
    if mos:
        learner.end_task(lambda: [(x, y + CLASSES)])

    def evaluate() -> None:
        if mos:  # what a finished task costs the old images: its one new adapter
            learner.cache.forget("adapter1")
        learner.scores(x, ids)

    compare(f"{method} evaluation, 2nd task", evaluate, 2 if method == "lae" else 1, prompts, backward=False)


def report(given: argparse.Namespace) -> None:
    """Time and memory of a report on synthetic runs: 50 classes in 5 tasks, CE and TAL with step and state logs."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "results"))
    from synthetic_runs import write_run_directory  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number in range(given.runs):
            place, group = divmod(number, given.groups)
            options = {"method": f"method{group}", "loss": ("ce", "tal")[place % 2], "seed": 1993 + place // 2}
            curve = [2 / (epoch + 1) for epoch in range(50)]
            write_run_directory(root / "runs", steps_a_task=100, losses_by_epoch=curve, **options)
        command = [sys.executable, "-c", REPORT, str(root / "runs"), str(root / "report"), "plots" * given.plots]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        largest = max(page.stat().st_size for page in (root / "report").glob("*.html"))
    print(
        f"{given.runs} runs in {given.groups} groups: {used.ru_utime + used.ru_stime:.1f} s CPU, "
        f"{int(done.stdout) / 1024:.0f} MB, largest page {largest / 1e6:.2f} MB"
    )


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
            generator = torch.Generator().manual_seed(first)
            labels = torch.arange(first, stop).repeat_interleave(IMAGES)
            means = torch.randn(stop - first, learner.feature_dim, generator=generator)
            noise = torch.randn(len(labels), learner.feature_dim, generator=generator)
            features = torch.nn.functional.normalize(means[labels - first] + noise, dim=1)
            if task == 0:  # not measured
                learner.moments.add(features, labels)
                learner.validated += len(features)
        started = time.process_time()
        learner.add(features, labels)
        used = time.process_time() - started
        size = sum(tensor.nbytes for tensor in learner.checkpoint_state().values()) / 1e6
        times = 1 + used / forward
        print(f"after {before:,} classes: {used:.1f} s, in all {times:.2f} times the forward passes; {size:.0f} MB")


OPTIONS: dict[Callable[[argparse.Namespace], None], dict[str, Any]] = {
    loss: {"--loss": "tal", "--rounds": 30, "--calls": 100},
    overhead: {"--method": "l2p", "--dataset": "demo_lt", "--rounds": 4},
    learners: {"--backbone": "deit_tiny_patch16_224", "--batch": 32, "--rounds": 5},
    report: {"--runs": 500, "--groups": 50},
    learn: {"--backbone": "vit_small_patch16_224.augreg_in21k"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    for bench, options in OPTIONS.items():
        own = commands.add_parser(bench.__name__, description=bench.__doc__)
        own.set_defaults(bench=bench)
        for name, default in options.items():
            own.add_argument(name, default=default, type=type(default), help=f"default {default}")
        if bench is report:
            own.add_argument("--plots", action="store_true")
        if bench is overhead:
            own.add_argument("settings", nargs="*", metavar="key=value")
    given = parser.parse_args()
    given.bench(given)


if __name__ == "__main__":
    main()

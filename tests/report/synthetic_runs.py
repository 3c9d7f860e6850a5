"""Run directories with made-up but plausible results, written through the real run-directory code."""

import json
import re
from pathlib import Path

import numpy as np

from pilot_tal.metrics import summarize
from pilot_tal.rundir import RunInfo, run_name, write_predictions, write_result, write_run

SEEDS = (1993, 1994, 1995)


def long_tailed_counts(classes: int, n_max: int, n_min: int) -> np.ndarray:
    """Counts by original class index, falling from n_max to n_min."""
    ranks = np.linspace(0, 1, classes)
    return np.maximum(n_min, np.round(n_max * (n_min / n_max) ** ranks)).astype(int)


def write_run_directory(
    root: Path,
    *,
    dataset="demo_lt",
    method="l2p",
    loss="ce",
    seed=1993,
    fidelity="pilot",
    engine="native",
    task_sizes=(10,) * 5,
    counts=None,
    tests=20,
    tail_gain=0.0,
    epochs=20,
    tasks_done=None,
    steps_a_task=400,
    class_names=None,
    notes=(),
    config=None,
) -> Path:
    """Writes one run; `tail_gain` is added to the chance that an image of a rare class is right."""
    classes = sum(task_sizes)
    counts = long_tailed_counts(classes, 60, 3) if counts is None else np.asarray(counts)
    order = np.random.default_rng(seed).permutation(classes)
    names = class_names or [f"class {i:03d}" for i in range(classes)]
    done = len(task_sizes) if tasks_done is None else tasks_done
    info = RunInfo(
        dataset=dataset,
        method=method,
        loss=loss,
        seed=seed,
        fidelity=fidelity,
        engine=engine,
        task_sizes=task_sizes,
        class_names=[names[k] for k in order],
        class_order=order.tolist(),
        train_counts=counts[order].tolist(),
        notes=notes,
    )
    config = {"dataset": dataset, "method": method, "loss": loss, "seed": seed, "epochs": epochs} | (config or {})
    # Names may be hostile; the directory of a run is not what they are tried on.
    hashed = config | {"engine": engine, "fidelity": fidelity, "sizes": task_sizes}
    path = root / re.sub(r"[^A-Za-z0-9_-]", "", run_name(dataset, method, loss, seed, hashed))
    write_run(path, info, config, {"torch": "0.0"})
    predictions = [_predict(info, task, tests, tail_gain) for task in range(done)]
    for task, (true, pred) in enumerate(predictions):
        write_predictions(path, task, [f"{y}/{i}.png" for i, y in enumerate(true)], true, pred)
    if done:
        metrics = summarize(predictions, info.task_sizes, info.train_counts, info.class_order)
        write_result(path, done, done == len(task_sizes), metrics)
    if loss == "tal":
        lines = [line for task in range(done) for line in _tal_lines(info, task, steps_a_task)]
        (path / "tal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_comparison(root: Path, losses=(("ce", 0.0), ("tal", 0.12)), seeds=SEEDS, **options) -> list[Path]:
    """One setting: every loss (with its gain on the tail) on every seed."""
    return [
        write_run_directory(root, loss=loss, seed=seed, tail_gain=gain, **options)
        for loss, gain in losses
        for seed in seeds
    ]


def _predict(info: RunInfo, task: int, tests: int, tail_gain: float):
    """Rare and old classes are harder; wrong images go to frequent and recent classes."""
    rng = np.random.default_rng([info.seed, task, len(info.loss)])
    seen = sum(info.task_sizes[: task + 1])
    counts = np.array(info.train_counts[:seen], dtype=float)
    rarity = 1 - np.log(counts / counts.min() + 1) / np.log(counts.max() / counts.min() + 1)
    age = task - np.repeat(np.arange(task + 1), info.task_sizes[: task + 1])
    chance = np.clip(0.9 - 0.5 * rarity - 0.04 * age + tail_gain * rarity, 0.05, 0.98)
    pull = counts / (1 + 0.3 * age)
    true = np.repeat(np.arange(seen), tests)
    wrong = rng.choice(seen, size=true.size, p=pull / pull.sum())
    return true, np.where(rng.random(true.size) < chance[true], true, wrong)


def _tal_lines(info: RunInfo, task: int, steps: int, lam=0.995, lines=60):
    """TAL's state with r = 1 under class frequencies that do not change."""
    first = sum(info.task_sizes[:task])
    counts = np.array(info.train_counts[first : first + info.task_sizes[task]], dtype=float)
    p, alpha, x = counts / counts.sum(), 2 * len(counts) - 1, np.zeros(len(counts))
    kept = set(np.linspace(0, steps - 1, min(lines, steps)).astype(int).tolist())
    for step in range(steps):
        x = x + (1 - lam) * (p - (1 - p) * x - x)
        if step in kept:
            q, weights = (x / (1 - lam)).tolist(), (alpha * x).tolist()
            yield {"task": task, "step": step, "alpha": alpha, "Q": q, "weights": weights}

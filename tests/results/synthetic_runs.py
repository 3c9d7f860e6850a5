"""Run directories with made-up but plausible results, written through the real run-directory code."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from data_lt import CARDS
from pilot_tal.learners import LEARNERS
from pilot_tal.losses import LOSSES
from pilot_tal.record.run_record import (
    NO_LOSS,
    BackboneRecord,
    DataRecord,
    EngineRecord,
    LossRecord,
    MethodRecord,
    RunRecord,
    StreamRecord,
)
from pilot_tal.record.writer import open_run

SEEDS = (1993, 1994, 1995)
ENGINES = {"native": "native", "lamda-pilot": "LAMDA-PILOT"}
BACKBONE = BackboneRecord("vit_base_patch16_224.augreg_in21k_ft_in1k", "hub")


def long_tailed_counts(classes: int, n_max: int, n_min: int) -> np.ndarray:
    """Counts by original class index, falling from n_max to n_min."""
    ranks = np.linspace(0, 1, classes)
    return np.maximum(n_min, np.round(n_max * (n_min / n_max) ** ranks)).astype(int)


def make_record(
    *,
    dataset="demo_lt",
    method="l2p",
    loss="ce",
    seed=1993,
    fidelity="pilot",
    engine="native",
    task_sizes=(10,) * 5,
    counts=None,
    epochs=20,
    class_names=None,
    notes=(),
    settings=None,
    options=None,
    checksum=None,
    recipe=None,
    backbone=None,
    quick=False,
    changed=None,
    environment=(),
) -> RunRecord:
    """The record of a run; what is not given is as in the paper's setting."""
    classes = sum(task_sizes)
    counts = long_tailed_counts(classes, 60, 3) if counts is None else np.asarray(counts)
    order = np.random.default_rng(seed).permutation(classes)
    names = class_names or [f"class {i:03d}" for i in range(classes)]
    title = "no loss" if loss == NO_LOSS else _title(LOSSES, loss)
    return RunRecord(
        engine=EngineRecord(engine, ENGINES.get(engine, engine)),
        method=MethodRecord(
            method, _title(LEARNERS, method), fidelity, ({"tuned_epoch": epochs} if epochs else {}) | (settings or {})
        ),
        loss=LossRecord(loss, title, options or {}),
        seed=seed,
        data=DataRecord(dataset, _title(CARDS, dataset), checksum, recipe or {}),
        backbone=replace(BACKBONE, **(backbone or {})),
        stream=StreamRecord(
            transform="pilot",
            normalize="none",
            order="shuffled",
            task_sizes=tuple(task_sizes),
            class_names=tuple(names[k] for k in order),
            class_order=tuple(order.tolist()),
            train_counts=tuple(counts[order].tolist()),
        ),
        quick=quick,
        changed=changed or ({"tuned_epoch": [epochs, 20]} if epochs != 20 and not quick else {}),
        notes=tuple(notes),
        environment=tuple(environment),
    )


def write_run_directory(
    root: Path,
    *,
    record=None,
    tests=20,
    tail_gain=0.0,
    tasks_done=None,
    steps_a_task=400,
    states=None,
    losses_by_epoch=None,
    accuracies_by_epoch=None,
    prompts=None,
    **options,
) -> Path:
    """Writes one run; `tail_gain` is added to the chance that an image of a rare class is right.

    `tests` is the number of test images per class, or one for each original class. `states` are the lines of TAL's log
    for each task, in place of made-up ones; an empty list leaves the log out. `losses_by_epoch` are logged as two steps
    per epoch in every task, `accuracies_by_epoch` beside them. `prompts` are the picks of each task's images, as
    (images, counts), after every task.
    """
    record = record or make_record(**options)
    done = record.num_tasks if tasks_done is None else tasks_done
    # Names may be hostile; the directory of a run is not what they are tried on.
    path = root / re.sub(r"[^A-Za-z0-9_-]", "", record.name)
    with open_run(path) as writer:
        writer.write_record(record)
        for task in range(done):
            true, pred = _predict(record, task, tests, tail_gain)
            lines = []
            if record.loss.name == "tal" and states != []:
                lines = _tal_lines(record, task, steps_a_task) if states is None else states[task]
            epochs = enumerate(losses_by_epoch or ())
            steps = [{"epoch": e, "step": 2 * e + i, "loss": loss} for e, loss in epochs for i in (0, 1)]
            for step in steps if accuracies_by_epoch else ():
                step["accuracy"] = accuracies_by_epoch[step["epoch"]]
            picks = [
                {"of_task": t, "images": n, "counts": counts}
                for t, (n, counts) in enumerate((prompts or [])[: task + 1])
            ]
            images = [f"{y}/{i}.png" for i, y in enumerate(true)]
            writer.write_task(task, images, true, pred, steps=steps, states=lines, prompts=picks)
        writer.commit(record, done)
    return path


def write_comparison(root: Path, losses=(("ce", 0.0), ("tal", 0.12)), seeds=SEEDS, **options) -> list[Path]:
    """One setting: every loss (with its gain on the tail) on every seed."""
    return [
        write_run_directory(root, loss=loss, seed=seed, tail_gain=gain, **options)
        for loss, gain in losses
        for seed in seeds
    ]


def _title(registry, name: str) -> str:
    return registry[name].title if name in registry else name


def _predict(record: RunRecord, task: int, tests, tail_gain: float):
    """Rare and old classes are harder; wrong images go to frequent and recent classes."""
    stream = record.stream
    rng = np.random.default_rng([record.seed, task, len(record.loss.name)])
    seen = sum(stream.task_sizes[: task + 1])
    counts = np.array(stream.train_counts[:seen], dtype=float)
    rarity = 1 - np.log(counts / counts.min() + 1) / np.log(counts.max() / counts.min() + 1)
    age = task - np.repeat(np.arange(task + 1), stream.task_sizes[: task + 1])
    chance = np.clip(0.9 - 0.5 * rarity - 0.04 * age + tail_gain * rarity, 0.05, 0.98)
    pull = counts / (1 + 0.3 * age)
    per_class = np.full(seen, tests) if np.isscalar(tests) else np.asarray(tests)[list(stream.class_order[:seen])]
    true = np.repeat(np.arange(seen), per_class)
    wrong = rng.choice(seen, size=true.size, p=pull / pull.sum())
    return true, np.where(rng.random(true.size) < chance[true], true, wrong)


def _tal_lines(record: RunRecord, task: int, steps: int, lam=0.995, lines=60):
    """TAL's state with r = 1 under class frequencies that do not change."""
    sizes = record.stream.task_sizes
    first = sum(sizes[:task])
    counts = np.array(record.stream.train_counts[first : first + sizes[task]], dtype=float)
    p, alpha, x = counts / counts.sum(), 2 * len(counts) - 1, np.zeros(len(counts))
    kept = set(np.linspace(0, steps - 1, min(lines, steps)).astype(int).tolist())
    for step in range(steps):
        x = x + (1 - lam) * (p - (1 - p) * x - x)
        if step in kept:
            yield {"step": step, "Q": (x / (1 - lam)).tolist(), "weights": (alpha * x).tolist()}

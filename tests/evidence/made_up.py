"""A results folder with made-up numbers, for the code that reads it; nothing of it is ever shown."""

import csv
from pathlib import Path

import numpy as np
from results_page import write_page

SEEDS = (1993, 1994, 1995)
STUDIES = """
cub: {title: CUB-LT (4 classes), settings: "epochs=20 weights={weights} threads=1", data: cub_lt, runs: [lae]}
flowers: {title: Flowers-LT (4 classes), settings: "", data: folder_lt, runs: [lae]}
pets: {title: Pets-LT (4 classes), settings: "", data: folder_lt, runs: [lae]}
batches: {title: "CUB-LT (4 classes), batches of 16", settings: "epochs=20 batch_size=16", data: cub_lt, runs: [lae]}
demo: {title: Demo (4 classes), settings: "", data: demo_lt, runs: [lae]}
original: {title: Ours and the original, settings: "", data: demo_lt, runs: [lae]}
supervised_5_balanced: {title: Five, settings: "", data: folder_lt, runs: [lae]}
supervised_5_long_tailed: {title: Another five, settings: "", data: folder_lt, runs: [lae]}
supervised_10_long_tailed: {title: Ten, settings: "", data: folder_lt, runs: [lae]}
ablation: {title: λ and r on the demo, about: "One method.", settings: "", data: demo_lt, runs: [lae]}
"""


def run(study, method, loss, seed, *, tail, mean, options="", engine="native", weight="", **more) -> dict:
    """A line of runs.csv; shares, as there."""
    return {
        "study": study, "method": method, "loss": loss, "options": options, "engine": engine, "seed": seed,
        "tasks": 2, "classes": 4, "fidelity": "fixed", "a_mean": mean, "a_tail": tail, "a_head": 2 * mean - tail,
        "a_avg": mean, "worst_class": 0.0, "forgetting": 0.1, "train_loss": 0.5, "weight": weight,
        "steps": 20.0, "minutes": 6.0, "threads": 1, "commit": "1234567", "run": "a", **more,
    }  # fmt: skip


def arms(study, method, **losses) -> list[dict]:
    """Runs on the three seeds: for each loss a list of A_Tail in percent; A_Mean is 10 points above."""
    return [
        run(study, method, loss, seed, tail=value / 100, mean=value / 100 + 0.1)
        for loss, values in losses.items()
        for seed, value in zip(SEEDS, values, strict=False)
    ]


def page_of(folder: Path, rows: list[dict], **tables: list[dict]) -> str:
    """The page that these runs make."""
    page = write_page(write(folder / "results", runs=rows, **tables), folder / "docs")
    return page.read_text(encoding="utf-8")


def write(folder: Path, **tables: list[dict]) -> Path:
    """A results folder with these tables."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "studies.yaml").write_text(STUDIES, encoding="utf-8")
    for name, rows in tables.items():
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return folder


def everything(folder: Path, classes: int = 40, tasks: int = 5) -> Path:
    """A folder with all tables, from which every picture can be drawn."""
    rng = np.random.default_rng(0)
    methods = {
        "cub": ("l2p", "dualprompt", "coda_prompt", "lae", "mos"),
        "flowers": ("lae", "mos"),
        "pets": ("lae", "mos"),
    }
    gains = {"ce": 0.0, "tal": 0.04, "tal_auto": 0.02, "balanced_softmax": 0.08}
    runs, over_tasks, over_classes = [], [], []
    images = np.round(40 * (2 / 40) ** (np.arange(classes) / (classes - 1))).astype(int)
    for study, method, seed in ((s, m, seed) for s, found in methods.items() for m in found for seed in SEEDS):
        level = rng.uniform(0.4, 0.7)
        for loss, gain in gains.items():
            if loss == "balanced_softmax" and method != "lae":
                continue
            tail, weight = level - 0.2 + gain + rng.normal(0, 0.02), 0.8 if loss.startswith("tal") else ""
            line = run(study, method, loss, seed, tail=tail, mean=level + gain / 3 + rng.normal(0, 0.01), weight=weight)
            runs.append(line)
            key = {name: line[name] for name in ("study", "method", "loss", "options", "engine", "seed")}
            for task in range(tasks):
                accuracy = 0.95 - (0.95 - level) * task / (tasks - 1) + gain / 4 * task + rng.normal(0, 0.01)
                over_tasks.append({**key, "task": task + 1, "accuracy": accuracy})
            for label in range(classes):
                rarity = label / classes
                recall = np.clip(0.9 - 0.6 * rarity + 2 * gain * rarity + rng.normal(0, 0.1), 0, 1)
                precision = (
                    "" if rng.random() < rarity / 8 else np.clip(0.6 + 0.2 * rarity - gain + rng.normal(0, 0.1), 0, 1)
                )
                over_classes.append(
                    {
                        **key,
                        "label": label,
                        "name": f"bird {label}",
                        "images": images[label],
                        "recall": recall,
                        "precision": precision,
                    }
                )
    for seed in SEEDS:
        runs += [
            run("cub", "simplecil", "none", seed, tail=0.5, mean=0.55),
            run("ablation", "lae", "ce", seed, tail=0.4, mean=0.6),
        ]
        for lam in (0.9, 0.99, 0.995, 0.999):
            for r in (0.2, 0.5, 1.0, 2.0, 3.0):
                options = [f"lam={lam}"] * (lam != 0.995) + [f"r={r}"] * (r != 1)
                tail, mean = 0.4 + 0.05 * rng.normal(), 0.6 + 0.02 * rng.normal() - 0.05 * (r == 3)
                runs.append(run("ablation", "lae", "tal", seed, tail=tail, mean=mean, options=";".join(options)))
    return write(folder, runs=runs, tasks=over_tasks, classes=over_classes, states=list(_states(images, tasks)))


def _states(images: np.ndarray, tasks: int, steps: int = 160, lam: float = 0.995):
    """TAL's state with r = 1 under frequencies that do not change."""
    order = np.random.default_rng(1).permutation(len(images))
    key = {"study": "cub", "method": "lae", "loss": "tal", "options": "", "engine": "native", "seed": 1993}
    for task, members in enumerate(np.split(order, tasks)):
        p, x = images[members] / images[members].sum(), np.zeros(len(members))
        for step in range(steps):
            x = x + (1 - lam) * (p - (1 - p) * x - x)
            if step % 8 == 0 or step == steps - 1:
                for label, share in zip(members, x, strict=True):
                    state = {"Q": share / (1 - lam), "weight": (2 * len(members) - 1) * share}
                    yield {**key, "task": task + 1, "step": step + 1, "label": label, "images": images[label], **state}

"""The evidence: runs the studies of results/studies.yaml, keeps their summaries, and writes docs/results.md from them.

    python scripts/results.py                                             # the page and its pictures, from results/
    python scripts/results.py run cub photos=FOLDER weights=FILE jobs=2   # a study; given again, it goes on
    python scripts/results.py run cub photos=FOLDER weights=FILE --only lae --dry-run
    python scripts/results.py collect cub                                 # its finished runs into results/*.csv
    python scripts/results.py trial RUN ...                               # losses of runs on seed 1990, for a setting
    python scripts/results.py cost                                        # what TAL costs, on a machine left alone

The runs themselves stay in runs/results/STUDY; only their summaries are part of the project.
"""

import argparse
import csv
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from results_evidence import write_table
from results_studies import PLACES, read_studies, study_commands

from data_lt.errors import UserError
from pilot_tal.config.defaults import defaults
from pilot_tal.config.parse import parse_items
from pilot_tal.losses import LOSSES
from pilot_tal.metrics import AFTER_TASK
from pilot_tal.record.run_dir import RECORD, RESULT, Run, find_runs, load_run
from pilot_tal.results.tal_state import mean_weights, read_states
from pilot_tal.schema import defaults_of

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
SCALARS = ("a_mean", "a_tail", "a_head", "a_avg", "worst_class", "forgetting")
KEY = ("study", "method", "loss", "options", "engine", "seed")
SORTED = {  # the tables, and what their rows are sorted by
    "runs": KEY,
    "tasks": (*KEY, "task"),
    "classes": (*KEY, "label"),
    "states": (*KEY, "task", "step", "label"),
}
BY_CLASS = ("cub", "flowers", "pets")  # studies whose classes are kept one by one
STATES_OF = ("batches", "lae", "tal", "", "native", 1993)  # the one run whose Q and α·w are kept, by its KEY
STATES_A_TASK = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    run = commands.add_parser("run", help="run a study")
    run.add_argument("study", choices=list(read_studies(RESULTS)))
    run.add_argument("values", nargs="*", metavar="key=value", help="photos, weights, and settings for every run")
    run.add_argument("--only", default="", metavar="METHOD", help="only the lines that begin with this")
    run.add_argument("--dry-run", action="store_true", help="print the commands")
    collect = commands.add_parser("collect", help="take finished runs into results/*.csv")
    collect.add_argument("study", choices=list(read_studies(RESULTS)))
    collect.add_argument("folder", nargs="?", type=Path)
    trial = commands.add_parser("trial", help="write down the training losses of runs that were tried")
    trial.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directories with two finished tasks")
    cost = commands.add_parser("cost", help="time TAL beside cross-entropy, as the paper does")
    cost.add_argument("--repeats", type=int, default=30, help="rounds over the loss alone (default 30)")
    cost.add_argument("--rounds", type=int, default=8, help="pairs of whole runs of a method (default 8)")
    cost.add_argument("--epochs", type=int, help="epochs a task of whole runs (default: as the demo has them)")
    given = parser.parse_args()
    try:
        if given.command == "run":
            sys.exit(run_study(given.study, given.values, given.only, given.dry_run))
        if given.command == "collect":
            found = collect_runs(given.study, given.folder or ROOT / "runs" / "results" / given.study, RESULTS)
            print(f"{given.study}: {found} finished runs")
            return
        if given.command == "trial":
            return add_trials(RESULTS / "trials.csv", [trial_of(load_run(path)) for path in given.runs])
        if given.command == "cost":
            return measure_cost(RESULTS, given.repeats, given.rounds, given.epochs)
        from results_page import write_page

        print(write_page(RESULTS, ROOT / "docs"))
    except UserError as error:
        sys.exit(f"error: {error}")


def run_study(name: str, values: list[str], only: str, dry_run: bool) -> int:
    """Runs the commands one after the other; gives the worst of their statuses."""
    given = parse_items(values, aliases={})
    places = {key: given.pop(key, key.upper()) for key in PLACES}
    study = read_studies(RESULTS)[name]
    folder, number = study.get("few", ("", 0))
    places["few"] = f"runs/results/few/{folder}_{number}"
    if number and not dry_run:
        link_classes(Path(places["photos"]) / folder, ROOT / places["few"], number)
    worst = 0
    for words in study_commands(study, name, places):
        if only and not words[1].startswith(only) and f"exps/{only}.json" not in words:
            continue
        words += [f"{key}={value}" for key, value in given.items()] if words[0] == "compare" else []
        print("pilot-tal", shlex.join(words), flush=True)
        if not dry_run:
            done = subprocess.run([sys.executable, "-m", "pilot_tal", *words], cwd=ROOT, check=False)
            worst = max(worst, abs(done.returncode))
    return worst


def link_classes(photos: Path, folder: Path, number: int) -> None:
    """A folder with the first classes of another, as links."""
    if not photos.is_dir():
        raise UserError(f"{photos} is not a folder; give photos=FOLDER")
    folder.mkdir(parents=True, exist_ok=True)
    for chosen in sorted(path for path in photos.iterdir() if path.is_dir())[:number]:
        if not (folder / chosen.name).exists():
            (folder / chosen.name).symlink_to(chosen.resolve(), target_is_directory=True)


def collect_runs(study: str, folder: Path, results: Path) -> int:
    """Adds the finished runs below a folder to the tables, in place of what was there of them; gives their number."""
    tables: dict[str, list[dict]] = {name: [] for name in SORTED}
    names: dict[tuple, str] = {}
    for path in find_runs([folder]):
        run = load_run(path)
        if not run.finished or run.record.quick:
            continue
        key = run_key(study, run)
        twin = names.setdefault(tuple(key.values()), path.name)
        if twin != path.name:
            raise UserError(
                f"{twin} and {path.name} are of one method, loss and seed and differ in other settings, which "
                f"results/ does not tell apart; move one of them out of {folder}, or give it a study of its own"
            )
        tables["runs"].append(summary(key, run))
        tables["tasks"] += after_tasks(key, run)
        tables["classes"] += classes(key, run) if study in BY_CLASS else []
        tables["states"] += states(key, run) if tuple(key.values()) == STATES_OF else []
    for name, rows in tables.items():
        if rows:
            merge(results / f"{name}.csv", rows, SORTED[name])
    return len(tables["runs"])


def run_key(study: str, run: Run) -> dict[str, Any]:
    """What tells the runs of the tables apart; of the loss's options those that are not its defaults."""
    record = run.record
    usual = defaults_of(LOSSES[record.loss.name]) if record.loss.name in LOSSES else {}
    own = {key: value for key, value in record.loss.options.items() if value != usual.get(key)}
    return {
        "study": study,
        "method": record.method.name,
        "loss": record.loss.name,
        "options": ";".join(f"{key}={value}" for key, value in sorted(own.items())),
        "engine": record.engine.name,
        "seed": record.seed,
    }


def summary(key: dict, run: Run) -> dict:
    """One run in one line."""
    weights, losses = mean_weights(run), last_losses(run)
    here = run.record.environment[-1] if run.record.environment else {}
    return {
        **key,
        "tasks": run.record.num_tasks,
        "classes": run.record.num_classes,
        "fidelity": run.record.method.fidelity,
        **{name: rounded(run.metrics.get(name)) for name in SCALARS},
        "train_loss": rounded(float(np.mean(losses)) if losses else None),
        "weight": rounded(sum(weights) / len(weights)) if weights else None,
        "steps": rounded(steps_a_task(run)),
        "minutes": round(minutes(run), 1),
        "threads": here.get("threads"),
        "commit": (here.get("commit") or "")[:7],
        "run": run.path.name,
    }


def last_losses(run: Run) -> list[float]:
    """The mean training loss of the last epoch of each task; empty where nothing was trained."""
    epochs: dict[int, dict[int, list[float]]] = {}
    for step in run.step_log():
        if step["loss"] is not None:
            epochs.setdefault(step["task"], {}).setdefault(step["epoch"], []).append(step["loss"])
    return [float(np.mean(losses[max(losses)])) for losses in epochs.values()]


def trial_of(run: Run) -> dict:
    """A run that was tried, in one line: by its training losses alone."""
    losses = last_losses(run)
    if len(losses) < 2:
        raise UserError(f"{run.path} has trained {len(losses)} tasks; a trial is told by the losses of two")
    settings = run.record.method.settings
    changed = {key: value for key, (value, _) in run.record.changed.items() if key in settings}
    return {
        "method": run.record.method.name,
        "dataset": run.record.data.title,
        "settings": " ".join(f"{key}={value}" for key, value in sorted(changed.items())),
        "seed": run.record.seed,
        "classes": run.record.stream.task_sizes[0],
        "loss_1": round(losses[0], 3),
        "loss_2": round(losses[1], 3),
    }


def add_trials(path: Path, rows: list[dict]) -> None:
    """Beside those tried before: what was tried stays on the page."""
    key = ("method", "dataset", "settings", "seed")
    new = [{name: str(value) for name, value in row.items()} for row in rows]
    again = {tuple(row[name] for name in key) for row in new}
    before = []
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            before = [row for row in csv.DictReader(file) if tuple(row[name] for name in key) not in again]
    write_table(path, [*before, *new])


def steps_a_task(run: Run) -> float | None:
    """Optimizer steps of a task, their mean over the tasks; None where nothing was trained."""
    last: dict[int, int] = {}
    for step in run.step_log():
        last[step["task"]] = max(step["step"] + 1, last.get(step["task"], 0))
    return sum(last.values()) / len(last) if last else None


def minutes(run: Run) -> float:
    """How long it took; of a run that was broken off, its tasks since it was taken up tell for the earlier ones."""
    start, end = ((run.path / name).stat().st_mtime for name in (RECORD, RESULT))
    done = [file for file in (run.path / "predictions").iterdir() if file.stat().st_mtime >= start]
    return (end - start) / 60 * run.tasks_done / max(1, len(done))


def after_tasks(key: dict, run: Run) -> list[dict]:
    """A line for each task: accuracy over all classes seen, over the tail, over old and over new classes."""
    lists = [run.metrics[name] for name in AFTER_TASK]
    names = ("accuracy", "tail", "old", "new")
    return [
        {**key, "task": task + 1, **dict(zip(names, map(rounded, values), strict=True))}
        for task, values in enumerate(zip(*lists, strict=True))
    ]


def classes(key: dict, run: Run) -> list[dict]:
    """A line for each class, under its index in the dataset."""
    stream, found = run.record.stream, run.metrics["per_class"]
    return [
        {
            **key,
            "label": stream.class_order[k],
            "name": stream.class_names[k],
            "images": stream.train_counts[k],
            "recall": rounded(found["accuracy"][k]),
            "precision": rounded(found["precision"][k]),
        }
        for k in range(len(stream.class_order))
    ]


def states(key: dict, run: Run) -> list[dict]:
    """Q and α·w of each class of a task at some of its steps, the first and the last among them."""
    stream, rows = run.record.stream, []
    for state in read_states(run):
        chosen = np.unique(np.linspace(0, len(state.steps) - 1, STATES_A_TASK).round().astype(int))
        rows += [
            {
                **key,
                "task": state.task + 1,
                "step": int(state.steps[i]) + 1,
                "label": stream.class_order[label],
                "images": stream.train_counts[label],
                "Q": rounded(state.q[i, j]),
                "weight": rounded(state.weights[i, j]),
            }
            for i in chosen
            for j, label in enumerate(state.labels)
        ]
    return rows


def measure_cost(results: Path, repeats: int, rounds: int, epochs: int | None = None) -> None:
    """The loss alone and whole runs of two methods on the demo, into two tables of their own."""
    import bench_loss
    import bench_overhead
    import torch

    torch.set_num_threads(1)
    pairs = bench_loss.measure("tal", repeats, calls=100)
    micro = {cell: [round(1e6 * seconds, 1) for seconds in pair.fastest] for cell, pair in pairs.items()}
    rows = [{"batch": b, "classes": c, "ce": ce, "tal": tal} for (b, c), (ce, tal) in micro.items()]
    write_table(results / "cost_of_loss.csv", rows)
    whole = []
    for method in ("l2p", "lae"):
        taken = epochs or defaults(method, "demo_lt")["tuned_epoch"]
        found = bench_overhead.measure(method, "demo_lt", rounds, ["threads=1", f"epochs={taken}"])
        numbers = {"percent": float(np.mean(found)), "error": bench_overhead.standard_error(found)}
        numbers = {key: round(value, 2) for key, value in numbers.items()}
        whole.append({"method": method, "epochs": taken, "rounds": rounds, **numbers})
    write_table(results / "cost_of_runs.csv", whole)


def merge(path: Path, rows: list[dict], order: Iterable[str]) -> None:
    """Writes old and new rows together; a run that is there again has its new rows alone."""
    new = [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]
    replaced = {tuple(row[name] for name in KEY) for row in new}
    old = []
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            old = [row for row in csv.DictReader(file) if tuple(row[name] for name in KEY) not in replaced]
    write_table(path, sorted([*new, *old], key=lambda row: tuple(place(row[name]) for name in order)), list(new[0]))


def place(text: str) -> tuple[int, float, str]:
    """Where a cell sorts: numbers by their size, before words."""
    try:
        return (0, float(text), "")
    except ValueError:
        return (1, 0.0, text)


def rounded(value: float | None) -> float | None:
    """Six digits after the point: finer than one test image."""
    return None if value is None else round(float(value), 6)


if __name__ == "__main__":
    main()

"""Run the studies behind docs/results.md, collect them in results/runs.csv, and write tables and figures from it.

    python scripts/results.py run cub --photos FOLDER --weights FILE [--runs runs/results] [--only lae]
    python scripts/results.py collect runs/results     # finished runs into results/runs.csv
    python scripts/results.py page                     # tables in docs/results.md and README.md, and the figures

Runs resume where they stopped. A table is written between `<!-- table: main key=value … -->` and `<!-- end -->`.
The text around the tables is written by hand; `tests/evidence` checks that every table equals results/runs.csv.
"""

import argparse
import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from data_lt.errors import UserError
from data_lt.files import write_text
from pilot_tal.learners import LEARNERS
from pilot_tal.losses import LOSSES
from pilot_tal.metrics import Difference, mean_interval
from pilot_tal.record.run_dir import Run, find_runs, load_run
from pilot_tal.record.run_record import RunRecord

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "results" / "runs.csv"
PAGES = (ROOT / "docs" / "results.md", ROOT / "README.md")
KEYS = ["dataset", "tasks", "fidelity", "method", "loss", "options"]
SCORES = {"a_mean": "A_Mean", "a_tail": "A_Tail", "a_head": "A_Head"}
SEEDS = 3  # rows with fewer are left out
TRAINING_FREE = ("simplecil", "plda", "air")
FIRST_TASK_ONLY = ("ranpac", "fecam", "aper")
TITLES = {"cub_lt": "CUB-LT", "flowers102": "Flowers-102", "pets": "Pets"}
OPTIONS = {"eps=1e-12 update=normalized": "released code"}  # names of changed options
COLOURS = {"ce": "#0072b2", "tal": "#d55e00", "tal_auto": "#009e73", "balanced_softmax": "#cc79a7", "none": "#555555"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a study of results/studies.yaml")
    run.add_argument("study", choices=[*_studies()["studies"]])
    run.add_argument("--photos", required=True, help="folder with CUB_200_2011, flowers102 and pets")
    run.add_argument("--weights", required=True, help="DeiT-Tiny's weights in timm's names")
    run.add_argument("--runs", default="runs/results", help="where the runs go")
    run.add_argument("--only", default="", help="only the lines that begin with this method")
    collect = commands.add_parser("collect", help="add finished runs to results/runs.csv")
    collect.add_argument("folders", nargs="+")
    commands.add_parser("page", help="write tables and figures")
    given = parser.parse_args()
    try:
        if given.command == "run":
            sys.exit(run_study(given))
        if given.command == "collect":
            print(f"{collect_runs(given.folders, RUNS)} runs in {RUNS}")
        else:
            write_pages()
    except UserError as error:
        sys.exit(f"error: {error}")


def run_study(given: argparse.Namespace) -> int:
    """Run the lines of a study one after the other; return the worst exit status."""
    file = _studies()
    study, worst = file["studies"][given.study], 0
    for line in study["runs"]:
        method, *own = shlex.split(line)
        if not method.startswith(given.only):
            continue
        dataset, *data = shlex.split(study["data"].format(photos=given.photos))
        common = shlex.split(file["settings"].format(weights=given.weights))
        replaced = {word.partition("=")[0] for word in own}
        settings = [*data, *(word for word in common if word.partition("=")[0] not in replaced), *own]
        words = ["compare", method, dataset, *settings, f"output={given.runs}"]
        print("pilot-tal", shlex.join(words), flush=True)
        done = subprocess.run([sys.executable, "-m", "pilot_tal", *words], cwd=ROOT, check=False)
        worst = max(worst, abs(done.returncode))
    return worst


def collect_runs(folders: list[str], table: Path) -> int:
    """Add the finished runs below the folders to the table, replacing rows of the same run; return the row count."""
    rows = [_row(run) for path in find_runs(folders) if (run := load_run(path)).finished and not run.record.quick]
    before = pd.read_csv(table, keep_default_na=False) if table.is_file() else pd.DataFrame()
    frame = pd.concat([before, pd.DataFrame(rows)]).drop_duplicates("run", keep="last")
    frame = frame.sort_values([*KEYS, "seed"], kind="stable")
    if frame.duplicated([*KEYS, "seed"]).any():
        twins = frame[frame.duplicated([*KEYS, "seed"], keep=False)]["run"].tolist()
        raise UserError(f"these runs differ only in settings that the table does not tell apart: {', '.join(twins)}")
    write_text(table, frame.to_csv(index=False))
    return len(frame)


def _row(run: Run) -> dict[str, object]:
    record, metrics = run.record, run.metrics
    steps = pd.DataFrame(run.step_log())
    last = steps[steps["epoch"] == steps["epoch"].max()]["loss"].mean() if len(steps) and "epoch" in steps else None
    named = {key.rpartition(".")[2]: value for key, (value, _) in record.changed.items()}
    changed = {key: value for key, value in named.items() if key in record.loss.options}
    return {
        "dataset": record.data.name,
        "tasks": record.num_tasks,
        "fidelity": record.method.fidelity,
        "method": record.method.name,
        "loss": record.loss.name,
        "options": " ".join(f"{key}={value}" for key, value in sorted(changed.items())),
        "seed": record.seed,
        **{key: round(float(metrics[key]), 6) for key in (*SCORES, "a_avg", "forgetting")},
        "train_loss": "" if last is None else round(float(last), 4),
        "epochs": record.method.settings.get("tuned_epoch", 0),
        "used": round(_used(record), 4),
        "commit": record.environment[-1].get("commit", "") if record.environment else "",
        "run": run.path.name,
    }


def _used(record: RunRecord) -> float:
    """Share of the training images that an epoch uses: with `drop_last` a last incomplete batch is left out."""
    counts = iter(record.stream.train_counts)
    images = [sum(itertools.islice(counts, size)) for size in record.stream.task_sizes]
    batch = record.method.settings.get("batch_size", 1) if record.method.settings.get("drop_last") else 1
    return sum(number - number % batch if number >= batch else number for number in images) / sum(images)


def runs(**chosen: str) -> pd.DataFrame:
    """The rows of results/runs.csv with the given values."""
    frame = pd.read_csv(RUNS, keep_default_na=False, dtype={"tasks": str, "options": str})
    for key, value in chosen.items():
        frame = frame[frame[key] == value]
    if frame.empty:
        raise UserError(f"results/runs.csv has no run with {chosen}")
    return frame


def _complete(frame: pd.DataFrame, seeds: int = SEEDS) -> pd.DataFrame:
    """The rows of methods and losses with at least so many seeds."""
    return frame.groupby(["dataset", "method", "loss", "options"]).filter(lambda group: len(group) >= seeds)


def passes(method: str, epochs: float, tasks: int, fidelity: str = "fixed") -> float:
    """Forward passes of the ViT per training image; a backward pass through frozen blocks counts as one more.

    Prompt methods: query, prompted forward, backward. LAE: forward and backward, forward alone in three of five epochs,
    with fidelity fixed from the second task on. RanPAC and APER adapt in the first task only, then read features twice.
    """
    if method in TRAINING_FREE:
        return 1
    if method in FIRST_TASK_ONLY:
        return 2 * epochs / tasks + 2
    if method == "lae":
        frozen_tasks = tasks if fidelity == "pilot" else tasks - 1
        return 2 * epochs - 3 * epochs / 5 * frozen_tasks / tasks
    return epochs * {"linear": 1, "mos": 2, "ease": 2}.get(method, 3)


def main_table(
    dataset: str, tasks: str = "5", fidelity: str = "fixed", short: str | bool = "", seeds: str | int = SEEDS
) -> str:
    """One row per method and loss with enough seeds, best A_Mean first: accuracies, paired changes against CE, cost.

    `short` leaves out the changes, and keeps of each method CE and the loss with the best A_Tail.
    """
    frame, lines = _complete(runs(dataset=dataset, tasks=tasks, fidelity=fidelity), int(seeds)), []
    short = short or not set(frame["loss"]) - {"ce", "none"}
    if short:
        ce_first = frame.sort_values("loss", key=lambda loss: loss != "ce", kind="stable")  # so CE wins a tie
        tails = ce_first.groupby(KEYS[3:], sort=False)["a_tail"].mean().round(3)
        best = frame.set_index(KEYS[3:]).index.isin(tails.groupby("method").idxmax())
        frame = frame[best | (frame["loss"] == "ce")]
    for (method, loss, options), group in frame.groupby(["method", "loss", "options"], sort=False):
        base = frame[(frame["method"] == method) & (frame["loss"] == "ce")]
        cells = [LEARNERS[method].title, _loss(loss, options)]
        epochs = (group["epochs"] * group["used"]).mean()  # of all images
        cells.append(f"{passes(method, epochs, int(tasks), fidelity):.0f}")
        cells += [f"{100 * group[key].mean():.1f}" for key in SCORES]
        if not short:
            cells += [_change(_difference(group, base, key)) if loss not in ("ce", "none") else "" for key in SCORES]
        lines.append((group["a_mean"].mean(), cells))
    titles = ["Method", "Loss", "ViT passes", *SCORES.values()]
    titles += [] if short else [f"{name} − CE" for name in SCORES.values()]
    rule = ["---", "---", *["---:"] * (len(titles) - 2)]
    rows = [cells for _, cells in sorted(lines, key=lambda line: -line[0])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, rule, *rows))


def _difference(ours: pd.DataFrame, base: pd.DataFrame, key: str) -> Difference:
    """Mean and 95 % t-interval of the differences on shared seeds."""
    both = ours.set_index("seed")[key].to_frame("a").join(base.set_index("seed")[key].rename("b"), how="inner")
    return mean_interval((100 * (both["a"] - both["b"])).tolist())


def _change(found: Difference) -> str:
    if found.low is None or found.high is None:
        return f"{found.mean:+.1f}".replace("-", "−")
    return f"{found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}]".replace("-", "−")


def _loss(name: str, options: str) -> str:
    title = "" if name == "none" else LOSSES[name].title
    return f"{title} ({OPTIONS.get(options, options)})" if options else title


MARK = re.compile(r"(<!-- table: main((?: \w+=\S+)*) -->\n).*?(\n<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """A page with its tables written from results/runs.csv."""

    def table(found: re.Match) -> str:
        options = dict(item.split("=", 1) for item in found[2].split())
        return f"{found[1]}\n{main_table(**options)}\n{found[3]}"

    return MARK.sub(table, text)


def write_pages() -> None:
    """Write tables and figures."""
    for page in PAGES:
        write_text(page, filled(page.read_text(encoding="utf-8")))
    trade_off(ROOT / "docs" / "images" / "results_trade_off.svg")


def trade_off(file: Path) -> None:
    """A_Mean against A_Tail of every method and loss, one panel per dataset; bars are 95 % intervals over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    frame = _complete(runs(tasks="5", fidelity="fixed", options=""))
    frame[["a_mean", "a_tail"]] *= 100
    datasets = list(dict.fromkeys(frame["dataset"]))
    with matplotlib.rc_context({"svg.hashsalt": "pilot_tal", "font.size": 9, "svg.fonttype": "none"}):
        figure, axes = plt.subplots(len(datasets), 1, figsize=(7.5, 4.6 * len(datasets)), squeeze=False)
        for axis, dataset in zip(axes[:, 0], datasets, strict=True):
            shown = frame[frame["dataset"] == dataset]
            for (method, loss), group in shown.groupby(["method", "loss"]):
                mean, tail = (mean_interval(group[key].tolist()) for key in ("a_mean", "a_tail"))
                bars = {
                    f"{name}err": 0 if part.low is None else part.mean - part.low
                    for name, part in zip("xy", (mean, tail), strict=True)
                }
                marker, colour = "s" if method in TRAINING_FREE else "o", COLOURS.get(loss, "#999999")
                style = {"fmt": marker, "color": colour, "ecolor": (colour, 0.45), "ms": 4, "elinewidth": 0.8}
                axis.errorbar(mean.mean, tail.mean, **bars, **style)
            axis.set(title=TITLES.get(dataset, dataset), xlabel="A_Mean (%)", ylabel="A_Tail (%)")
            axis.margins(0.12)
        points = [
            plt.Line2D([], [], marker="o", ls="", color=colour, label=_loss(loss, "") or "closed form")
            for loss, colour in COLOURS.items()
        ]
        axes[0][0].legend(handles=points, fontsize=8, loc="upper left")
        figure.tight_layout()
        means = frame.groupby(["dataset", "method", "loss"])[["a_mean", "a_tail"]].mean().sort_values("a_tail")
        for axis, dataset in zip(axes[:, 0], datasets, strict=True):
            _name_methods(axis, means.loc[dataset].groupby("method").last().sort_values("a_tail"))
        figure.savefig(file, format="svg", metadata={"Date": None})
        plt.close(figure)


def _name_methods(axis: Any, points: pd.DataFrame) -> None:
    """Write each method's name beside its best point, where possible without covering another name or point."""
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    places = [(x, y) for y in (4, -10, 14, -20, 24, -30) for x in (5, -5)]
    taken = [Bbox.from_bounds(x - 3, y - 3, 6, 6) for x, y in axis.transData.transform(points.to_numpy())]
    for method, (x, y) in points[::-1].iterrows():
        line = {"arrowstyle": "-", "lw": 0.4, "color": "#999999", "shrinkA": 0, "shrinkB": 2}
        text = axis.annotate(LEARNERS[method].title, (x, y), (0, 0), textcoords="offset points", arrowprops=line)
        for text.xyann in places:
            text.set_ha("left" if text.xyann[0] > 0 else "right")
            text.update_positions(axis.figure.canvas.get_renderer())
            box = Text.get_window_extent(text)  # without the line
            if not box.count_overlaps(taken):
                break
        taken.append(box)


def _studies() -> dict:
    return yaml.safe_load((ROOT / "results" / "studies.yaml").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()

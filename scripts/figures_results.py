"""The pictures of docs/results.md, from results/*.csv alone; each is drawn only if its data are there."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from figures_features import features_figure
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from results_evidence import Evidence, direction

from data_lt.errors import UserError
from data_lt.files import write_text
from pilot_tal.learners import LEARNERS
from pilot_tal.losses import LOSSES
from pilot_tal.metrics import Difference, paired_difference, tail_classes
from pilot_tal.results.display import points
from pilot_tal.results.svg import INK, draw_cells, figure, legend, standalone, style, to_svg
from pilot_tal.schema import defaults_of

COLOURS = {"ce": "#0072b2", "tal": "#d55e00", "tal_auto": "#009e73", "balanced_softmax": "#cc79a7"}  # as in a report
MARKERS = {"ce": "s", "tal": "o", "tal_auto": "D", "balanced_softmax": "^"}
BOTH = ("ce", "tal")
METRICS = {"a_tail": "A_Tail", "a_mean": "A_Mean"}
NEIGHBOURS = 9  # classes of similar size that a line over classes averages

Drawn = tuple[Figure, str]


def draw_results(evidence: Evidence, folder: Path) -> dict[str, str]:
    """Draws what can be drawn into a folder, and removes what cannot; gives the captions by the pictures' names."""
    captions = {}
    for name, draw in PICTURES.items():
        path = folder / f"{name}.svg"
        with style():
            drawn = draw(evidence)
            if drawn is None:
                path.unlink(missing_ok=True)
                continue
            shown, captions[name] = drawn
            write_text(path, standalone(to_svg(shown)))
    return captions


def overview(evidence: Evidence) -> Drawn | None:
    """Changes of A_Tail and A_Mean against CE: a row for each dataset and method, a colour for each loss."""
    losses = [loss for loss in COLOURS if loss != "ce" and evidence.cells(loss)]
    cells = list(dict.fromkeys(cell for loss in losses for cell in evidence.cells(loss)))
    if not cells:
        return None
    order = list(LEARNERS)
    rows: list[tuple[str, str | None]] = []  # a study's heading has no method
    for study in dict.fromkeys(study for study, _ in cells):
        methods = sorted((method for s, method in cells if s == study), key=order.index)
        rows += [(study, None), *((study, method) for method in methods)]
    shown, panels = figure(1.1 + 0.36 * (len(rows) + 1), columns=len(METRICS), sharey=True)
    for axes, (metric, name) in zip(panels, METRICS.items(), strict=True):
        for turn, loss in enumerate(losses):
            shift = 0.24 * (turn - (len(losses) - 1) / 2)
            for row, (study, method) in enumerate(rows):
                found = evidence.difference(metric, loss, study=study, method=method) if method else None
                change_mark(axes, row + shift, found, loss)
            change_mark(axes, len(rows) + shift, evidence.pooled(metric, loss)[0], loss, label=LOSSES[loss].title)
        axes.axvline(0, color=INK, linewidth=1)
        axes.axhspan(len(rows) - 0.5, len(rows) + 0.5, color=INK, alpha=0.07, linewidth=0)
        axes.set(title=name, xlabel="points against CE", ylim=(len(rows) + 0.5, -0.5))
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.tick_params(axis="y", length=0)
        axes.locator_params(axis="x", nbins=5)
    names = [LEARNERS[method].title if method else evidence.short_title(study) for study, method in rows]
    panels[0].set_yticks(range(len(rows) + 1), [*names, "Pooled"])
    for label, (_, method) in zip(panels[0].get_yticklabels(), [*rows, ("", None)], strict=True):
        label.set_fontweight("normal" if method else "bold")
    legend(shown, panels[0])
    caption = (
        "Change of the accuracy of the tail (left) and of all classes (right) against cross-entropy on the same seeds, "
        "in points, with 95 % intervals; right of the line is better than cross-entropy. "
        "Pooled: the mean over the rows above it that have the loss."
    )
    return shown, caption


def change_mark(axes: Axes, place: float, found: Difference | None, loss: str, label: str | None = None) -> None:
    """A mean and its interval; nothing where there is none."""
    if found is None:
        return
    if found.low is not None:
        axes.plot([found.low, found.high], [place, place], color=COLOURS[loss], linewidth=1.8, solid_capstyle="butt")
    axes.plot(found.mean, place, MARKERS[loss], color=COLOURS[loss], markersize=5, label=label)


def over_tasks(evidence: Evidence) -> Drawn | None:
    """Accuracy over all classes seen, after each task: a panel for each dataset and method."""
    table, cells = evidence.table("tasks"), evidence.cells("tal")
    if table is None or not cells:
        return None
    table = plain(table)
    columns = min(3, len(cells))
    shown, panels = figure(0.6 + 1.45 * -(-len(cells) // columns), -(-len(cells) // columns), columns, sharey=True)
    for axes, (study, method) in zip(panels, cells, strict=False):
        own = table[(table["study"] == study) & (table["method"] == method)]
        for loss in BOTH:
            runs = own[own["loss"] == loss].pivot_table(index="seed", columns="task", values="accuracy")
            bars = 100 * runs.std(ddof=1) if len(runs) > 1 else None
            look = {"color": COLOURS[loss], "marker": MARKERS[loss], "markersize": 3.5, "capsize": 2, "linewidth": 1.4}
            axes.errorbar(runs.columns, 100 * runs.mean(), bars, label=LOSSES[loss].title, **look)
        axes.set_title(f"{evidence.short_title(study)}\n{LEARNERS[method].title}", fontsize=10)
        axes.set_xticks(sorted(own["task"].unique()))
        axes.locator_params(axis="y", nbins=5)
    for axes in panels[len(cells) :]:
        axes.set_visible(False)
    shown.supxlabel("after task", fontsize=11)
    shown.supylabel("accuracy, %", fontsize=11)
    legend(shown, panels[0])
    caption = (
        "Accuracy over all classes seen so far after each task, with cross-entropy and with TAL; mean over seeds, bars "
        "are one standard deviation."
    )
    return shown, caption


def over_classes(evidence: Evidence) -> Drawn | None:
    """Recall and precision of each class against its training images."""
    table = evidence.table("classes")
    if table is None:
        return None
    table = plain(table)
    run = ["study", "method", "seed"]
    table = table[table["loss"].isin(BOTH)]
    table = table[table.groupby(run)["loss"].transform("nunique") == len(BOTH)]
    predicted = table.groupby([*run, "label"])["precision"].transform("count") == len(BOTH)
    table["precision"] = table["precision"].where(predicted)  # of one loss alone it would compare unlike classes
    studies = [study for study in evidence.studies if study in set(table["study"])]
    if not studies:
        return None
    shown, panels = figure(0.5 + 1.75 * len(studies), rows=len(studies), columns=2, sharey=True)
    for study, row in zip(studies, np.reshape(panels, (-1, 2)), strict=True):
        for axes, what in zip(row, ("recall", "precision"), strict=True):
            for loss in BOTH:
                own = table[(table["study"] == study) & (table["loss"] == loss)]
                found = own.groupby(["images", "label"])[what].mean().dropna().reset_index()
                axes.scatter(found["images"], 100 * found[what], s=9, color=COLOURS[loss], alpha=0.4, linewidth=0)
                smooth = found[["images", what]].rolling(NEIGHBOURS, center=True, min_periods=4).mean()
                line = smooth.groupby("images")[what].mean()
                axes.plot(line.index, 100 * line, color=COLOURS[loss], label=LOSSES[loss].title)
            axes.set_xscale("log")
            sizes = sorted(table.loc[table["study"] == study, "images"].unique())
            ticks = [n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500) if sizes[0] <= n <= sizes[-1]]
            axes.set_xticks(ticks, [str(n) for n in ticks])
            axes.minorticks_off()
            axes.set_title(f"{evidence.short_title(study)}: {what}", fontsize=10)
    shown.supxlabel("training images of the class", fontsize=11)
    shown.supylabel("%", fontsize=11)
    legend(shown, panels[0])
    caption = (
        "Recall and precision of each class after the last task against its training images, mean over methods and "
        f"seeds; lines average {NEIGHBOURS} classes of similar size. A class that is never predicted has no precision; "
        "precision is of the runs in which both losses predicted the class."
    )
    return shown, caption


def over_steps(evidence: Evidence) -> Drawn | None:
    """Q and α·w of head and tail classes over a training stream."""
    table = evidence.table("states")
    if table is None:
        return None
    run = table.iloc[0]
    told = f"{LOSSES[run['loss']].title}, {LEARNERS[run['method']].title} on {evidence.short_title(run['study'])}"
    told += f", seed {run['seed']}"
    sizes = table.groupby("label")["images"].first()
    tail = set(sizes.index[tail_classes(sizes.tolist(), sizes.index.tolist())])
    steps = table.groupby("task")["step"].max()
    table = table.assign(part=table["label"].isin(tail), at=table["step"] + table["task"].map(steps.cumsum() - steps))
    shown, panels = figure(4.4, rows=2, sharex=True)
    for axes, (what, name) in zip(panels, {"Q": "Q", "weight": "α·w"}.items(), strict=True):
        for part, label, colour, line in (
            (False, "head classes", "#0072b2", "-"),
            (True, "tail classes", "#d55e00", "--"),
        ):
            for task in steps.index:
                own = table[(table["part"] == part) & (table["task"] == task)].groupby("at")[what]
                axes.fill_between(own.mean().index, own.min(), own.max(), color=colour, alpha=0.15, linewidth=0)
                axes.plot(own.mean(), line, color=colour, label=label if task == steps.index[0] else None)
        for start in steps.cumsum()[:-1]:
            axes.axvline(start, color=INK, alpha=0.35, linewidth=0.8, linestyle=":")
        axes.set_ylabel(name)
    panels[1].axhline(1, color=INK, linewidth=1, alpha=0.6)
    panels[1].set(xlabel="optimizer step", xlim=(0, int(steps.sum())))
    for axes in panels:
        axes.set_ylim(bottom=0)
    legend(shown, panels[0])
    caption = (
        f"Q and the weight α·w of the negatives over the {len(steps)} tasks of one run ({told}): lines are "
        "means over the head and the tail classes of a task, bands reach from the smallest to the largest. "
        "The state begins anew with every task (dotted); at α·w = 1 negatives weigh as in cross-entropy."
    )
    return shown, caption


def ablation(evidence: Evidence) -> Drawn | None:
    """λ × r: the change of A_Mean and of A_Tail against CE."""
    runs = evidence.runs[(evidence.runs["study"] == "ablation") & (evidence.runs["loss"] == "tal")]
    arms = {(m, o): options_of(o) for m, o in sorted(set(zip(runs["method"], runs["options"], strict=True)))}
    arms = {arm: found for arm, found in arms.items() if set(found) == {"lam", "r"}}
    if not arms:
        return None
    (method, *others) = dict.fromkeys(method for method, _ in arms)
    if others:
        raise UserError(f"the study ablation is of one method, but results/runs.csv has {method}, {', '.join(others)}")
    lams, rs = (sorted({found[key] for found in arms.values()}) for key in ("lam", "r"))
    shown, panels = figure(0.9 + 2 * (0.45 + 0.34 * len(lams)), rows=2, sharex=True)
    for axes, metric in zip(panels, ("a_mean", "a_tail"), strict=True):
        changes, texts = np.full((len(lams), len(rs)), np.nan), [[""] * len(rs) for _ in lams]
        for (_, options), found in arms.items():
            place = lams.index(found["lam"]), rs.index(found["r"])
            difference = ablation_change(evidence, metric, method, options)
            if difference is not None:
                changes[place] = difference.mean
                texts[place[0]][place[1]] = points(difference.mean / 100, 1) + ("*" if direction(difference) else "")
        limit = max(1.0, float(np.nanmax(np.abs(changes), initial=0.0)))
        draw_cells(axes, changes, "PuOr_r", (-limit, limit), texts)
        axes.set_xticks(np.arange(len(rs)) + 0.5, [f"{r:g}" for r in rs])
        axes.set_yticks(np.arange(len(lams)) + 0.5, [f"{lam:g}" for lam in lams])
        axes.set(title=f"change of {METRICS[metric]}, points", ylabel="λ")
    panels[1].set_xlabel("r")
    counts = sorted({d.n for (_, o) in arms if (d := ablation_change(evidence, "a_mean", method, o)) is not None})
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else "0"
    caption = (
        f"{LEARNERS[method].title} on the demo with TAL under several λ and r: change against cross-entropy in points, "
        f"mean over {seeds} seeds; orange is higher, purple lower. A star: the 95 % interval leaves out 0, which of "
        f"the {2 * len(arms)} cells about {0.1 * len(arms):.1f} would do by chance, and together rather than alone, as "
        "all are compared with the same runs of cross-entropy."
    )
    return shown, caption


def features(evidence: Evidence) -> Drawn | None:
    """Test images in two dimensions, where scripts/figures.py has put them."""
    table = evidence.table("features")
    return None if table is None else features_figure(table)


def ablation_change(evidence: Evidence, metric: str, method: str, options: str) -> Difference | None:
    """TAL with some options minus CE, paired by seed."""
    where = {"study": "ablation", "method": method}
    arm = evidence.values(metric, loss="tal", options=options, **where)
    return paired_difference(arm, evidence.values(metric, loss="ce", **where))


def options_of(text: str) -> dict[str, float]:
    """λ and r of `lam=0.9;r=2`, the defaults where it does not name them; empty if another option was set too."""
    given = dict(part.split("=") for part in text.split(";") if part)
    if not set(given) <= {"lam", "r"} or "auto" in given.values():
        return {}
    usual = defaults_of(LOSSES["tal"])
    return {key: float(given.get(key, usual[key])) for key in ("lam", "r")}


def plain(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of our own learners with the losses' default options."""
    return table[(table["options"] == "") & (table["engine"] == "native")]


PICTURES: dict[str, Callable[[Evidence], Drawn | None]] = {
    "results_overview": overview,
    "results_tasks": over_tasks,
    "results_classes": over_classes,
    "results_states": over_steps,
    "results_ablation": ablation,
    "results_features": features,
}

"""docs/results.md and its pictures, from results/*.csv alone: no number on the page is written by hand."""

import math
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from figures_results import draw_results
from results_evidence import (
    BASELINES,
    PHOTOS,
    SHOWN,
    Evidence,
    average,
    change,
    direction,
    directions,
    mean,
    mean_spread,
    table,
)
from results_sections import costs, demo_losses, original, supervised
from results_studies import planned_runs

from data_lt.files import write_text
from pilot_tal.learners import LEARNERS
from pilot_tal.losses import LOSSES
from pilot_tal.metrics import Difference, paired_difference
from pilot_tal.report.display import listed

OVERVIEW = "results_overview"


def write_page(folder: Path, docs: Path) -> Path:
    """Writes the page and its pictures; gives the page."""
    evidence = Evidence(folder)
    pictures = draw_results(evidence, docs / "images")
    parts = [
        *head(evidence, pictures),
        *found(evidence),
        *demo_losses(evidence),
        *original(evidence),
        *supervised(evidence),
        *costs(evidence),
        *other_pictures(pictures),
        *all_numbers(evidence),
        *repeat(evidence),
        *not_run(evidence),
    ]
    page = docs / "results.md"
    write_text(page, "\n\n".join(parts) + "\n")
    return page


def head(evidence: Evidence, pictures: dict[str, str]) -> list[str]:
    """What the page is, the one table and the one picture."""
    rows = []
    for study in PHOTOS:
        for method in LEARNERS:
            where = {"study": study, "method": method}
            if method in BASELINES or not evidence.values("a_tail", loss="ce", **where):
                continue
            row = [evidence.studies[study]["title"], LEARNERS[method].title]
            for metric in ("a_tail", "a_mean"):
                tal, ce = evidence.pair(metric, "tal", **where)
                row += [mean(ce or evidence.values(metric, loss="ce", **where)), mean(tal)]
                row.append(change(paired_difference(tal, ce)))
            rows.append([*row, str(len(tal or evidence.values("a_tail", loss="ce", **where)))])
    names = [f"{SHOWN[metric]} {loss}" for metric in ("a_tail", "a_mean") for loss in ("CE", "TAL", "change")]
    return [
        "# Results: what it measures on photographs",
        "Every number here comes from runs of this project, but for those that are called the paper's; page and "
        "pictures are rebuilt from the tables in `results/`:",
        "```bash\npython scripts/results.py\n```",
        "Accuracies in percent; a change is the mean over seeds of the difference to "
        "cross-entropy (CE) on the same seed, in points, with its 95 % t-interval in brackets.",
        table(["Dataset", "Method", *names, "Seeds"], rows),
        *shown(pictures, [OVERVIEW]),
        "DeiT-Tiny/16 frozen, 160 × 160 pixels, 5 tasks, 20 epochs a task, `fidelity=fixed`, inputs normalised as the "
        "weights expect. The tail is the half of the classes with the fewest training images "
        "([report.md](report.md) defines all metrics). This is a small ViT on parts of the sets with few optimizer "
        "steps a task, not the paper's ViT-B/16 on the whole ones: neither levels nor changes are the paper's.",
    ]


def found(evidence: Evidence) -> list[str]:
    """Plain sentences."""
    parts = ["## What was found"]
    pairs = [
        ("tal", "ce"),
        ("tal_auto", "ce"),
        ("balanced_softmax", "ce"),
        ("tal_auto", "tal"),
        ("balanced_softmax", "tal"),
    ]
    parts += [f"- {sentence}" for pair in pairs if (sentence := pooled_sentence(evidence, *pair))]
    parts += [f"- {text}" for text in (*learned(evidence), *calibrated(evidence))]
    parts.append(
        "Pooled means: every cell (dataset and method) counts once with its mean over seeds. The interval is the wider "
        "of two of Student's: over the cells, and over the seeds, each with its mean over the cells. Cells of one "
        "dataset share its images, and all share the class orders, so they are not independent: the interval says how "
        "far cells and seeds differ rather than what chance allows, and of many intervals one in twenty leaves out 0 "
        "anyway."
    )
    return parts


def pooled_sentence(evidence: Evidence, loss: str, base: str) -> str:
    """What a loss does over all cells, against CE or against another; nothing without a cell that has both."""
    cells = evidence.cells(loss, base=base)
    if not cells:
        return ""
    (study, method), *more = cells
    if more:
        methods = [LEARNERS[name].title for name in LEARNERS if name in {name for _, name in cells}]
        over = f"over {len(cells)} cells ({listed(methods)})"
    else:
        over = f"with {LEARNERS[method].title} on {evidence.studies[study]['title']} alone, interval over seeds"
    differences, texts = {}, []
    for metric, name in SHOWN.items():
        differences[name], means = evidence.pooled(metric, loss, base=base)
        texts.append(f"{name} {change(differences[name])}" + (f", {directions(means)}" if more else ""))
    knows = ", which is told the classes' frequencies," if LOSSES[loss].knows == "the prior" else ""
    against = f"**{LOSSES[loss].title}**{knows} against {LOSSES[base].title}, {over}"
    return f"{against}: {'; '.join(texts)}. {verdict(differences)}"


def verdict(differences: dict[str, Difference | None]) -> str:
    """What the intervals let us say."""
    ways = {name: direction(d) for name, d in differences.items() if d is not None and d.low is not None}
    if not ways:
        return "One value has no interval."
    sure, rest = ([name for name in ways if bool(ways[name]) == wanted] for wanted in (True, False))
    if not sure:
        return "No interval leaves out 0."
    said = listed([f"{name} ({ways[name]})" for name in sure])
    return f"The interval leaves out 0 for {said}" + (f", not for {listed(rest)}." if rest else ".")


def learned(evidence: Evidence) -> list[str]:
    """What training bought: the methods with CE against the best of those that compare with class prototypes."""
    texts = []
    for study in PHOTOS:
        levels = {m: evidence.values("a_mean", study=study, method=m, loss=loss) for m, loss in BASELINES.items()}
        if not all(levels.values()):
            continue
        told = ", ".join(f"{LEARNERS[m].title} {mean(values)}" for m, values in levels.items())
        best = max(levels, key=lambda m: average(levels[m]))
        others = {
            m: evidence.values("a_mean", study=study, method=m, loss="ce") for m in LEARNERS if m not in BASELINES
        }
        against = [
            f"{LEARNERS[m].title} {change(difference)}"
            for m, values in others.items()
            if (difference := paired_difference(values, levels[best])) is not None
        ]
        compared = f"; with CE against {LEARNERS[best].title}: {', '.join(against)}" if against else ""
        texts.append(f"Methods with class prototypes on {evidence.studies[study]['title']}, A_Mean: {told}{compared}.")
    return texts


def calibrated(evidence: Evidence) -> list[str]:
    """Mean α·w at the end of the tasks, where 1 is calibrated, beside the steps that a task has."""
    rows = evidence.runs[evidence.runs["study"].isin(PHOTOS) & evidence.runs["loss"].isin(("tal", "tal_auto"))]
    rows = rows.dropna(subset=["weight"])
    texts = []
    for (loss, method), own in rows.groupby(["loss", "method"], sort=False):
        steps, weights = own["steps"].astype(float), own["weight"].astype(float)
        texts.append(
            f"{LOSSES[loss].title} with {LEARNERS[method].title} {weights.min():.2f} to {weights.max():.2f} "
            f"({steps.mean():.0f} steps a task)"
        )
    if not texts:
        return []
    meaning = "1 is calibrated, 0 is no negative supervision at all; the paper's λ remembers 200 steps"
    return [f"Mean α·w at the end of a task, over the tasks of a run ({meaning}): {'; '.join(texts)}."]


def all_numbers(evidence: Evidence) -> list[str]:
    """A table of every study."""
    parts = [
        "## All numbers",
        "Mean ± standard deviation over seeds. Three seeds whose differences happen to agree give an interval without "
        "width; it is no surer than the others.",
    ]
    for study, facts in evidence.studies.items():
        runs = evidence.runs[evidence.runs["study"] == study]
        if not len(runs):
            continue
        parts.append(f"### {facts['title']}")
        parts += [facts["about"].strip()] if facts.get("about") else []
        parts.append(study_table(evidence, study, runs))
    return parts


def study_table(evidence: Evidence, study: str, runs: pd.DataFrame) -> str:
    """Every arm of a study with its change against CE."""
    several = runs["engine"].nunique() > 1
    rows = []
    arms = runs[["method", "engine", "loss", "options"]].drop_duplicates()
    place = {name: i for i, name in enumerate((*LEARNERS,))}, {name: i for i, name in enumerate(("none", *LOSSES))}
    for arm in sorted(arms.itertuples(), key=lambda a: (place[0][a.method], a.engine, place[1][a.loss], a.options)):
        where = {"study": study, "method": arm.method, "engine": arm.engine}
        own = {"loss": arm.loss, "options": arm.options}
        title = "–" if arm.loss == "none" else LOSSES[arm.loss].title
        row = [LEARNERS[arm.method].title, *([arm.engine] if several else [])]
        row.append(f"{title} ({arm.options.replace(';', ', ')})" if arm.options else title)
        for metric in SHOWN:
            row.append(mean_spread(evidence.values(metric, **where, **own)))
        for metric in ("a_tail", "a_mean"):
            both = evidence.values(metric, **where, **own), evidence.values(metric, **where, loss="ce")
            row.append("" if arm.loss in ("ce", "none") else change(paired_difference(*both)))
        rows.append([*row, str(len(evidence.values("a_mean", **where, **own)))])
    names = ["Method", *(["Engine"] if several else []), "Loss", *SHOWN.values()]
    return table([*names, "A_Tail change", "A_Mean change", "Seeds"], rows)


def other_pictures(pictures: dict[str, str]) -> list[str]:
    """The pictures after the first."""
    rest = [name for name in pictures if name != OVERVIEW]
    return ["## Pictures", *shown(pictures, rest)] if rest else []


def shown(pictures: dict[str, str], names: Iterable[str]) -> list[str]:
    """Those of the pictures that were drawn, each with its caption, which begins with what the picture is of."""
    titles = {name: re.split(r"[;:.] ", caption)[0] for name, caption in pictures.items()}
    return [f"![{titles[name]}](images/{name}.svg)\n\n{pictures[name]}" for name in names if name in pictures]


def repeat(evidence: Evidence) -> list[str]:
    """Commands, settings tried, time and machine."""
    parts = [
        "## How to repeat it",
        "`results/studies.yaml` has the runs, `results/manifests` the images of each set (ours had a shorter side of "
        "224 pixels). With a folder of the photographs (`CUB_200_2011`, `flowers`, `pets`) and a file of DeiT-Tiny's "
        "weights:",
        "```bash\n"
        "python scripts/results.py run cub photos=FOLDER weights=FILE jobs=2\n"
        "python scripts/results.py collect cub\n"
        "python scripts/results.py\n"
        "```",
        "The commands of a study are plain `pilot-tal compare` (`--dry-run` prints them); broken off, they go on.",
    ]
    trials = evidence.table("trials")
    if trials is not None:
        parts.append(
            "Settings are those of LAMDA-PILOT that `configs/methods` has, but for what `results/studies.yaml` names. "
            "For a method that does not learn with them another learning rate would be chosen, by the training loss of "
            "CE on a seed that is not reported. All that was tried (mean training loss of the last epoch of the first "
            "two tasks):"
        )
        rows = [
            [
                LEARNERS[t.method].title,
                t.settings or "as they are",
                f"{t.dataset}, seed {t.seed}",
                *(f"{value:.2f}" for value in (t.loss_1, t.loss_2, math.log(t.classes))),
            ]
            for t in trials.itertuples()
        ]
        parts.append(table(["Method", "Setting", "On", "Task 1", "Task 2", "Chance (ln C)"], rows))
    runs = evidence.runs
    seeds = ", ".join(map(str, sorted(runs["seed"].unique())))
    native = runs[runs["engine"] == "native"]
    threads = ", ".join(f"{int(count)}" for count in sorted(native["threads"].dropna().unique()))
    parts.append(
        f"{len(runs)} runs, seeds {seeds}, ours with {threads} thread each, two at a time on two cores of an AMD EPYC "
        f"beside other work: {runs['minutes'].sum() / 60:.0f} hours by the clock if they had come one after the other. "
        "Versions and commit of each run are in its record, the commit also in `results/runs.csv`."
    )
    return parts


def not_run(evidence: Evidence) -> list[str]:
    """What this page does not show."""
    counts = {name: int((evidence.runs["study"] == name).sum()) for name in evidence.studies}
    planned = {name: planned_runs(study, name) for name, study in evidence.studies.items()}
    short = [
        f"{evidence.studies[name]['title']} {counts[name]} of {planned[name]}"
        for name in evidence.studies
        if counts[name] < planned[name]
    ]
    unfinished = f"Of the studies in `results/studies.yaml` some runs are still to come: {'; '.join(short)}."
    return [
        "## What was not run",
        *([unfinished] if short else []),
        "The paper's own cells (ViT-B/16 on the whole of CUB-LT, ImageNetR-LT and Food101-LT, 180 runs) need a GPU and "
        "the images:",
        "```bash\nbash scripts/reproduce_table.sh data_root=FOLDER gpus=0,1,2,3\n```",
        "It ends with our numbers beside the paper's.",
    ]

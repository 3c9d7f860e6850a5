"""docs/results.md and its pictures, from results/*.csv alone: no number on the page is written by hand."""

import math
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from figures_results import draw_results
from results_evidence import BASELINES, PHOTOS, SHOWN, Evidence, change, mean, mean_spread, table
from results_found import found
from results_sections import BALANCED, costs, demo_losses, original, supervised
from results_studies import planned_runs

from data_lt.files import write_text
from pilot_tal.learners import LEARNERS
from pilot_tal.losses import LOSSES
from pilot_tal.metrics import paired_difference
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
            row = [evidence.short_title(study), LEARNERS[method].title]
            for metric in ("a_tail", "a_mean"):
                tal, ce = evidence.pair(metric, "tal", **where)
                row += [mean(ce or evidence.values(metric, loss="ce", **where)), mean(tal)]
                row.append(change(paired_difference(tal, ce)))
            rows.append([*row, str(len(tal or evidence.values("a_tail", loss="ce", **where)))])
    sets = listed([evidence.studies[study]["title"] for study in PHOTOS])
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
        f"{sets}: DeiT-Tiny/16 frozen, 160 × 160 pixels, 5 tasks, 20 epochs a task, `fidelity=fixed`, inputs "
        "normalised as the weights expect. The tail is the half of the classes with the fewest training images "
        "([report.md](report.md) defines all metrics). This is a small ViT on parts of the sets with few optimizer "
        "steps a task, not the paper's ViT-B/16 on the whole ones: neither levels nor changes are the paper's.",
    ]


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
        parts.append(" ".join(filter(None, [facts.get("about", "").strip(), settings_told(facts, runs)])))
        parts.append(study_table(evidence, study, runs))
    return parts


def settings_told(facts: dict, runs: pd.DataFrame) -> str:
    """The fidelity of a study's runs, and its settings but for the caller's places."""
    fidelity = listed([f"`{name}`" for name in sorted(runs["fidelity"].unique())])
    words = [word for word in facts["settings"].split() if "{" not in word and not word.startswith("fidelity=")]
    return f"Fidelity {fidelity}" + (f"; `{' '.join(words)}`." if words else ".")


def study_table(evidence: Evidence, study: str, runs: pd.DataFrame) -> str:
    """Every arm of a study with its change against CE."""
    several = runs["engine"].nunique() > 1
    # Where all classes have as many images, none is rare.
    levels, changes = (["a_mean"], ["a_mean"]) if study in BALANCED else ([*SHOWN], ["a_tail", "a_mean"])
    rows = []
    arms = runs[["method", "engine", "loss", "options"]].drop_duplicates()
    place = {name: i for i, name in enumerate((*LEARNERS,))}, {name: i for i, name in enumerate(("none", *LOSSES))}
    for arm in sorted(arms.itertuples(), key=lambda a: (place[0][a.method], a.engine, place[1][a.loss], a.options)):
        where = {"study": study, "method": arm.method, "engine": arm.engine}
        own = {"loss": arm.loss, "options": arm.options}
        title = "–" if arm.loss == "none" else LOSSES[arm.loss].title
        row = [LEARNERS[arm.method].title, *([arm.engine] if several else [])]
        row.append(f"{title} ({arm.options.replace(';', ', ')})" if arm.options else title)
        for metric in levels:
            row.append(mean_spread(evidence.values(metric, **where, **own)))
        for metric in changes:
            both = evidence.values(metric, **where, **own), evidence.values(metric, **where, loss="ce")
            row.append("" if arm.loss in ("ce", "none") else change(paired_difference(*both)))
        rows.append([*row, str(len(evidence.values("a_mean", **where, **own)))])
    names = ["Method", *(["Engine"] if several else []), "Loss", *(SHOWN[metric] for metric in levels)]
    return table([*names, *(f"{SHOWN[metric]} change" for metric in changes), "Seeds"], rows)


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
            "Settings are those of LAMDA-PILOT that `configs/methods` has (on the demo those that it has for the demo, "
            "[demo.md](demo.md)), but for what `results/studies.yaml` names. "
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

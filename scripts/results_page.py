"""docs/results.md and its pictures, from results/*.csv alone: no number on the page is written by hand."""

import math
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from figures_results import draw_results
from results_evidence import BASELINES, PHOTOS, SHOWN, Evidence, change, mean, mean_spread, table
from results_found import found
from results_sections import BALANCED, batches, costs, demo_losses, original, supervised
from results_studies import places_of, planned_runs, setting_of

from data_lt import load_manifest
from data_lt.files import write_text
from pilot_tal.learners import LEARNERS
from pilot_tal.losses import LOSSES
from pilot_tal.metrics import paired_difference
from pilot_tal.results.display import listed

OVERVIEW = "results_overview"
WEIGHTS = "0af164d9dc50"  # the beginning of the checksum of ours


def write_page(folder: Path, docs: Path) -> Path:
    """Writes the page and its pictures; gives the page."""
    evidence = Evidence(folder)
    pictures = draw_results(evidence, docs / "images")
    parts = [
        *head(evidence, pictures),
        *found(evidence),
        *repeat(evidence),
        *not_run(evidence),
        *batches(evidence),
        *demo_losses(evidence),
        *supervised(evidence),
        *original(evidence),
        *costs(evidence),
        *other_pictures(pictures),
        *all_numbers(evidence),
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
    names = [f"{SHOWN[metric]} {loss}" for metric in ("a_tail", "a_mean") for loss in ("CE", "TAL", "change")]
    return [
        "# Results: what it measures on photographs",
        "Every number here comes from runs of this project, but for those that are called the paper's; page and "
        "pictures are rebuilt from the tables in `results/`:",
        "```bash\npython scripts/results.py\n```",
        "A_Tail is the accuracy of the rarer half of the classes after the last task, A_Head that of the other half, "
        "A_Mean that of all, in percent. A change is TAL minus cross-entropy (CE) on the same seed, in points: the "
        "mean over seeds, with its 95 % t-interval in brackets.",
        table(["Dataset", "Method", *names, "Seeds"], rows),
        *shown(pictures, [OVERVIEW]),
        *data_of(evidence),
    ]


def data_of(evidence: Evidence) -> list[str]:
    """The images behind the table, and what all of its runs have in common."""
    rows = []
    for study in PHOTOS:
        path = evidence.folder / "manifests" / f"{study}.txt"
        if not path.is_file():
            continue
        images = load_manifest(path)
        train, test = (images.loc[images["split"] == part, "label"].value_counts() for part in ("train", "test"))
        tail = train.sort_values().head(len(train) // 2)
        rows.append(
            [
                evidence.short_title(study),
                *map(str, (len(train), train.sum(), a_class(train), a_class(tail), a_class(test))),
            ]
        )
    if not rows:
        return []
    facts = evidence.studies[PHOTOS[0]]
    side, tasks, epochs, fidelity = (setting_of(facts, key) for key in ("img_size", "tasks", "epochs", "fidelity"))
    names = ["Classes", "Training images", "a class", "a tail class", "Test images a class"]
    return [
        table(["Dataset", *names], rows),
        f"All with a frozen DeiT-Tiny/16, {side} × {side} pixels, {tasks} tasks, {epochs} epochs a task, "
        f"`fidelity={fidelity}`, inputs normalised as the weights expect. Training and test images are the same on all "
        "seeds; a seed sets the order of the classes, the initial values, the batches and the augmentation, and the "
        "intervals speak of these alone. This is a small ViT on parts of the sets, not the paper's ViT-B/16 on the "
        "whole ones: neither levels nor changes are the paper's. [report.md](report.md) defines all metrics.",
    ]


def a_class(counts: pd.Series) -> str:
    """`2 to 40`, or one number where all classes have as many."""
    return " to ".join(map(str, dict.fromkeys((counts.min(), counts.max()))))


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
    """Commands, time and machine, and the settings that were tried."""
    runs = evidence.runs
    rows = []
    for study, facts in evidence.studies.items():
        own = runs[runs["study"] == study]
        if len(own):
            given = [f"{place}={place.upper()}" for place in places_of(facts, study)]
            command = f"`{' '.join(['python scripts/results.py run', study, *given])}`"
            hours = f"{own['minutes'].sum() / 60:.1f}"
            rows.append([facts["title"], command, str(len(own)), seeds_of(own["seed"]), hours])
    native = runs[runs["engine"] == "native"]
    threads = ", ".join(f"{int(count)}" for count in sorted(native["threads"].dropna().unique()))
    parts = [
        "## How to repeat it",
        "`results/studies.yaml` has the settings of every study, `results/manifests` the images of each set (ours had "
        "a shorter side of 224 pixels). PHOTOS is a folder with `CUB_200_2011`, `flowers` and `pets`, a folder of "
        "images a class in the latter two; WEIGHTS a file of DeiT-Tiny's weights in timm's names (ours: half "
        f"precision, LayerNorms rounded, SHA-256 `{WEIGHTS}…`; others give somewhat other numbers); PILOT and "
        "PYTHON are a checkout of LAMDA-PILOT and its environment ([upstream.md](upstream.md)). `--dry-run` prints the "
        "`pilot-tal` commands of a study; given again, it goes on where it was interrupted. Then:",
        "```bash\n"
        "python scripts/results.py collect cub    # its finished runs into results/*.csv\n"
        "python scripts/results.py                # page and pictures anew\n"
        "```",
        table(["Study", "Command", "Runs", "Seeds", "Hours"], rows),
        f"{len(runs)} runs, ours with {threads} thread each, two at a time on two cores of an AMD EPYC beside other "
        f"work. Hours are those of the clock from a run's start to its end, added up ({runs['minutes'].sum() / 60:.0f} "
        "in all); on a machine left alone a run takes less. On another CPU the last bits differ, and a run may end a "
        "few test images apart (L2P on the demo, seed 1993, repeated: 19.4 in place of 19.5). The commit of each run "
        "is in `results/runs.csv`, the versions of its packages in that commit's `requirements.txt`.",
    ]
    trials = evidence.table("trials")
    if trials is not None:
        rows = [
            [
                LEARNERS[t.method].title,
                t.settings or "as they are",
                f"{t.dataset}, seed {t.seed}",
                *(f"{value:.2f}" for value in (t.loss_1, t.loss_2, math.log(t.classes))),
            ]
            for t in trials.itertuples()
        ]
        parts += [
            "Settings are those of LAMDA-PILOT that `configs/methods` has (on the demo those that it has for the demo, "
            "[demo.md](demo.md)), but for what `results/studies.yaml` names. Had the training loss of a method stayed "
            "near chance, another learning rate would have been chosen, by the training loss of CE on a seed that is "
            "not reported. None did, so nothing was changed. Mean training loss of the last epoch:",
            table(["Method", "Setting", "On", "Task 1", "Task 2", "Chance (ln C)"], rows),
        ]
    return parts


def seeds_of(seeds: pd.Series) -> str:
    """`1993 to 1997` where none is missing in between, else all of them."""
    all_seeds = sorted(map(int, seeds.unique()))
    whole = len(all_seeds) > 2 and all_seeds == list(range(all_seeds[0], all_seeds[-1] + 1))
    return f"{all_seeds[0]} to {all_seeds[-1]}" if whole else ", ".join(map(str, all_seeds))


def not_run(evidence: Evidence) -> list[str]:
    """What this page does not show."""
    counts = {name: int((evidence.runs["study"] == name).sum()) for name in evidence.studies}
    planned = {name: planned_runs(study, name) for name, study in evidence.studies.items()}
    short = [
        f"{evidence.studies[name]['title']}: {counts[name]} of {planned[name]}"
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

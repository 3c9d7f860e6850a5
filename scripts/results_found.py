"""What was found on the photographs, for docs/results.md: plain sentences, and beneath them their numbers."""

import math

from results_evidence import BASELINES, PHOTOS, SHOWN, Evidence, average, change, direction, directions, mean, table
from results_studies import setting_of

from pilot_tal.learners import LEARNERS
from pilot_tal.losses import LOSSES
from pilot_tal.metrics import Difference, paired_difference
from pilot_tal.report.display import listed

PAIRS = (
    ("tal", "ce"),
    ("tal_auto", "ce"),
    ("balanced_softmax", "ce"),
    ("tal_auto", "tal"),
    ("balanced_softmax", "tal"),
)
MOSTLY_ONE = 1.1  # steps an epoch, on average over tasks: all but a few have one
POOLED = (
    "Not told from equal: the interval holds 0. Pooled means: every cell (dataset and method) counts once with its "
    "mean over seeds. The interval is the wider of two of Student's: over the cells, and over the seeds, each with its "
    "mean over the cells. Cells of one dataset share its images, and all share the class orders, so they are not "
    "independent: the interval says how far cells and seeds differ rather than what chance allows, and of many "
    "intervals one in twenty leaves out 0 anyway."
)


def found(evidence: Evidence) -> list[str]:
    """What each loss does, what training buys, and how far TAL was from calibrated."""
    return ["## What was found", *pooled_losses(evidence), *prototypes(evidence), *calibration(evidence)]


def pooled_losses(evidence: Evidence) -> list[str]:
    """A loss against CE, or against another, over all cells that have both."""
    sentences, rows = [], []
    for loss, base in PAIRS:
        cells = evidence.cells(loss, base=base)
        if not cells:
            continue
        pooled = {metric: evidence.pooled(metric, loss, base=base) for metric in SHOWN}
        differences = {SHOWN[metric]: difference for metric, (difference, _) in pooled.items()}
        knows = ", which is told the classes' frequencies," if LOSSES[loss].knows == "the prior" else ""
        who = f"**{LOSSES[loss].title}**{knows} against {LOSSES[base].title}"
        methods = [LEARNERS[name].title for name in LEARNERS if name in {method for _, method in cells}]
        sentences.append(f"- {who}, {over(len(cells), methods)}: {verdict(differences)}")
        numbers = [change(difference) for difference in differences.values()]
        rows.append([LOSSES[loss].title, LOSSES[base].title, *numbers, directions(pooled["a_tail"][1])])
    if not rows:
        return []
    names = ["Loss", "Against", *(f"{name} change" for name in SHOWN.values()), "A_Tail by cell"]
    return ["\n".join(sentences), table(names, rows), POOLED]


def over(cells: int, methods: list[str]) -> str:
    """`over 9 cells (LAE and MOS)`."""
    return f"over {cells} cell{'s' * (cells > 1)} ({listed(methods)})"


def verdict(differences: dict[str, Difference | None]) -> str:
    """What the intervals let us say."""
    ways = {name: direction(d) for name, d in differences.items() if d is not None and d.low is not None}
    if not ways:
        return "one value has no interval."
    higher, lower, rest = ([name for name in ways if ways[name] == way] for way in ("higher", "lower", ""))
    said = [f"{listed(names)} {way}" for names, way in ((higher, "higher"), (lower, "lower")) if names]
    unsure = f"{listed(rest)} not told from equal" if rest else ""
    return "; ".join(filter(None, (listed(said), unsure))) + "."


def prototypes(evidence: Evidence) -> list[str]:
    """What training buys: every method with CE beside those that compare features with class prototypes."""
    rows, below, above, cells = [], [], [], 0
    trained = [method for method in LEARNERS if method not in BASELINES]
    for study in PHOTOS:
        levels = {
            metric: {m: evidence.values(metric, study=study, method=m, loss=BASELINES.get(m, "ce")) for m in LEARNERS}
            for metric in ("a_tail", "a_mean")
        }
        there = [m for m in BASELINES if levels["a_mean"][m]]
        if not there:
            continue
        complete = len(there) == len(BASELINES)
        for metric, values in levels.items():
            shown = [mean(values[m]) for m in (*BASELINES, *trained)]
            rows.append([evidence.short_title(study), SHOWN[metric], *shown])
        best = max(there, key=lambda m: average(levels["a_mean"][m]))
        for method in trained:
            difference = paired_difference(levels["a_mean"][method], levels["a_mean"][best])
            if complete and difference is not None and difference.low is not None:
                cells += 1
                below += [difference] if direction(difference) == "lower" else []
                above += [difference] if direction(difference) == "higher" else []
    if not rows:
        return []
    names = ["Dataset", "Metric", *(LEARNERS[m].title for m in (*BASELINES, *trained))]
    return [
        "**What does training buy?** SimpleCIL trains nothing: it compares the frozen ViT's features with the means of "
        "the classes. RanPAC projects them at random first, after adapting the ViT to the first task; EASE trains an "
        "adapter a task. Accuracies in percent; what trains does so with CE."
        + (
            f" Against the best of the three on the same dataset, A_Mean of the other methods is lower in {len(below)} "
            f"of {cells} cells{by(below)}, higher in {len(above)}{by(above)} and not told from equal in "
            f"{cells - len(below) - len(above)}."
        )
        * bool(cells),
        table(names, rows),
    ]


def by(differences: list[Difference]) -> str:
    """` (by 3.1 to 46.4 points)`."""
    sizes = sorted(abs(difference.mean) for difference in differences)
    if not sizes:
        return ""
    return f" (by {sizes[0]:.1f} points)" if len(sizes) == 1 else f" (by {sizes[0]:.1f} to {sizes[-1]:.1f} points)"


def calibration(evidence: Evidence) -> list[str]:
    """Mean α·w at the end of the tasks, where 1 is calibrated, beside the steps that a task has."""
    rows = []
    ran = evidence.runs[evidence.runs["study"].isin(PHOTOS)].dropna(subset=["weight"])
    for method in LEARNERS:
        own = ran[ran["method"] == method]
        if not len(own):
            continue
        row = [LEARNERS[method].title, f"{own['steps'].astype(float).mean():.0f}"]
        for loss in ("tal", "tal_auto"):
            weights = own.loc[own["loss"] == loss, "weight"].astype(float)
            row.append(f"{weights.min():.2f} to {weights.max():.2f}" if len(weights) else "–")
        rows.append(row)
    if not rows:
        return []
    whole = [LEARNERS[method].title for method in whole_batches(evidence)]
    seen = (
        f" With {listed(whole)} one batch holds all images of a task, with few exceptions: TAL then meets the classes' "
        "true frequencies in every step, and has nothing temporal to follow."
    )
    return [
        "**Was TAL calibrated?** Mean α·w at the end of a task, over the tasks of a run, from the lowest run to the "
        "highest: 1 is calibrated, 0 is no negative supervision at all. The paper's λ remembers 200 steps; with few "
        "steps a task TAL cannot reach 1, which is why TAL-auto measures its memory in epochs." + seen * bool(whole),
        table(["Method", "Steps a task", "α·w with TAL", "α·w with TAL-auto"], rows),
    ]


def whole_batches(evidence: Evidence) -> list[str]:
    """Methods that take one step an epoch on the photographs, in all tasks or nearly all."""
    epochs = {study: setting_of(evidence.studies[study], "epochs") for study in PHOTOS}
    runs = evidence.runs[evidence.runs["study"].isin([study for study in PHOTOS if epochs[study]])]
    steps_an_epoch = runs["steps"].astype(float) / runs["study"].map(epochs).astype(float)
    means = steps_an_epoch[runs["loss"] == "tal"].groupby(runs["method"]).mean()
    return [method for method in LEARNERS if means.get(method, math.inf) < MOSTLY_ONE]

"""What was found on the photographs, for docs/results.md: plain sentences, and beneath them their numbers."""

import math
from collections.abc import Iterable

from results_evidence import (
    BASELINES,
    PHOTOS,
    SHOWN,
    TRAINED,
    Evidence,
    average,
    change,
    direction,
    directions,
    ends,
    mean,
    mean_of,
    over_cells,
    pool,
    sides,
    table,
    ups_and_downs,
)
from results_studies import setting_of

from data_lt import load_manifest
from pilot_tal.config.defaults import defaults
from pilot_tal.learners import LEARNERS
from pilot_tal.losses import LOSSES
from pilot_tal.metrics import Difference, paired_difference
from pilot_tal.results.display import listed, number, points
from pilot_tal.results.paper import paper_table

TOLD = ("tal", "tal_auto")  # the losses with sentences and columns of their own
PRIOR = "balanced_softmax"  # the loss that is told the classes' sizes
PAIRS = (("tal", "ce"), ("tal_auto", "ce"), (PRIOR, "ce"), ("tal_auto", "tal"), (PRIOR, "tal"), (PRIOR, "tal_auto"))
NOTHING = "simplecil"  # the method that trains nothing
MOSTLY_ONE = 1.1  # steps an epoch, on average over tasks: all but a few have one
WHY = {  # where TAL gains nothing, what in the method may be the reason
    "mos": "After every later task MOS trains its classifier again, always with cross-entropy and on features drawn "
    "alike for every class, which may leave little of what the loss did."
}
POOLED = (
    "Every cell counts once, with its mean over seeds; the interval is the wider of two t-intervals, one over the "
    "cells and one over the seeds. Cells share images and class orders, so it says how far cells and seeds differ "
    "rather than what chance allows; and if nothing differed, one interval in twenty would leave out 0 all the same."
)


def found(evidence: Evidence) -> list[str]:
    """Sentences first, then the tables they come from."""
    said = [
        *(in_place_of_ce(evidence, loss) for loss in TOLD),
        without_gain(evidence),
        told_the_sizes(evidence),
        more_steps(evidence),
        against_nothing(evidence),
        beside_the_paper(evidence),
        on_the_demo(evidence),
    ]
    sentences = "\n".join(f"- {sentence}" for sentence in said if sentence)
    tables = [*pooled_losses(evidence), *by_method(evidence), *prototypes(evidence), *calibration(evidence)]
    return ["## What was found", *filter(None, [sentences]), *tables]


def moves(name: str, difference: Difference) -> str:
    """`A_Tail rises by 4.2 [+0.7, +7.7]`; where the interval holds 0, that it may be chance."""
    way = direction(difference)
    if way:
        size = points(difference.mean / 100, 1).lstrip("+−")
        return f"{name} {'rises' if way == 'higher' else 'falls'} by {size} {ends(difference)}"
    doubt = "a single value, without an interval" if difference.low is None else "which may be chance"
    return f"{name} changes by {change(difference)}, {doubt}"


def told(evidence: Evidence, loss: str, metrics: Iterable[str], **where) -> str:
    """What a loss does to some metrics, pooled."""
    pooled = {metric: evidence.pooled(metric, loss, **where)[0] for metric in metrics}
    return "; ".join(moves(SHOWN[metric], difference) for metric, difference in pooled.items() if difference)


def told_of_study(evidence: Evidence, study: str) -> str:
    """What TAL and TAL-auto do to tail and mean of one study."""
    losses = [loss for loss in TOLD if evidence.cells(loss, [study])]
    said = {loss: told(evidence, loss, ("a_tail", "a_mean"), names=[study]) for loss in losses}
    return "".join(f"{LOSSES[loss].title}: {sentence}. " for loss, sentence in said.items()).rstrip()


def in_place_of_ce(evidence: Evidence, loss: str) -> str:
    """What a loss does to tail, head and all classes, over all cells."""
    cells = evidence.cells(loss)
    if not cells:
        return ""
    counts = [
        f"{SHOWN[metric]} is {directions(evidence.pooled(metric, loss)[1])} cells" for metric in ("a_tail", "a_mean")
    ]
    return (
        f"**{LOSSES[loss].title} in place of CE**, over {number(len(cells), 'cell')} (a dataset with a method): "
        f"{told(evidence, loss, ('a_tail', 'a_head', 'a_mean'))}. {listed(counts)}."
    )


def without_gain(evidence: Evidence) -> str:
    """The methods with which TAL raises the tail on none of the datasets."""
    none = []
    for method in TRAINED:
        pooled, means = evidence.pooled("a_tail", "tal", methods=[method])
        if pooled is not None and max(means) <= 0:
            sentence = f"With {LEARNERS[method].title}, A_Tail is {directions(means)} cells ({change(pooled)})."
            none.append(" ".join(filter(None, [sentence, WHY.get(method)])))
    return f"**Where TAL does not help.** {' '.join(none)}" if none else ""


def told_the_sizes(evidence: Evidence) -> str:
    """Balanced softmax beside TAL and TAL-auto, on the cells that have all three."""
    cells = [cell for cell in evidence.cells(PRIOR) if all(cell in evidence.cells(loss) for loss in TOLD)]
    if not cells:
        return ""
    losses, parts = (*TOLD, PRIOR), []
    for metric in ("a_tail", "a_mean"):
        means = [pool(evidence.changes(metric, loss, cells))[0].mean for loss in losses]
        parts.append(f"{SHOWN[metric]} changes by {listed([points(value / 100, 1) for value in means])}")
    titles = listed([LOSSES[loss].title for loss in losses])
    whole = [LEARNERS[m].title for m in whole_batches(evidence) if m in {method for _, method in cells}]
    known = f" (with {listed(whole)} one batch holds a whole task, so TAL meets the sizes there too)" * bool(whole)
    place = f"the {len(cells)} cells" if len(cells) > 1 else "the one cell"
    return (
        f"**A loss that is told the classes' sizes.** In {place} where {titles} were all run "
        f"({methods_of(cells)}), {listed(parts)} in this order{known}. {LOSSES[PRIOR].title} against TAL-auto: "
        f"{told(evidence, PRIOR, ('a_tail', 'a_mean'), base='tal_auto')}."
    )


def more_steps(evidence: Evidence) -> str:
    """The same methods with smaller batches, so with more steps."""
    cells = evidence.cells("tal", ["batches"])
    if not cells:
        return ""
    size = setting_of(evidence.studies["batches"], "batch_size")
    return (
        f"**With more steps a task** (batches of {size}, {methods_of(cells)} on {evidence.short_title('cub')}). "
        f"CE's own A_Tail is {listed([tail_of_ce(evidence, method) for _, method in cells])}. "
        f"{told_of_study(evidence, 'batches')} [Below](#smaller-batches) both stand side by side."
    )


def tail_of_ce(evidence: Evidence, method: str) -> str:
    """`27.9 in place of 19.7`: CE with smaller batches and with the method's own."""
    small, own = (evidence.values("a_tail", study=study, method=method, loss="ce") for study in ("batches", "cub"))
    return f"{mean(small)} in place of {mean(own)}"


def against_nothing(evidence: Evidence) -> str:
    """The tail of the method that trains nothing, and the best tail of the others with whatever loss."""
    parts, ahead = [], 0
    for study in PHOTOS:
        plain = evidence.values("a_tail", study=study, method=NOTHING, loss="none")
        arms = {
            (method, loss): evidence.values("a_tail", study=study, method=method, loss=loss)
            for method in TRAINED
            for loss in LOSSES
        }
        levels = {arm: average(values) for arm, values in arms.items() if values}
        if not plain or not levels:
            continue
        (method, loss), best = max(levels.items(), key=lambda item: item[1])
        ahead += average(plain) > best
        parts.append(
            f"{mean(plain)} against {best:.1f} on {evidence.short_title(study)} "
            f"({LEARNERS[method].title} with {LOSSES[loss].title})"
        )
    if not parts:
        return ""
    return (
        f"**Against training nothing.** {LEARNERS[NOTHING].title} only compares the frozen ViT's features with the "
        f"means of the classes. Its A_Tail beside the best that {listed([LEARNERS[m].title for m in TRAINED])} reach "
        f"with any loss: {', '.join(parts)}. It is ahead on {ahead} of {len(parts)} datasets."
    )


def beside_the_paper(evidence: Evidence) -> str:
    """In how many cells TAL is higher, in the paper and here."""
    paper = paper_table()
    theirs = [(key, numbers) for key, numbers in paper.items() if key[-1] == "ce"]
    here = {metric: evidence.pooled(metric, "tal")[1] for metric in ("a_tail", "a_mean")}
    if not here["a_tail"]:
        return ""
    higher = {
        metric: sum(getattr(paper[(*key[:-1], "tal")], metric) > getattr(numbers, metric) for key, numbers in theirs)
        for metric in here
    }
    reported = listed([f"{SHOWN[metric]} in {count} of {len(theirs)}" for metric, count in higher.items()])
    ours = listed([f"{SHOWN[m]} in {sides(values)[0]} of {len(values)}" for m, values in here.items()])
    return (
        f"**Beside the paper.** With ViT-B/16 on the whole sets it reports TAL higher than CE: {reported} cells. "
        f"Here: {ours}."
    )


def on_the_demo(evidence: Evidence) -> str:
    """TAL and TAL-auto on the demo."""
    said, methods = told_of_study(evidence, "demo"), len(evidence.cells("tal", ["demo"]))
    return f"**On the demo**, over {number(methods, 'method')}. {said}" if said else ""


def pooled_losses(evidence: Evidence) -> list[str]:
    """A loss against CE, or against another, over all cells that have both."""
    rows = []
    for loss, base in PAIRS:
        pooled = {metric: evidence.pooled(metric, loss, base=base) for metric in SHOWN}
        if pooled["a_tail"][0] is None:
            continue
        numbers = [change(difference) for difference, _ in pooled.values()]
        counts = [ups_and_downs(pooled[metric][1]) for metric in ("a_tail", "a_mean")]
        rows.append([LOSSES[loss].title, LOSSES[base].title, *numbers, *counts])
    if not rows:
        return []
    names = ["Loss", "Against", *(f"{name} change" for name in SHOWN.values()), "A_Tail cells", "A_Mean cells"]
    return [table(names, rows), POOLED]


def by_method(evidence: Evidence) -> list[str]:
    """The changes of each method over its datasets, and over the methods, each counted once."""
    kinds = [(loss, metric) for loss in TOLD for metric in ("a_tail", "a_mean")]
    methods = [method for method in TRAINED if any(evidence.cells(loss, methods=[method]) for loss in TOLD)]
    if len(methods) < 2:
        return []
    rows = [
        [LEARNERS[m].title, *(change(evidence.pooled(metric, loss, methods=[m])[0]) for loss, metric in kinds)]
        for m in methods
    ]
    rows.append(["Mean of the methods", *(change(over_methods(evidence, metric, loss)) for loss, metric in kinds)])
    names = [f"{LOSSES[loss].title}: {SHOWN[metric]} change" for loss, metric in kinds]
    return [
        "The same by method, over its datasets; the last row counts every method once:",
        table(["Method", *names], rows),
    ]


def over_methods(evidence: Evidence, metric: str, loss: str) -> Difference | None:
    """Pooled over methods; of a method with several datasets each seed's mean over them counts."""
    by_method = [evidence.changes(metric, loss, evidence.cells(loss, methods=[method])) for method in TRAINED]
    found = [over_cells(cells) for cells in by_method if cells]
    return pool([seeds for seeds in found if seeds])[0]


def prototypes(evidence: Evidence) -> list[str]:
    """What training buys: every method with CE beside those that compare features with class prototypes."""
    rows, differences = [], []
    for study in PHOTOS:
        levels = {
            metric: {m: evidence.values(metric, study=study, method=m, loss=BASELINES.get(m, "ce")) for m in LEARNERS}
            for metric in ("a_tail", "a_mean")
        }
        if not any(levels["a_mean"][m] for m in BASELINES):
            continue
        for metric, values in levels.items():
            shown = [mean(values[m]) for m in (*BASELINES, *TRAINED)]
            rows.append([evidence.short_title(study), SHOWN[metric], *shown])
        differences += [paired_difference(levels["a_mean"][m], levels["a_mean"][NOTHING]) for m in TRAINED]
    if not rows:
        return []
    names = ["Dataset", "Metric", *(LEARNERS[m].title for m in (*BASELINES, *TRAINED))]
    return [
        "**What does training buy?** SimpleCIL trains nothing. RanPAC adapts the ViT to the first task and then fits a "
        "ridge regression on random projections of its features (with `fidelity=pilot` it favours rare classes more, "
        "[learners.md](learners.md)). EASE trains an adapter a task and compares with class means. Accuracies in "
        f"percent; what trains does so with CE. {against_it(differences)}".strip(),
        table(names, rows),
    ]


def against_it(differences: Iterable[Difference | None]) -> str:
    """In how many cells the trained methods lie below and above SimpleCIL, and by how much."""
    known = [d for d in differences if d is not None and d.low is not None]
    if not known:
        return ""
    below, above = ([d for d in known if direction(d) == way] for way in ("lower", "higher"))
    return (
        f"Against SimpleCIL on the same dataset, A_Mean of the methods right of EASE is lower in {len(below)} of "
        f"{len(known)} cells{by(below)}, higher in {len(above)}{by(above)}; in {len(known) - len(below) - len(above)} "
        "the interval holds 0."
    )


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
        weights = [mean_of(own.loc[own["loss"] == loss, "weight"], 2) for loss in TOLD]
        rows.append([LEARNERS[method].title, mean_of(own["steps"], 0), *weights])
    if not rows:
        return []
    whole = [LEARNERS[method].title for method in whole_batches(evidence)]
    seen = (
        f" With {listed(whole)} one batch holds all images of a task, with few exceptions: TAL then meets the classes' "
        "true sizes in every step."
    )
    images = int((load_manifest("cub_lt")["split"] == "train").sum())
    return [
        "**Was TAL calibrated?** α·w is how much a negative weighs, compared with CE: 1 on average is calibrated, 0 is "
        "no negative supervision at all. The table has its mean at the end of a task, over the tasks and runs. The "
        "paper's λ remembers 200 steps; with few steps a task TAL cannot reach 1, which is why TAL-auto measures its "
        f"memory in epochs. That is not peculiar to our small sets: the paper's CUB-LT has {images:,} images, so in 10 "
        f"tasks about {images / 10:.0f} each, and LAE's batch is {defaults('lae', 'cub_lt')['batch_size']}."
        + seen
        * bool(whole),
        table(["Method", "Steps a task", *(f"α·w with {LOSSES[loss].title}" for loss in TOLD)], rows),
    ]


def whole_batches(evidence: Evidence) -> list[str]:
    """Methods that take one step an epoch on the photographs, in all tasks or nearly all."""
    epochs = {study: setting_of(evidence.studies[study], "epochs") for study in PHOTOS}
    runs = evidence.runs[evidence.runs["study"].isin([study for study in PHOTOS if epochs[study]])]
    steps_an_epoch = runs["steps"].astype(float) / runs["study"].map(epochs).astype(float)
    means = steps_an_epoch[runs["loss"] == "tal"].groupby(runs["method"]).mean()
    return [method for method in LEARNERS if means.get(method, math.inf) < MOSTLY_ONE]


def methods_of(cells: Iterable[tuple[str, str]]) -> str:
    """`LAE and MOS`."""
    ran = {method for _, method in cells}
    return listed([LEARNERS[method].title for method in LEARNERS if method in ran])

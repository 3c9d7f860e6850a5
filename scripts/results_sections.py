"""Sections of docs/results.md on one question each; every one is there only if its runs are."""

from collections.abc import Iterable, Sequence

from results_evidence import (
    SHOWN,
    Evidence,
    average,
    change,
    direction,
    mean,
    mean_of,
    minus,
    pool,
    shared,
    table,
    ups_and_downs,
)
from results_found import PRIOR, TOLD, moves
from results_studies import setting_of

from pilot_tal.config.defaults import defaults
from pilot_tal.learners import LEARNERS
from pilot_tal.losses import LOSSES
from pilot_tal.metrics import Difference, paired_difference
from pilot_tal.results.display import listed

SUPERVISED = {
    "supervised_5_balanced": ("5", "balanced"),
    "supervised_5_long_tailed": ("5", "long-tailed"),
    "supervised_10_balanced": ("10", "balanced"),
    "supervised_10_long_tailed": ("10", "long-tailed"),
}
BALANCED = [study for study, (_, kind) in SUPERVISED.items() if kind == "balanced"]
PAPER_LOSS = {  # the paper's table of the loss alone, CE and TAL in µs, by batch size and number of classes
    (32, 5): (108.9, 427.7), (32, 20): (107.8, 428.7), (32, 100): (107.7, 427.7), (32, 500): (108.1, 430.3),
    (64, 5): (108.3, 429.0), (64, 20): (108.6, 428.5), (64, 100): (107.6, 431.3), (64, 500): (108.1, 430.4),
    (128, 5): (107.2, 428.9), (128, 20): (107.4, 428.0), (128, 100): (107.5, 429.1), (128, 500): (107.9, 436.3),
    (256, 5): (108.0, 429.0), (256, 20): (108.1, 428.1), (256, 100): (108.2, 433.0), (256, 500): (110.8, 438.5),
}  # fmt: skip
PAPER_RUNS = "+0.76 % on average over seven methods, from −1.9 to +2.3 %"  # whole trainings


def demo_losses(evidence: Evidence) -> list[str]:
    """The losses against CE on the demo, pooled over the methods; those that were run with all of them."""
    rows, methods = [], len(evidence.cells("ce", ["demo"]))
    for loss in LOSSES:
        pooled = {metric: evidence.pooled(metric, loss, ["demo"]) for metric in SHOWN}
        if loss != "ce" and pooled["a_mean"][0] is not None and len(pooled["a_mean"][1]) == methods:
            means = pooled["a_tail"][1]
            texts = [change(difference) for difference, _ in pooled.values()]
            row = [LOSSES[loss].title, LOSSES[loss].knows, *texts]
            rows.append((pooled["a_mean"][0].mean, [*row, ups_and_downs(means)]))
    if not rows:
        return []
    names = ["Loss", "It knows", *(f"{name} change" for name in SHOWN.values()), "A_Tail, methods"]
    return [
        "## The demo: the losses side by side",
        "Change against CE in points, pooled over the methods as above, best A_Mean first (50 characters, a tiny ViT, "
        "`fidelity=pilot`, the settings of [demo.md](demo.md)). Logit adjustment with its usual τ = 1 is balanced "
        "softmax under another name ([losses.md](losses.md)), so their predictions are the same.",
        table(names, [row for _, row in sorted(rows, key=lambda pair: -pair[0])]),
    ]


def batches(evidence: Evidence) -> list[str]:
    """The methods whose batch holds a whole task, with that batch and with a smaller one."""
    methods = list(dict.fromkeys(method for _, method in evidence.cells("tal", ["batches"])))
    if not methods:
        return []
    small = setting_of(evidence.studies["batches"], "batch_size")
    losses = [loss for loss in (*TOLD, PRIOR) if evidence.cells(loss, ["batches"])]
    rows = []
    for method in methods:
        for study, size in (("cub", defaults(method, "cub_lt")["batch_size"]), ("batches", small)):
            where = {"study": study, "method": method}
            own = evidence.runs[(evidence.runs["study"] == study) & (evidence.runs["method"] == method)]
            weight = mean_of(own.loc[own["loss"] == "tal", "weight"], 2)
            row = [LEARNERS[method].title, str(size), mean_of(own["steps"], 0), weight]
            for metric in ("a_tail", "a_mean"):
                row.append(mean(evidence.values(metric, loss="ce", **where)))
                row += [change(evidence.difference(metric, loss, **where)) for loss in losses]
            rows.append(row)
    names = ["Steps a task", "α·w with TAL", *columns(("a_tail", "a_mean"), losses)]
    return [
        "## Smaller batches",
        f"Does TAL do better when classes come one after the other, and with more steps? {evidence.short_title('cub')} "
        f"again, with nothing changed but the batch: {small}, which is L2P's own, in place of LAMDA-PILOT's for the "
        "method. The value was set before these runs, and no other was tried.",
        table(["Method", "Batch", *names], rows),
    ]


def columns(metrics: Iterable[str], losses: Sequence[str]) -> list[str]:
    """For each metric the names of CE's column and of the changes of some losses."""
    titles = ["CE", *(f"{LOSSES[loss].title} change" for loss in losses)]
    return [f"{SHOWN[metric]} {title}" for metric in metrics for title in titles]


def original(evidence: Evidence) -> list[str]:
    """Our learners and LAMDA-PILOT's own code, seed by seed."""
    rows, all_found, by_seed = [], {}, {"a_mean": [], "a_tail": [], "train_loss": []}
    engines = sorted(set(evidence.runs.loc[evidence.runs["study"] == "original", "engine"]) - {"native"})
    for method, engine in ((method, engine) for method in LEARNERS for engine in engines):
        where, row, number = {"study": "original", "method": method, "loss": "ce"}, [LEARNERS[method].title], 0
        for metric in ("a_mean", "a_tail"):
            ours, theirs = shared(*(evidence.values(metric, **where, engine=name) for name in ("native", engine)))
            difference = paired_difference(ours, theirs)
            if difference is not None:
                all_found[f"{SHOWN[metric]} of {LEARNERS[method].title}"] = difference
                by_seed[metric].append(minus(ours, theirs))
                row, number = [*row, mean(ours), mean(theirs), change(difference)], difference.n
        rows += [[*row, str(number)]] if number else []
        losses = [evidence.values("train_loss", **where, engine=name) for name in ("native", engine)]
        by_seed["train_loss"] += [minus(*losses)] if number else []
    if not rows:
        return []
    pooled = {metric: pool(cells)[0] for metric, cells in by_seed.items()}
    if len(rows) > 1:
        rows.append(["Mean of the methods", "", "", change(pooled["a_mean"]), "", "", change(pooled["a_tail"]), ""])
    sure = [name for name, difference in all_found.items() if direction(difference)]
    told = f"the interval leaves out 0 for {listed(sure)}" if sure else "no interval leaves out 0"
    names = [f"{SHOWN[m]} {who}" for m in ("a_mean", "a_tail") for who in ("ours", "original", "ours − original")]
    return [
        "## Ours and the original",
        "The same sets, class orders, transforms and settings on the demo (5 epochs a task, CE), natively with "
        "`fidelity=pilot` and by LAMDA-PILOT's own code through `pilot-tal upstream`. The two draw augmentation and "
        f"initial values from different streams of random numbers, so single seeds differ{scatter(by_seed['a_mean'])}. "
        f"Of {len(all_found)} differences {told} (by chance alone {0.05 * len(all_found):.1f} would be expected). From "
        f"the original to ours, over the methods, {moves('A_Mean', pooled['a_mean'])}; the training loss of the last "
        f"epoch changes by {of_loss(pooled['train_loss'])}. Given the same random numbers, ours and the original agree "
        "step by step ([learners.md](learners.md#replay), [upstream.md](upstream.md)).",
        table(["Method", *names, "Seeds"], rows),
    ]


def of_loss(difference: Difference) -> str:
    """`+0.002 [−0.030, +0.034]`: of a loss, where a metric would be in percent."""
    numbers = [
        f"{value / 100:+.3f}" for value in (difference.mean, difference.low, difference.high) if value is not None
    ]
    shown = numbers[0] if len(numbers) < 3 else f"{numbers[0]} [{numbers[1]}, {numbers[2]}]"
    return shown.replace("-", "−")


def scatter(cells: list[dict[int, float]]) -> str:
    """How far a single seed's difference lies from its method's mean: the standard deviation within methods."""
    degrees = sum(len(cell) - 1 for cell in cells)
    if degrees < 1:
        return ""
    squares = sum((value - average(cell)) ** 2 for cell in cells for value in cell.values())
    deviation = (squares / degrees) ** 0.5
    return f": of one seed's difference in A_Mean the standard deviation is {deviation:.1f} points"


def supervised(evidence: Evidence) -> list[str]:
    """One task with all classes: there is no temporal imbalance, and on balanced sets none of the classes either."""
    rows, balanced = [], {}
    for study, (classes, kind) in SUPERVISED.items():
        where = {"study": study, "method": "lae"}
        ce = evidence.values("a_mean", loss="ce", **where)
        if not ce:
            continue
        row = [classes, kind]
        for metric in ("a_mean", "a_tail"):
            rare = metric == "a_mean" or kind != "balanced"  # where all classes have as many images, none is rare
            row.append(mean(evidence.values(metric, loss="ce", **where)) if rare else "")
            row += [change(evidence.difference(metric, loss, **where)) if rare else "" for loss in TOLD]
        for loss in TOLD if kind == "balanced" else ():
            balanced[f"{LOSSES[loss].title} on {classes} classes"] = evidence.difference("a_mean", loss, **where)
        rows.append([*row, str(len(ce))])
    if not rows:
        return []
    facts = evidence.studies[next(study for study in SUPERVISED if study in evidence.studies)]
    size, batch = setting_of(facts, "img_size"), setting_of(facts, "batch_size")
    told = " ".join(filter(None, [of_balanced(balanced), *(beyond_balanced(evidence, loss) for loss in TOLD)]))
    return [
        "## Supervised learning",
        "All classes in one task (`tasks=1`), shuffled: the paper's question whether TAL harms where nothing is out of "
        f"balance, and whether it helps where only the classes' sizes are. LAE on pets, {size} pixels, batches of "
        f"{batch}. TAL begins with weak negatives (Q = 0) on balanced data too; TAL-auto begins calibrated. {told}",
        table(["Classes", "Set", *columns(("a_mean", "a_tail"), TOLD), "Seeds"], rows),
    ]


def beyond_balanced(evidence: Evidence, loss: str) -> str:
    """What a loss gains on a long-tailed set beyond what it gains on the balanced one of as many classes."""
    parts = []
    for number in dict.fromkeys(classes for classes, _ in SUPERVISED.values()):
        pairs = [
            minus(*evidence.pair("a_mean", loss, study=f"supervised_{number}_{kind}", method="lae"))
            for kind in ("long_tailed", "balanced")
        ]
        difference = paired_difference(*shared(*pairs)) if all(pairs) else None
        parts += [f"{change(difference)} on {number} classes"] if difference is not None else []
    if not parts:
        return ""
    title = LOSSES[loss].title
    return f"{title} changes A_Mean of the long-tailed set more than that of the balanced one by {listed(parts)}."


def of_balanced(differences: dict[str, Difference | None]) -> str:
    """Whether TAL differs from CE on balanced sets; nothing as long as an arm has no interval."""
    known = {name: d for name, d in differences.items() if d is not None and d.low is not None}
    if not known or len(known) < len(differences):
        return ""
    sure = [f"{name} ({change(difference)})" for name, difference in known.items() if direction(difference)]
    if sure:
        return f"On the balanced sets the interval leaves out 0 for {listed(sure)}."
    told = ", ".join(f"{name} {change(difference)}" for name, difference in known.items())
    return f"On the balanced sets no interval leaves out 0: {told}."


def costs(evidence: Evidence) -> list[str]:
    """What TAL takes more than CE: the loss alone, and whole runs."""
    alone, whole = evidence.table("cost_of_loss"), evidence.table("cost_of_runs")
    parts = []
    if alone is not None:
        rows = []
        for cell in alone.itertuples():
            both = ((cell.ce, cell.tal), PAPER_LOSS[cell.batch, cell.classes])
            shown = [text for ce, tal in both for text in (f"{ce:.0f}", f"{tal:.0f}", f"{tal / ce:.1f}")]
            rows.append([f"{cell.batch} × {cell.classes}", *shown])
        names = [f"{who}{what}" for who in ("", "paper: ") for what in ("CE, µs", "TAL, µs", "ratio")]
        parts += [
            "The loss, forward and backward on one CPU thread, the fastest of many blocks of calls, beside the paper's "
            "table (measured on another machine in another way):",
            table(["Batch × classes", *names], rows),
        ]
    if whole is not None:
        rows = [
            [
                LEARNERS[run.method].title,
                str(run.epochs),
                str(run.rounds),
                f"{run.percent:+.2f} % (± {run.error:.2f})".replace("-", "−"),
            ]
            for run in whole.itertuples()
        ]
        first = whole.iloc[0]
        told = f"`python scripts/results.py cost --epochs {first['epochs']} --rounds {first['rounds']}`"
        parts += [
            f"Measured by {told} on a machine left alone. Whole runs on the demo, evaluation included, CE and TAL "
            "taking turns batch by batch, with the standard error of the mean (the paper's whole trainings on "
            f"CIFAR-100: {PAPER_RUNS}):",
            table(["Method", "Epochs a task", "Rounds", "TAL against CE"], rows),
        ]
    return ["## What TAL costs", *parts] if parts else []

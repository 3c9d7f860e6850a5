"""What came out of a study and what to be careful about, as typed findings; `findings.txt.j2` has their wording.

The logs of a run are read here too: loss and accuracy per epoch, and TAL's Q and weight α·w per class.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from math import log
from typing import Any, Literal

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from pilot_tal.metrics import Difference
from pilot_tal.record.run_dir import Run
from pilot_tal.results import formats
from pilot_tal.results.formats import clean, exact
from pilot_tal.results.study import Group, Study, Variant, shared_seeds
from pilot_tal.results.tables import departures, paper_numbers

NEAR_CHANCE = 1.5  # times the accuracy of a uniform guess
NEAR_LN_C = 0.95  # times the loss of a uniform guess
CALIBRATED = 0.9  # mean α·w over the classes at the end of a task from which on TAL counts as calibrated
_NAMED = 5  # unfinished runs; `status` lists them all
_VOTED = ("l2p", "dualprompt")  # methods that choose prompts per batch with fidelity=pilot

Case = tuple[Group, Variant, Difference]


@dataclass(frozen=True)
class Finding:
    """One finding: its kind (a macro of the template), how severe it is, and the values behind it."""

    kind: str
    severity: Literal["result", "warning", "note"]
    values: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(getattr(environment().get_template("findings.txt.j2").module, self.kind)(**self.values)).strip()


@cache
def environment() -> Environment:
    """The templates of the report; only that of the page escapes HTML."""
    loader = PackageLoader("pilot_tal", "results")
    found = Environment(loader=loader, autoescape=lambda name: name == "page.html.j2", undefined=StrictUndefined)
    found.filters |= {name: getattr(formats, name) for name in ("points", "percent", "interval", "number")}
    return found


def headline(study: Study) -> list[Finding]:
    """What each loss does to the tail against the baseline, one finding per loss; and what needs no training."""
    found: dict[str, list[Case]] = {}
    for group in study.groups:
        for variant in group.compared_variants():
            difference = group.difference(variant, "a_tail")
            if difference is not None:
                found.setdefault(variant.loss, []).append((group, variant, difference))
    changes = [_tail_change(*cases[0]) if len(cases) == 1 else _tail_changes(cases) for cases in found.values()]
    return [*(changes or [_nothing_to_compare(study)]), *_none_reaches_reference(study)]


def verdict(difference: Difference) -> str:
    """Where the interval lies: `above` or `below` 0, `includes` it, is `constant`, or is missing (`one_seed`)."""
    if difference.low is None or difference.high is None:
        return "one_seed"
    low, high = exact(difference.low), exact(difference.high)
    return "constant" if low == high else "above" if low > 0 else "below" if high < 0 else "includes"


def study_findings(study: Study) -> list[Finding]:
    """What a reader must know about the runs as a whole."""
    names = [f"{clean(run.path.name)} ({run.tasks_done} of {run.record.num_tasks} tasks)" for run in study.unfinished]
    values = {"runs": names[:_NAMED], "more": max(0, len(names) - _NAMED)}
    return [*study.remarks, *([Finding("unfinished_runs", "warning", values)] if names else [])]


def group_findings(group: Group) -> list[Finding]:
    """What a reader must know about one group."""
    variants = group.finished_variants()
    found = [Finding("demo_data", "note")] if group.dataset == "demo_lt" else []
    found += [finding for variant in variants for finding in _of_variant(group, variant)]
    found += _below_reference(group)
    single = [variant for variant in variants if len(variant.seeds) == 1 and not variant.record.is_open]
    if single:
        names = [variant.label if variant.trains else group.method_title for variant in single]
        found.append(Finding("one_seed", "warning", {"variants": names}))
    if group.fidelity == "pilot" and group.method in _VOTED:
        found.append(Finding("batch_vote", "note", {"method": group.method_title}))
    reasons = {v.label: apart for v in variants if paper_numbers(group, v, True) and (apart := departures(group, v))}
    if reasons:
        differences = list(dict.fromkeys(clean(reason) for apart in reasons.values() for reason in apart))
        found.append(Finding("not_the_papers", "note", {"variants": [*reasons], "differences": differences}))
    notes = dict.fromkeys(clean(note) for run in group.runs for note in run.record.notes)
    return found + [Finding("run_note", "note", {"text": note}) for note in notes if note not in map(str, found)]


def _nothing_to_compare(study: Study) -> Finding:
    variants = [variant for group in study.finished for variant in group.finished_variants()]
    trained = any(variant.trains for variant in variants)
    cause = "unfinished" if not variants else "no_pairs" if trained else "no_loss"
    return Finding("nothing_to_compare", "note", {"cause": cause, "base": study.groups[0].baseline_title})


def _where(group: Group) -> str:
    return f"{group.dataset_title}, {group.method_title}, {group.tasks_title}"


def _tail_change(group: Group, variant: Variant, found: Difference) -> Finding:
    values = {"loss": variant.label, "base": group.baseline_title, **vars(found), "where": _where(group)}
    return Finding("tail_change", "result", {**values, "verdict": verdict(found)})


def _tail_changes(cases: Sequence[Case]) -> Finding:
    means = [exact(difference.mean) for *_, difference in cases]
    counted = Counter(verdict(difference) for *_, difference in cases)
    values = {
        "loss": cases[0][1].loss_title,
        "base": cases[0][0].baseline_title,
        "comparisons": len(cases),
        "smallest": min(means),
        "largest": max(means),
        "higher": sum(mean > 0 for mean in means),
        "lower": sum(mean < 0 for mean in means),
        "equal": means.count(0),
        "verdicts": {kind: counted[kind] for kind in ("above", "below", "includes", "constant", "one_seed")},
    }
    return Finding("tail_changes", "result", values)


def _of_variant(group: Group, variant: Variant) -> Iterator[Finding]:
    """A variant near chance, by training loss or by accuracy, without a fair comparison, or not calibrated."""
    name, base, runs = variant.label, group.baseline(variant), variant.runs.values()
    chance = 1 / sum(group.task_sizes)
    last = [[*tasks.items()][-1] for run in runs if (tasks := epoch_means(run, "loss"))]  # in which the loss was used
    losses, last_task = [loss[-1] for _, loss in last], group.task_sizes[last[0][0]] if last else 0
    right = variant.spread("a_last")
    if variant.trains and losses and last_task > 1 and (loss := np.mean(losses)) >= NEAR_LN_C * log(last_task):
        values = {"variant": name, "cause": "training_loss", "value": float(loss), "limit": log(last_task)}
        yield Finding("nothing_learned", "warning", values)
    if variant.trains and right and chance < 1 and right.mean <= NEAR_CHANCE * chance:
        values = {"variant": name, "cause": "accuracy", "value": right.mean, "limit": chance}
        yield Finding("nothing_learned", "warning", values)
    if variant.trains and variant.loss != group.baseline_loss and (base is None or not base.runs):
        yield Finding("no_baseline", "warning", {"variant": name, "base": group.baseline_title})
    elif base is not None and variant.seeds != base.seeds:
        values = {"variant": name, "seeds": variant.seeds, "base": base.label, "base_seeds": base.seeds}
        yield Finding("different_seeds", "warning", values)
    if base and (other := sorted({*variant.runs} & {*base.runs} - {*shared_seeds(variant, base)})):
        yield Finding("different_data", "warning", {"variant": name, "base": base.label, "seeds": other})
    weights = [weight for run in runs for weight in mean_weights(run)]
    low = [weight for weight in weights if weight < CALIBRATED]
    if low:
        numbers = {"mean": sum(low) / len(low), "smallest": min(low), "largest": max(low)}
        values = {"variant": name, "tasks": len(low), "of": len(weights), **numbers}
        yield Finding("not_calibrated", "warning", values)


def _against_reference(group: Group) -> dict[str, Any] | None:
    """The training-free reference with the best A_Mean, and how far each trained variant is from it, in fractions."""
    references = [(mean.mean, *reference) for reference in group.references if (mean := reference[1].spread("a_mean"))]
    if not references:
        return None
    level, title, best = max(references, key=lambda reference: reference[0])
    changes = {v.label: v.minus(best, "a_mean") for v in group.finished_variants() if v.trains}
    known = {label: exact(found.mean) for label, found in changes.items() if found}
    return {"reference": title, "level": level, "variants": known} if known else None


def _below_reference(group: Group) -> Iterator[Finding]:
    if found := _against_reference(group):
        below = {label: change for label, change in found["variants"].items() if change < 0}
        if below:
            yield Finding("below_reference", "warning", found | {"variants": below})


def _none_reaches_reference(study: Study) -> Iterator[Finding]:
    """How many groups have no trained variant as good as the best training-free reference."""
    cases = [(group, found) for group in study.finished if (found := _against_reference(group))]
    below = [(group, found) for group, found in cases if max(found["variants"].values()) < 0]
    if below:
        group, found = below[0]
        nearest = max(found["variants"].values())
        values = {"reference": found["reference"], "level": found["level"], "nearest": nearest, "where": _where(group)}
        yield Finding("none_reaches_reference", "result", {"groups": len(below), "of": len(cases), **values})


def epoch_means(run: Run, key: str) -> dict[int, np.ndarray]:
    """Mean of `loss` or `accuracy` over the steps of each epoch, an array per task; empty where it was not logged."""
    tasks: dict[int, dict[int, list[float]]] = {}
    for line in run.step_log():
        if isinstance(value := line.get(key), (int, float)):
            tasks.setdefault(line["task"], {}).setdefault(line.get("epoch", 0), []).append(value)
    return {task: np.array([np.mean(epochs[e]) for e in sorted(epochs)]) for task, epochs in sorted(tasks.items())}


@dataclass(frozen=True)
class TaskState:
    """One task's log: `steps`, counted over all tasks, and for each Q and α·w of the classes in `labels`."""

    start: int
    steps: np.ndarray
    labels: np.ndarray
    q: np.ndarray
    weights: np.ndarray


def read_states(run: Run) -> list[TaskState]:
    """TAL's state in each logged task of a run; empty when nothing was logged."""
    states, start = [], 0
    for task, found in groupby(run.state_log(), lambda line: line["task"]):
        lines = [(start + 1 + line["step"], line["Q"], line["weights"]) for line in found]
        steps, q, weights = map(np.array, zip(*lines, strict=True))
        stop = sum(run.record.stream.task_sizes[: task + 1])
        labels = np.arange(stop - q.shape[1], stop)  # those of the task, or all seen so far
        states.append(TaskState(start, steps, labels, q, weights))
        start = int(steps[-1])
    return states


def mean_weights(run: Run) -> list[float]:
    """Mean α·w over the classes at the end of each task: near or above 1 when TAL is calibrated."""
    return [float(state.weights[-1].mean()) for state in read_states(run)]

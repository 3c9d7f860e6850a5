"""The report's sentences: what came out, and what was not reached."""

from collections.abc import Iterator

from pilot_tal.metrics import Difference
from pilot_tal.results.display import clean, exact, interval, number, points
from pilot_tal.results.paper import departures, paper_variants
from pilot_tal.results.study import OF_SETTING, Group, Study, Variant, same_data
from pilot_tal.results.tal_state import CALIBRATED, mean_weights

_NAMED = 5  # unfinished runs; the page's table has them all
_VOTED = ("l2p", "dualprompt")  # methods that choose prompts by a vote of the batch in `pilot` fidelity


def lead_sentences(study: Study) -> list[str]:
    """What each loss does to the tail against CE, a paragraph each; plain when there is nothing to say."""
    found: dict[str, list[tuple[Group, Variant, Difference]]] = {}
    for group in study.groups:
        for variant in group.compared_variants() if not group.is_bound else ():
            difference = group.difference(variant, "a_tail")
            if variant.counts and difference is not None:
                found.setdefault(variant.loss, []).append((group, variant, difference))
    if not found:
        return [_nothing_to_compare(study)]
    return [_one(*cases[0]) if len(cases) == 1 else _many(cases) for cases in found.values()]


def verdict(difference: Difference, loss: str) -> str:
    """What the interval lets us say."""
    if difference.low is None or difference.high is None:
        return "With one shared seed there is no interval: this is an observation, not a result."
    low, high = exact(difference.low), exact(difference.high)
    if low == high:
        return "The difference does not vary over the seeds: the interval has no width and shows nothing beyond them."
    if low > 0:
        return f"The interval lies above 0: {loss} helps the tail here."
    if high < 0:
        return f"The interval lies below 0: {loss} harms the tail here."
    return f"The interval includes 0: these runs do not show that {loss} changes the tail."


def study_caveats(study: Study) -> list[str]:
    """What a reader must know about the runs as a whole."""
    found = list(study.remarks)
    quick = sum(len(variant.runs) for group in study.groups for variant in group.variants if not variant.counts)
    if quick:
        found.append(f"In no headline, no overview plot and never bold: {number(quick, 'quick run')} of a few steps.")
    named = [
        f"{clean(run.path.name)} ({run.tasks_done} of {number(run.record.num_tasks, 'task')} done)"
        for run in study.unfinished
    ]
    if named:
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        found.append(f"Unfinished and in no mean: {', '.join(named[:_NAMED])}{more}.")
    return found


def group_caveats(group: Group) -> list[str]:
    """What was not reached in one group."""
    found = [
        *_data_caveats(group),
        *_no_loss_caveats(group),
        *_seed_caveats(group),
        *_calibration_caveats(group),
    ]
    if group.fidelity == "pilot" and group.method in _VOTED:
        found.append(
            f"Fidelity pilot: {group.method_title} lets each batch vote for one set of prompts, in "
            "evaluation too, so a prediction depends on the images that share its batch. With fidelity=fixed "
            "each image chooses its own."
        )
    found += _paper_caveats(group)
    runs = [run for variant in group.variants for run in variant.runs.values()]
    notes = [clean(note) for run in runs for note in run.record.notes]
    return found + [note for note in dict.fromkeys(notes) if note not in found]


def _one(group: Group, variant: Variant, difference: Difference) -> str:
    where = f"{group.dataset_title} with {group.method_title} in {group.tasks_title}"
    shown = interval(difference, 1)
    seeds = number(difference.n, "seed")
    detail = f"95 % interval {shown}, {seeds}" if shown else f"no interval, {seeds}"
    return (
        f"On the tail, {variant.label} changes accuracy by {points(difference.mean, 1)} points against "
        f"{group.baseline_title} ({detail}; {where}). {verdict(difference, variant.label)}"
    )


def _many(cases: list[tuple[Group, Variant, Difference]]) -> str:
    means = [exact(difference.mean) for _, _, difference in cases]
    span, base = (points(min(means), 1), points(max(means), 1)), cases[0][0].baseline_title
    if _alike(cases):
        average = points(sum(means) / len(means), 1)
        change = (
            f"{average} points against {base} on average over {len(cases)} comparisons (from {span[0]} to {span[1]})"
        )
    else:
        change = (
            f"{span[0]} to {span[1]} points against {base} over {len(cases)} comparisons, not averaged, for they "
            "differ in more than dataset, method, tasks and fidelity"
        )
    text = (
        f"On the tail, {cases[0][1].loss_title} changes accuracy by {change}: higher in {sum(m > 0 for m in means)}, "
        f"lower in {sum(m < 0 for m in means)}{f', equal in {means.count(0)}' if 0 in means else ''}."
    )
    return f"{text} {_intervals([difference for _, _, difference in cases])}"


def _alike(cases: list[tuple[Group, Variant, Difference]]) -> bool:
    """Whether all variants have one configuration, apart from the defaults of their methods and datasets."""
    if len({(variant.engine, variant.options_label, variant.own_options_label) for _, variant, _ in cases}) > 1:
        return False
    kinds = {(group.dataset_title, group.method): (group, variant) for group, variant, _ in cases}
    if len(kinds) == 1:
        return True
    values = [
        {name: value for name, (value, _) in variant.changes().items() if name not in OF_SETTING}
        for _, variant in kinds.values()
    ]
    return all(found == values[0] for found in values)


def _intervals(differences: list[Difference]) -> str:
    """Where the intervals lie; one without width lies nowhere."""
    found = [(exact(d.low), exact(d.high)) for d in differences if d.low is not None and d.high is not None]
    if not found:
        return "None has more than one seed, so there is no interval."
    wide = [(low, high) for low, high in found if low < high]
    above, below = sum(low > 0 for low, _ in wide), sum(high < 0 for _, high in wide)
    flat = len(found) - len(wide)
    still = f" In {flat} it has no width, for the seeds do not vary." if flat else ""
    return (
        f"The 95 % interval lies above 0 in {above}, below 0 in {below} and includes 0 in "
        f"{len(wide) - above - below}.{still}"
    )


def _nothing_to_compare(study: Study) -> str:
    if not study.finished:
        return "No run has finished, so there is nothing to compare yet."
    variants = [variant for group in study.finished for variant in group.finished_variants()]
    losses = {variant.loss for variant in variants if variant.counts and variant.trains}
    if not losses:
        return "The finished runs train nothing, so there is no loss to compare."
    if losses == {study.baseline}:
        which = "All finished runs" + (" that train" if any(not variant.trains for variant in variants) else "")
        which += "" if all(variant.counts for variant in variants) else " but quick ones"
        return f"{which} use {study.baseline_title}: there is no other loss to compare it with."
    if any(group.is_bound and group.compared_variants() for group in study.groups):
        return (
            f"Only the runs with all classes in one task can be compared with {study.baseline_title}; see their tables."
        )
    return f"No loss shares seed, group and data with {study.baseline_title}, so there is nothing to compare."


def _data_caveats(group: Group) -> Iterator[str]:
    if group.dataset == "demo_lt":
        yield (
            "Demo-LT is a small set of drawn characters with a small backbone of its own. It shows that the "
            "whole path works; it is not the paper's benchmark, and says nothing about the paper's numbers."
        )
    for variant in group.finished_variants():
        base = group.baseline(variant)
        if base is None:
            continue
        shared = [seed for seed in variant.seeds if seed in base.runs]
        other = [s for s in shared if not same_data(variant.runs[s], base.runs[s])]
        if other:
            yield (
                f"{variant.label} and {base.label} did not see the same data with {_seeds(other)}: "
                "these runs are not paired."
            )


def _no_loss_caveats(group: Group) -> Iterator[str]:
    for variant in group.finished_variants():
        if not variant.trains:
            name = group.method_title + (f" ({variant.options_label})" if variant.options_label else "")
            yield f"No loss: {name} trains nothing, so it runs once a seed. It stands here to show what training buys."


def _seed_caveats(group: Group) -> Iterator[str]:
    for variant in group.finished_variants():
        base = group.baseline(variant)
        if variant.trains and variant.loss != group.baseline_loss and (base is None or not base.runs):
            yield f"{variant.label} has no finished and otherwise equal {group.baseline_title} run to compare with."
        elif base is not None and variant.seeds != base.seeds:
            yield (
                f"{variant.label} has {_seeds(variant.seeds)}, {base.label} {_seeds(base.seeds)}: their means stand "
                "on different seeds, their difference on the shared ones."
            )
    single = [variant.label for variant in group.finished_variants() if len(variant.seeds) == 1]
    if single:
        yield f"One seed only ({', '.join(single)}): no deviation, and no interval for a difference."


def _calibration_caveats(group: Group) -> Iterator[str]:
    for variant in group.finished_variants():
        weights = [w for run in variant.runs.values() for w in mean_weights(run)]
        low = [w for w in weights if w < CALIBRATED]
        if low:
            yield (
                f"{variant.label} did not calibrate in {len(low)} of {number(len(weights), 'task')} over all seeds: at "
                f"the end of these the mean α·w over the classes is {sum(low) / len(low):.2f} on average "
                f"({min(low):.2f} to {max(low):.2f}), below the calibrated 1, so negatives weighed less than meant. "
                "More steps a task or a shorter memory bring it nearer."
            )
        elif variant.loss.startswith("tal") and not weights:
            yield f"{variant.label} has no log of its state (states/): whether it calibrated is not known."


def _paper_caveats(group: Group) -> Iterator[str]:
    reasons = {variant.label: departures(group, variant) for variant in paper_variants(group)}
    apart = [label for label, found in reasons.items() if found]
    if apart:
        which = "these" if len(apart) == len(reasons) else ", ".join(apart)
        shown = ", ".join(dict.fromkeys(clean(reason) for found in reasons.values() for reason in found))
        yield f"Not the paper's setting, so its numbers do not stand beside {which}: {shown}."


def _seeds(seeds: list[int]) -> str:
    return ("seed " if len(seeds) == 1 else "seeds ") + ", ".join(map(str, seeds))

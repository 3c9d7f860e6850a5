"""The report's sentences: what came out, and what was not reached."""

from collections.abc import Iterator

from pilot_tal.metrics import Difference
from pilot_tal.results.display import clean, exact, interval, number, points
from pilot_tal.results.paper import departures, paper_arms
from pilot_tal.results.study import BASELINE, BASELINE_TITLE, OF_SETTING, Arm, Setting, Study, same_data
from pilot_tal.results.tal_state import CALIBRATED, mean_weights

_NAMED = 5  # unfinished runs; the page's table has them all
_VOTED = ("l2p", "dualprompt")  # methods that choose prompts by a vote of the batch in `pilot` fidelity


def lead_sentences(study: Study) -> list[str]:
    """What each loss does to the tail against CE, a paragraph each; plain when there is nothing to say."""
    found: dict[str, list[tuple[Setting, Arm, Difference]]] = {}
    for setting in study.settings:
        for arm in setting.compared_arms() if not setting.is_bound else ():
            difference = setting.difference(arm, "a_tail")
            if arm.counts and difference is not None:
                found.setdefault(arm.loss, []).append((setting, arm, difference))
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
    quick = sum(len(arm.runs) for setting in study.settings for arm in setting.arms if not arm.counts)
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


def setting_caveats(setting: Setting) -> list[str]:
    """What was not reached in one setting."""
    found = [
        *_data_caveats(setting),
        *_no_loss_caveats(setting),
        *_seed_caveats(setting),
        *_calibration_caveats(setting),
    ]
    if setting.fidelity == "pilot" and setting.method in _VOTED:
        found.append(
            f"Fidelity pilot: {setting.method_title} lets each batch vote for one set of prompts, in "
            "evaluation too, so a prediction depends on the images that share its batch. With fidelity=fixed "
            "each image chooses its own."
        )
    found += _paper_caveats(setting)
    runs = [run for arm in setting.arms for run in arm.runs.values()]
    notes = [clean(note) for run in runs for note in run.record.notes]
    return found + [note for note in dict.fromkeys(notes) if note not in found]


def _one(setting: Setting, arm: Arm, difference: Difference) -> str:
    where = f"{setting.dataset_title} with {setting.method_title} in {setting.tasks_title}"
    shown = interval(difference, 1)
    seeds = number(difference.n, "seed")
    detail = f"95 % interval {shown}, {seeds}" if shown else f"no interval, {seeds}"
    return (
        f"On the tail, {arm.label} changes accuracy by {points(difference.mean, 1)} points against "
        f"{BASELINE_TITLE} ({detail}; {where}). {verdict(difference, arm.label)}"
    )


def _many(cases: list[tuple[Setting, Arm, Difference]]) -> str:
    means = [exact(difference.mean) for _, _, difference in cases]
    span, base = (points(min(means), 1), points(max(means), 1)), BASELINE_TITLE
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


def _alike(cases: list[tuple[Setting, Arm, Difference]]) -> bool:
    """Whether all arms have one configuration, apart from the defaults of their methods and datasets."""
    if len({(arm.engine, arm.variant, arm.own_variant) for _, arm, _ in cases}) > 1:
        return False
    kinds = {(setting.dataset_title, setting.method): (setting, arm) for setting, arm, _ in cases}
    if len(kinds) == 1:
        return True
    values = [
        {name: value for name, (value, _) in arm.changes().items() if name not in OF_SETTING}
        for _, arm in kinds.values()
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
    arms = [arm for setting in study.finished for arm in setting.finished_arms()]
    losses = {arm.loss for arm in arms if arm.counts and arm.trains}
    if not losses:
        return "The finished runs train nothing, so there is no loss to compare."
    if losses == {BASELINE}:
        which = "All finished runs" + (" that train" if any(not arm.trains for arm in arms) else "")
        which += "" if all(arm.counts for arm in arms) else " but quick ones"
        return f"{which} use {BASELINE_TITLE}: there is no other loss to compare it with."
    if any(setting.is_bound and setting.compared_arms() for setting in study.settings):
        return f"Only the runs with all classes in one task can be compared with {BASELINE_TITLE}; see their tables."
    return f"No loss shares seed, setting and data with {BASELINE_TITLE}, so there is nothing to compare."


def _data_caveats(setting: Setting) -> Iterator[str]:
    if setting.dataset == "demo_lt":
        yield (
            "Demo-LT is a small set of drawn characters with a small backbone of its own. It shows that the "
            "whole path works; it is not the paper's benchmark, and says nothing about the paper's numbers."
        )
    for arm in setting.finished_arms():
        base = setting.baseline(arm)
        if base is None:
            continue
        shared = [seed for seed in arm.seeds if seed in base.runs]
        other = [s for s in shared if not same_data(arm.runs[s], base.runs[s])]
        if other:
            yield (
                f"{arm.label} and {base.label} did not see the same data with {_seeds(other)}: "
                "these runs are not paired."
            )


def _no_loss_caveats(setting: Setting) -> Iterator[str]:
    for arm in setting.finished_arms():
        if not arm.trains:
            name = setting.method_title + (f" ({arm.variant})" if arm.variant else "")
            yield f"No loss: {name} trains nothing, so it runs once a seed. It stands here to show what training buys."


def _seed_caveats(setting: Setting) -> Iterator[str]:
    for arm in setting.finished_arms():
        base = setting.baseline(arm)
        if arm.trains and arm.loss != BASELINE and (base is None or not base.runs):
            yield f"{arm.label} has no finished and otherwise equal {BASELINE_TITLE} run to compare with."
        elif base is not None and arm.seeds != base.seeds:
            yield (
                f"{arm.label} has {_seeds(arm.seeds)}, {base.label} {_seeds(base.seeds)}: their means stand "
                "on different seeds, their difference on the shared ones."
            )
    single = [arm.label for arm in setting.finished_arms() if len(arm.seeds) == 1]
    if single:
        yield f"One seed only ({', '.join(single)}): no deviation, and no interval for a difference."


def _calibration_caveats(setting: Setting) -> Iterator[str]:
    for arm in setting.finished_arms():
        weights = [w for run in arm.runs.values() for w in mean_weights(run)]
        low = [w for w in weights if w < CALIBRATED]
        if low:
            yield (
                f"{arm.label} did not calibrate in {len(low)} of {number(len(weights), 'task')} over all seeds: at the "
                f"end of these the mean α·w over the classes is {sum(low) / len(low):.2f} on average "
                f"({min(low):.2f} to {max(low):.2f}), below the calibrated 1, so negatives weighed less than meant. "
                "More steps a task or a shorter memory bring it nearer."
            )
        elif arm.loss.startswith("tal") and not weights:
            yield f"{arm.label} has no log of its state (states/): whether it calibrated is not known."


def _paper_caveats(setting: Setting) -> Iterator[str]:
    reasons = {arm.label: departures(setting, arm) for arm in paper_arms(setting)}
    apart = [label for label, found in reasons.items() if found]
    if apart:
        which = "these" if len(apart) == len(reasons) else ", ".join(apart)
        shown = ", ".join(dict.fromkeys(clean(reason) for found in reasons.values() for reason in found))
        yield f"Not the paper's setting, so its numbers do not stand beside {which}: {shown}."


def _seeds(seeds: list[int]) -> str:
    return ("seed " if len(seeds) == 1 else "seeds ") + ", ".join(map(str, seeds))

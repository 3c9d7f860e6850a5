"""The tables of the report."""

from collections.abc import Iterable

import numpy as np

from pilot_tal.metrics import AFTER_TASK, DEFINITIONS, summarize
from pilot_tal.record.run_record import NO_LOSS
from pilot_tal.record.states import state_of
from pilot_tal.results.ablation import grids
from pilot_tal.results.display import clean, exact
from pilot_tal.results.formats import Entry, Table, difference_cell, name_cell, percent_cell, points_cell, spread_cell
from pilot_tal.results.paper import method_place, paper_numbers
from pilot_tal.results.study import BASELINE, BASELINE_TITLE, Arm, Setting, Study

_OVERVIEW = ("a_mean", "a_tail", "a_head")
_COMPARED = ("a_mean", "a_tail")
_BEST = {key: (min if key == "forgetting" else max) for key in DEFINITIONS}


def overview_table(study: Study) -> Table:
    """All arms of all settings, with the difference to CE and the paper's numbers where they fit."""
    cases = [(setting, arm) for setting in study.finished for arm in setting.finished_arms()]
    papers = [paper_numbers(*case) for case in cases]
    show_paper = any(papers)
    columns: list[tuple[str, ...]] = [("Dataset",), ("Method",), ("Tasks",), ("Fidelity",), ("Loss",), ("Seeds",)]
    columns += [(DEFINITIONS[key][0],) for key in _OVERVIEW]
    columns += [(f"Change of {DEFINITIONS[key][0]} (95 % interval)",) for key in _COMPARED]
    columns += [(f"Paper {DEFINITIONS[key][0]}",) for key in _COMPARED] if show_paper else []
    table = Table("overview", "All settings: mean ± standard deviation over seeds, percent", columns, 6)
    for (setting, arm), paper in zip(cases, papers, strict=True):
        if arm is setting.finished_arms()[0]:
            table.rules.add(len(table.rows))
        names = (setting.dataset_title, setting.method_title, len(setting.task_sizes), setting.fidelity)
        row = [name_cell(name) for name in (*names, arm.label, len(arm.seeds))]
        row += [spread_cell(arm.spread(key), best=_is_best(setting, arm, key)) for key in _OVERVIEW]
        row += [difference_cell(setting.difference(arm, key)) for key in _COMPARED]
        if show_paper:
            row += [percent_cell(getattr(paper, key) if paper else None) for key in _COMPARED]
        table.rows.append(row)
    return table


def paper_layout_table(study: Study) -> Table:
    """Methods as rows, "+ loss" below them, datasets × tasks as columns: the layout of the paper's table."""
    places = list(dict.fromkeys(_place(setting) for setting in study.finished))
    titles = _place_titles(places)
    keys = [(place, key) for place in places for key in _COMPARED]
    columns = [("Method",), *((*titles[place], DEFINITIONS[key][0]) for place, key in keys)]
    groups = _method_groups(study)
    everything = [arms for rows in groups.values() for arms in rows.values()]
    counted = {name: [p for arms in rows.values() for p in arms if arms[p].counts] for name, rows in groups.items()}
    tops = {k: _best_mean([arms.get(k[0]) for arms in everything], k[1]) for k in keys}
    rivals = {p: sum(p in found for found in counted.values()) for p in places}
    title = "Accuracy over all classes and over the tail, percent, means over seeds; the best of a method in bold"
    title += ", of all methods underlined" if max(rivals.values(), default=0) > 1 else ""
    table = Table("paper_layout", title, columns, 1)
    for group, rows in groups.items():
        table.rules.add(len(table.rows))
        bests = {k: _best_mean([arms.get(k[0]) for arms in rows.values()], k[1]) for k in keys}
        for (loss, own), arms in rows.items():
            cells = [name_cell(_row_name(group, loss, own, arms, below=any(other == BASELINE for other, _ in rows)))]
            for place, key in keys:
                arm = arms.get(place)
                mean = _mean(arm, key)
                rank = exact(mean) if arm and arm.counts and mean is not None else None
                best = rank is not None and rank == bests[place, key] and len(rows) > 1
                top = rank is not None and rank == tops[place, key] and rivals[place] > 1
                cells.append(percent_cell(mean, best=best, top=top))
            table.rows.append(cells)
    return table


def metrics_table(setting: Setting) -> Table:
    """All metrics of one setting: a column for each arm and each reference, and one for each difference to CE."""
    arms, compared = setting.finished_arms(), setting.compared_arms()
    columns = [("Metric",), *((arm.label,) for arm in arms), *((r.title,) for r in setting.references)]
    columns += [(f"{arm.label} − {BASELINE_TITLE} (95 % interval)",) for arm in compared]
    title = f"{setting.title}: mean ± standard deviation over seeds, percent"
    table = Table(f"metrics-{setting.slug}", title, columns, 1)
    for key, (name, _) in DEFINITIONS.items():
        if not any(arm.values(key) for arm in arms):
            continue
        row = [name_cell(name)]
        row += [spread_cell(arm.spread(key), best=_is_best(setting, arm, key)) for arm in arms]
        row += [spread_cell(reference.arm.spread(key)) for reference in setting.references]
        row += [difference_cell(setting.difference(arm, key)) for arm in compared]
        table.rows.append(row)
    return table


def ablation_table(setting: Setting) -> Table | None:
    """The arms that differ in options of their loss alone, a row each; None where there are none."""
    found = grids(setting)
    if not found:
        return None
    options = list(dict.fromkeys(name for grid in found for name in grid.values))
    columns = [("Loss",), *((clean(name),) for name in options), ("Seeds",)]
    columns += [(DEFINITIONS[key][0],) for key in _COMPARED]
    columns += [(f"Change of {DEFINITIONS[key][0]} (95 % interval)",) for key in _COMPARED]
    title = f"{setting.title}: options of a loss; bold is the highest of them, chosen after the fact"
    table = Table(f"ablation-{setting.slug}", title, columns, 2 + len(options))
    for grid in found:
        table.rules.add(len(table.rows))
        best = {key: grid.best(key) for key in _COMPARED}
        for arm in grid.arms:
            names = [arm.loss_title, *(clean(dict(arm.own).get(name, "–")) for name in options)]
            row = [*map(name_cell, names), name_cell(len(arm.seeds))]
            row += [spread_cell(arm.spread(key), best=arm is best[key]) for key in _COMPARED]
            row += [difference_cell(setting.difference(arm, key)) for key in _COMPARED]
            table.rows.append(row)
    return table


def tasks_table(setting: Setting) -> Table:
    """What each arm reaches after each task."""
    names = ("All classes", "Tail so far", "Old classes", "New classes")
    columns = [("After task",), ("Loss",), *((name,) for name in names)]
    title = f"{setting.title}: after each task, percent, means over seeds"
    table = Table(f"tasks-{setting.slug}", title, columns, 2)
    rows = [(arm.label, arm) for arm in setting.finished_arms()]
    rows += [(reference.title, reference.arm) for reference in setting.references if not reference.joint]
    values = [(label, [arm.mean_over_seeds(key) for key in AFTER_TASK]) for label, arm in rows]
    for task in range(len(setting.task_sizes)):
        table.rules.add(len(table.rows))
        for label, lists in values:
            cells = [percent_cell(_known(found[task])) for found in lists]
            table.rows.append([name_cell(task + 1), name_cell(label), *cells])
    return table


def confused_table(setting: Setting) -> Table:
    """The classes most often taken for another, under each arm."""
    columns = [("Loss",), ("Class",), ("Taken for",), ("Images of the class",), ("Of the other",), ("Share",)]
    title = f"{setting.title}: pairs most often confused after the last task, percent of the class's images"
    table = Table(f"confused-{setting.slug}", title, columns, 3)
    classes = setting.classes()
    for arm in setting.finished_arms():
        table.rules.add(len(table.rows))
        for true, pred, share in arm.most_confused():
            names = (arm.label, classes.names[true], classes.names[pred], classes.counts[true], classes.counts[pred])
            table.rows.append([*map(name_cell, names), percent_cell(share, digits=1)])
    return table


def seeds_table(setting: Setting) -> Table:
    """Every run of one setting."""
    keys = ("a_mean", "a_tail", "a_head", "a_avg", "forgetting")
    columns = [("Seed",), ("Loss",), *((DEFINITIONS[key][0],) for key in keys), ("Run",)]
    table = Table(f"seeds-{setting.slug}", f"{setting.title}: each run, percent", columns, 2)
    for seed in sorted({seed for arm in setting.arms for seed in arm.seeds}):
        table.rules.add(len(table.rows))
        for arm in setting.finished_arms():
            if seed in arm.runs:
                found = arm.runs[seed]
                values = [percent_cell(found.metrics.get(key)) for key in keys]
                run = name_cell(clean(found.path.name))
                table.rows.append([name_cell(seed), name_cell(arm.label), *values, run])
    return table


def unfinished_table(study: Study) -> Table:
    """How far each unfinished run is, and what it reaches on the classes it has seen; it is in no other table."""
    columns = [(name,) for name in ("Run", "State", "Tasks done")]
    columns += [(f"{DEFINITIONS[key][0]} so far",) for key in _OVERVIEW]
    table = Table("unfinished", "How far they are, and percent on the test images of the classes seen", columns, 3)
    for run in study.unfinished:
        stream, state = run.record.stream, state_of(run.path)
        arguments = (stream.task_sizes, stream.train_counts, stream.class_order)
        metrics = summarize(run.predictions, *arguments) if run.predictions else {}
        why = clean(state.detail)[:120] if state.state == "failed" else ""
        names = [name_cell(clean(run.path.name)), Entry(state.state, why)]
        names.append(name_cell(f"{run.tasks_done} of {run.record.num_tasks}"))
        table.rows.append([*names, *(percent_cell(metrics.get(key)) for key in _OVERVIEW)])
    return table


def classes_table(setting: Setting) -> Table:
    """Every class of one setting, from many training images to few."""
    arms, compared, classes = setting.finished_arms(), setting.compared_arms(), setting.classes()
    columns: list[tuple[str, ...]] = [("Class",), ("Original index",), ("Part",), ("Training images",)]
    columns += [(arm.label, name) for arm in arms for name in ("Accuracy", "Precision")]
    columns += [(f"{arm.label} − {BASELINE_TITLE}", "Accuracy") for arm in compared]
    title = f"{setting.title}: each class, percent, means over seeds"
    table = Table(f"classes-{setting.slug}", title, columns, 4)
    values = [arm.by_class(key) for arm in arms for key in ("accuracy", "precision")]
    differences = [class_differences(setting, arm) for arm in compared]
    for k in classes.rank[::-1]:
        part = "tail" if classes.tail[k] else "head"
        names = (classes.names[k], classes.originals[k], part, classes.counts[k])
        numbers = [percent_cell(_known(v[k]), digits=1) for v in values]
        numbers += [points_cell(_known(v[k]), digits=1) for v in differences]
        table.rows.append([*map(name_cell, names), *numbers])
    return table


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def class_differences(setting: Setting, arm: Arm) -> np.ndarray:
    """Accuracy of each class minus that of the baseline, over the shared seeds, by original index."""
    base, seeds = setting.baseline(arm), setting.pairs(arm)
    assert base is not None and seeds, "only for arms that are compared"
    return arm.only(seeds).by_class("accuracy") - base.only(seeds).by_class("accuracy")


def _place(setting: Setting) -> tuple:
    return (setting.dataset_title, setting.task_sizes)


def _row_name(group: str, loss: str, own: str, arms: dict[tuple, Arm], below: bool) -> str:
    """The method for CE and for what trains nothing; `+ TAL` `below` CE, otherwise `L2P + TAL`."""
    if loss in (BASELINE, NO_LOSS):
        return group
    title = next(iter(arms.values())).loss_title
    added = clean(f"+ {title}" + (f" ({own})" if own else ""))
    return added if below else f"{group} {added}"


def _place_titles(places: list[tuple]) -> dict[tuple, tuple[str, str]]:
    """Dataset and tasks of each column, with class count or task sizes where they tell columns apart."""
    counts: dict[str, set[int]] = {}
    for dataset, sizes in places:
        counts.setdefault(dataset, set()).add(sum(sizes))
    titles = {}
    for dataset, sizes in places:
        name = f"{dataset} ({sum(sizes)} classes)" if len(counts[dataset]) > 1 else dataset
        twins = [s for d, s in places if (d, len(s), sum(s)) == (dataset, len(sizes), sum(sizes))]
        extra = f" ({'+'.join(map(str, sizes))})" if len(twins) > 1 else ""
        titles[dataset, sizes] = (name, f"{len(sizes)}-task{extra}")
    return titles


def _method_groups(study: Study) -> dict[str, dict[tuple[str, str], dict[tuple, Arm]]]:
    """Title of a method → (loss, its variant) → column → arm; what tells two methods apart is in the title."""
    settings = sorted(study.finished, key=lambda s: (method_place(s), s.fidelity))
    cases = [(setting, arm) for setting in settings for arm in setting.finished_arms()]
    fidelities = {setting.fidelity for setting, _ in cases}
    engines = {arm.engine for _, arm in cases}
    groups: dict[str, dict[tuple[str, str], dict[tuple, Arm]]] = {}
    for setting, arm in cases:
        extra = [setting.fidelity] if len(fidelities) > 1 else []
        extra += [arm.record.engine.title] if len(engines) > 1 else []
        extra += [arm.variant] if arm.variant else []
        title = clean(f"{setting.method_title} ({', '.join(extra)})" if extra else setting.method_title)
        rows = groups.setdefault(title, {})
        rows.setdefault((arm.loss, arm.own_variant), {})[_place(setting)] = arm
    return groups


def _mean(arm: Arm | None, key: str) -> float | None:
    spread = arm.spread(key) if arm else None
    return spread.mean if spread else None


def _best_mean(arms: Iterable[Arm | None], key: str) -> float | None:
    means = [exact(mean) for arm in arms if arm and arm.counts and (mean := _mean(arm, key)) is not None]
    return _BEST[key](means) if means else None


def _is_best(setting: Setting, arm: Arm, key: str) -> bool:
    """Best of its setting; with a single arm nothing is."""
    arms = [a for a in setting.finished_arms() if a.counts]
    mean = _mean(arm, key)
    return len(arms) > 1 and arm.counts and mean is not None and exact(mean) == _best_mean(arms, key)

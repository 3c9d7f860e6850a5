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
from pilot_tal.results.study import BASELINE, Group, Study, Variant

_OVERVIEW = ("a_mean", "a_tail", "a_head")
_COMPARED = ("a_mean", "a_tail")
_BEST = {key: (min if key == "forgetting" else max) for key in DEFINITIONS}


def overview_table(study: Study) -> Table:
    """All variants of all groups, with the difference to CE and the paper's numbers where they fit."""
    cases = [(group, variant) for group in study.finished for variant in group.finished_variants()]
    papers = [paper_numbers(*case) for case in cases]
    show_paper = any(papers)
    columns: list[tuple[str, ...]] = [("Dataset",), ("Method",), ("Tasks",), ("Fidelity",), ("Loss",), ("Seeds",)]
    columns += [(DEFINITIONS[key][0],) for key in _OVERVIEW]
    columns += [(f"Change of {DEFINITIONS[key][0]} (95 % interval)",) for key in _COMPARED]
    columns += [(f"Paper {DEFINITIONS[key][0]}",) for key in _COMPARED] if show_paper else []
    table = Table("overview", "All groups: mean ± standard deviation over seeds, percent", columns, 6)
    for (group, variant), paper in zip(cases, papers, strict=True):
        if variant is group.finished_variants()[0]:
            table.rules.add(len(table.rows))
        names = (group.dataset_title, group.method_title, len(group.task_sizes), group.fidelity)
        row = [name_cell(name) for name in (*names, variant.label, len(variant.seeds))]
        row += [spread_cell(variant.spread(key), best=_is_best(group, variant, key)) for key in _OVERVIEW]
        row += [difference_cell(group.difference(variant, key)) for key in _COMPARED]
        if show_paper:
            row += [percent_cell(getattr(paper, key) if paper else None) for key in _COMPARED]
        table.rows.append(row)
    return table


def paper_layout_table(study: Study) -> Table:
    """Methods as rows, "+ loss" below them, datasets × tasks as columns: the layout of the paper's table."""
    places = list(dict.fromkeys(_place(group) for group in study.finished))
    titles = _place_titles(places)
    keys = [(place, key) for place in places for key in _COMPARED]
    columns = [("Method",), *((*titles[place], DEFINITIONS[key][0]) for place, key in keys)]
    groups = _method_groups(study)
    everything = [variants for rows in groups.values() for variants in rows.values()]
    counted = {
        name: [p for variants in rows.values() for p in variants if variants[p].counts] for name, rows in groups.items()
    }
    tops = {k: _best_mean([variants.get(k[0]) for variants in everything], k[1]) for k in keys}
    rivals = {p: sum(p in found for found in counted.values()) for p in places}
    title = "Accuracy over all classes and over the tail, percent, means over seeds; the best of a method in bold"
    title += ", of all methods underlined" if max(rivals.values(), default=0) > 1 else ""
    table = Table("paper_layout", title, columns, 1)
    for group, rows in groups.items():
        table.rules.add(len(table.rows))
        bests = {k: _best_mean([variants.get(k[0]) for variants in rows.values()], k[1]) for k in keys}
        for (loss, own), variants in rows.items():
            cells = [
                name_cell(_row_name(group, loss, own, variants, below=any(other == BASELINE for other, _ in rows)))
            ]
            for place, key in keys:
                variant = variants.get(place)
                mean = _mean(variant, key)
                rank = exact(mean) if variant and variant.counts and mean is not None else None
                best = rank is not None and rank == bests[place, key] and len(rows) > 1
                top = rank is not None and rank == tops[place, key] and rivals[place] > 1
                cells.append(percent_cell(mean, best=best, top=top))
            table.rows.append(cells)
    return table


def metrics_table(group: Group) -> Table:
    """All metrics of one group: a column for each variant and each reference, and one for each difference to CE."""
    variants, compared = group.finished_variants(), group.compared_variants()
    columns = [("Metric",), *((variant.label,) for variant in variants), *((r.title,) for r in group.references)]
    columns += [(f"{variant.label} − {group.baseline_title} (95 % interval)",) for variant in compared]
    title = f"{group.title}: mean ± standard deviation over seeds, percent"
    table = Table(f"metrics-{group.slug}", title, columns, 1)
    for key, (name, _) in DEFINITIONS.items():
        if not any(variant.values(key) for variant in variants):
            continue
        row = [name_cell(name)]
        row += [spread_cell(variant.spread(key), best=_is_best(group, variant, key)) for variant in variants]
        row += [spread_cell(reference.variant.spread(key)) for reference in group.references]
        row += [difference_cell(group.difference(variant, key)) for variant in compared]
        table.rows.append(row)
    return table


def ablation_table(group: Group) -> Table | None:
    """The variants that differ in options of their loss alone, a row each; None where there are none."""
    found = grids(group)
    if not found:
        return None
    options = list(dict.fromkeys(name for grid in found for name in grid.values))
    columns = [("Loss",), *((clean(name),) for name in options), ("Seeds",)]
    columns += [(DEFINITIONS[key][0],) for key in _COMPARED]
    columns += [(f"Change of {DEFINITIONS[key][0]} (95 % interval)",) for key in _COMPARED]
    title = f"{group.title}: options of a loss; bold is the highest of them, chosen after the fact"
    table = Table(f"ablation-{group.slug}", title, columns, 2 + len(options))
    for grid in found:
        table.rules.add(len(table.rows))
        best = {key: grid.best(key) for key in _COMPARED}
        for variant in grid.variants:
            names = [variant.loss_title, *(clean(dict(variant.own).get(name, "–")) for name in options)]
            row = [*map(name_cell, names), name_cell(len(variant.seeds))]
            row += [spread_cell(variant.spread(key), best=variant is best[key]) for key in _COMPARED]
            row += [difference_cell(group.difference(variant, key)) for key in _COMPARED]
            table.rows.append(row)
    return table


def tasks_table(group: Group) -> Table:
    """What each variant reaches after each task."""
    names = ("All classes", "Tail so far", "Old classes", "New classes")
    columns = [("After task",), ("Loss",), *((name,) for name in names)]
    title = f"{group.title}: after each task, percent, means over seeds"
    table = Table(f"tasks-{group.slug}", title, columns, 2)
    rows = [(variant.label, variant) for variant in group.finished_variants()]
    rows += [(reference.title, reference.variant) for reference in group.references if not reference.joint]
    values = [(label, [variant.mean_over_seeds(key) for key in AFTER_TASK]) for label, variant in rows]
    for task in range(len(group.task_sizes)):
        table.rules.add(len(table.rows))
        for label, lists in values:
            cells = [percent_cell(_known(found[task])) for found in lists]
            table.rows.append([name_cell(task + 1), name_cell(label), *cells])
    return table


def confused_table(group: Group) -> Table:
    """The classes most often taken for another, under each variant."""
    columns = [("Loss",), ("Class",), ("Taken for",), ("Images of the class",), ("Of the other",), ("Share",)]
    title = f"{group.title}: pairs most often confused after the last task, percent of the class's images"
    table = Table(f"confused-{group.slug}", title, columns, 3)
    classes = group.classes()
    for variant in group.finished_variants():
        table.rules.add(len(table.rows))
        for true, pred, share in variant.most_confused():
            names = (
                variant.label,
                classes.names[true],
                classes.names[pred],
                classes.counts[true],
                classes.counts[pred],
            )
            table.rows.append([*map(name_cell, names), percent_cell(share, digits=1)])
    return table


def seeds_table(group: Group) -> Table:
    """Every run of one group."""
    keys = ("a_mean", "a_tail", "a_head", "a_avg", "forgetting")
    columns = [("Seed",), ("Loss",), *((DEFINITIONS[key][0],) for key in keys), ("Run",)]
    table = Table(f"seeds-{group.slug}", f"{group.title}: each run, percent", columns, 2)
    for seed in sorted({seed for variant in group.variants for seed in variant.seeds}):
        table.rules.add(len(table.rows))
        for variant in group.finished_variants():
            if seed in variant.runs:
                found = variant.runs[seed]
                values = [percent_cell(found.metrics.get(key)) for key in keys]
                run = name_cell(clean(found.path.name))
                table.rows.append([name_cell(seed), name_cell(variant.label), *values, run])
    return table


def unfinished_table(study: Study) -> Table:
    """How far each unfinished run is, and what it reaches on the classes it has seen; it is in no other table."""
    columns = [(name,) for name in ("Run", "State", "Tasks done")]
    columns += [(f"{DEFINITIONS[key][0]} so far",) for key in _OVERVIEW]
    table = Table("unfinished", "How far they are, and percent on the test images of the classes seen", columns, 3)
    for run in study.unfinished:
        stream, state = run.record.stream, state_of(run.path)
        arguments = (stream.task_sizes, stream.train_counts, stream.class_order)
        metrics = summarize(run.labels, *arguments) if run.labels else {}
        why = clean(state.detail)[:120] if state.state == "failed" else ""
        names = [name_cell(clean(run.path.name)), Entry(state.state, why)]
        names.append(name_cell(f"{run.tasks_done} of {run.record.num_tasks}"))
        table.rows.append([*names, *(percent_cell(metrics.get(key)) for key in _OVERVIEW)])
    return table


def classes_table(group: Group) -> Table:
    """Every class of one group, from many training images to few."""
    variants, compared, classes = group.finished_variants(), group.compared_variants(), group.classes()
    columns: list[tuple[str, ...]] = [("Class",), ("Original index",), ("Part",), ("Training images",)]
    columns += [(variant.label, name) for variant in variants for name in ("Accuracy", "Precision")]
    columns += [(f"{variant.label} − {group.baseline_title}", "Accuracy") for variant in compared]
    title = f"{group.title}: each class, percent, means over seeds"
    table = Table(f"classes-{group.slug}", title, columns, 4)
    values = [variant.by_class(key) for variant in variants for key in ("accuracy", "precision")]
    differences = [class_differences(group, variant) for variant in compared]
    for k in classes.rank[::-1]:
        part = "tail" if classes.tail[k] else "head"
        names = (classes.names[k], classes.originals[k], part, classes.counts[k])
        numbers = [percent_cell(_known(v[k]), digits=1) for v in values]
        numbers += [points_cell(_known(v[k]), digits=1) for v in differences]
        table.rows.append([*map(name_cell, names), *numbers])
    return table


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def class_differences(group: Group, variant: Variant) -> np.ndarray:
    """Accuracy of each class minus that of the baseline, over the shared seeds, by original index."""
    base, seeds = group.baseline(variant), group.pairs(variant)
    assert base is not None and seeds, "only for variants that are compared"
    return variant.only(seeds).by_class("accuracy") - base.only(seeds).by_class("accuracy")


def _place(group: Group) -> tuple:
    return (group.dataset_title, group.task_sizes)


def _row_name(group: str, loss: str, own: str, variants: dict[tuple, Variant], below: bool) -> str:
    """The method for CE and for what trains nothing; `+ TAL` `below` CE, otherwise `L2P + TAL`."""
    if loss in (BASELINE, NO_LOSS):
        return group
    title = next(iter(variants.values())).loss_title
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


def _method_groups(study: Study) -> dict[str, dict[tuple[str, str], dict[tuple, Variant]]]:
    """Title of a method → (loss, options) → column → variant; what tells two methods apart is in the title."""
    groups = sorted(study.finished, key=lambda s: (method_place(s), s.fidelity))
    cases = [(group, variant) for group in groups for variant in group.finished_variants()]
    fidelities = {group.fidelity for group, _ in cases}
    engines = {variant.engine for _, variant in cases}
    methods: dict[str, dict[tuple[str, str], dict[tuple, Variant]]] = {}
    for group, variant in cases:
        extra = [group.fidelity] if len(fidelities) > 1 else []
        extra += [variant.record.engine.title] if len(engines) > 1 else []
        extra += [variant.options_label] if variant.options_label else []
        title = clean(f"{group.method_title} ({', '.join(extra)})" if extra else group.method_title)
        rows = methods.setdefault(title, {})
        rows.setdefault((variant.loss, variant.own_options_label), {})[_place(group)] = variant
    return methods


def _mean(variant: Variant | None, key: str) -> float | None:
    spread = variant.spread(key) if variant else None
    return spread.mean if spread else None


def _best_mean(variants: Iterable[Variant | None], key: str) -> float | None:
    means = [
        exact(mean) for variant in variants if variant and variant.counts and (mean := _mean(variant, key)) is not None
    ]
    return _BEST[key](means) if means else None


def _is_best(group: Group, variant: Variant, key: str) -> bool:
    """Best of its group; with a single variant nothing is."""
    variants = [a for a in group.finished_variants() if a.counts]
    mean = _mean(variant, key)
    return len(variants) > 1 and variant.counts and mean is not None and exact(mean) == _best_mean(variants, key)

"""The tables of the report. Bold: the paired 95 % interval against the runner-up excludes 0."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pilot_tal.metrics import AFTER_TASK, DEFINITIONS
from pilot_tal.record.run_record import NO_LOSS, RunRecord
from pilot_tal.record.states import state_of
from pilot_tal.results.formats import (
    Cell,
    Table,
    clean,
    difference_cell,
    make_frame,
    number,
    percent_cell,
    points,
    spread_cell,
)
from pilot_tal.results.groups import Group, Variant, winner
from pilot_tal.results.paper import method_place, paper_numbers
from pilot_tal.results.study import Study

_COMPARED = ("a_mean", "a_tail")
_LEVELS = ("a_mean", "a_tail", "a_head")
_CSV = ("csv",)
_MOST_VALUES = 4  # of a condition

Place = tuple[str, tuple[int, ...]]
"""Title of a dataset and its task sizes: a column of the paper's table."""


def conditions(groups: Sequence[Group], path: bool = True) -> dict[str, str]:
    """Name → value of every condition; different values are listed, or counted where there are many.

    Args:
        groups: Groups with finished runs.
        path: Whether to include the folder of the images.
    """
    found: dict[str, dict[str, None]] = {}
    for group in groups:
        for variant in group.finished_variants():
            for name, value in _of(group, variant).items():
                found.setdefault(name, {}).update({clean(value): None} if value else {})
    if not path:
        found.pop("Images", None)
    more = {name: len(values) - _MOST_VALUES for name, values in found.items()}
    shown = {name: " / ".join([*values][:_MOST_VALUES]) for name, values in found.items() if values}
    return {name: text + (f" / {more[name]} more" if more[name] > 0 else "") for name, text in shown.items()}


def caption(groups: Sequence[Group]) -> str:
    """The conditions as one sentence, for captions in LaTeX."""
    return "; ".join(f"{name}: {value}" for name, value in conditions(groups, path=False).items()) + "."


def conditions_table(groups: Sequence[Group], name: str) -> Table:
    """The conditions as a table of two columns."""
    frame = make_frame(["Condition", "Value"], list(conditions(groups).items()))
    return Table(name, "Conditions", frame, labels=2)


def overview_table(study: Study) -> Table:
    """All variants of all groups, with the change against the baseline, and the paper's numbers where they apply."""
    cases = [(group, variant) for group in study.finished for variant in group.finished_variants()]
    papers = [paper_numbers(*case) for case in cases]
    keys = [*_LEVELS, *([] if all(group.even_tests for group in study.finished) else ["a_last"])]
    columns = ["Dataset", "Method", "Tasks", "Fidelity", "Loss", "Seeds", *(_name(key) for key in keys)]
    columns += [f"Change of {_name(key)} (95 % interval)" for key in _COMPARED]
    columns += [f"Paper {_name(key)}" for key in _COMPARED] if any(papers) else []
    winners = {
        (place, key): winner([variant for group, variant in cases if _place(group) == place], key)
        for place in {_place(group) for group, _ in cases}
        for key in keys
    }
    rows: list[list[Any]] = []
    for (group, variant), paper in zip(cases, papers, strict=True):
        row: list[Any] = [group.dataset_title, group.method_title, len(group.task_sizes), group.fidelity]
        row += [variant.label, len(variant.seeds)]
        row += [spread_cell(variant.spread(key), winners[_place(group), key] is variant) for key in keys]
        row += [difference_cell(group.difference(variant, key)) for key in _COMPARED]
        row += [percent_cell(getattr(paper, key, None)) for key in _COMPARED] if any(papers) else []
        rows.append(row)
    title = "All groups: mean ± standard deviation over seeds, percent; bold is the best of a dataset and its tasks"
    return Table("overview", title, make_frame(columns, rows), 6, conditions=caption(study.finished))


def paper_layout_table(study: Study) -> Table:
    """Methods as rows, "+ loss" below them, datasets × tasks as columns: the layout of the paper's table."""
    places = list(dict.fromkeys(_place(group) for group in study.finished))
    titles = _place_titles(places)
    keys = [(place, key) for place in places for key in _COMPARED]
    methods = _methods(study)
    everything = [variants for rows in methods.values() for variants in rows.values()]
    tops = {k: winner([v[k[0]] for v in everything if k[0] in v], k[1]) for k in keys} if len(methods) > 1 else {}
    cells: list[list[Any]] = []
    for method, rows in methods.items():
        best = {k: winner([v[k[0]] for v in rows.values() if k[0] in v], k[1]) for k in keys}
        below = any(loss == study.baseline for loss, _ in rows)
        for (loss, own), variants in rows.items():
            row: list[Any] = [_row_name(study, method, loss, own, variants, below)]
            for place, key in keys:
                found = variants.get(place)
                mean = found.spread(key) if found else None
                bold, top = (found is not None and w is found for w in (best[place, key], tops.get((place, key))))
                row.append(percent_cell(mean.mean if mean else None, bold=bold, underlined=top))
            cells.append(row)
    title = "Accuracy over all classes and over the tail, percent, means over seeds; bold is the best of a method"
    title += ", underlined the best of all" if tops else ""
    columns: list[str | tuple[str, ...]] = [("Method",), *((*titles[place], _name(key)) for place, key in keys)]
    return Table("paper_layout", title, make_frame(columns, cells), conditions=caption(study.finished))


def metrics_table(group: Group) -> Table:
    """All metrics of one group: a row per variant and per reference."""
    keys, rows = _metrics(group), group.rows()
    rivals = group.finished_variants() + [reference.variant for reference in group.references if not reference.joint]
    best = {key: winner(rivals, key) for key in keys}
    cells = [
        [label, len(variant.seeds), *(spread_cell(variant.spread(key), best[key] is variant) for key in keys)]
        for label, variant in rows
    ]
    title = f"{group.title}: mean ± standard deviation over seeds, percent"
    frame = make_frame(["Loss", "Seeds", *map(_name, keys)], cells)
    return Table(f"metrics-{group.slug}", title, frame, 2, conditions=caption([group]))


def changes_table(group: Group) -> Table | None:
    """Every metric minus that of the baseline, paired by seed; None where nothing is compared."""
    keys, base = _metrics(group), group.baseline_title
    cells = [
        [variant.label, *(difference_cell(group.difference(variant, key)) for key in keys)]
        for variant in group.compared_variants()
    ]
    if not cells:
        return None
    title = f"{group.title}: change against {base}, points, mean over shared seeds (95 % interval)"
    frame = make_frame([f"Loss (− {base})", *map(_name, keys)], cells)
    return Table(f"changes-{group.slug}", title, frame, conditions=caption([group]))


def tasks_table(group: Group) -> Table:
    """What each variant and each training-free reference reaches after each task."""
    joint = [reference.variant for reference in group.references if reference.joint]
    rows = [(label, variant) for label, variant in group.rows() if variant not in joint]
    values = [(label, [variant.mean_over_seeds(key) for key in AFTER_TASK]) for label, variant in rows]
    cells = [
        [task + 1, label, *(percent_cell(_known(found[task])) for found in lists)]
        for task in range(len(group.task_sizes))
        for label, lists in values
    ]
    frame = make_frame(["After task", "Loss", "All classes", "Tail so far", "Old classes", "New classes"], cells)
    title = f"{group.title}: after each task, percent, means over seeds"
    return Table(f"tasks-{group.slug}", title, frame, 2, formats=_CSV)


def confused_table(group: Group) -> Table:
    """The pairs of classes most often confused, under each variant."""
    classes = group.classes()
    cells = [
        [
            variant.label,
            *(classes.names[k] for k in (true, pred)),
            *(classes.counts[k] for k in (true, pred)),
            percent_cell(share, digits=1),
        ]
        for variant in group.finished_variants()
        for true, pred, share in variant.most_confused()
    ]
    frame = make_frame(["Loss", "Class", "Taken for", "Images of the class", "Images of the other", "Share"], cells)
    title = f"{group.title}: most confused pairs after the last task, percent of the class's test images"
    return Table(f"confused-{group.slug}", title, frame, 3, formats=_CSV)


def runs_table(group: Group) -> Table:
    """Every run of one group."""
    keys = [key for key in ("a_mean", "a_tail", "a_head", "a_avg", "a_wavg", "forgetting") if key in _metrics(group)]
    cells = [
        [seed, variant.label, *(percent_cell(run.metrics.get(key)) for key in keys), clean(run.path.name)]
        for seed in sorted({seed for variant in group.variants for seed in variant.seeds})
        for variant in group.finished_variants()
        if (run := variant.runs.get(seed))
    ]
    frame = make_frame(["Seed", "Loss", *map(_name, keys), "Run"], cells)
    return Table(f"runs-{group.slug}", f"{group.title}: each run, percent", frame, 2, formats=_CSV)


def classes_table(group: Group) -> Table:
    """Every class of one group, from many training images to few."""
    compared, classes = group.compared_variants(), group.classes()
    rows = group.rows()
    columns: list[str | tuple[str, ...]] = [("Class",), ("Original index",), ("Part",), ("Training images",)]
    columns += [(label, name) for label, _ in rows for name in ("Accuracy", "Precision")]
    columns += [(f"{variant.label} − {group.baseline_title}", "Accuracy") for variant in compared]
    values = [variant.by_class(key) for _, variant in rows for key in ("accuracy", "precision")]
    differences = [group.class_differences(variant) for variant in compared]
    cells = [
        [
            *(classes.names[k], classes.originals[k], "tail" if classes.tail[k] else "head", classes.counts[k]),
            *(percent_cell(_known(found[k]), digits=1) for found in values),
            *(_points_cell(_known(found[k])) for found in differences),
        ]
        for k in classes.order
    ]
    title = f"{group.title}: each class, percent, means over seeds"
    return Table(f"classes-{group.slug}", title, make_frame(columns, cells), 4, formats=_CSV)


def unfinished_table(study: Study) -> Table:
    """How far each unfinished run is, and its metrics on the classes seen so far; it is in no other table."""
    cells: list[list[Any]] = []
    for run in study.unfinished:
        state = state_of(run.path)
        why = clean(state.detail)[:120] if state.state == "failed" else ""
        names = [clean(run.path.name), Cell(state.state, why), f"{run.tasks_done} of {run.record.num_tasks}"]
        cells.append([*names, *(percent_cell(run.metrics.get(key)) for key in _LEVELS)])
    frame = make_frame(["Run", "State", "Tasks done", *(f"{_name(key)} so far" for key in _LEVELS)], cells)
    return Table("unfinished", "Unfinished runs: percent on the classes seen so far", frame, 3, formats=())


def _name(metric: str) -> str:
    return DEFINITIONS[metric][0]


def _metrics(group: Group) -> list[str]:
    """The metrics that a run of the group has; without A_Last where it equals A_Mean."""
    known = [key for key in DEFINITIONS if any(variant.values(key) for variant in group.finished_variants())]
    return [key for key in known if key != "a_last" or not group.even_tests]


def _points_cell(value: float | None) -> Cell:
    return Cell(points(value, 1), values={"": None if value is None else 100 * value})


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _place(group: Group) -> Place:
    return (group.dataset_title, group.task_sizes)


def _row_name(study: Study, method: str, loss: str, own: str, variants: dict[Place, Variant], below: bool) -> str:
    """The method for the baseline and for training-free ones; `+ TAL` below its baseline, otherwise `L2P + TAL`."""
    if loss in (study.baseline, NO_LOSS):
        return method
    title = next(iter(variants.values())).loss_title
    added = clean(f"+ {title}" + (f" ({own})" if own else ""))
    return added if below else f"{method} {added}"


def _place_titles(places: Sequence[Place]) -> dict[Place, tuple[str, str]]:
    """Dataset and tasks of each column, with the sizes of the tasks where they tell columns apart."""
    names = Counter((dataset, len(sizes)) for dataset, sizes in places)
    extra = {(d, s): f" ({'+'.join(map(str, s))})" if names[d, len(s)] > 1 else "" for d, s in places}
    return {(d, s): (d, f"{len(s)}-task{extra[d, s]}") for d, s in places}


def _methods(study: Study) -> dict[str, dict[tuple[str, str], dict[Place, Variant]]]:
    """Title of a method → (loss, options) → column → variant; settings that tell two methods apart are in the title."""
    groups = sorted(study.finished, key=lambda group: (method_place(group), group.fidelity))
    cases = [(group, variant) for group in groups for variant in group.finished_variants()]
    fidelities = {group.fidelity for group, variant in cases if variant.trains}
    engines = {variant.engine for _, variant in cases}
    methods: dict[str, dict[tuple[str, str], dict[Place, Variant]]] = {}
    for group, variant in cases:
        extra = [group.fidelity] if len(fidelities) > 1 else []
        extra += [variant.record.engine.title] if len(engines) > 1 else []
        extra += [variant.options_label] if variant.options_label else []
        title = clean(f"{group.method_title} ({', '.join(extra)})" if extra else group.method_title)
        rows = methods.setdefault(title, {})
        rows.setdefault((variant.loss, variant.own_options_label), {})[_place(group)] = variant
    return methods


def _of(group: Group, variant: Variant) -> dict[str, str]:
    record = variant.record
    backbone, stream, settings = record.backbone, record.stream, record.method.settings
    weights = backbone.weights + (f", checksum {backbone.checksum[:12]}" if backbone.checksum else "")
    trained = {key: str(value) for key, value in settings.items() if variant.trains}
    sizes, train = stream.task_sizes, stream.train_counts
    even = len({*sizes}) == 1
    tests = sum(next(iter(variant.runs.values())).metrics["per_class"]["test_images"])
    return {
        "Dataset": f"{group.dataset_title}: {number(len(train), 'class', 'classes')}, {sum(train)} training images "
        f"({max(train)} to {min(train)} per class), {tests} test images",
        "Images": str(record.environment[-1].get("images") or "") if record.environment else "",
        "Data checksum": (record.data.checksum or "")[:12],
        "Backbone": f"{backbone.name} (weights {weights})",
        "Image size": f"{backbone.img_size} pixels" if backbone.img_size else "the backbone's own",
        "Normalisation": stream.normalize,
        "Transform": stream.transform,
        "Epochs": trained.get("tuned_epoch", ""),
        "Batch size": trained.get("batch_size", ""),
        "Optimizer": trained.get("optimizer", ""),
        "Learning rate": ", ".join(trained[key] for key in ("init_lr", "scheduler") if key in trained),
        "Tasks": f"{len(sizes)} of {number(sizes[0], 'class', 'classes')}" if even else "+".join(map(str, sizes)),
        "Class order": stream.order,
        "Seeds": ", ".join(map(str, variant.seeds)),
        "Fidelity": group.fidelity,
        "Precision": backbone.precision,
        "Engine": record.engine.title,
        "Software": _software(record),
    }


def _software(record: RunRecord) -> str:
    if not record.environment:
        return ""
    last = record.environment[-1]
    found = {"pilot_tal": last.get("pilot_tal"), "Python": last.get("python")}
    found |= {name: (last.get("packages") or {}).get(name) for name in ("torch", "timm", "numpy")}
    versions = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    return f"{versions}; {last['device']}" if last.get("device") else versions

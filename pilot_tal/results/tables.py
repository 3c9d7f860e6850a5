"""The tables of the report and the paper's numbers. Bold: the paired 95 % interval to the runner-up excludes 0."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from data_lt import CARDS, read_manifest
from data_lt.options import DataOptions
from pilot_tal.metrics import AFTER_TASK, DEFINITIONS
from pilot_tal.record.run_record import NO_LOSS
from pilot_tal.results.formats import Table, clean, difference_cell, make_frame, number, percent_cell, spread_cell
from pilot_tal.results.study import Group, Study, Variant, winner

EPOCHS, BACKBONE = 20, "vit_base_patch16_224"  # the paper's
_OF_GROUP = ("tasks", "init_cls", "increment", "fidelity")  # changed settings that make another group
_CONDITIONS = (  # settings with a row of their own in the table of conditions
    *(*_OF_GROUP, "task_sizes", "order", "backbone", "weights", "img_size", "normalize", "transform", "precision"),
    *("tuned_epoch", "batch_size", "optimizer", "init_lr", "scheduler"),
)
_OF_DATA = {field.name for field in fields(DataOptions)}
_COMPARED = ("a_mean", "a_tail")
_LEVELS = ("a_mean", "a_tail", "a_head")
_MOST_VALUES = 4  # of a condition
_manifest = cache(read_manifest)

Place = tuple[str, tuple[int, ...]]  # title of a dataset and its task sizes: a column of the paper's table


def conditions(groups: Sequence[Group], path: bool = True) -> dict[str, str]:
    """Name → value of every condition, different ones listed or counted; `path` includes the folder of the images."""
    found: dict[str, dict[str, None]] = {}
    for group in groups:
        for variant in group.finished_variants():
            for name, value in _of(group, variant).items():
                if value and (path or name != "Images"):
                    found.setdefault(name, {})[clean(value)] = None
    shown = {name: " / ".join([*values][:_MOST_VALUES]) for name, values in found.items()}
    more = {name: len(values) - _MOST_VALUES for name, values in found.items()}
    return {name: text + (f" / {more[name]} more" if more[name] > 0 else "") for name, text in shown.items()}


def _of(group: Group, variant: Variant) -> dict[str, str]:
    record = variant.record
    backbone, stream, settings = record.backbone, record.stream, record.method.settings if variant.trains else {}
    weights = backbone.weights + (f", checksum {backbone.checksum[:12]}" if backbone.checksum else "")
    sizes, train = stream.task_sizes, stream.train_counts
    tests = sum(next(iter(variant.runs.values())).metrics["per_class"]["test_images"])
    last = record.environment[-1] if record.environment else {}
    software = {"pilot_tal": last.get("pilot_tal"), "Python": last.get("python")}
    software |= {name: (last.get("packages") or {}).get(name) for name in ("torch", "timm", "numpy")}
    versions = ", ".join(f"{name} {version}" for name, version in software.items() if version)
    unequal = "+".join(map(str, sizes)) if len({*sizes}) > 1 else ""
    elsewhere = {*_CONDITIONS, *_OF_DATA, *record.loss.options}  # a variant's name has the options of its loss
    return {
        "Dataset": f"{group.dataset_title}: {number(len(train), 'class', 'classes')}, {sum(train)} training images "
        f"({max(train)} to {min(train)} per class), {tests} test images",
        "Images": str(last.get("images") or ""),
        "Data checksum": (record.data.checksum or "")[:12],
        "Backbone": f"{backbone.name} (weights {weights})",
        "Image size": f"{backbone.img_size} pixels" if backbone.img_size else "the backbone's own",
        "Normalisation": stream.normalize,
        "Transform": stream.transform,
        "Epochs": str(settings.get("tuned_epoch", "")),
        "Batch size": str(settings.get("batch_size", "")),
        "Optimizer": str(settings.get("optimizer", "")),
        "Learning rate": ", ".join(str(settings[key]) for key in ("init_lr", "scheduler") if key in settings),
        "Other settings": ", ".join(
            f"{name}={_plain(value)}" for name, (value, _) in record.changed.items() if name not in elsewhere
        ),
        "Tasks": unequal or f"{len(sizes)} of {number(sizes[0], 'class', 'classes')}",
        "Class order": stream.order,
        "Seeds": ", ".join(map(str, variant.seeds)),
        "Fidelity": group.fidelity,
        "Precision": backbone.precision,
        "Engine": record.engine.title,
        "Software": "; ".join(filter(None, (versions, last.get("device")))),
    }


def caption(groups: Sequence[Group]) -> str:
    """The conditions as one sentence, for captions in LaTeX."""
    return "; ".join(f"{name}: {value}" for name, value in conditions(groups, path=False).items()) + "."


def conditions_table(groups: Sequence[Group], name: str) -> Table:
    """The conditions as a table of two columns."""
    return Table(name, "Conditions", make_frame(["Condition", "Value"], [*conditions(groups).items()]), labels=2)


def overview_table(study: Study) -> Table:
    """All variants of all groups, with the change against the baseline, and the paper's numbers where they apply."""
    cases = [(group, variant) for group in study.finished for variant in group.finished_variants()]
    papers = [paper_numbers(*case) for case in cases]
    keys = [*_LEVELS, *([] if all(group.even_tests for group in study.finished) else ["a_last"])]
    columns = ["Dataset", "Method", "Tasks", "Fidelity", "Loss", "Seeds", *map(_name, keys)]
    columns += [f"Change of {_name(key)} (95 % interval)" for key in _COMPARED]
    columns += [f"Paper {_name(key)}" for key in _COMPARED] if any(papers) else []
    variants: dict[Place, list[Variant]] = {}
    for group, variant in cases:
        variants.setdefault(_place(group), []).append(variant)
    best = {(place, key): winner(rivals, key) for place, rivals in variants.items() for key in keys}
    rows: list[list[Any]] = []
    for (group, variant), paper in zip(cases, papers, strict=True):
        row: list[Any] = [group.dataset_title, group.method_title, len(group.task_sizes), group.fidelity]
        row += [variant.label, len(variant.seeds)]
        row += [spread_cell(variant.spread(key), best[_place(group), key] is variant) for key in keys]
        row += [difference_cell(group.difference(variant, key)) for key in _COMPARED]
        row += [percent_cell(getattr(paper, key, None)) for key in _COMPARED] if any(papers) else []
        rows.append(row)
    title = "All groups: mean ± standard deviation over seeds, percent; bold is the best of a dataset and its tasks"
    return Table("overview", title, make_frame(columns, rows), 6, conditions=caption(study.finished))


def paper_layout_table(study: Study) -> Table:
    """Methods as rows, "+ loss" below them, datasets × tasks as columns: the layout of the paper's table."""
    places = list(dict.fromkeys(map(_place, study.finished)))
    alike = Counter((dataset, len(sizes)) for dataset, sizes in places)
    columns: list[str | tuple[str, ...]] = [("Method",)]
    for dataset, sizes in places:
        extra = f" ({'+'.join(map(str, sizes))})" if alike[dataset, len(sizes)] > 1 else ""
        columns += [(dataset, f"{len(sizes)}-task{extra}", _name(key)) for key in _COMPARED]
    rows: list[list[Any]] = []
    for method, losses in _methods(study).items():
        below = any(loss == study.baseline for loss, _ in losses)
        first = len(rows)
        rows += [[_row_name(study, method, *loss, variants, below)] for loss, variants in losses.items()]
        for place in places:
            rivals = [variants.get(place) for variants in losses.values()]
            for key in _COMPARED:
                best = winner([variant for variant in rivals if variant], key)
                for row, variant in zip(rows[first:], rivals, strict=True):
                    mean = variant.spread(key) if variant else None
                    row.append(percent_cell(mean.mean if mean else None, bold=mean is not None and variant is best))
    title = "Accuracy over all classes and over the tail, percent, means over seeds; bold is the best of a method"
    return Table("paper_layout", title, make_frame(columns, rows), conditions=caption(study.finished))


def _methods(study: Study) -> dict[str, dict[tuple[str, str], dict[Place, Variant]]]:
    """Title of a method, with what tells it from others of its name → (loss, options) → column → variant."""
    groups = sorted(study.finished, key=lambda group: (group.method_title, group.fidelity))
    cases = [(group, variant) for group in groups for variant in group.finished_variants()]
    fidelities = {group.fidelity for group, variant in cases if variant.trains}
    engines = {variant.engine for _, variant in cases}
    methods: dict[str, dict[tuple[str, str], dict[Place, Variant]]] = {}
    for group, variant in cases:
        extra = [group.fidelity] if len(fidelities) > 1 else []
        extra += [variant.record.engine.title] if len(engines) > 1 else []
        extra += [variant.options_label] if variant.options_label else []
        title = clean(f"{group.method_title} ({', '.join(extra)})" if extra else group.method_title)
        methods.setdefault(title, {}).setdefault((variant.loss, variant.own_options_label), {})[_place(group)] = variant
    return methods


def _row_name(study: Study, method: str, loss: str, own: str, variants: dict[Place, Variant], below: bool) -> str:
    """The method for the baseline and for training-free ones; `+ TAL` below its baseline, otherwise `L2P + TAL`."""
    if loss in (study.baseline, NO_LOSS):
        return method
    title = next(iter(variants.values())).loss_title
    added = clean(f"+ {title}" + (f" ({own})" if own else ""))
    return added if below else f"{method} {added}"


def metrics_table(group: Group) -> Table:
    """All metrics of one group: a row per variant and per reference."""
    keys, rows = _metrics(group), group.rows()
    best = {key: winner([variant for _, variant in rows], key) for key in keys}
    cells = [
        [label, len(variant.seeds), *(spread_cell(variant.spread(key), best[key] is variant) for key in keys)]
        for label, variant in rows
    ]
    title = f"{group.title}: mean ± standard deviation over seeds, percent"
    frame = make_frame(["Loss", "Seeds", *map(_name, keys)], cells)
    return Table(f"metrics-{group.slug}", title, frame, 2, conditions=caption([group]))


def changes_table(group: Group) -> Table:
    """Every metric minus that of the baseline, paired by seed."""
    keys, base = _metrics(group), group.baseline_title
    cells = [
        [variant.label, *(difference_cell(group.difference(variant, key)) for key in keys)]
        for variant in group.compared_variants()
    ]
    title = f"{group.title}: change against {base}, points, mean over shared seeds (95 % interval)"
    frame = make_frame([f"Loss (− {base})", *map(_name, keys)], cells)
    return Table(f"changes-{group.slug}", title, frame, conditions=caption([group]))


def tasks_table(group: Group) -> Table:
    """What each variant and each training-free reference reaches after each task."""
    values = [(label, np.array([*map(variant.mean_over_seeds, AFTER_TASK)])) for label, variant in group.rows()]
    tasks = range(len(group.task_sizes))
    cells = [[task + 1, label, *map(percent_cell, found[:, task])] for task in tasks for label, found in values]
    frame = make_frame(["After task", "Loss", "All classes", "Tail so far", "Old classes", "New classes"], cells)
    title = f"{group.title}: after each task, percent, means over seeds"
    return Table(f"tasks-{group.slug}", title, frame, 2, formats=("csv",))


def confused_table(group: Group) -> Table:
    """The pairs of classes most often confused, under each variant."""
    classes = group.classes()
    names, counts = classes.names, classes.counts
    cells = [
        [variant.label, names[true], names[pred], counts[true], counts[pred], percent_cell(share, digits=1)]
        for variant in group.finished_variants()
        for true, pred, share in variant.most_confused()
    ]
    frame = make_frame(["Loss", "Class", "Taken for", "Images of the class", "Images of the other", "Share"], cells)
    title = f"{group.title}: most confused pairs after the last task, percent of the class's test images"
    return Table(f"confused-{group.slug}", title, frame, 3, formats=("csv",))


def runs_table(group: Group) -> Table:
    """Every run of one group."""
    keys = [key for key in ("a_mean", "a_tail", "a_head", "a_avg", "a_wavg", "forgetting") if key in _metrics(group)]
    cells = [
        [seed, variant.label, *(percent_cell(run.metrics.get(key)) for key in keys), clean(run.path.name)]
        for seed in sorted({run.record.seed for run in group.runs})
        for variant in group.finished_variants()
        if (run := variant.runs.get(seed))
    ]
    frame = make_frame(["Seed", "Loss", *map(_name, keys), "Run"], cells)
    return Table(f"runs-{group.slug}", f"{group.title}: each run, percent", frame, 2, formats=("csv",))


def classes_table(group: Group) -> Table:
    """Every class of one group, from many training images to few."""
    compared, classes, rows = group.compared_variants(), group.classes(), group.rows()
    columns: list[str | tuple[str, ...]] = [("Class",), ("Original index",), ("Part",), ("Training images",)]
    columns += [(label, name) for label, _ in rows for name in ("Accuracy", "Precision")]
    columns += [(f"{variant.label} − {group.baseline_title}", "Accuracy") for variant in compared]
    values = [variant.by_class(key) for _, variant in rows for key in ("accuracy", "precision")]
    differences = [group.class_differences(variant) for variant in compared]
    cells = [
        [
            *(classes.names[k], classes.originals[k], "tail" if classes.tail[k] else "head", classes.counts[k]),
            *(percent_cell(found[k], digits=1) for found in values),
            *(percent_cell(found[k], digits=1, sign="+") for found in differences),
        ]
        for k in classes.order
    ]
    title = f"{group.title}: each class, percent, means over seeds"
    return Table(f"classes-{group.slug}", title, make_frame(columns, cells), 4, formats=("csv",))


def _name(metric: str) -> str:
    return DEFINITIONS[metric][0]


def _metrics(group: Group) -> list[str]:
    """The metrics that a run of the group has; without A_Last where it equals A_Mean."""
    known = [key for key in DEFINITIONS if any(run.metrics.get(key) is not None for run in group.runs)]
    return [key for key in known if key != "a_last" or not group.even_tests]


def _place(group: Group) -> Place:
    return (group.dataset_title, group.task_sizes)


@cache
def paper_table() -> dict[tuple[str, str, int, str], Any]:
    """(method, dataset, tasks, loss) → `a_mean` and `a_tail` of the paper as fractions."""
    file, keys = Path(__file__).with_name("paper_ptm_table.csv"), ["method", "dataset", "tasks", "loss"]
    return {row.Index: row for row in (pd.read_csv(file, comment="#", index_col=keys) / 100).itertuples()}


def paper_numbers(group: Group, variant: Variant, any_setting: bool = False) -> Any:
    """The paper's numbers for dataset, method, tasks and loss; of another setting than the paper's only on request."""
    found = paper_table().get((group.method, group.dataset, len(group.task_sizes), variant.loss))
    return found if found and (any_setting or not departures(group, variant)) else None


def departures(group: Group, variant: Variant) -> list[str]:
    """What differs from the paper's setting, for a dataset and method of the paper."""
    record, sizes, classes = variant.record, group.task_sizes, CARDS[group.dataset].classes
    found = ["a quick run of a few steps"] if record.quick else []
    if sum(sizes) != classes:
        found.append(f"{number(sum(sizes), 'class', 'classes')} instead of {classes}")
    elif max(sizes) - min(sizes) > 1:
        found.append(f"tasks of {' + '.join(map(str, sizes))} classes instead of equal ones")
    if group.fidelity != "pilot":
        found.append(f"fidelity {group.fidelity} instead of pilot")
    epochs = record.method.settings.get("tuned_epoch")
    if epochs != EPOCHS:
        found.append(f"{epochs or 'an unknown number of'} epochs instead of {EPOCHS}")
    if not record.backbone.name.removeprefix("pretrained_").startswith(BACKBONE):
        found.append(f"backbone {record.backbone.name} instead of {BACKBONE}")
    # The other settings that are not the defaults of method, dataset and loss.
    other_split = record.data.checksum not in (None, _manifest(group.dataset).checksum)
    skipped = {*_OF_GROUP, "tuned_epoch", "backbone", *(() if other_split else _OF_DATA)}
    found += [
        f"{name} {_plain(value)}" + ("" if default is None else f" instead of {_plain(default)}")
        for name, (value, default) in record.changed.items()
        if name not in skipped
    ]
    named = record.changed.keys() & _OF_DATA or sum(sizes) != classes
    return [*found, "another split of the images"] if other_split and not named else found


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)

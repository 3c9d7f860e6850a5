"""Read runs and sort them into groups and variants, each with a name, a colour and its references."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from data_lt.errors import UserError
from data_lt.files import given_path
from data_lt.split import Recipe
from pilot_tal.record.run_dir import Run, find_runs, load_run
from pilot_tal.record.run_record import NO_LOSS, RunRecord, flat
from pilot_tal.results.findings import Finding
from pilot_tal.results.formats import clean, slug
from pilot_tal.results.study import BASELINE, Group, Reference, Study, Values, Variant

# Okabe and Ito's palette, distinct for colour-blind readers, and a few more.
_COLOURS = {NO_LOSS: "#7f7f7f", BASELINE: "#0072b2", "tal": "#d55e00"}
_OTHER_COLOURS = (
    *("#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#a6761d", "#66a61e", "#e7298a"),
    *("#1b9e9e", "#7a0177", "#b15928", "#525252"),
)
_SHOWN_AS = {"tuned_epoch": "epochs", "data.seed": "split_seed"}  # names that a user types
_CHECKSUM = "data.checksum"
_DIGEST = re.compile(r"(?:^|(?<=@))([0-9a-f]{8})[0-9a-f]{8,}$")  # a checksum, or one behind a file's name


Runs = Study | Iterable[str | Path]


def load_study(paths: Runs, baseline: str = BASELINE) -> Study:
    """Read all runs at or below `paths`; a study is returned as it is, with its own baseline.

    A run below a given folder that cannot be read is left out and named in the remarks; one that was given raises.
    """
    if isinstance(paths, Study):
        return paths
    given = [given_path(path, "the folder of the runs") for path in paths]
    runs: list[Run] = []
    remarks: list[Finding] = []
    failure: UserError | None = None
    for path in find_runs(given):
        try:
            run = load_run(path)
            _ = run.metrics  # computed from the predictions here, so that a run without any is left out
            runs.append(run)
        except UserError as error:
            if path in given:
                raise
            failure = failure or error
            remarks.append(Finding("unreadable_run", "warning", {"run": clean(path.name), "reason": clean(error)}))
    if failure and not runs:
        raise failure
    full = [run for run in runs if not run.record.quick]
    if any(run.finished for run in full) and len(full) < len(runs):
        remarks.append(Finding("quick_runs", "note", {"n": len(runs) - len(full)}))
        runs = full
    study = Study(_sort(runs, remarks), remarks)
    return study if baseline == BASELINE else study.with_baseline(baseline)


def _sort(runs: Sequence[Run], remarks: list[Finding]) -> list[Group]:
    """Sort runs into groups and variants, and name them; a run that repeats another is left out with a remark."""
    found: dict[tuple, Group] = {}
    variants: dict[tuple, Variant] = {}
    for run in runs:
        record, stream = run.record, run.record.stream
        # The same for all seeds, whose class orders differ.
        data = tuple(sorted(zip(stream.class_order, stream.class_names, stream.train_counts, strict=True)))
        rho = stream.task_rho  # with it the counts of a class depend on its task, and so on the seed
        images = data if rho == 1 else (rho, record.data.checksum)
        key = (record.data.name, record.method.name, stream.task_sizes, record.method.fidelity, images)
        group = found.setdefault(key, Group(record, data))
        shared, own = _values(record)
        identity = (key, record.engine.name, record.loss.name, shared, own)
        variant = variants.setdefault(identity, Variant(record, shared, own))
        if variant not in group.variants:
            group.variants.append(variant)
        if not run.finished:
            variant.unfinished.append(run)
        elif (first := variant.runs.setdefault(record.seed, run)) is not run:
            names = {"run": clean(run.path.name), "first": clean(first.path.name)}
            remarks.append(Finding("repeated_run", "warning", names))
    groups = sorted(found.values(), key=_group_order)
    _give_colours([*variants.values()])
    for group in groups:
        group.variants.sort(key=_variant_order)
        kin = [mate for mate in _alike(group, groups) if mate.method == group.method]
        _label_variants(group.variants, [variant for mate in kin for variant in mate.variants])
        _note_data(group, groups)
    for group in groups:
        group.references = [*_references(group, _alike(group, groups))]
    _name_files(groups, lambda g: f"{g.dataset} {g.data_note} {g.method} {g.tasks_title} {g.fidelity}")
    return groups


def _values(record: RunRecord) -> tuple[Values, Values]:
    """The settings that shape the result, as texts: those apart from the loss, and the options of the loss."""
    recipe = {field.name: record.data.recipe.get(field.name) for field in fields(Recipe)}
    shared = {**record.conditions(), "data": {"checksum": record.data.checksum, **recipe}}
    return tuple(sorted(flat(shared))), tuple(sorted(flat(record.loss.options)))


def _alike(group: Group, groups: Sequence[Group]) -> list[Group]:
    return [mate for mate in groups if (mate.dataset, mate.data) == (group.dataset, group.data)]


def _references(group: Group, alike: Sequence[Group]) -> Iterator[Reference]:
    """Training-free methods with the same tasks and ViT; those with another fidelity only, too."""
    vits = {_vit(variant) for variant in group.finished_variants() if variant.trains}
    others = [mate for mate in alike if mate.task_sizes == group.task_sizes and mate.method != group.method]
    own = {other.method for other in others if other.fidelity == group.fidelity}
    for other in others:
        if other.fidelity == group.fidelity or other.method not in own:
            for variant in other.finished_variants():
                if not variant.trains and _vit(variant) in vits:
                    extra = f" ({variant.options_label})" if variant.options_label else ""
                    yield Reference(f"{other.method_title}{extra}", variant)


def _vit(variant: Variant) -> tuple:
    vit = variant.record.backbone
    return (vit.name, vit.weights, vit.img_size)


def _give_colours(variants: list[Variant]) -> None:
    losses = dict.fromkeys(v.loss for v in sorted(variants, key=_loss_order) if v.loss not in _COLOURS)
    colours = _COLOURS | {loss: _OTHER_COLOURS[i % len(_OTHER_COLOURS)] for i, loss in enumerate(losses)}
    for variant in variants:
        variant.colour = colours[variant.loss]


def _loss_order(variant: Variant) -> tuple:
    """Training-free, CE, TAL and its variants, then the others by their titles."""
    loss = variant.loss
    return (variant.trains, loss != BASELINE, not loss.startswith("tal"), variant.loss_title, loss)


def _variant_order(variant: Variant) -> tuple:
    engine = (variant.engine != "native", clean(variant.record.engine.title))
    return (engine, variant.shared, _loss_order(variant), variant.own)


def _group_order(group: Group) -> tuple:
    names = (group.dataset_title, group.dataset, group.method_title, group.method)
    return (*names, len(group.task_sizes), group.task_sizes, group.fidelity, group.data)


def _label_variants(variants: list[Variant], kin: list[Variant]) -> None:
    """Name variants by their loss and the settings that tell them from their `kin`: those of their data and method."""
    engines = {variant.engine for variant in variants}
    for variant in variants:
        mates = [mate for mate in kin if mate.engine == variant.engine]
        own = [mate.own for mate in mates if mate.loss == variant.loss]
        variant.options_label = _distinct([mate.shared for mate in mates], variant.shared)
        variant.own_options_label = _distinct(own, variant.own)
        engine = variant.record.engine.title if len(engines) > 1 else ""
        extra = ", ".join(filter(None, (engine, variant.options_label, variant.own_options_label)))
        variant.label = clean(f"{variant.loss_title} ({extra})" if extra else variant.loss_title)
    _name_files(variants, lambda variant: variant.label)


def _distinct(mates: list[Values], values: Values) -> str:
    """`key=value` for each key on which the mates differ, the checksum of the data only if nothing else tells it."""
    common = set.intersection(*map(set, mates))
    data = {tuple(pair for pair in mate if pair[0].startswith("data.")) for mate in mates}
    recipes = {tuple(pair for pair in pairs if pair[0] != _CHECKSUM) for pairs in data}
    told = {_CHECKSUM} if len(recipes) == len(data) else {}
    shown = [(key, value) for key, value in values if (key, value) not in common and key not in told]
    return ", ".join(f"{_SHOWN_AS.get(k, k.split('.')[-1])}=" + _DIGEST.sub(r"\1", value) for k, value in shown)


def _note_data(group: Group, groups: Sequence[Group]) -> None:
    """Note what distinguishes the data from those of groups with the same dataset and number of classes."""
    alike = [mate.data for mate in groups if (mate.dataset, len(mate.data)) == (group.dataset, len(group.data))]
    counts = {data: [count for *_, count in data] for data in alike}
    ranges = [f"{min(found)}–{max(found)} images per class" for found in counts.values()]
    if len(counts) > 1:
        place = [*counts].index(group.data)
        group.data_note = ranges[place] if len({*ranges}) == len(ranges) else f"data {place + 1}"


def _name_files(items: Sequence[Any], name: Callable[[Any], str]) -> None:
    taken: set[str] = set()
    for item in items:
        base = slug(name(item))
        candidates = (base, *(f"{base}-{i}" for i in range(2, len(items) + 1)))
        item.slug = next(c for c in candidates if c not in taken)
        taken.add(item.slug)

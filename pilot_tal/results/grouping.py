"""Read runs and sort them into groups and variants, each with a name, a colour and its references."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from data_lt import CARDS
from data_lt.errors import UserError
from data_lt.files import given_path
from data_lt.split import Recipe
from pilot_tal.record.run_dir import RESULT, Run, damaged, find_runs, load_run
from pilot_tal.record.run_record import NO_LOSS, RunRecord, flat
from pilot_tal.results.findings import Finding
from pilot_tal.results.formats import clean, slug
from pilot_tal.results.groups import BASELINE, Group, Reference, Values, Variant
from pilot_tal.results.paper import method_place
from pilot_tal.results.study import Study

# Okabe and Ito's palette, distinct for colour-blind readers, and a few more.
_COLOURS = {NO_LOSS: "#7f7f7f", BASELINE: "#0072b2", "tal": "#d55e00"}
_OTHER_COLOURS = (
    *("#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#a6761d", "#66a61e", "#e7298a"),
    *("#1b9e9e", "#7a0177", "#b15928", "#525252"),
)
_SHOWN_AS = {"tuned_epoch": "epochs", "seed": "split_seed"}  # names that a user types
_CHECKSUM = "data.checksum"
_DIGEST = re.compile(r"(?:^|(?<=@))([0-9a-f]{8})[0-9a-f]{8,}$")  # a checksum, or one behind a file's name


def load_study(paths: Study | Iterable[str | Path], baseline: str = BASELINE) -> Study:
    """Read all runs at or below `paths`; a study is returned as it is, with its own baseline.

    A run below a given folder that cannot be read is left out and named in the remarks.

    Args:
        paths: Run directories, or folders of them.
        baseline: The loss that the others are compared with.

    Raises:
        UserError: a path is no folder, a run that was given itself cannot be read, or none can; or no run was trained
            with a baseline other than CE.
    """
    if isinstance(paths, Study):
        return paths
    given = [given_path(path, "the folder of the runs") for path in paths]
    runs: list[Run] = []
    failures: dict[Path, UserError] = {}
    for path in find_runs(given):
        try:
            runs.append(_read(path))
        except UserError as error:
            if path in given:
                raise
            failures[path] = error
    if not runs:
        raise next(iter(failures.values()))
    left_out = [
        Finding("unreadable_run", "warning", {"run": clean(path.name), "reason": clean(error)})
        for path, error in failures.items()
    ]
    study = make_study(runs, left_out)
    return study if baseline == BASELINE else study.with_baseline(baseline)


def make_study(runs: Sequence[Run], left_out: Iterable[Finding] = ()) -> Study:
    """Sort runs into groups and variants; `left_out` are findings on runs that are not among them."""
    found: dict[tuple, Group] = {}
    variants: dict[tuple, Variant] = {}
    remarks = list(left_out)
    full = [run for run in runs if not run.record.quick]
    if any(run.finished for run in full) and len(full) < len(runs):
        remarks.append(Finding("quick_runs", "note", {"n": len(runs) - len(full)}))
        runs = full
    for run in runs:
        record, data = run.record, _data(run.record)
        rho = record.stream.task_rho  # with it the counts of a class depend on its task, and so on the seed
        images = data if rho == 1 else (rho, record.data.checksum)
        key = (record.data.name, record.method.name, record.stream.task_sizes, record.method.fidelity, images)
        group = found.setdefault(key, Group(record, data))
        shared, own = _values(record)
        identity = (key, record.engine.name, record.loss.name, shared, own)
        if identity not in variants:
            variants[identity] = Variant(record, shared, own)
            group.variants.append(variants[identity])
        variant = variants[identity]
        if not run.finished:
            variant.unfinished.append(run)
        elif (first := variant.runs.setdefault(record.seed, run)) is not run:
            names = {"run": clean(run.path.name), "first": clean(first.path.name)}
            remarks.append(Finding("repeated_run", "warning", names))
    groups = sorted(found.values(), key=_group_order)
    _give_colours([variant for group in groups for variant in group.variants])
    for group in groups:
        group.variants.sort(key=_variant_order)
        kin = [mate for mate in groups if (mate.dataset, mate.method) == (group.dataset, group.method)]
        _label_variants(group.variants, [variant for mate in kin for variant in mate.variants])
    _note_data(groups)
    for group in groups:
        group.references = sorted(_references(group, groups), key=lambda reference: reference.joint)
    bounds = {reference.variant for group in groups for reference in group.references if reference.joint}
    for group in groups:
        group.is_bound = not bounds.isdisjoint(group.variants)
    _name_files(groups, lambda g: f"{g.dataset} {g.data_note} {g.method} {g.tasks_title} {g.fidelity}")
    return Study(groups, remarks)


def _read(path: Path) -> Run:
    """Read a run and compute its metrics, so that a damaged one is found here."""
    run = load_run(path)
    try:
        _ = run.metrics  # computed from the predictions, and kept
    except UserError as error:
        raise damaged(path / RESULT, str(error)) from error
    return run


def _data(record: RunRecord) -> tuple[tuple[int, str, int], ...]:
    """The same for all seeds, whose class orders differ."""
    stream = record.stream
    return tuple(sorted(zip(stream.class_order, stream.class_names, stream.train_counts, strict=True)))


def _values(record: RunRecord) -> tuple[Values, Values]:
    """The settings that shape the result, as texts: those apart from the loss, and the options of the loss."""
    recipe = {field.name: record.data.recipe.get(field.name) for field in fields(Recipe)}
    data = {"checksum": record.data.checksum, **_as_typed(recipe)}
    shared = {**_as_typed(record.conditions()), "data": data}
    return tuple(sorted(flat(shared))), tuple(sorted(flat(record.loss.options)))


def _as_typed(values: dict[str, Any]) -> dict[str, Any]:
    return {_SHOWN_AS.get(name, name): value for name, value in values.items()}


def _references(group: Group, groups: Sequence[Group]) -> Iterator[Reference]:
    """Training-free methods on the same data and tasks, and the method itself on one task, all with the same ViT."""
    trained = [variant for variant in group.finished_variants() if variant.trains]
    alike = [other for other in groups if (other.dataset, other.data) == (group.dataset, group.data)]
    own = {other.method for other in alike if (other.fidelity, other.task_sizes) == (group.fidelity, group.task_sizes)}
    for other in alike if trained else ():
        same_fidelity = other.fidelity == group.fidelity
        joint = other.method == group.method and same_fidelity and len(other.task_sizes) == 1 < len(group.task_sizes)
        free = other.method != group.method and other.task_sizes == group.task_sizes
        if not joint and not (free and (same_fidelity or other.method not in own)):
            continue
        for variant in other.finished_variants():
            same_vit = any(_vit(variant) == _vit(mate) for mate in trained)
            if variant.trains == joint and same_vit:
                extra = f" ({variant.options_label})" if variant.options_label else ""
                title = f"Joint: {variant.label}" if joint else f"{other.method_title}{extra}"
                yield Reference(title, variant, joint)


def _vit(variant: Variant) -> tuple:
    vit = variant.record.backbone
    return (vit.name, vit.weights, vit.img_size)


def _give_colours(variants: list[Variant]) -> None:
    """Give each loss one colour in all plots."""
    losses = dict.fromkeys(v.loss for v in sorted(variants, key=_loss_order) if v.loss not in _COLOURS)
    colours = _COLOURS | {loss: _OTHER_COLOURS[i % len(_OTHER_COLOURS)] for i, loss in enumerate(losses)}
    for variant in variants:
        variant.colour = colours[variant.loss]


def _loss_order(variant: Variant) -> tuple:
    """Training-free, CE, TAL and its variants, then the others by their titles."""
    places = {NO_LOSS: 0, BASELINE: 1}
    return (places.get(variant.loss, 2 if variant.loss.startswith("tal") else 3), variant.loss_title, variant.loss)


def _variant_order(variant: Variant) -> tuple:
    engine = (variant.engine != "native", clean(variant.record.engine.title))
    return (engine, variant.shared, _loss_order(variant), variant.own)


def _group_order(group: Group) -> tuple:
    known = list(CARDS)
    dataset = known.index(group.dataset) if group.dataset in known else len(known)
    names = (dataset, group.dataset_title, group.dataset, method_place(group))
    tasks = len(group.task_sizes)
    return (*names, tasks == 1, tasks, group.task_sizes, group.fidelity, group.data)


def _label_variants(variants: list[Variant], kin: list[Variant]) -> None:
    """Name each variant by its loss and the settings that tell it from its `kin`: those of its dataset and method."""
    engines = {variant.engine for variant in variants}
    for variant in variants:
        mates, others = ([a for a in group if a.engine == variant.engine] for group in (variants, kin))
        options = _distinct([a.shared for a in mates], [a.shared for a in others], variant.shared)
        variant.options_label = ", ".join(options)
        own, own_others = ([a.own for a in group if a.loss == variant.loss] for group in (mates, others))
        variant.own_options_label = ", ".join(_distinct(own, own_others, variant.own))
        engine = variant.record.engine.title if len(engines) > 1 else ""
        extra = ", ".join(filter(None, (engine, variant.options_label, variant.own_options_label)))
        variant.label = clean(f"{variant.loss_title} ({extra})" if extra else variant.loss_title)
    _name_files(variants, lambda variant: variant.label)


def _distinct(mates: list[Values], kin: list[Values], values: Values) -> list[str]:
    """`key=value` for each key on which the kin do not agree; those of the data count among mates only."""
    here, everywhere = (set.intersection(*map(set, group)) for group in (mates, kin))
    different = [pair for pair in values if pair not in (here if pair[0].startswith("data.") else everywhere)]
    if _recipes_tell(mates):
        different = [pair for pair in different if pair[0] != _CHECKSUM]
    return [f"{key.split('.')[-1]}=" + _DIGEST.sub(r"\1", value) for key, value in different]


def _recipes_tell(mates: list[Values]) -> bool:
    """Whether each recipe of the data has one checksum, which then needs no mention."""
    data = {tuple(pair for pair in values if pair[0].startswith("data.")) for values in mates}
    return len({tuple(pair for pair in pairs if pair[0] != _CHECKSUM) for pairs in data}) == len(data)


def _note_data(groups: Sequence[Group]) -> None:
    """Note what distinguishes the data of groups with the same dataset and number of classes."""
    kinds: dict[tuple[str, int], list[tuple]] = {}
    for group in groups:
        kind = kinds.setdefault((group.dataset, len(group.data)), [])
        kind += [group.data] if group.data not in kind else []
    for group in groups:
        data = kinds[group.dataset, len(group.data)]
        counts = [[count for *_, count in classes] for classes in data]
        ranges = [f"{min(c)}–{max(c)} images per class" for c in counts]
        notes = ranges if len({*ranges}) == len(data) else [f"data {i}" for i in range(1, len(data) + 1)]
        group.data_note = notes[data.index(group.data)] if len(data) > 1 else ""


def _name_files(items: Sequence[Any], name: Callable[[Any], str]) -> None:
    """Give each item a unique file name."""
    taken: set[str] = set()
    for item in items:
        base = slug(name(item))
        candidates = (base, *(f"{base}-{i}" for i in range(2, len(items) + 1)))
        item.slug = next(c for c in candidates if c not in taken)
        taken.add(item.slug)

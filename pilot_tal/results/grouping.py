"""Read runs and sort them into groups and variants."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from data_lt import CARDS
from data_lt.errors import UserError
from data_lt.files import given_path
from data_lt.split import Recipe
from pilot_tal.record.run_dir import RECORD, RESULT, Run, damaged, find_runs, load_run
from pilot_tal.record.run_record import NO_LOSS, RunRecord, flat
from pilot_tal.results.display import clean
from pilot_tal.results.findings import Finding
from pilot_tal.results.groups import BASELINE, Group, Reference, Values, Variant
from pilot_tal.results.labels import label_variants, name_files, note_data
from pilot_tal.results.paper import method_place
from pilot_tal.results.study import Study

# Okabe and Ito's palette, distinct for colour-blind readers, and a few more.
_COLOURS = {NO_LOSS: "#7f7f7f", BASELINE: "#0072b2", "tal": "#d55e00"}
_OTHER_COLOURS = (
    *("#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#a6761d", "#66a61e", "#e7298a"),
    *("#1b9e9e", "#7a0177", "#b15928", "#525252"),
)
_SHOWN_AS = {"tuned_epoch": "epochs", "seed": "split_seed"}  # names that a user types


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
    groups: dict[tuple, Group] = {}
    variants: dict[tuple, Variant] = {}
    remarks = list(left_out)
    for run in runs:
        record, data = run.record, _data(run.record)
        rho = record.stream.task_rho  # with it the counts of a class depend on its task, and so on the seed
        images = data if rho == 1 else (rho, record.data.checksum)
        key = (record.data.name, record.method.name, record.stream.task_sizes, record.method.fidelity, images)
        group = groups.setdefault(key, Group(record, data))
        shared, own = _values(record)
        identity = (record.engine.name, record.loss.name, shared, own)
        if (key, identity) not in variants:
            variants[key, identity] = Variant(record, shared, own)
            group.variants.append(variants[key, identity])
        _add(variants[key, identity], run, remarks)
    ordered = sorted(groups.values(), key=_group_order)
    everything = [variant for group in ordered for variant in group.variants]
    _count(everything)
    _colour(everything)
    kinds: dict[tuple, list[Group]] = {}
    for group in ordered:
        kinds.setdefault((group.dataset, group.method), []).append(group)
    for group in ordered:
        group.variants.sort(key=_variant_order)
        kin = kinds[group.dataset, group.method]
        label_variants(group.variants, [variant for mate in kin for variant in mate.variants])
    note_data(ordered)
    for group in ordered:
        group.references = [*_training_free(group, ordered), *_joint(group, kinds[group.dataset, group.method])]
    bounds = {reference.variant for group in ordered for reference in group.references if reference.joint}
    for group in ordered:
        group.is_bound = not bounds.isdisjoint(group.variants)
    name_files(ordered, lambda g: f"{g.dataset} {g.data_note} {g.method} {g.tasks_title} {g.fidelity}")
    return Study(ordered, remarks)


def _read(path: Path) -> Run:
    """Read a run and compute its metrics, so that a damaged one is found here."""
    run = load_run(path)
    changed = run.record.changed.values()
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in changed):
        raise damaged(path / RECORD, "changed must have the value and the default of each setting")
    try:
        _ = run.metrics  # computed from the predictions, and kept
    except UserError as error:
        raise damaged(path / RESULT, str(error)) from error
    return run


def _is_finished(run: Run) -> bool:
    return run.finished and run.tasks_done == run.record.num_tasks


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


def _add(variant: Variant, run: Run, remarks: list[Finding]) -> None:
    seed = run.record.seed
    if not _is_finished(run):
        variant.unfinished.append(run)
    elif seed in variant.runs:
        names = {"run": clean(run.path.name), "first": clean(variant.runs[seed].path.name)}
        remarks.append(Finding("repeated_run", "warning", names))
    else:
        variant.runs[seed] = run


def _training_free(group: Group, groups: Sequence[Group]) -> Iterator[Reference]:
    """Training-free variants of other methods, on the same data, tasks and ViT."""
    trained = [variant for variant in group.finished_variants() if variant.trains]
    for other in groups if trained else ():
        if other.method != group.method and _stream(other) == _stream(group):
            for variant in other.finished_variants():
                same_vit = any(_vit(variant) == _vit(mate) for mate in trained)
                if not variant.trains and same_vit and variant.counts >= max(mate.counts for mate in trained):
                    extra = f" ({variant.options_label})" if variant.options_label else ""
                    yield Reference(f"{other.method_title}{extra}", variant, joint=False)


def _joint(group: Group, groups: Sequence[Group]) -> Iterator[Reference]:
    """The variants of the same method that learned all classes in one task."""
    kind = (group.dataset, group.data, group.method, group.fidelity)
    for other in groups if len(group.task_sizes) > 1 else ():
        if len(other.task_sizes) == 1 and (other.dataset, other.data, other.method, other.fidelity) == kind:
            for variant in other.finished_variants():
                mates = [mate for mate in group.finished_variants() if mate.trains]
                if variant.trains and any(
                    _vit(variant) == _vit(mate) and variant.counts >= mate.counts for mate in mates
                ):
                    yield Reference(f"Joint: {variant.label}", variant, joint=True)


def _stream(group: Group) -> tuple:
    return (group.dataset, group.data, group.task_sizes)


def _vit(variant: Variant) -> tuple:
    vit = variant.record.backbone
    return (vit.name, vit.weights, vit.img_size)


def _count(variants: list[Variant]) -> None:
    """Let quick runs count only where no other run has finished."""
    others = any(variant.runs and not variant.record.quick for variant in variants)
    for variant in variants:
        variant.counts = not (variant.record.quick and others)


def _colour(variants: list[Variant]) -> None:
    """One colour per loss in all plots; CE, TAL and training-free methods have theirs in every report."""
    others = [
        loss
        for loss in dict.fromkeys(variant.loss for variant in sorted(variants, key=_loss_order))
        if loss not in _COLOURS
    ]
    colours = _COLOURS | {loss: _OTHER_COLOURS[i % len(_OTHER_COLOURS)] for i, loss in enumerate(others)}
    for variant in variants:
        variant.colour = colours[variant.loss]


def _loss_order(variant: Variant) -> tuple:
    """Training-free, CE, TAL and its variants, then the others by their titles."""
    places = {NO_LOSS: 0, BASELINE: 1}
    return (places.get(variant.loss, 2 if variant.loss.startswith("tal") else 3), variant.loss_title, variant.loss)


def _variant_order(variant: Variant) -> tuple:
    engine = (variant.engine != "native", clean(variant.record.engine.title))
    return (engine, variant.record.quick, variant.shared, _loss_order(variant), variant.own)


def _group_order(group: Group) -> tuple:
    known = list(CARDS)
    dataset = known.index(group.dataset) if group.dataset in known else len(known)
    names = (dataset, group.dataset_title, group.dataset, method_place(group))
    tasks = len(group.task_sizes)
    return (*names, tasks == 1, tasks, group.task_sizes, group.fidelity, group.data)

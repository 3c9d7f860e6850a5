"""Reads runs and sorts them into settings and arms."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from data_lt import CARDS
from data_lt.errors import UserError
from data_lt.files import given_path
from data_lt.split import Recipe
from pilot_tal.metrics import ALWAYS, misfits, summarize
from pilot_tal.record.run_dir import RECORD, RESULT, Run, damaged, find_runs, load_run
from pilot_tal.record.run_record import NO_LOSS, RunRecord, flat
from pilot_tal.results.display import clean
from pilot_tal.results.labels import label_arms, name_files, note_data
from pilot_tal.results.paper import method_place
from pilot_tal.results.study import BASELINE, Arm, Reference, Setting, Study, Values
from pilot_tal.results.tal_state import read_states

# Okabe and Ito's palette, which stays apart for colour-blind readers, and a few more.
_COLOURS = {NO_LOSS: "#7f7f7f", BASELINE: "#0072b2", "tal": "#d55e00"}
_OTHER_COLOURS = (
    *("#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#a6761d", "#66a61e", "#e7298a"),
    *("#1b9e9e", "#7a0177", "#b15928", "#525252"),
)
_SHOWN_AS = {"tuned_epoch": "epochs", "seed": "split_seed"}  # names that a user types


def load_study(paths: Study | Iterable[str | Path]) -> Study:
    """Reads all runs at or below `paths`; what was read before is passed through.

    A run found below a folder that cannot be read is left out and named in the remarks.

    Raises:
        UserError: a path is no folder, a run that was given itself cannot be read, or none can.
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
    left_out = (f"Left out, for it cannot be read: {clean(path.name)}. {clean(e)}." for path, e in failures.items())
    return make_study(runs, left_out)


def make_study(runs: Sequence[Run], left_out: Iterable[str] = ()) -> Study:
    """Sorts runs into settings and arms; `left_out` are remarks on runs that are not among them."""
    settings: dict[tuple, Setting] = {}
    arms: dict[tuple, Arm] = {}
    remarks = list(left_out)
    for run in runs:
        record, data = run.record, _data(run.record)
        key = (record.data.name, record.method.name, record.stream.task_sizes, record.method.fidelity, data)
        setting = settings.setdefault(key, Setting(record, data))
        shared, own = _values(record)
        identity = (record.engine.name, record.loss.name, shared, own)
        if (key, identity) not in arms:
            arms[key, identity] = Arm(record, shared, own)
            setting.arms.append(arms[key, identity])
        _add(arms[key, identity], run, remarks)
    ordered = sorted(settings.values(), key=_setting_order)
    everything = [arm for setting in ordered for arm in setting.arms]
    _count(everything)
    _colour(everything)
    for setting in ordered:
        setting.arms.sort(key=_arm_order)
        kin = [s for s in ordered if (s.dataset, s.method) == (setting.dataset, setting.method)]
        label_arms(setting.arms, [arm for s in kin for arm in s.arms])
    note_data(ordered)
    for setting in ordered:
        setting.references = [*_untrained(setting, ordered), *_joint(setting, ordered)]
    bounds = {reference.arm for setting in ordered for reference in setting.references if reference.joint}
    for setting in ordered:
        setting.is_bound = not bounds.isdisjoint(setting.arms)
    name_files(ordered, lambda s: f"{s.dataset} {s.data_note} {s.method} {s.tasks_title} {s.fidelity}")
    return Study(ordered, remarks)


def _read(path: Path) -> Run:
    """Reads a run and all that the report needs of it, so that what is broken shows here."""
    run = load_run(path)
    read_states(run)
    changed = run.record.changed.values()
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in changed):
        raise damaged(path / RECORD, "changed must tell the value and the default of each setting")
    if not _is_finished(run):
        return run
    stream = run.record.stream
    if any(key not in run.metrics for key in ALWAYS):  # written when there were fewer metrics
        metrics = summarize(run.predictions, stream.task_sizes, stream.train_counts, stream.class_order)
        run = replace(run, metrics=metrics)
    if wrong := misfits(run.metrics, stream.task_sizes):
        raise damaged(path / RESULT, f"its metrics do not fit the tasks: {wrong[0]}")
    return run


def _is_finished(run: Run) -> bool:
    return run.finished and run.tasks_done == run.record.num_tasks


def _data(record: RunRecord) -> tuple[tuple[int, str, int], ...]:
    """The same for all seeds, whose class orders differ."""
    stream = record.stream
    return tuple(sorted(zip(stream.class_order, stream.class_names, stream.train_counts, strict=True)))


def _values(record: RunRecord) -> tuple[Values, Values]:
    """What shaped the result, as texts: apart from the loss, and the options of the loss."""
    recipe = {field.name: record.data.recipe.get(field.name) for field in fields(Recipe)}
    data = {"checksum": record.data.checksum, **_as_typed(recipe)}
    shared = {**_as_typed(record.conditions()), "data": data}
    return tuple(sorted(flat(shared))), tuple(sorted(flat(record.loss.options)))


def _as_typed(values: dict[str, Any]) -> dict[str, Any]:
    return {_SHOWN_AS.get(name, name): value for name, value in values.items()}


def _add(arm: Arm, run: Run, remarks: list[str]) -> None:
    seed = run.record.seed
    if not _is_finished(run):
        arm.unfinished.append(run)
    elif seed in arm.runs:
        remarks.append(f"{clean(run.path.name)} repeats {clean(arm.runs[seed].path.name)} and was left out.")
    else:
        arm.runs[seed] = run


def _untrained(setting: Setting, settings: Sequence[Setting]) -> Iterator[Reference]:
    """Arms of other methods that train nothing, on the same data, tasks and ViT."""
    trained = [arm for arm in setting.finished_arms() if arm.trains]
    for other in settings if trained else ():
        if other.method != setting.method and _stream(other) == _stream(setting):
            for arm in other.finished_arms():
                same_vit = any(_vit(arm) == _vit(mate) for mate in trained)
                if not arm.trains and same_vit and arm.counts >= max(mate.counts for mate in trained):
                    extra = ", ".join(filter(None, (arm.loss_title, arm.variant)))
                    yield Reference(f"{other.method_title} ({extra})", arm, joint=False)


def _joint(setting: Setting, settings: Sequence[Setting]) -> Iterator[Reference]:
    """The arms of the same method that saw all classes in one task."""
    kind = (setting.dataset, setting.data, setting.method, setting.fidelity)
    for other in settings if len(setting.task_sizes) > 1 else ():
        if len(other.task_sizes) == 1 and (other.dataset, other.data, other.method, other.fidelity) == kind:
            for arm in other.finished_arms():
                mates = [mate for mate in setting.finished_arms() if mate.trains]
                if arm.trains and any(_vit(arm) == _vit(mate) and arm.counts >= mate.counts for mate in mates):
                    yield Reference(f"Joint: {arm.label}", arm, joint=True)


def _stream(setting: Setting) -> tuple:
    return (setting.dataset, setting.data, setting.task_sizes)


def _vit(arm: Arm) -> tuple:
    vit = arm.record.backbone
    return (vit.name, vit.weights, vit.img_size)


def _count(arms: list[Arm]) -> None:
    """Lets quick runs count only where no other run has finished."""
    others = any(arm.runs and not arm.record.quick for arm in arms)
    for arm in arms:
        arm.counts = not (arm.record.quick and others)


def _colour(arms: list[Arm]) -> None:
    """One colour for a loss in all plots; CE, TAL and what trains nothing have theirs in every report."""
    others = [loss for loss in dict.fromkeys(arm.loss for arm in sorted(arms, key=_loss_order)) if loss not in _COLOURS]
    colours = _COLOURS | {loss: _OTHER_COLOURS[i % len(_OTHER_COLOURS)] for i, loss in enumerate(others)}
    for arm in arms:
        arm.colour = colours[arm.loss]


def _loss_order(arm: Arm) -> tuple:
    """What trains nothing, CE, TAL and its kin, then the others by their titles."""
    places = {NO_LOSS: 0, BASELINE: 1}
    return (places.get(arm.loss, 2 if arm.loss.startswith("tal") else 3), arm.loss_title, arm.loss)


def _arm_order(arm: Arm) -> tuple:
    engine = (arm.engine != "native", clean(arm.record.engine.title))
    return (engine, arm.record.quick, arm.shared, _loss_order(arm), arm.own)


def _setting_order(setting: Setting) -> tuple:
    known = list(CARDS)
    dataset = known.index(setting.dataset) if setting.dataset in known else len(known)
    names = (dataset, setting.dataset_title, setting.dataset, method_place(setting))
    tasks = len(setting.task_sizes)
    return (*names, tasks == 1, tasks, setting.task_sizes, setting.fidelity, setting.data)

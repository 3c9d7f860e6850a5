"""The conditions of a comparison: what was run, on which data, with which software."""

from collections.abc import Sequence

from pilot_tal.record.run_record import RunRecord
from pilot_tal.results.display import clean, number
from pilot_tal.results.formats import Table, make_frame
from pilot_tal.results.groups import Group, Variant

_MOST_VALUES = 4
_SETTINGS = {
    "Epochs": ("tuned_epoch",),
    "Batch size": ("batch_size",),
    "Optimizer": ("optimizer",),
    "Learning rate": ("init_lr", "scheduler"),
}


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
    return {name: _joined([*values]) for name, values in found.items() if values}


def caption(groups: Sequence[Group]) -> str:
    """The conditions as one sentence, for captions in LaTeX."""
    return "; ".join(f"{name}: {value}" for name, value in conditions(groups, path=False).items()) + "."


def conditions_table(groups: Sequence[Group], name: str) -> Table:
    """The conditions as a table of two columns."""
    frame = make_frame(["Condition", "Value"], list(conditions(groups).items()))
    return Table(name, "Conditions", frame, labels=2)


def _of(group: Group, variant: Variant) -> dict[str, str]:
    record = variant.record
    backbone, stream, settings = record.backbone, record.stream, record.method.settings
    weights = backbone.weights + (f", checksum {backbone.checksum[:12]}" if backbone.checksum else "")
    chosen = {
        name: ", ".join(str(settings[key]) for key in keys if key in settings) if variant.trains else ""
        for name, keys in _SETTINGS.items()
    }
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
        **chosen,
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


def _joined(values: list[str]) -> str:
    more = len(values) - _MOST_VALUES
    return " / ".join(values[:_MOST_VALUES]) + (f" / {more} more" if more > 0 else "")

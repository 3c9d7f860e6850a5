"""Writes a run's model as a folder that can be handed on."""

from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_lt.errors import UserError
from data_lt.files import checksum, given_path, staged_folder, write_text
from pilot_tal.engine.checkpoint import write_tensors
from pilot_tal.metrics import summarize, tail_classes
from pilot_tal.model.card import model_card
from pilot_tal.model.load import (
    ABOUT,
    CARD,
    GRAPH,
    LEARNER,
    VIT,
    AboutModel,
    load_model,
    refuse_inside_run,
)
from pilot_tal.model.model import Model
from pilot_tal.record.run_dir import RECORD, Run, load_run, write_sealed
from pilot_tal.record.run_record import RunRecord
from pilot_tal.version import __version__

SCORES = "shares of one that rank the classes of an image; they are not calibrated probabilities"
_PACKAGES = ("torch", "torchvision", "timm", "safetensors", "pillow")


def export_model(
    run: str | Path,
    output: str | Path,
    *,
    after_task: int | None = None,
    with_backbone: bool = False,
    onnx: bool = False,
    weights: str | Path | None = None,
) -> Path:
    """Writes the model of a run into the folder `output`, which appears whole or not at all.

    Args:
        run: The run directory.
        output: A new folder; one with hidden files alone, such as those of git, will do.
        after_task: The model as it was after so many tasks; None: after the last.
        with_backbone: Include the ViT's weights, so that nothing else is needed.
        onnx: Also write the whole classifier as one ONNX graph.
        weights: The file of the ViT's weights, if it is not found where the run had it.

    Returns:
        The folder.
    """
    run, output = given_path(run, "the run"), given_path(output, "--output")
    if output.exists() and not (output.is_dir() and all(file.name.startswith(".") for file in output.iterdir())):
        raise UserError(f"{output} exists already; give a new folder")
    refuse_inside_run(output)
    if onnx:
        from pilot_tal.model.graph import check_packages, write_graph

        check_packages()
    model = load_model(run, after_task, weights, device="cpu")
    if not (run / RECORD).is_file():
        raise UserError(f"{run} is an exported model already; give the run directory that it came from")
    stored = load_run(run)
    with staged_folder(output) as folder:
        write_tensors(folder / LEARNER, model.learner.export_tensors())
        if with_backbone:
            write_tensors(folder / VIT, model.learner.backbone.network.state_dict())
        if onnx:
            write_graph(model, folder / GRAPH)
        about = _about(model, stored, {file.name: checksum(file) for file in sorted(folder.iterdir())})
        write_sealed(folder / ABOUT, asdict(about))
        write_text(folder / CARD, model_card(about, [model.note] if model.note else []))
    return output


def _about(model: Model, stored: Run, files: dict[str, str]) -> AboutModel:
    record, stream, done = model.record, model.record.stream, model.tasks_done
    predictions, steps = stored.labels[:done], getattr(model.transform, "transforms", [model.transform])
    tail = set(tail_classes(stream.train_counts, stream.class_order).tolist())
    tasks = [task for task, size in enumerate(stream.task_sizes) for _ in range(size)]
    return AboutModel(
        record=_publishable(record),
        tasks_done=done,
        files=files,
        classes=tuple(
            {"name": name, "training_images": count, "part": "tail" if label in tail else "head", "task": task + 1}
            for label, (name, count, task) in enumerate(zip(model.classes, stream.train_counts, tasks, strict=False))
        ),
        input={
            "pixels": list(model.learner.backbone.img_size),
            "channels": "RGB, values from 0 to 1",
            "normalize": stream.normalize,
            "steps": [" ".join(repr(step).split()) for step in steps],
        },
        scores=SCORES,
        metrics=summarize(predictions, stream.task_sizes, stream.train_counts, stream.class_order),
        versions=_versions(record),
    )


def _publishable(record: RunRecord) -> RunRecord:
    """Returns the record without machine-specific entries: where it ran, and where files were."""
    changed = {
        key: [Path(value).name if isinstance(value, str) and ("/" in value or "\\" in value) else value, default]
        for key, (value, default) in record.changed.items()
    }
    return replace(record, environment=(), changed=changed)


def _versions(record: RunRecord) -> dict[str, Any]:
    last = record.environment[-1] if record.environment else {}
    return {
        "trained": {key: last.get(key) for key in ("pilot_tal", "commit", "python", "packages")},
        "exported": {"pilot_tal": __version__, "packages": {name: version(name) for name in _PACKAGES}},
    }

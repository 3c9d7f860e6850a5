"""Writes a run's model as a folder that can be handed on, with a model card, and uploads it to the Hugging Face hub."""

import os
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from data_lt import CARDS
from data_lt.errors import UserError, one_line
from data_lt.files import checksum, given_path, staged_folder, write_text
from pilot_tal.engine.checkpoint import write_tensors
from pilot_tal.learners import LEARNERS
from pilot_tal.metrics import DEFINITIONS, summarize, tail_classes
from pilot_tal.model.load import (
    ABOUT,
    CARD,
    LEARNER,
    SCHEME,
    VIT,
    AboutModel,
    hub_errors,
    load_model,
    parse_address,
    refuse_inside_run,
)
from pilot_tal.model.model import Model
from pilot_tal.record.run_dir import RECORD, load_run, write_sealed
from pilot_tal.record.run_record import NO_LOSS, flat
from pilot_tal.version import INSTALL

SCORES = "shares of one that rank the classes of an image; they are not calibrated probabilities"
TEMPLATE = Path(__file__).with_name("card.md.j2")
_HEADLINES = {"a_mean": "A_Mean", "a_tail": "A_Tail", "a_head": "A_Head", "worst_class": "Worst class"}
_METRICS = ("a_mean", "a_tail", "a_head", "harmonic_mean", "a_last", "a_avg", "forgetting")
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$-])")


def export_model(
    run: str | Path,
    output: str | Path,
    *,
    after_task: int | None = None,
    with_backbone: bool = False,
    weights: str | Path | None = None,
) -> Path:
    """Writes the model of a run into the folder `output`, which appears whole or not at all.

    Args:
        run: The run directory.
        output: A new folder; one with hidden files alone, such as those of git, will do.
        after_task: The model as it was after so many tasks; None: after the last.
        with_backbone: Include the ViT's weights, so that nothing else is needed.
        weights: The file of the ViT's weights, if it is not found where the run had it.

    Returns:
        The folder.
    """
    run, output = given_path(run, "the run"), given_path(output, "--output")
    if output.exists() and not (output.is_dir() and all(file.name.startswith(".") for file in output.iterdir())):
        raise UserError(f"{output} exists already; give a new folder")
    refuse_inside_run(output)
    model = load_model(run, after_task, weights, device="cpu")
    if not (run / RECORD).is_file():
        raise UserError(f"{run} is an exported model already; give the run directory that it came from")
    with staged_folder(output) as folder:
        write_tensors(folder / LEARNER, model.learner.export_tensors())
        if with_backbone:
            write_tensors(folder / VIT, model.learner.backbone.network.state_dict())
        about = _about(model, {file.name: checksum(file) for file in sorted(folder.iterdir())})
        write_sealed(folder / ABOUT, asdict(about))
        write_text(folder / CARD, model_card(about, [model.note] if model.note else []))
    return output


def push_export(folder: Path, repo: str, private: bool = True) -> str:
    """Uploads an exported folder as one commit and returns its address, pinned to that commit.

    Args:
        folder: What `export_model` wrote.
        repo: `user/name`; created if it is not there.
        private: Visibility of a repository that is created; one that exists keeps its own.
    """
    from huggingface_hub import HfApi

    name, revision = parse_address(repo)
    if revision is not None:
        raise UserError(f"--push takes a repository without a revision, such as {name}")
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="pilot-tal")
    with hub_errors(f"cannot push to {name}"):
        api.create_repo(name, private=private, exist_ok=True)
        what: dict[str, Any] = {"folder_path": folder, "allow_patterns": [ABOUT, LEARNER, VIT, CARD]}
        commit = api.upload_folder(repo_id=name, commit_message="Upload with pilot-tal", **what)
    return f"{SCHEME}{name}@{commit.oid}"


def weights_note(about: AboutModel) -> str:
    """Where `predict` gets the ViT's weights from."""
    backbone = about.record.backbone
    if VIT in about.files:
        return "The ViT's weights are in this folder."
    if backbone.weights == "hub":
        return f"predict needs the ViT's weights: {backbone.name} from timm's hub, or --weights FILE."
    if "@" not in backbone.weights or backbone.name == "demo_vit":
        return "The ViT comes with pilot-tal."
    return f"predict needs the ViT's weights: give the file {backbone.weights.partition('@')[0]} with --weights FILE."


def _about(model: Model, files: dict[str, str]) -> AboutModel:
    record, stream, done = model.record, model.record.stream, model.tasks_done
    steps = getattr(model.transform, "transforms", [model.transform])
    tail = set(tail_classes(stream.train_counts, stream.class_order).tolist())
    tasks = [task for task, size in enumerate(stream.task_sizes) for _ in range(size)]
    trained = record.environment[-1] if record.environment else {}
    labels = load_run(model.path).labels[:done]
    changed = {
        key: [Path(value).name if isinstance(value, str) and ("/" in value or "\\" in value) else value, default]
        for key, (value, default) in record.changed.items()
    }
    return AboutModel(
        record=replace(record, environment=(), changed=changed),  # without paths of this machine
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
        metrics=summarize(labels, stream.task_sizes, stream.train_counts, stream.class_order),
        versions={"trained": {key: trained.get(key) for key in ("pilot_tal", "commit", "python", "packages")}},
    )


def model_card(about: AboutModel, notes: Sequence[str] = ()) -> str:
    """The text of README.md, in the format of the hub; names are escaped, `notes` go to the section on limits."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    record, metrics, task = about.record, about.metrics, "image-classification"
    dataset, name = one_line(record.data.title), one_line(record.data.name)
    trained = record.loss.name != NO_LOSS
    source = {"Licence": "not stated; ask the author of this model about the images."}
    if record.data.name in CARDS:
        facts = CARDS[record.data.name]
        source = {"Source": facts.source, "Licence": facts.licence, "Citation": facts.citation}
    limits = [*record.notes, *notes]
    if unfinished := about.tasks_done < record.num_tasks:
        limits.append(f"This is the model after {about.tasks_done} of {record.num_tasks} tasks.")
    data = ModelCardData(
        model_name=record.name,
        library_name="pilot-tal",
        pipeline_tag=task,
        license="other",
        license_name="see-data-below",
        base_model=f"timm/{record.backbone.name}" if record.backbone.weights == "hub" else None,
        tags=["class-incremental-learning", "long-tailed", record.method.name, *[record.loss.name] * trained],
        eval_results=[
            EvalResult(task, name, dataset, "accuracy", round(100 * metrics[key], 2), metric_name=metric)
            for key, metric in _HEADLINES.items()
            if metrics.get(key) is not None
        ],
    )
    card = ModelCard.from_template(
        data,
        template_str=TEMPLATE.read_text(encoding="utf-8"),
        about=about,
        record=record,
        metrics=metrics,
        counts=record.stream.train_counts,
        title=f"{record.method.title}{f' with {record.loss.title}' * trained} on {dataset}",
        unfinished=unfinished,
        install=INSTALL,
        plugin=not LEARNERS[record.method.name].__module__.startswith("pilot_tal."),
        weights=weights_note(about),
        source={key: text for key, text in source.items() if text},
        scalars=[(metrics[key], *DEFINITIONS[key]) for key in _METRICS if metrics.get(key) is not None],
        limits=[*limits, "It always returns one of its classes, also for images that show none of them."],
        md=_escaped,
        code=_code,
        percent=lambda value: "–" if value is None else f"{100 * value:.2f}",
        values=lambda values: _code(", ".join(f"{name}={value}" for name, value in flat(values))),
    )
    return str(card)


def _escaped(text: object) -> str:
    """`text` as Markdown prints it literally, also inside a table."""
    plain = one_line(str(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", plain)


def _code(text: Any) -> str:
    """A code span, without backticks in it."""
    return f"`{one_line(str(text)).replace('`', '') or ' '}`"

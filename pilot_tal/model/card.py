"""The model card of an exported model, in the format of the Hugging Face hub."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_lt import CARDS
from data_lt.errors import one_line
from pilot_tal.learners import LEARNERS
from pilot_tal.metrics import DEFINITIONS
from pilot_tal.model.load import GRAPH, VIT, AboutModel
from pilot_tal.record.run_record import NO_LOSS, flat
from pilot_tal.version import INSTALL

TEMPLATE = Path(__file__).with_name("card.md.j2")
_METRICS = ("a_mean", "a_tail", "a_head", "harmonic_mean", "a_last", "a_avg", "forgetting")
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$-])")


def model_card(about: AboutModel, notes: Sequence[str] = ()) -> str:
    """The text of README.md; names of classes and datasets are escaped.

    Args:
        about: The content of `model.json`.
        notes: Sentences for the section on limits.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    record, metrics, task = about.record, about.metrics, "image-classification"
    headlines = {"a_mean": "A_Mean", "a_tail": "A_Tail", "a_head": "A_Head", "worst_class": "Worst class"}
    dataset, name = one_line(record.data.title), one_line(record.data.name)
    loss = "" if record.loss.name == NO_LOSS else f" with {record.loss.title}"
    source = {"Licence": "not stated; ask the author of this model about the images."}
    if record.data.name in CARDS:
        facts = CARDS[record.data.name]
        source = {"Source": facts.source, "Licence": facts.licence, "Citation": facts.citation}
    unfinished = about.tasks_done < record.num_tasks
    limits = [*record.notes, *notes]
    if unfinished:
        limits.append(f"This is the model after {about.tasks_done} of {record.num_tasks} tasks.")
    data = ModelCardData(
        model_name=record.name,
        library_name="pilot-tal",
        pipeline_tag=task,
        license="other",
        license_name="see-data-below",
        base_model=f"timm/{record.backbone.name}" if record.backbone.weights == "hub" else None,
        tags=["class-incremental-learning", "long-tailed", one_line(record.method.name)]
        + [one_line(record.loss.name)] * bool(loss),
        eval_results=[
            EvalResult(task, name, dataset, "accuracy", round(100 * metrics[key], 2), metric_name=metric)
            for key, metric in headlines.items()
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
        title=f"{record.method.title}{loss} on {dataset}",
        unfinished=unfinished,
        install=INSTALL,
        plugin=not LEARNERS[record.method.name].__module__.startswith("pilot_tal."),
        weights=weights_note(about),
        graph=GRAPH if GRAPH in about.files else "",
        source={key: text for key, text in source.items() if text},
        scalars=[(metrics[key], *DEFINITIONS[key]) for key in _METRICS if metrics.get(key) is not None],
        limits=[*limits, "It always returns one of its classes, also for images that show none of them."],
        md=_escaped,
        code=_code,
        percent=lambda value: "–" if value is None else f"{100 * value:.2f}",
        values=lambda values: _code(", ".join(f"{name}={value}" for name, value in flat(values))),
    )
    return str(card)


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


def _escaped(text: object) -> str:
    """`text` as Markdown prints it literally, also inside a table."""
    plain = one_line(str(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", plain)


def _code(text: Any) -> str:
    """A code span, without backticks in it."""
    return f"`{one_line(str(text)).replace('`', '') or ' '}`"

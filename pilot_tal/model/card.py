"""The model card: what a stranger must know, in the format that the Hugging Face hub reads."""

from typing import Any

import yaml

from data_lt import CARDS
from pilot_tal.learners import LEARNERS
from pilot_tal.metrics import DEFINITIONS
from pilot_tal.model.alone import Disagreement, sentence
from pilot_tal.model.stored import GRAPH, VIT, AboutModel
from pilot_tal.record.run_dir import Run
from pilot_tal.record.run_record import NO_LOSS, RunRecord, flat
from pilot_tal.results import load_study
from pilot_tal.results.display import clean, percent
from pilot_tal.results.formats import markdown
from pilot_tal.results.sentences import setting_caveats, study_caveats
from pilot_tal.schema import build

_HEADLINES = ("a_mean", "a_tail", "a_head", "worst_class")
_METRICS = ("a_mean", "a_tail", "a_head", "harmonic_mean", "a_last", "a_avg", "forgetting")


def model_card(about: AboutModel, run: Run) -> str:
    """The text of README.md. Every name in it comes from outside and is escaped."""
    parts = [
        f"---\n{yaml.safe_dump(_metadata(about), allow_unicode=True, sort_keys=False)}---",
        f"# {_title(about.record)}",
        *_what(about),
        *_use(about),
        *_data(about.record),
        *_metrics(about),
        *_training(about),
        *_limits(about, run),
        *_classes(about),
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(about: AboutModel) -> dict[str, Any]:
    record, metrics = about.record, about.metrics
    results = [
        {"type": "accuracy", "name": name, "value": round(100 * metrics[key], 2)}
        for key, name in (
            ("a_mean", "A_Mean"),
            ("a_tail", "A_Tail"),
            ("a_head", "A_Head"),
            ("worst_class", "Worst class"),
        )
        if metrics.get(key) is not None
    ]
    result = {
        "task": {"type": "image-classification"},
        "dataset": {"name": clean(record.data.title), "type": clean(record.data.name)},
        "metrics": results,
    }
    tags = ["class-incremental-learning", "long-tailed", clean(record.method.name), clean(record.loss.name)]
    metadata: dict[str, Any] = {
        "library_name": "pilot-tal",
        "pipeline_tag": "image-classification",
        "license": "other",
        "license_name": "see-data-below",
        "tags": [tag for tag in tags if tag != NO_LOSS],
    }
    if record.backbone.weights == "hub":
        metadata["base_model"] = f"timm/{clean(record.backbone.name)}"
    return metadata | {"model-index": [{"name": record.name, "results": [result]}]}


def _title(record: RunRecord) -> str:
    loss = "" if record.loss.name == NO_LOSS else f" with {markdown(record.loss.title)}"
    return f"{markdown(record.method.title)}{loss} on {markdown(record.data.title)}"


def _what(about: AboutModel) -> list[str]:
    record = about.record
    unfinished = "" if about.tasks_done == record.num_tasks else f" of {record.num_tasks}"
    return [
        f"An image classifier of {len(about.classes)} classes, learned in {about.tasks_done}{unfinished} tasks one "
        f"after the other, on a frozen ViT ({_code(record.backbone.name)}, SHA-256 of its tensors "
        f"{_code(record.backbone.checksum)}). Its scores are {about.scores}."
    ]


def _use(about: AboutModel) -> list[str]:
    source = about.record.backbone.weights
    if VIT in about.files:
        where = "The ViT's weights are in this folder."
    elif source == "hub":
        where = "The ViT's weights come from timm's hub."
    elif "@" not in source or about.record.backbone.name == "demo_vit":
        where = "The ViT comes with pilot-tal."
    else:
        where = (
            f"The ViT's weights are not in this folder: give the file {_code(source.partition('@')[0])} with --weights."
        )
    plugged = not LEARNERS[about.record.method.name].__module__.startswith("pilot_tal.")
    if plugged:
        where = (
            f"The method {_code(about.record.method.name)} is not of pilot-tal itself: FILE is the module that "
            f"registers it, in Python import it first; neither is needed where it is installed as a package. {where}"
        )
    lines = [
        "## Use it",
        f"```bash\npip install pilot-tal\npilot-tal predict . photo.jpg{' --plugins FILE' * plugged}\n```",
        '```python\nfrom pilot_tal import load_model\n\nload_model(".").predict(["photo.jpg"])[0].label\n```',
        where,
    ]
    if GRAPH in about.files:
        height, width = about.input["pixels"]
        lines.append(
            f"`{GRAPH}` is the whole classifier as a graph: `images` [batch, 3, {height}, {width}], RGB from 0 to 1 "
            "and not normalised, to `scores`; the names of the classes are in its metadata. Images are cropped first, "
            f"as `model.json` says: {_code('; '.join(about.input['steps']))}."
        )
    return lines


def _data(record: RunRecord) -> list[str]:
    counts = record.stream.train_counts
    lines = [
        "## Data",
        f"{markdown(record.data.title)}: {sum(counts):,} training images of {len(counts)} classes, {max(counts)} "
        f"of the largest and {min(counts)} of the smallest (SHA-256 of the list {_code(record.data.checksum)}).",
    ]
    if record.data.name in CARDS:
        card = CARDS[record.data.name]
        facts = {"Source": card.source, "Licence": card.licence, "Citation": card.citation}
        lines.append("\n".join(f"- {name}: {markdown(text)}" for name, text in facts.items() if text))
    else:
        lines.append("- Licence: not known to the program that wrote this card; ask where the images come from.")
    return lines


def _metrics(about: AboutModel) -> list[str]:
    metrics = about.metrics
    rows = [(metrics[key], *DEFINITIONS[key]) for key in _METRICS if metrics.get(key) is not None]
    worst = about.classes[metrics["worst_class_label"]]["name"]
    table = [f"| {markdown(name)} | {percent(value)} | {markdown(text)} |" for value, name, text in rows]
    table.append(f"| Worst class | {percent(metrics['worst_class'])} | {markdown(worst)} |")
    images = sum(metrics["per_class"]["test_images"])
    return [
        "## Metrics",
        f"In percent, on {images:,} test images after task {about.tasks_done}.",
        "\n".join(["| | % | |", "|---|---|---|", *table]),
    ]


def _training(about: AboutModel) -> list[str]:
    record, stream, method = about.record, about.record.stream, about.record.method
    sizes, backbone = ", ".join(map(str, stream.task_sizes)), record.backbone
    facts = {
        "Method": f"{markdown(method.title)}, fidelity {method.fidelity} {_values(method.settings)}",
        "Loss": f"{markdown(record.loss.title)} {_values(record.loss.options)}",
        "Stream": f"seed {record.seed}, order {_code(stream.order)}, tasks of {sizes} classes",
        "Images": f"transform {_code(stream.transform)}, normalize {_code(stream.normalize)}",
        "ViT": f"{_code(backbone.name)}, weights {_code(backbone.weights)}, precision {backbone.precision}",
        "Versions": _values(about.versions),
    }
    return ["## How it was trained", "\n".join(f"- {name}: {text}" for name, text in facts.items())]


def _limits(about: AboutModel, run: Run) -> list[str]:
    """What the report on this run warns of, and what a user of the model meets."""
    study = load_study([run.path])
    found = [caveat for setting in study.settings for caveat in setting_caveats(setting)]
    found += [*study_caveats(study), *about.record.notes]
    if about.tasks_done < about.record.num_tasks:
        found.append(f"This is the model after {about.tasks_done} of {about.record.num_tasks} tasks.")
    if about.alone:
        found.append(sentence(about.record.method.title, build(Disagreement, about.alone)))
    found.append(
        "It always answers with one of its classes, also for images that show none of them; rare classes have been "
        "tested on few images."
    )
    return ["## Limits", "\n".join(f"- {markdown(text)}" for text in dict.fromkeys(found))]


def _classes(about: AboutModel) -> list[str]:
    recall = about.metrics["per_class"]["accuracy"]
    rows = [
        f"| {label} | {markdown(one['name'])} | {one['training_images']} | {one['part']} | {one['task']} | "
        f"{percent(recall[label])} |"
        for label, one in enumerate(about.classes)
    ]
    head = ["| index | class | training images | part | task | accuracy % |", "|---|---|---|---|---|---|"]
    return ["## Classes", "\n".join([*head, *rows])]


def _code(text: object) -> str:
    """A code span; a name with backticks in it loses them."""
    return f"`{clean(text).replace('`', '') or ' '}`"


def _values(values: dict[str, Any]) -> str:
    return _code(", ".join(f"{name}={value}" for name, value in flat(values)))

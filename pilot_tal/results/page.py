"""The HTML page: one file with everything in it, names escaped by the template engine."""

import base64
import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pilot_tal.metrics import DEFINITIONS
from pilot_tal.results.ablation import featured_variants
from pilot_tal.results.display import clean, interval, listed, number, percent, points
from pilot_tal.results.formats import Table
from pilot_tal.results.sentences import group_caveats, lead_sentences, study_caveats
from pilot_tal.results.study import Group, Study, Variant
from pilot_tal.results.svg import Plot, inline

RELOAD_SECONDS = 30
_FURTHER_DEFINITIONS = (
    ("Accuracy of a class", "share of its test images that are right, which is its recall"),
    ("Precision of a class", "share of the images predicted as the class that belong to it"),
    ("Task × task", "accuracy on the images of one task's classes after each task"),
    ("Mean ± deviation", "over the finished runs with different seeds; sample standard deviation"),
    (
        "Change against the baseline",
        "mean over seeds of the paired difference of two runs with the same seed, class order and data; its "
        "95 % interval is mean ± t(0.975, n − 1)·s/√n, with s the standard deviation of the differences",
    ),
    (
        "Bold",
        "highest mean over seeds (lowest for forgetting) of a group; in the paper's layout the highest of "
        "a method, and underlined the highest of a column; among several options of a loss it is chosen after the fact",
    ),
)


@dataclass(frozen=True)
class Overview:
    """What the page shows of all groups together."""

    table: Table
    layout: Table
    unfinished: Table
    levels: list[Plot]
    differences: list[Plot]

    @property
    def plots(self) -> list[Plot]:
        """All of them."""
        return [*self.levels, *self.differences]


@dataclass(frozen=True)
class Section:
    """What the page shows of one group."""

    group: Group
    metrics: Table
    ablation: Table | None
    tasks: Table
    confused: Table
    seeds: Table
    classes: Table
    plots: list[Plot]

    @property
    def tables(self) -> tuple[Table, ...]:
        """All of them."""
        ablation = (self.ablation,) if self.ablation else ()
        return (self.metrics, *ablation, self.tasks, self.confused, self.seeds, self.classes)


def render(study: Study, overview: Overview, sections: list[Section], watched: bool = False) -> str:
    """The whole page; one that is `watched` loads itself again and again."""
    loader = PackageLoader("pilot_tal", "results")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    script = loader.get_source(environment, "page.js")[0]
    runs = [run for s in study.groups for variant in s.variants for run in variant.runs.values()]
    return environment.get_template("page.html.j2").render(
        title=_title(study),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        lead=lead_sentences(study),
        counts=f"{number(len(runs), 'finished run')}, {len(study.unfinished)} unfinished.",
        reload_seconds=RELOAD_SECONDS if watched else None,
        unfinished=overview.unfinished if study.unfinished else None,
        caveats=study_caveats(study),
        overview=overview if study.finished else None,
        show_paper_note=any(column[0].startswith("Paper") for column in overview.table.columns),
        levels=[_shown(plot, "overview", f"l{i}") for i, plot in enumerate(overview.levels)],
        differences=[_shown(plot, "overview", f"d{i}") for i, plot in enumerate(overview.differences)],
        sections=[_section(section, i) for i, section in enumerate(sections)],
        definitions=[*DEFINITIONS.values(), *_FURTHER_DEFINITIONS],
        runs=sorted(clean(run.path.name) for run in [*runs, *study.unfinished]),
    ).rstrip() + "\n"  # fmt: skip


def plot_file(folder: str, plot: Plot) -> str:
    """Where the plot lies as a file of its own, seen from the page."""
    return f"plots/{folder}/{plot.name}.svg"


def _title(study: Study) -> str:
    datasets = list(dict.fromkeys(clean(s.record.data.title) for s in study.groups))
    losses = list(dict.fromkeys(a.loss_title for s in study.groups for a in s.variants if a.trains))
    losses = losses or list(dict.fromkeys(s.method_title for s in study.groups))
    return f"{listed(losses)} on {', '.join(datasets)}"


def _section(section: Section, index: int) -> dict[str, Any]:
    group = section.group
    return {
        "slug": group.slug,
        "title": group.title,
        "facts": _facts(group),
        "caveats": group_caveats(group),
        "tiles": [_tiles(group, variant) for variant in _tiled_variants(group)],
        "references": _references(group),
        "metrics": section.metrics,
        "ablation": section.ablation,
        "folded": [
            ("After each task", section.tasks),
            ("Most confused pairs", section.confused),
            ("Each run", section.seeds),
            ("Each class", section.classes),
        ],
        "plots": [_shown(plot, group.slug, f"s{index}p{i}") for i, plot in enumerate(section.plots)],
        "data": _class_data(group),
    }


def _tiled_variants(group: Group) -> list[Variant]:
    shown = featured_variants(group)
    return [variant for variant in group.compared_variants() if variant in shown]


def _references(group: Group) -> str:
    """What the variants are to be measured against."""
    found = [(r, r.variant.spread("a_mean"), r.variant.spread("a_tail")) for r in group.references]
    told = [
        f"{reference.title} {percent(mean.mean, 1)} % (tail {percent(tail.mean, 1) if tail else '–'} %)"
        for reference, mean, tail in found
        if mean
    ]
    return f"To measure it against, A_Mean: {', '.join(told)}." if told else ""


def _class_data(group: Group) -> dict[str, Any]:
    """What the page's script shows of a class, from many training images to few, as in the table of classes."""
    classes, variants = group.classes(), featured_variants(group)
    order = classes.rank[::-1]
    return {
        "names": [classes.names[k] for k in order],
        "images": classes.counts[order].tolist(),
        "tail": classes.tail[order].tolist(),
        "variants": [variant.label for variant in variants],
        "accuracy": [_percents(variant.by_class("accuracy")[order]) for variant in variants],
        "precision": [_percents(variant.by_class("precision")[order]) for variant in variants],
    }


def _percents(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else round(100 * float(value), 2) for value in values]


def _facts(group: Group) -> str:
    sizes = group.task_sizes
    tasks = f"{len(sizes)} of {sizes[0]}" if len(set(sizes)) == 1 else " + ".join(map(str, sizes))
    engines = dict.fromkeys(clean(variant.record.engine.title) for variant in group.variants)
    tests = group.finished_variants()[0].runs
    images = sum(next(iter(tests.values())).metrics["per_class"]["test_images"])
    return (
        f"{sum(sizes)} classes in tasks: {tasks}. {images} test images. Fidelity {group.fidelity}. "
        f"Engine: {', '.join(engines)}.{_hidden_variants(group)}"
    )


def _hidden_variants(group: Group) -> str:
    hidden = len(group.finished_variants()) - len(shown := featured_variants(group))
    if not hidden:
        return ""
    names = ", ".join(variant.label for variant in shown)
    return f" Tiles and plots of single losses show {names}; the tables show {hidden} more, with other options."


def _tiles(group: Group, variant: Variant) -> dict[str, Any]:
    """The change of the tail, the head and all classes, large."""
    base, seeds = group.baseline(variant), group.pairs(variant)
    assert base is not None
    tiles = []
    for key, name in (("a_tail", "Tail (A_Tail)"), ("a_head", "Head (A_Head)"), ("a_mean", "All (A_Mean)")):
        found = group.difference(variant, key)
        before, after = (side.only(seeds).spread(key) for side in (base, variant))
        if found is None or before is None or after is None:
            continue
        tiles.append(
            {
                "name": name,
                "change": f"{points(found.mean, 1)} points",
                "interval": f"95 % interval {interval(found, 1)}" if found.n > 1 else "one seed: no interval",
                "levels": f"{percent(before.mean, 1)} → {percent(after.mean, 1)} %",
            }
        )
    return {
        "title": f"{variant.label} against {group.baseline_title}, {number(len(seeds), 'shared seed')}",
        "tiles": tiles,
    }


def _shown(plot: Plot, folder: str, prefix: str) -> dict[str, Any]:
    # The SVG is ours and its texts are escaped by Matplotlib: apart from our script, the one markup passed through.
    svg = Markup(inline(plot.svg, prefix))
    return {**vars(replace(plot, svg=svg)), "file": plot_file(folder, plot), "panels": json.dumps(plot.panels)}

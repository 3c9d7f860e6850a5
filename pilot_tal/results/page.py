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
from pilot_tal.results.ablation import featured_arms
from pilot_tal.results.display import clean, interval, listed, number, percent, points
from pilot_tal.results.formats import Table
from pilot_tal.results.sentences import lead_sentences, setting_caveats, study_caveats
from pilot_tal.results.study import BASELINE_TITLE, Arm, Setting, Study
from pilot_tal.results.svg import Plot, inline

RELOAD_SECONDS = 30
_FURTHER_DEFINITIONS = (
    ("Accuracy of a class", "share of its test images that are right, which is its recall"),
    ("Precision of a class", "share of the images predicted as the class that belong to it"),
    ("Task × task", "accuracy on the images of one task's classes after each task"),
    ("Mean ± deviation", "over the finished runs with different seeds; sample standard deviation"),
    (
        "Change against CE",
        "mean over seeds of the paired difference of two runs with the same seed, class order and data; its "
        "95 % interval is mean ± t(0.975, n − 1)·s/√n, with s the standard deviation of the differences",
    ),
    (
        "Bold",
        "highest mean over seeds (lowest for forgetting) of a setting; in the paper's layout the highest of "
        "a method, and underlined the highest of a column; among several options of a loss it is chosen after the fact",
    ),
)


@dataclass(frozen=True)
class Overview:
    """What the page shows of all settings together."""

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
    """What the page shows of one setting."""

    setting: Setting
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
    runs = [run for s in study.settings for arm in s.arms for run in arm.runs.values()]
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
    datasets = list(dict.fromkeys(clean(s.record.data.title) for s in study.settings))
    losses = list(dict.fromkeys(a.loss_title for s in study.settings for a in s.arms if a.trains))
    losses = losses or list(dict.fromkeys(s.method_title for s in study.settings))
    return f"{listed(losses)} on {', '.join(datasets)}"


def _section(section: Section, index: int) -> dict[str, Any]:
    setting = section.setting
    return {
        "slug": setting.slug,
        "title": setting.title,
        "facts": _facts(setting),
        "caveats": setting_caveats(setting),
        "tiles": [_tiles(setting, arm) for arm in _tiled_arms(setting)],
        "references": _references(setting),
        "metrics": section.metrics,
        "ablation": section.ablation,
        "folded": [
            ("After each task", section.tasks),
            ("Most confused pairs", section.confused),
            ("Each run", section.seeds),
            ("Each class", section.classes),
        ],
        "plots": [_shown(plot, setting.slug, f"s{index}p{i}") for i, plot in enumerate(section.plots)],
        "data": _class_data(setting),
    }


def _tiled_arms(setting: Setting) -> list[Arm]:
    shown = featured_arms(setting)
    return [arm for arm in setting.compared_arms() if arm in shown]


def _references(setting: Setting) -> str:
    """What the arms are to be measured against."""
    found = [(r, r.arm.spread("a_mean"), r.arm.spread("a_tail")) for r in setting.references]
    told = [
        f"{reference.title} {percent(mean.mean, 1)} % (tail {percent(tail.mean, 1) if tail else '–'} %)"
        for reference, mean, tail in found
        if mean
    ]
    return f"To measure it against, A_Mean: {', '.join(told)}." if told else ""


def _class_data(setting: Setting) -> dict[str, Any]:
    """What the page's script shows of a class, from many training images to few, as in the table of classes."""
    classes, arms = setting.classes(), featured_arms(setting)
    order = classes.rank[::-1]
    return {
        "names": [classes.names[k] for k in order],
        "images": classes.counts[order].tolist(),
        "tail": classes.tail[order].tolist(),
        "arms": [arm.label for arm in arms],
        "accuracy": [_percents(arm.by_class("accuracy")[order]) for arm in arms],
        "precision": [_percents(arm.by_class("precision")[order]) for arm in arms],
    }


def _percents(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else round(100 * float(value), 2) for value in values]


def _facts(setting: Setting) -> str:
    sizes = setting.task_sizes
    tasks = f"{len(sizes)} of {sizes[0]}" if len(set(sizes)) == 1 else " + ".join(map(str, sizes))
    engines = dict.fromkeys(clean(arm.record.engine.title) for arm in setting.arms)
    tests = setting.finished_arms()[0].runs
    images = sum(next(iter(tests.values())).metrics["per_class"]["test_images"])
    return (
        f"{sum(sizes)} classes in tasks: {tasks}. {images} test images. Fidelity {setting.fidelity}. "
        f"Engine: {', '.join(engines)}.{_hidden_arms(setting)}"
    )


def _hidden_arms(setting: Setting) -> str:
    hidden = len(setting.finished_arms()) - len(shown := featured_arms(setting))
    if not hidden:
        return ""
    names = ", ".join(arm.label for arm in shown)
    return f" Tiles and plots of single losses show {names}; the tables show {hidden} more, with other options."


def _tiles(setting: Setting, arm: Arm) -> dict[str, Any]:
    """The change of the tail, the head and all classes, large."""
    base, seeds = setting.baseline(arm), setting.pairs(arm)
    assert base is not None
    tiles = []
    for key, name in (("a_tail", "Tail (A_Tail)"), ("a_head", "Head (A_Head)"), ("a_mean", "All (A_Mean)")):
        found = setting.difference(arm, key)
        before, after = (side.only(seeds).spread(key) for side in (base, arm))
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
        "title": f"{arm.label} against {BASELINE_TITLE}, {number(len(seeds), 'shared seed')}",
        "tiles": tiles,
    }


def _shown(plot: Plot, folder: str, prefix: str) -> dict[str, Any]:
    # The SVG is ours and its texts are escaped by Matplotlib: apart from our script, the one markup passed through.
    svg = Markup(inline(plot.svg, prefix))
    return {**vars(replace(plot, svg=svg)), "file": plot_file(folder, plot), "panels": json.dumps(plot.panels)}

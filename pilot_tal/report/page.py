"""The HTML page: one file with everything in it, names escaped by the template engine."""

from dataclasses import dataclass, replace
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pilot_tal.metrics import DEFINITIONS
from pilot_tal.report.study import BASELINE, Arm, Setting, Study
from pilot_tal.report.svg import Plot, inline
from pilot_tal.report.table import Table
from pilot_tal.report.text import DATASETS, ENGINES, LOSSES, clean, interval, number, percent, points
from pilot_tal.report.words import lead_sentences, setting_caveats, study_caveats

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
        "a method, and underlined the highest of a column",
    ),
)


@dataclass(frozen=True)
class Section:
    """What the page shows of one setting."""

    setting: Setting
    metrics: Table
    seeds: Table
    classes: Table
    plots: list[Plot]


def render(study: Study, overview: Table, paper_layout: Table, plots: list[Plot], sections: list[Section]) -> str:
    """The whole page."""
    environment = Environment(loader=PackageLoader("pilot_tal", "report"), autoescape=True, undefined=StrictUndefined)
    runs = [result.run for s in study.settings for arm in s.arms for result in arm.results.values()]
    unfinished = [run for s in study.settings for arm in s.arms for run in arm.unfinished]
    return environment.get_template("page.html.j2").render(
        title=_title(study),
        lead=lead_sentences(study),
        counts=f"{number(len(runs), 'finished run')}, {len(unfinished)} unfinished.",
        caveats=study_caveats(study),
        overview=overview if study.finished else None,
        show_paper_note=any(column[0].startswith("Paper") for column in overview.columns),
        paper_layout=paper_layout,
        overview_plots=[_shown(plot, "overview", f"all{i}") for i, plot in enumerate(plots)],
        sections=[_section(section, i) for i, section in enumerate(sections)],
        definitions=[*DEFINITIONS.values(), *_FURTHER_DEFINITIONS],
        runs=sorted(clean(run.path.name) for run in [*runs, *unfinished]),
    ).rstrip() + "\n"  # fmt: skip


def plot_file(folder: str, plot: Plot) -> str:
    """Where the plot lies as a file of its own, seen from the page."""
    return f"plots/{folder}/{plot.name}.svg"


def _title(study: Study) -> str:
    datasets = list(dict.fromkeys(DATASETS.get(s.dataset, clean(s.dataset)) for s in study.settings))
    losses = list(dict.fromkeys(LOSSES.get(a.loss, clean(a.loss)) for s in study.settings for a in s.arms))
    return f"{' and '.join(filter(None, (', '.join(losses[:-1]), losses[-1])))} on {', '.join(datasets)}"


def _section(section: Section, index: int) -> dict[str, Any]:
    setting = section.setting
    return {
        "slug": setting.slug,
        "title": setting.title,
        "facts": _facts(setting),
        "caveats": setting_caveats(setting),
        "tiles": [_tiles(setting, arm) for arm in setting.compared_arms()],
        "metrics": section.metrics,
        "seeds": section.seeds,
        "classes": section.classes,
        "plots": [_shown(plot, setting.slug, f"s{index}p{i}") for i, plot in enumerate(section.plots)],
    }


def _facts(setting: Setting) -> str:
    sizes = setting.task_sizes
    tasks = f"{len(sizes)} of {sizes[0]}" if len(set(sizes)) == 1 else " + ".join(map(str, sizes))
    engines = dict.fromkeys(ENGINES.get(arm.engine, clean(arm.engine)) for arm in setting.arms)
    tests = setting.finished_arms()[0].results
    images = sum(next(iter(tests.values())).metrics["per_class"]["test_images"])
    return (
        f"{sum(sizes)} classes in tasks: {tasks}. {images} test images. Fidelity {clean(setting.fidelity)}. "
        f"Engine: {', '.join(engines)}."
    )


def _tiles(setting: Setting, arm: Arm) -> dict[str, Any]:
    """The change of the tail, the head and all classes, large."""
    base, seeds = setting.baseline(arm), setting.pairs(arm)
    assert base is not None
    tiles = []
    for key, name in (("a_tail", "Tail (A_Tail)"), ("a_head", "Head (A_Head)"), ("a_mean", "All (A_Mean)")):
        found = setting.difference(arm, key)
        if found is None:
            continue
        before, after = (side.only(seeds).spread(key) for side in (base, arm))
        tiles.append(
            {
                "name": name,
                "change": f"{points(found.mean, 1)} points",
                "interval": f"95 % interval {interval(found, 1)}" if found.n > 1 else "one seed: no interval",
                "levels": f"{percent(before.mean, 1)} → {percent(after.mean, 1)} %",
            }
        )
    return {
        "title": f"{arm.label} against {LOSSES[BASELINE]}, {number(len(seeds), 'shared seed')}",
        "tiles": tiles,
    }


def _shown(plot: Plot, folder: str, prefix: str) -> dict[str, Any]:
    # The SVG is ours and its texts are escaped by Matplotlib: the one place where markup is passed through.
    return {**vars(replace(plot, svg=Markup(inline(plot.svg, prefix)))), "file": plot_file(folder, plot)}

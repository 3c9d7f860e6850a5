"""The pages of the report, as HTML; names are escaped by the template engine."""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pilot_tal.metrics import DEFINITIONS
from pilot_tal.results import display
from pilot_tal.results.display import clean, listed
from pilot_tal.results.drawing import Plot
from pilot_tal.results.findings import Finding
from pilot_tal.results.formats import Table
from pilot_tal.results.groups import Group
from pilot_tal.results.options import featured_variants
from pilot_tal.results.study import Study

RELOAD_SECONDS = 30
ARCHIVE = "report.zip"


@dataclass
class Part:
    """What a page shows of the study, or of one group: tables in sight, tables to open, and plots as inline SVG."""

    folder: str
    conditions: Table
    findings: list[Finding]
    tables: list[Table]
    folded: list[tuple[str, Table]] = field(default_factory=list)
    plots: list[dict[str, Any]] = field(default_factory=list)
    group: Group | None = None

    def add(self, plot: Plot, files: Sequence[str]) -> None:
        """Add a plot as inline SVG; `files` are the formats it is also written in."""
        svg = Markup(plot.inline(f"{self.folder}-p{len(self.plots)}"))  # Matplotlib escapes the texts in it
        panels = json.dumps([panel.place() for panel in plot.panels])
        self.plots.append({**vars(plot), "svg": svg, "panels": panels, "files": files})


def render(study: Study, headline: list[Finding], overview: Part | None, section: Part | None, watched: bool) -> str:
    """A page: the overview, one group, or both for a study of one group; a `watched` one reloads itself."""
    environment = _environment()
    assert environment.loader is not None
    script = environment.loader.get_source(environment, "page.js")[0]
    return environment.get_template("page.html.j2").render(
        study=study,
        title=_title(study) if overview or section is None or section.group is None else section.group.title,
        headline=headline,
        overview=overview,
        section=section,
        data=_class_data(section.group) if section and section.group else None,
        tiled=_tiled(section.group) if section and section.group else [],
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        reload_seconds=RELOAD_SECONDS if watched else None,
        definitions=DEFINITIONS.values(),
        archive=ARCHIVE,
    ).rstrip() + "\n"  # fmt: skip


@cache
def _environment() -> Environment:
    loader = PackageLoader("pilot_tal", "results")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    names = ("points", "percent", "interval", "number", "clean")
    environment.filters |= {name: getattr(display, name) for name in names}
    return environment


def _title(study: Study) -> str:
    datasets = list(dict.fromkeys(clean(group.record.data.title) for group in study.groups))
    variants = [(group, variant) for group in study.groups for variant in group.variants]
    losses = list(dict.fromkeys(variant.loss_title for _, variant in variants if variant.trains))
    return f"{listed(losses or list(dict.fromkeys(g.method_title for g, _ in variants)))} on {', '.join(datasets)}"


def _tiled(group: Group) -> list[Any]:
    shown = featured_variants(group)
    return [variant for variant in group.compared_variants() if variant in shown]


def _class_data(group: Group) -> dict[str, Any]:
    """What the page's script shows of a class, from many training images to few, as in the table of classes."""
    classes, variants = group.classes(), featured_variants(group)
    order = classes.order
    return {
        "names": [classes.names[k] for k in order],
        "images": classes.counts[order].tolist(),
        "tail": classes.tail[order].tolist(),
        "variants": [variant.label for variant in variants],
        "accuracy": [_percents(variant.by_class("accuracy")[order]) for variant in variants],
    }


def _percents(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else round(100 * float(value), 2) for value in values]

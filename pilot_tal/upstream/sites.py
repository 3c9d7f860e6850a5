"""The toolboxes, their learners, and what happens to each of their cross-entropies; `toolboxes.json` has the facts."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_lt.errors import unknown_name

COLUMNS = {
    "masked": "all classes so far, old ones at −inf, labels as they are: the loss gets the columns of the task",
    "task": "the classes of the task, labels from 0: the loss gets them as they are",
    "seen": "all classes so far, old ones replayed: the loss gets them all, and TAL keeps its state",
}
"""Which logits and labels a learner gives its cross-entropy, and what the loss gets of them."""


@dataclass(frozen=True)
class Site:
    """One call of a cross-entropy: in which function, the call with the variables of each argument, on what data."""

    function: str
    call: str
    fate: str
    what: str

    @property
    def swap(self) -> bool:
        """Whether the loss takes its place."""
        return self.fate == "swapped"


@dataclass(frozen=True)
class Seam:
    """A function, `name(parameters)`, that the driver calls or replaces; "" stands for the top level of the file.

    `needs` lists attributes that it must set (`self.topk`), calls that it must make (`_train()`), or imports.
    """

    file: str
    function: str
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class LearnerSites:
    """A learner of a toolbox: its file, its class and its cross-entropies in the order of the file.

    Attributes:
        columns: One of `COLUMNS`.
        epochs: Settings with the number of epochs of the first and of later tasks; `a+b` is trained in turn.
        packages: What this learner alone imports.
        least: Training images a class must have.
        extra: Further seams.
    """

    file: str
    title: str
    sites: tuple[Site, ...]
    columns: str
    cls: str = "Learner"
    epochs: str = ""
    packages: tuple[str, ...] = ()
    least: int = 1
    extra: tuple[Seam, ...] = ()

    @property
    def growing(self) -> bool:
        """Whether old classes are replayed, so that a loss sees all classes so far."""
        return self.columns == "seen"

    @property
    def trains(self) -> bool:
        """Whether there is a loss to swap at all."""
        return any(site.swap for site in self.sites)

    @property
    def module(self) -> str:
        """The file as a module's name."""
        return self.file.removesuffix(".py").replace("/", ".")

    @property
    def seams(self) -> tuple[Seam, ...]:
        """What the driver relies on in the learner's own file, apart from the calls."""
        loaders = ("self.train_loader", "self.test_loader", "self._cur_task", "self._total_classes")
        train = Seam(self.file, f"{self.cls}.incremental_train(self, data_manager)", loaders)
        return (Seam(self.file, "", ("from torch.nn import functional as F",)), train, *self.extra)


@dataclass(frozen=True)
class Toolbox:
    """A toolbox: how to recognise it, what the driver relies on, and its supported learners."""

    engine: str
    title: str
    mark: str
    tested_commit: str
    seams: tuple[Seam, ...]
    learners: dict[str, LearnerSites]

    def learner(self, name: str) -> LearnerSites:
        """The learner called `name` in a config's `model_name`."""
        if name.lower() not in self.learners:
            raise unknown_name(f"learner of {self.title} (model_name)", name, self.learners)
        return self.learners[name.lower()]


_STATE = ("self.topk", "self._cur_task", "self._known_classes", "self._total_classes", "self._device")
_DATA = ("self._train_targets", "self._test_targets", "self._class_order", "self.use_path")
_SHARED = (
    Seam("trainer.py", "train(args)", ("_train()",)),
    Seam("trainer.py", "_train(args)", ("DataManager()", "model.incremental_train()", "model.eval_task()")),
    Seam("utils/data_manager.py", "DataManager._setup_data(self, dataset_name, shuffle, seed)",
         (*_DATA, "_get_idata()", "idata.download_data()")),
    Seam("utils/data_manager.py", "DataManager.get_task_size(self, task)"),
    Seam("utils/data_manager.py", "DataManager.nb_tasks(self)"),
    Seam("models/base.py", "BaseLearner.__init__(self, args)", _STATE),
    Seam("models/base.py", "BaseLearner._evaluate(self, y_pred, y_true)"),
    Seam("models/base.py", "BaseLearner._eval_cnn(self, loader)"),
    Seam("models/base.py", "BaseLearner._eval_nme(self, loader, class_means)"),
    Seam("models/base.py", "BaseLearner._construct_exemplar(self, data_manager, m)"),
    Seam("models/base.py", "BaseLearner._construct_exemplar_unified(self, data_manager, m)"),
)  # fmt: skip


def vit_module(backbone_type: str) -> str:
    """The module that builds LAMDA-PILOT's ViT of that type: one of its own, or timm's for a plain ViT."""
    for mark in ("memo", "ssf", "vpt", "adapter", "l2p", "dualprompt", "coda_prompt", "ease", "lae", "mos"):
        if f"_{mark}" in backbone_type.lower():
            return "backbone." + {"vpt": "vpt", "coda_prompt": "vit_coda_promtpt"}.get(mark, f"vit_{mark}")
    return "timm.models.vision_transformer"


def _read_seams(rows: list[list[str]]) -> tuple[Seam, ...]:
    return tuple(Seam(file, function, tuple(needs)) for file, function, *needs in rows)


def _read_learner(name: str, sites: list[list[str]], seams: list[list[str]] | None = None, **facts: Any):
    made = tuple(Site(*site) for site in sites)
    return LearnerSites(f"models/{name}.py", sites=made, extra=_read_seams(seams or []), **facts)


def _read_toolbox(engine: str, seams: list[list[str]], learners: dict[str, dict], **facts: Any) -> Toolbox:
    known = {name: _read_learner(name, **learner) for name, learner in learners.items()}
    return Toolbox(engine, seams=(*_SHARED, *_read_seams(seams)), learners=known, **facts)


_FACTS = json.loads(Path(__file__).with_name("toolboxes.json").read_text(encoding="utf-8"))
LAMDA_PILOT, PYCIL = TOOLBOXES = tuple(_read_toolbox(engine, **facts) for engine, facts in _FACTS.items())

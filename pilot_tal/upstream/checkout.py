"""LAMDA-PILOT's learners, what happens to each of their cross-entropies, and the environment that they need.

`learners.json` has the facts. Nothing of a checkout is imported here: its source is read.
"""

import ast
import importlib.metadata
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from data_lt.errors import UserError, unknown_name

ENGINE, TITLE, TESTED_COMMIT = "lamda-pilot", "LAMDA-PILOT", "5240714"
PACKAGES = ("torch", "torchvision", "timm", "easydict", "scipy", "tqdm", "numpy")
# A call whose last name is one of these may be a classification loss, so it must be in the table of sites.
_CROSS_ENTROPIES = {"cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss"}


class Site(NamedTuple):
    """One call of a cross-entropy: in which function, the call with the variables of each argument, on what data."""

    function: str
    call: str
    fate: str
    what: str

    @property
    def swap(self) -> bool:
        """Whether the loss takes its place."""
        return self.fate == "swapped"


Located = tuple[tuple[range, Site], ...]
"""Call sites with the lines that each call spans, which identify it while running."""


@dataclass(frozen=True)
class LearnerSites:
    """A learner and its cross-entropies in the order of its file.

    Attributes:
        masked: Whether it gives its cross-entropy all classes so far, old ones at −inf and labels as they are; the
            others give the classes of the task, labels from 0.
        epochs: Settings with the number of epochs: of all tasks, or of the first and of later ones.
        least: Training images a class must have.
    """

    name: str
    title: str
    sites: tuple[Site, ...]
    masked: bool = False
    epochs: Sequence[str] = ()
    least: int = 1

    @property
    def file(self) -> str:
        """Its file in the checkout."""
        return f"models/{self.name}.py"

    @property
    def trains(self) -> bool:
        """Whether there is a loss to swap at all."""
        return bool(self.sites)


_FACTS = json.loads(Path(__file__).with_name("learners.json").read_text(encoding="utf-8"))
LEARNERS = {
    name: LearnerSites(name, **{**known, "sites": tuple(Site(*site) for site in known["sites"])})
    for name, known in _FACTS.items()
}


def known_learner(name: str) -> LearnerSites:
    """The learner called `name` in a config's `model_name`."""
    if name.lower() not in LEARNERS:
        raise unknown_name(f"learner of {TITLE} without replay (model_name)", name, LEARNERS)
    return LEARNERS[name.lower()]


def check_environment() -> dict[str, str]:
    """The versions of what LAMDA-PILOT needs.

    Raises:
        UserError: A package is missing or of a version that does not work.
    """
    setup = "make its environment with: bash scripts/setup_upstream.sh CHECKOUT"
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as error:
            raise UserError(f"{sys.executable} lacks {package}, which {TITLE} needs; {setup}") from error
    torch, timm = (tuple(map(int, versions[name].split(".")[:2])) for name in ("torch", "timm"))
    if torch < (2, 4):
        raise UserError(f"torch must be 2.4 or newer, but {sys.executable} has {versions['torch']}")
    if timm != (0, 6):
        raise UserError(
            f"{TITLE} needs timm 0.6 (0.6.13 on Python 3.11 and newer), but {sys.executable} has {versions['timm']}; "
            f"{setup}"
        )
    return versions


def locate(repo: Path, learner: LearnerSites) -> Located:
    """The learner's cross-entropies with their lines.

    Raises:
        UserError: They are not those of the commit that the driver is made for.
    """
    try:
        calls = _cross_entropies(ast.parse((repo / learner.file).read_text(encoding="utf-8")))
    except OSError as error:
        raise _changed(learner, f"it cannot be read ({error.strerror or error})") from error
    except (SyntaxError, ValueError) as error:
        raise _changed(learner, f"it is not Python that can be read ({error})") from error
    wanted = [f"{site.call} in {site.function}" for site in learner.sites]
    for expected, found in zip_longest(wanted, (text for _, text in calls), fillvalue="none"):
        if expected != found:
            raise _changed(learner, f"expected {expected}, found {found}")
    lines = [line for span, _ in calls for line in span]
    if len(set(lines)) != len(lines):
        raise _changed(learner, "two cross-entropies share a line")
    return tuple((span, site) for site, (span, _) in zip(learner.sites, calls, strict=True))


def _changed(learner: LearnerSites, problem: str) -> UserError:
    return UserError(
        f"{learner.file} of the {TITLE} checkout has changed: {problem}; nothing was trained "
        f"(the driver is made for commit {TESTED_COMMIT})"
    )


def _cross_entropies(tree: ast.Module) -> list[tuple[range, str]]:
    """Every cross-entropy in order: its lines, and `call(variables of each argument) in function`."""
    found = []
    for node in tree.body:
        owner, items = (f"{node.name}.", node.body) if isinstance(node, ast.ClassDef) else ("", [node])
        for place, call in ((owner + getattr(item, "name", ""), call) for item in items for call in ast.walk(item)):
            if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in _CROSS_ENTROPIES:
                given = [_variables(argument) for argument in call.args]
                given += [f"{keyword.arg}={_variables(keyword.value)}" for keyword in call.keywords]
                lines = range(call.lineno, (call.end_lineno or call.lineno) + 1)
                found.append((lines, f"{ast.unparse(call.func)}({', '.join(given)}) in {place}"))
    return sorted(found, key=lambda call: call[0].start)


def _variables(node: ast.expr) -> str:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return " ".join(sorted(names - {"self", "torch"}))

"""The options of a dataset, for `prepare`, the settings of a run and `pilot-tal build`, and the recipe they give."""

import re
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from data_lt.cards import CARDS, DatasetCard
from data_lt.errors import UserError, unknown_name
from data_lt.split import ALL, LAWS, SHAPES, Recipe

EVERY, PRESENT = ("all",), ("present",)
PROFILE_OPTIONS = {"law", "shape", "n_max", "n_min", "rho"}
_MOST = 10_000_000


@dataclass(frozen=True)
class Rule:
    """What a setting is for and which values it takes."""

    help: str = ""  # a few words for `pilot-tal list`
    low: float | None = None  # bounds of a number, or of each number in a list
    high: float | None = None
    above: float | None = None  # bounds that are themselves excluded
    below: float | None = None
    choices: tuple[str, ...] = ()  # the only texts allowed
    pattern: str = ""  # a text must match it as a whole; `help` says what that means
    words: tuple[str, ...] = ()  # texts allowed in place of a number
    unique: bool = False  # no value twice in a list
    shortest: int = 0  # least number of values in a list


@dataclass(frozen=True)
class DataOptions:
    """How the training and test images are chosen; None means the dataset's own value."""

    classes: Annotated[
        tuple[str, ...],
        Rule("all, present (those on the disk), a number (the first by name), names, or a file of names", shortest=1),
    ] = EVERY
    name: Annotated[str | None, Rule("name of an own dataset in runs, tables and plots")] = None
    manifest: Annotated[str | None, Rule("a manifest of training and test images")] = None
    folder: Annotated[str | None, Rule("the images' folder below data_root, if its name is unusual")] = None
    train_list: Annotated[str | None, Rule("a list of training images: `path label`, `path`, CSV or TSV")] = None
    test_list: Annotated[str | None, Rule("a list of test images, with train_list")] = None
    class_names: Annotated[str | None, Rule("a file of class names for the numbers in the lists")] = None
    merge: Annotated[bool, Rule("make one pool of train/ and test/ of an own dataset")] = False
    law: Annotated[str | None, Rule("imbalance profile", choices=tuple(LAWS))] = None
    shape: Annotated[float | None, Rule("shape of the Pareto profiles", *SHAPES)] = None
    n_max: Annotated[int | None, Rule("training images of the largest class", 1, _MOST)] = None
    n_min: Annotated[int | None, Rule("training images of the smallest class", 1, _MOST)] = None
    rho: Annotated[float | None, Rule("imbalance n_max / n_min, in place of n_min", 1, _MOST)] = None
    test_per_class: Annotated[int | str | None, Rule("test images per class, or all", 1, _MOST, words=(ALL,))] = None
    split_seed: Annotated[int | None, Rule("seed of the split", 0, 2**32 - 1)] = None

    @classmethod
    def of(cls, **values: Any) -> "DataOptions":
        """The options from values by name; `seed` is another name of `split_seed`."""
        if "seed" in values:
            values["split_seed"] = values.pop("seed")
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in values if name not in known]:
            raise unknown_name("dataset option", unknown[0], known)
        return cls(**values)

    def __post_init__(self):
        classes = self.classes if isinstance(self.classes, list | tuple) else (self.classes,)
        object.__setattr__(self, "classes", tuple(str(name).strip() for name in classes))
        if not all(self.classes):
            raise UserError("classes is empty; write all, present, a number, names, or a file of names")
        if self.name is not None and not re.fullmatch(r"[^\W_][\w .()+-]{0,39}", self.name):
            raise UserError(f"name must be letters, digits, spaces, _ . ( ) + - (at most 40), got {self.name[:60]!r}")
        if self.train_list is None and (more := {"test_list", "class_names"} & self.given.keys()):
            raise UserError(f"{min(more)} needs train_list; give both")
        if self.merge and self.train_list is not None:
            raise UserError("merge makes one pool of train/ and test/, but the lists fix the split; leave merge out")
        if self.manifest is not None and (given := [k for k in self.given if k not in ("manifest", "folder", "name")]):
            raise UserError(f"manifest {self.manifest} already fixes the split; leave out {', '.join(given)}")

    @property
    def given(self) -> dict[str, Any]:
        """The options that are not at their defaults."""
        values = ((field, getattr(self, field.name)) for field in fields(self))
        return {field.name: value for field, value in values if value != field.default}


def make_recipe(card: DatasetCard, options: DataOptions | None = None, split: bool = False) -> Recipe:
    """The card's recipe with the given options.

    With `split`, folders or lists separate training and test images: all of them are used unless the options or the
    card ask for an imbalance profile.
    """
    options = options or DataOptions()
    if options.name is not None and (card.classes is not None or options.name.lower() in CARDS):
        raise UserError(f"name={options.name} is for an own dataset (folder_lt), and no name of another; leave it out")
    given = {k: v for k, v in options.given.items() if k in {*PROFILE_OPTIONS, "test_per_class"}}
    if options.split_seed is not None:
        given["seed"] = options.split_seed
    if {"rho", "n_min"} <= given.keys():
        raise UserError("rho = n_max / n_min sets n_min; give one of the two")
    base = Recipe(card.law, card.shape, card.n_max, card.n_min, card.test_per_class, card.seed)
    if split and (card.n_max is None or options.train_list is not None):
        base = replace(base, test_per_class=ALL, law=base.law if PROFILE_OPTIONS & given.keys() else "natural")
    law = given.get("law", base.law)
    if unused := ", ".join(sorted(given.keys() & PROFILE_OPTIONS - LAWS.get(law, set()) - {"law"})):
        raise UserError(f"law={law} does not use {unused}; leave out {unused}")
    if law == "none":  # the largest balanced set, not the card's largest class
        base = replace(base, n_max=None)
    return replace(base, **given)


def is_shipped(card: DatasetCard, options: DataOptions) -> bool:
    """Whether the manifest that ships with the project is the split asked for."""
    same = options.classes == EVERY and options.train_list is None
    return card.shipped and same and make_recipe(card, options) == make_recipe(card)

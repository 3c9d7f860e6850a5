"""Options and arguments of every command but those of a plan, with values that are mostly wrong."""

import random
from dataclasses import dataclass

from bad_settings import NASTY
from fuzz_world import World, answered, the_run, wrong

TEMPLATES = (
    ("run", "?", "folder_lt"), ("run", "l2p", "?"), ("run", "l2p", "folder_lt", "?"),
    ("run", "l2p", "folder_lt", "?=1"),
    ("compare", "?", "?", "--commands"), ("compare", "l2p", "folder_lt", "loss=?", "--commands"),
    ("list", "?"), ("list", "l2p", "--dataset", "?"), ("list", "--plugins", "?"), ("?",), ("--?",),
    ("status", "?"), ("status", "RUNS", "--?"), ("report", "?"), ("report", "RUNS", "?"), ("replay", "?"),
    ("predict", "?", "IMAGE"), ("predict", "RUN", "?"), ("predict", "RUN", "IMAGE", "--top", "?"),
    ("predict", "RUN", "IMAGE", "--batch-size", "?"), ("predict", "RUN", "IMAGE", "--after-task", "?"),
    ("predict", "RUN", "IMAGE", "--device", "?"), ("predict", "RUN", "IMAGE", "--weights", "?"),
    ("predict", "RUN", "IMAGE", "--output", "?"), ("predict", "RUN", "IMAGE", "--plugins", "?"),
    ("export", "?", "-o", "out"), ("export", "RUN", "-o", "?"), ("export", "RUN", "-o", "out", "--after-task", "?"),
    ("build", "?"), ("build", "folder_lt", "--data-root", "?"),
    ("build", "folder_lt", "--data-root", "IMAGES", "-o", "?"),
    *(("build", "folder_lt", "--data-root", "IMAGES", "-o", "out", option, "?") for option in (
        "--law", "--shape", "--seed", "--n-max", "--n-min", "--rho", "--test-per-class", "--classes", "--folder")),
    ("upstream", "--repo", "?", "--config", "x"), ("upstream", "--repo", ".", "--config", "?"),
)  # fmt: skip
HARMLESS = {"--help", "--version"}  # texts that ask for something else
NUMBERS = {"--top", "--batch-size", "--after-task", "--shape", "--seed", "--n-max", "--n-min", "--rho",
           "--test-per-class"}  # fmt: skip


@dataclass(frozen=True)
class OptionCase:
    """A command line with one text in all places that a `?` holds."""

    template: tuple[str, ...]
    text: str

    def arguments(self, world: World) -> list[str]:
        places = {"RUNS": world.finished, "RUN": the_run(world.finished), "IMAGE": world.image, "IMAGES": world.images}
        return [str(places.get(word, word)).replace("?", self.text) for word in self.template]

    def __str__(self) -> str:
        return f"{' '.join(self.template)} with {self.text[:80]!r}"


def draw_option(rng: random.Random) -> OptionCase:
    """Any place, any text that a shell can hand over."""
    return OptionCase(rng.choice(TEMPLATES), rng.choice([text for text in NASTY if "\0" not in text]))


def check_option(case: OptionCase, world: World) -> str:
    """What is wrong with the answer: one sentence and status 2, or success where the text makes sense."""
    answer = answered(*case.arguments(world))
    if answer.status:
        return wrong(answer, at_once=case.template[0] not in ("predict", "build"))
    option = case.template[-2] if len(case.template) > 1 else ""
    if option in NUMBERS and case.text not in HARMLESS and not _is_positive(case.text, option):
        return f"accepted: {answer.out[-200:]!r}"
    return ""


def _is_positive(text: str, option: str) -> bool:
    try:
        number = float(text) if option in ("--shape", "--rho") else int(text)
    except ValueError:
        return False
    return 0 <= number < 10**13 if option == "--seed" else 0 < number < 10**13

"""results/studies.yaml: which runs belong to a study, as the commands that make them."""

from pathlib import Path
from typing import Any

import yaml

from pilot_tal.config.grid import make_plan

PLACES = ("photos", "weights", "pilot", "python")  # what the commands of a study leave to the caller


def read_studies(folder: Path) -> dict[str, dict[str, Any]]:
    """What studies.yaml says of each study."""
    return yaml.safe_load((folder / "studies.yaml").read_text(encoding="utf-8"))


def study_commands(study: dict[str, Any], name: str, places: dict[str, str]) -> list[list[str]]:
    """The commands of a study, each as its words after `pilot-tal`."""
    return [[word.format(**places) for word in words] for words in _commands(study, name)]


def places_of(study: dict[str, Any], name: str) -> list[str]:
    """What the commands of a study leave to the caller."""
    words = " ".join(word for words in _commands(study, name) for word in words)
    few = ["photos"] if "few" in study else []  # a folder that is made of the photographs
    return [place for place in PLACES if "{" + place + "}" in words or place in few]


def _commands(study: dict[str, Any], name: str) -> list[list[str]]:
    """The commands with the places still open."""
    output, made = f"runs/results/{name}", []
    for line in study["runs"]:
        methods, *own = line.split()
        dataset, *data = study["data"].split()
        made.append(["compare", methods, dataset, *data, *study["settings"].split(), *own, f"output={output}"])
    for line in study.get("upstream_runs", ()):
        config, *own = line.split()
        checkout = ["--repo", "{pilot}", "--python", "{python}", "--config", config]
        made.append(["upstream", *checkout, *study["upstream"].split(), *own, "--output", output])
    return made


def setting_of(study: dict[str, Any], key: str) -> str | None:
    """What all runs of a study have for a setting, if the study says."""
    given = dict(word.split("=", 1) for word in study["settings"].split())
    return given.get(key)


def planned_runs(study: dict[str, Any], name: str) -> int:
    """How many runs the commands of a study make."""
    commands = study_commands(study, name, {place: place for place in (*PLACES, "few")})
    plans = [make_plan(words[1], words[2], words[3:]).runs for words in commands if words[0] == "compare"]
    upstream = [words.count("--seed") * words.count("--loss") for words in commands if words[0] == "upstream"]
    return sum(map(len, plans)) + sum(upstream)

"""Every way in which a file can be damaged, every file a user may hand us, and what must be said of it."""

import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from fuzz_world import Answer, World, answered, copy_of, states, tables, the_run, wrong
from helpers.tiny import result_files
from helpers.vit import state_of, tiny_vit

from data_lt.errors import UserError
from data_lt.manifest import read_manifest
from pilot_tal.backbone.weights import build_backbone
from pilot_tal.engine.checkpoint import load_checkpoint
from pilot_tal.record.run_record import canonical
from pilot_tal.record.states import STATES

Damage = Callable[[Path, random.Random], None]


def _bytes(change: Callable[[bytes, random.Random], bytes]) -> Damage:
    def damage(file: Path, rng: random.Random) -> None:
        file.write_bytes(change(file.read_bytes(), rng))

    return damage


def _lines(change: Callable[[list[bytes], random.Random], list[bytes]]) -> Damage:
    return _bytes(lambda content, rng: b"".join(change(content.splitlines(keepends=True), rng)))


def _flip(content: bytes, rng: random.Random) -> bytes:
    if not content:
        return b"\x00"
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]


def _some_number(new: Callable[[bytes], bytes]) -> Callable[[bytes, random.Random], bytes]:
    def change(content: bytes, rng: random.Random) -> bytes:
        places = list(re.finditer(rb"\d{1,15}", content))[:2000]
        if not places:
            return content + new(b"0")
        place = rng.choice(places)
        return content[: place.start()] + new(place[0]) + content[place.end() :]

    return change


def _by_one(step: int) -> Callable[[bytes], bytes]:
    return lambda number: b"%d" % abs(int(number) + step)


def _directory(file: Path, rng: random.Random) -> None:
    file.unlink()
    file.mkdir()


def _loop(file: Path, rng: random.Random) -> None:
    file.unlink()
    file.symlink_to(file.name)


def _swapped(file: Path, rng: random.Random) -> None:
    """Changes places with another file of the same kind, or of any."""
    others = [other for other in file.parent.rglob("*") if other.is_file() and other != file]
    others = [other for other in others if other.suffix == file.suffix] or others
    if not others:
        file.unlink()
        return
    other = rng.choice(sorted(others))
    mine, theirs = file.read_bytes(), other.read_bytes()
    file.write_bytes(theirs)
    other.write_bytes(mine)


def _twice(lines: list[bytes], rng: random.Random) -> list[bytes]:
    place = rng.randrange(len(lines)) if lines else 0
    return [*lines[:place], *lines[place : place + 1], *lines[place:]]


DAMAGES: dict[str, Damage] = {
    "cut at a byte": _bytes(lambda content, rng: content[: rng.randrange(len(content) or 1)]),
    "cut at a line": _lines(lambda lines, rng: lines[: rng.randrange(len(lines) or 1)]),
    "last line removed": _lines(lambda lines, rng: lines[:-1]),
    "a line removed": _lines(lambda lines, rng: [x for x in lines if x is not rng.choice(lines)] if lines else []),
    "a line twice": _lines(_twice),
    "all lines twice": _lines(lambda lines, rng: lines + lines),
    "lines in another order": _lines(lambda lines, rng: rng.sample(lines, len(lines))),
    "emptied": _bytes(lambda content, rng: b""),
    "removed": lambda file, rng: file.unlink(),
    "a bit flipped": _bytes(_flip),
    "garbage": _bytes(lambda content, rng: rng.randbytes(200)),
    "garbage behind": _bytes(lambda content, rng: content + rng.randbytes(9)),
    "zeros": _bytes(lambda content, rng: bytes(len(content))),
    "NaN": _bytes(_some_number(lambda number: b"NaN")),
    "infinite": _bytes(_some_number(lambda number: b"-Infinity")),
    "a huge number": _bytes(_some_number(lambda number: b"9" * 5000)),
    "a number one higher": _bytes(_some_number(_by_one(1))),
    "a number one lower": _bytes(_some_number(_by_one(-1))),
    "deep nesting": _bytes(lambda content, rng: b"[" * 100_000),
    "deep tables": _bytes(lambda content, rng: b'{"a":' * 100_000),
    "another kind": _bytes(
        lambda content, rng: rng.choice([b"null", b"[]", b"3", b'"a"', b"{}", b"\xff\xfe\x00", b"\n"])
    ),
    "windows' line ends": _bytes(lambda content, rng: content.replace(b"\n", b"\r\n")),
    "a mark before": _bytes(lambda content, rng: b"\xef\xbb\xbf" + content),
    "a directory": _directory,
    "a link to itself": _loop,
    "swapped": _swapped,
}
FROM_ANOTHER = "from another run"
BAD_VALUES: tuple[Any, ...] = (
    None, -1, 0, 10**20, 1e300, -0.5, True, "", "a" * 5000, "\x1b[31m", "💥", "\udcff", [], {}, [[[]]],
    {"a": {"b": []}}, [None], ["a", 1], 2**63, 1e-320,
)  # fmt: skip


def resealed(file: Path, rng: random.Random) -> None:
    """Replaces a value and puts the right checksum below, as somebody would who knows how."""
    content = json.loads(file.read_text())
    content.pop("checksum", None)
    places = list(_places(content))
    holder, key = rng.choice(places)
    if rng.random() < 0.2 and isinstance(holder, dict):
        del holder[key]
    else:
        holder[key] = rng.choice(BAD_VALUES)
    seal = hashlib.sha256(canonical(content)).hexdigest()
    file.write_text(json.dumps({**content, "checksum": seal}))


def _places(value: Any) -> Any:
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


@dataclass(frozen=True)
class DamageCase:
    """A file of `what` (a finished run, a half one, a manifest, …), damaged in some way."""

    what: str
    file: str
    damage: str
    number: int

    def __str__(self) -> str:
        return f"{self.what}: {self.file}: {self.damage}"

    def apply(self, file: Path, world: World) -> None:
        rng = random.Random(self.number)
        if self.damage == FROM_ANOTHER:
            shutil.copy(the_run(world.finished, seed=2) / self.file, file)
        else:
            (resealed if self.damage == "resealed" else DAMAGES[self.damage])(file, rng)


def draw_damage(rng: random.Random, world: World) -> DamageCase:
    """Any file, in any way."""
    what = rng.choices(list(CHECKS), weights=[10, 10, 4, 4, 2, 4])[0]
    files = files_of(what, world)
    file = rng.choice(files)
    damage = rng.choice(list(DAMAGES))
    if what in ("finished", "half"):
        if file in ("run.json", "result.json") and rng.random() < 0.4:
            damage = "resealed"
        elif (the_run(world.finished, seed=2) / file).is_file() and rng.random() < 0.1:
            damage = FROM_ANOTHER
    return DamageCase(what, file, damage, rng.randrange(2**32))


def files_of(what: str, world: World) -> list[str]:
    """The files that can be damaged, relative to their folder."""
    if what in ("finished", "half"):
        run = the_run(getattr(world, what))
        return sorted(
            str(file.relative_to(run))
            for file in run.rglob("*")
            if file.is_file() and not file.name.startswith(".lock")
        )
    if what == "image":
        return sorted(str(file.relative_to(world.images)) for file in world.images.rglob("*.png"))
    if what == "model":
        return sorted(file.name for file in _model(world).iterdir())
    return {"manifest": ["folder_lt.txt"], "weights": ["vit.safetensors", "vit.pth", "vit.npz"]}[what]


def check_finished(case: DamageCase, world: World, place: Path) -> str:
    """One of report, the same command again and predict, on a finished run; and its status."""
    runs = copy_of(world.finished, place / "runs")
    run = the_run(runs)
    case.apply(run / case.file, world)
    shown = answered("status", runs, "--json")
    if shown.status or not set(states(shown.out)) <= set(STATES):
        return f"status: {wrong(shown) or shown}"
    asked = random.Random(f"{case.number} asked").choice((_check_report, _check_again, _check_predictions))
    problem = asked(case, world, run)
    return f"{asked.__name__[7:]}: {problem}" if problem else _check_checkpoint(world, run)


def _check_report(case: DamageCase, world: World, run: Path) -> str:
    """The damage is named with the way out, or the tables are those of the whole run."""
    said = answered("report", run, "-o", run.parent / "report")
    if (problem := wrong(said, at_once=False)) or case.damage == "resealed":
        return problem
    if said.status == 2:
        other = case.damage in (FROM_ANOTHER, "swapped")  # which another file betrays as well
        told = other or case.file.split("/")[0] in said.err
        return "" if told and "remove " in said.err else f"no file or way out is named: {said.err}"
    return "" if tables(run.parent / "report") == _good_tables(world) else "other numbers"


def _check_again(case: DamageCase, world: World, run: Path) -> str:
    """The same command again refuses what is damaged, or leaves a whole run."""
    again = answered(*world.command(run.parent))
    if problem := wrong(again, at_once=False):
        return problem
    judged = case.damage != "resealed" and not case.file.startswith(("checkpoint", "log"))
    differing = _differing(the_run(world.finished), run) if judged and again.status == 0 else []
    return f"accepted, with other files than before: {differing}" if differing else ""


def _differing(whole: Path, run: Path) -> list[str]:
    """The files of a run that say something else than those of another; one JSON may be written in many ways."""
    wanted, found = result_files(whole), result_files(run)
    names = sorted(wanted.keys() | found.keys())
    other = [name for name in names if wanted.get(name) != found.get(name)]
    return [name for name in other if not name.endswith(".json") or _value(wanted, name) != _value(found, name)]


def _value(files: dict[str, bytes], name: str) -> Any:
    try:
        return json.loads(files[name])
    except (KeyError, ValueError, RecursionError):
        return files.get(name)


def _check_checkpoint(world: World, run: Path) -> str:
    whole = the_run(world.finished)
    for task in (None, 1, 2):
        wanted = load_checkpoint(whole, task)
        try:
            found = load_checkpoint(run, task)
        except UserError:
            continue
        same = found is not None and found.tasks_done == wanted.tasks_done
        same = same and all(torch.equal(tensor, wanted.learner[name]) for name, tensor in found.learner.items())
        if found is not None and not same:
            return f"checkpoint after {task}: other tensors"
    return ""


def _check_predictions(case: DamageCase, world: World, model: Path) -> str:
    """The damaged model is refused, or predicts as the whole one."""
    whole = _model(world) if case.what == "model" else the_run(world.finished)
    found, wanted = answered("predict", model, world.image, "--device", "cpu"), _said_by(whole, world)
    if problem := wrong(found, at_once=False):
        return problem
    same = case.damage == "resealed" or found.status == 2 or (found.out, found.err) == (wanted.out, wanted.err)
    return "" if same else f"{found} instead of {wanted}"


@cache
def _said_by(whole: Path, world: World) -> Answer:
    return answered("predict", whole, world.image, "--device", "cpu")


def check_half(case: DamageCase, world: World, place: Path) -> str:
    """The same command again goes on to the end of an undisturbed run, or says what is damaged."""
    runs = copy_of(world.half, place / "runs")
    run = the_run(runs)
    case.apply(run / case.file, world)
    answer = answered(*world.command(runs))
    if problem := wrong(answer, at_once=False):
        return problem
    if answer.status or case.damage == "resealed":
        return ""
    differing = _differing(the_run(world.finished), run)
    return f"went on to another end: {differing}" if differing else ""


def check_model(case: DamageCase, world: World, place: Path) -> str:
    """An exported model is refused, or predicts as before."""
    model = copy_of(_model(world), place / "model")
    case.apply(model / case.file, world)
    return _check_predictions(case, world, model)


def check_manifest(case: DamageCase, world: World, place: Path) -> str:
    """Refused, or what it was."""
    file = place / case.file
    whole = _manifest(world)
    shutil.copy(whole, file)
    case.apply(file, world)
    given = world.settings("l2p", manifest=str(file), output=str(place / "out"), losses="ce", seeds="1")
    given = [item for item in given if not item.startswith(("n_max=", "n_min=", "test_per_class="))]
    answer = answered("run", "l2p", "folder_lt", *given, "--quick")
    if problem := wrong(answer):
        return problem
    if answer.status == 0 and read_manifest(file).text() != read_manifest(whole).text():
        return "accepted, though it says something else"
    return ""


def check_weights(case: DamageCase, world: World, place: Path) -> str:
    """Refused in a sentence, or numbers that a network can be made of."""
    file = place / case.file
    shutil.copy(_weights(world) / case.file, file)
    case.apply(file, world)
    try:
        vit = build_backbone("vit_fuzz", file)
    except UserError as error:
        return "" if len(str(error)) < 300 and "\n" not in str(error) and str(file) in str(error) else str(error)
    return "" if all(torch.isfinite(tensor).all() for tensor in vit.vit.state_dict().values()) else "NaN weights"


def check_image(case: DamageCase, world: World, place: Path) -> str:
    """The image is named, or readable as it is."""
    images = copy_of(world.images, place / "images")
    case.apply(images / case.file, world)
    given = world.settings("simplecil", data_root=str(images), output=str(place / "out"), n_max="7", law="none")
    given = [item for item in given if not item.startswith("n_min")]
    answer = answered("run", "simplecil", "folder_lt", *given, "--quick")
    problem = wrong(answer, at_once=False)
    if not problem and answer.status == 2 and case.file.split("/")[0] not in answer.err:
        problem = f"the image is not named: {answer.err}"
    return problem


CHECKS: dict[str, Callable[[DamageCase, World, Path], str]] = {
    "finished": check_finished,
    "half": check_half,
    "manifest": check_manifest,
    "weights": check_weights,
    "image": check_image,
    "model": check_model,
}


def check_damage(case: DamageCase, world: World, place: Path) -> str:
    """What is wrong with how the damage is answered."""
    place.mkdir(parents=True, exist_ok=True)
    try:
        return CHECKS[case.what](case, world, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _good_tables(world: World) -> dict[str, bytes]:
    folder = world.root / "good report"
    if not folder.exists():
        assert answered("report", the_run(world.finished), "-o", folder).status == 0
    return tables(folder)


def _manifest(world: World) -> Path:
    folder = world.root / "build"
    if not folder.exists():
        sizes = ("--n-max", "6", "--n-min", "2", "--test-per-class", "2")
        answer = answered("build", "folder_lt", "--data-root", world.images, "-o", folder, *sizes)
        assert answer.status == 0, answer.err
    return folder / "folder_lt.txt"


def _model(world: World) -> Path:
    folder = world.root / "model"
    if not folder.exists():
        answer = answered("export", the_run(world.finished), "-o", folder, "--with-backbone")
        assert answer.status == 0, answer.err
    return folder


def _weights(world: World) -> Path:
    import numpy as np
    from safetensors.torch import save_file

    folder = world.root / "weights"
    if not folder.exists():
        folder.mkdir()
        state = state_of(tiny_vit())
        save_file(state, folder / "vit.safetensors")
        torch.save(state, folder / "vit.pth")
        np.savez(folder / "vit.npz", **{name: tensor.numpy() for name, tensor in state.items()})
    return folder

"""Damage to any file of a run: one sentence, or the result of the undamaged run."""

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from fuzz_helpers import Workspace, answered, cases, check, copy_of
from helpers.tiny import result_files
from hypothesis import given
from hypothesis import strategies as st

from data_lt.errors import UserError
from pilot_tal import load_runs
from pilot_tal.record.run_dir import find_runs
from pilot_tal.record.run_record import canonical
from pilot_tal.record.states import STATES

VALUES = [
    None, True, -1, 0, 1, 2, 10**400, 1e300, "", "x" * 3000, "\x1b[2J", "../../x", [], {}, [[]], {"a": None}, "nan",
]  # fmt: skip
BYTES = ["removed", "empty", "cut", "flipped", "longer", "folder", "fifo", "loop", "doubled", "swapped"]
LOCKS = [b"", b"free", b"{", b'{"doing": {"left": 1e999}}', b'{"pid": 1, "space": "x", "beat": 1}', b"\xff" * 2000]


def files_of(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def damage(file: Path, how: str, at: float) -> None:
    """Changes a file; `at` is where, from 0 to 1."""
    content = file.read_bytes()
    place = int(at * (len(content) - 1)) if content else 0
    flipped = bytes([content[place] ^ 1 << place % 8]) if content else b"x"
    others = [other for other in sorted(file.parent.iterdir()) if other.is_file() and other != file]
    file.unlink()
    if how == "folder":
        file.mkdir()
    elif how == "fifo":
        os.mkfifo(file)
    elif how == "loop":
        file.symlink_to(file.name)
    elif how != "removed":
        changed = {
            "empty": b"",
            "cut": content[:place],
            "flipped": content[:place] + flipped + content[place + 1 :],
            "longer": content + b"\n{}",
            "doubled": content * 2,
            "swapped": others[int(at * (len(others) - 1))].read_bytes() if others else b"",
        }
        file.write_bytes(changed[how])


def edit(file: Path, value: Any, at: float, seal: bool) -> None:
    """Replaces one value somewhere in a JSON file, with its checksum adjusted or not."""
    content = json.loads(file.read_bytes())
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key, item in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
            places.append((node, key))
            collect(item)

    collect(content)
    node, key = places[int(at * (len(places) - 1))]
    node[key] = value
    if seal and "checksum" in content:
        del content["checksum"]
        content["checksum"] = hashlib.sha256(canonical(content)).hexdigest()
    file.write_text(json.dumps(content))


@st.composite
def damages(draw) -> dict[str, Any]:
    case = {"file": draw(st.floats(0, 1)), "at": draw(st.floats(0, 1)), "seal": draw(st.booleans())}
    case["how"] = draw(st.sampled_from([*BYTES, "edit", "edit", "edit", "lock"]))
    return case | {"value": draw(st.sampled_from(VALUES)), "lock": draw(st.sampled_from(LOCKS))}


def damaged_copy(source: Path, place: Path, case: dict[str, Any]) -> tuple[Path, str, bool]:
    """Returns a damaged copy, the file, and whether the damage fits its checksum and cannot be detected."""
    folder = copy_of(source, place)
    run = find_runs([folder])[0]
    if case["how"] == "lock":
        (run / ".lock-000009").write_bytes(case["lock"])
        return folder, ".lock-000009", False
    names = [name for name in files_of(folder) if case["how"] != "edit" or name.endswith(".json")]
    name = names[int(case["file"] * (len(names) - 1))]
    if case["how"] == "edit":
        edit(folder / name, case["value"], case["at"], case["seal"])
    else:
        damage(folder / name, case["how"], case["at"])
    return folder, name, case["how"] == "edit" and case["seal"]


def check_predictions(workspace: Workspace, run: Path, name: str, unseen: bool) -> None:
    answer = answered("predict", run, workspace.image, "--device", "cpu")
    check(answer)
    assert unseen or answer.status or answer.out == workspace.predicted, (name, answer)


def quick_locks(patch) -> None:
    patch.setattr("pilot_tal.record.lock.DEAD_SECONDS", 0.1)
    patch.setattr("pilot_tal.record.lock.LOOK_SECONDS", 0.01)


@cases(60)
@given(case=damages())
def test_damage_is_reported_or_the_result_is_that_of_the_whole_run(case, workspace, tmp_path_factory):
    place = tmp_path_factory.getbasetemp() / "damaged"
    folder, name, unseen = damaged_copy(workspace.root / "finished", place, case)
    run = folder / workspace.finished.name
    answer = answered("status", folder, "--json")
    check(answer)
    if answer.status == 0:
        assert {state["state"] for state in json.loads(answer.out)["runs"]} <= set(STATES)
    with contextlib.suppress(UserError):
        found = load_runs([run]).frame()
        assert unseen or found.drop(columns="run", errors="ignore").equals(workspace.frame)
    check_predictions(workspace, run, name, unseen)


@cases(25)
@given(case=damages())
def test_damaged_run_is_refused_or_resumes_to_the_same_result(case, workspace, tmp_path_factory, monkeypatch):
    quick_locks(monkeypatch)
    place = tmp_path_factory.getbasetemp() / "resumed"
    folder, name, unseen = damaged_copy(workspace.root / "half", place, case)
    answer = answered(*workspace.command(folder))
    check(answer)
    if answer.status == 0 and not unseen:
        wanted, found = result_files(workspace.finished), result_files(folder / workspace.finished.name)
        ours = {key: value for key, value in found.items() if key in wanted}
        assert ours == wanted, (name, {key for key in wanted if ours.get(key) != wanted[key]})

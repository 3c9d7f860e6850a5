"""Odd paths in every place where a path may stand: one sentence, or a correct result."""

import os
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz_helpers import SETTINGS, Workspace, answered, cases, check, without_override
from hypothesis import given
from hypothesis import strategies as st


def plan(*given: str) -> tuple[str, ...]:
    """A run with some of its settings replaced."""
    keys = {item.partition("=")[0] for item in given}
    usual = [*SETTINGS, "data_root=IMAGES", "output=out"]
    return "run", "l2p", "folder_lt", *(item for item in usual if item.partition("=")[0] not in keys), *given, "--quick"


PLACES = [
    plan("data_root=?"), plan("weights=?"), plan("order=?"), plan("manifest=?"), plan("plugins=?"), plan("classes=?"),
    plan("train_list=?", "test_list=?"), plan("output=?"),
    ("status", "?"), ("report", "?"), ("report", "?", "-o", "out"), ("verify", "?"),
    ("predict", "?", "IMAGE"), ("predict", "RUN", "?"), ("predict", "RUN", "IMAGE", "--weights", "?"),
    ("predict", "RUN", "IMAGE", "-o", "?"), ("predict", "RUN", "IMAGE", "--plugins", "?"),
    ("export", "?", "-o", "out"), ("export", "RUN", "-o", "?"), ("build", "--check", "?"),
    ("build", "folder_lt", "--data-root", "?"), ("build", "folder_lt", "--data-root", "IMAGES", "-o", "?"),
    ("learn", "?", "IMAGES"), ("learn", "out", "?"), ("list", "--plugins", "?"),
    ("upstream", "--repo", "?", "--config", "x"), ("upstream", "--repo", ".", "--config", "?"),
]  # fmt: skip
ODD = [
    "", " ", ".", "/", "-", "nothing", "a" * 300, "/".join(["d" * 200] * 30), "~no_such_user/x", "\udcff.png", "*", "[",
    "a\x1b]0;x\x07b", "a\nb", "hf://", "/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem", "folder", "empty",
    "text", "json", "fifo", "socket", "loop", "dangling", "cut.npz", "cut.safetensors", "nested.tar", "bytes.png",
    "empty.pth", "fifo.npz", "unreadable", "unreadable.safetensors", "locked",
]  # fmt: skip


@pytest.fixture(scope="module")
def odd(tmp_path_factory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("odd")
    (folder / "folder").mkdir()
    for name, content in {
        "empty": b"", "text": b"one\ntwo\n", "json": b'{"a": [1e999]}', "cut.npz": b"PK\x03\x04cut", "empty.pth": b"",
        "cut.safetensors": b"\x10\0\0\0\0\0\0\0{", "bytes.png": bytes(range(256)) * 4,
        "unreadable": b"x", "unreadable.safetensors": b"x",
    }.items():  # fmt: skip
        (folder / name).write_bytes(content)
    for name in ("fifo", "fifo.npz"):
        os.mkfifo(folder / name)
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    with tarfile.open(folder / "nested.tar", "w") as tar:
        tar.add(folder / "text", "/".join(["d"] * 2000))
    with socket.socket(socket.AF_UNIX) as server:
        before = Path.cwd()
        os.chdir(folder)  # the path of a socket must be short
        server.bind("socket")
        os.chdir(before)
    (folder / "locked").mkdir()
    for name in ("unreadable", "unreadable.safetensors", "locked"):
        (folder / name).chmod(0)
    with without_override():
        yield folder
    (folder / "locked").chmod(0o700)


@pytest.mark.parametrize("place", PLACES, ids=range(len(PLACES)))
def test_special_file_is_not_waited_for(place, odd, workspace):
    for path in ("fifo", "fifo.npz", "/dev/zero", "/proc/self/mem", "unreadable"):
        ask_with(place, path, odd, workspace)


@cases(120)
@given(place=st.sampled_from(PLACES), path=st.sampled_from(ODD))
def test_odd_path_gives_one_sentence_or_a_result(place, path, odd, workspace):
    ask_with(place, path, odd, workspace)


def ask_with(place: tuple[str, ...], path: str, odd: Path, workspace: Workspace) -> None:
    writes = "-o" in place or "output=?" in place
    if path in ("/", "*") and (writes or place[0] in ("build", "learn", "predict", "status", "report")):
        return  # searches this computer, or writes to it
    words = {"RUN": workspace.finished, "IMAGE": workspace.image}
    arguments = [
        str(words.get(word, word)).replace("IMAGES", str(workspace.images)).replace("?", path) for word in place
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(odd)
        check(answered(*arguments))

"""Files and folders written whole or not at all; paths that no file can have."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_lt.errors import UserError
from data_lt.files import given_path, open_to_append, read_json, staged_folder


def fill(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"new {name}")


def tree(root):
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_new_folder_is_written_atomically(tmp_path):
    with staged_folder(tmp_path / "a/out") as folder:
        fill(folder, "page.html", "plots/one.svg")
        assert not (tmp_path / "a/out").exists()
    assert tree(tmp_path) == {"a/out/page.html": "new page.html", "a/out/plots/one.svg": "new plots/one.svg"}
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "a/out").stat().st_mode & 0o777 == 0o777 & ~mask
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]


def test_existing_folder_keeps_its_other_files(tmp_path):
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots/old.svg").write_text("old")
    (tmp_path / "plots/one.svg").write_text("old")
    with staged_folder(tmp_path) as folder:
        assert folder.parent == tmp_path  # the folder above may be on another disk
        fill(folder, "page.html", "plots/one.svg")
    expected = {"page.html": "new page.html", "plots/old.svg": "old", "plots/one.svg": "new plots/one.svg"}
    assert tree(tmp_path) == expected and len(list(tmp_path.iterdir())) == 2


def test_folder_made_by_another_process_meanwhile_is_filled(tmp_path):
    with staged_folder(tmp_path / "out") as folder:
        fill(folder, "one")
        fill(tmp_path / "out", "one", "two")
    assert tree(tmp_path) == {"out/one": "new one", "out/two": "new two"}


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("existing", [False, True])
def test_failure_part_way_leaves_nothing(tmp_path, failure, existing):
    if existing:
        fill(tmp_path / "out", "old")
    before = tree(tmp_path)
    with pytest.raises((UserError, KeyboardInterrupt)) as caught, staged_folder(tmp_path / "out") as folder:
        fill(folder, "one", "two")
        raise failure
    assert tree(tmp_path) == before and [p.name for p in tmp_path.iterdir()] == (["out"] if existing else [])
    assert not existing or [p.name for p in (tmp_path / "out").iterdir()] == ["old"]
    assert isinstance(failure, KeyboardInterrupt) or "out: No space left on device" in str(caught.value)


def test_staging_folder_of_a_killed_process_is_removed_after_a_day_and_of_a_running_one_stays(tmp_path):
    code = (
        "import os, sys\nfrom data_lt.files import staged_folder\n"
        "with staged_folder(sys.argv[1]) as folder:\n    (folder / 'x').touch()\n    os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "out"], check=False)
    (left,) = tmp_path.iterdir()
    os.utime(left, (left.stat().st_mtime - 25 * 3600,) * 2)
    with staged_folder(tmp_path / "out") as first:
        assert not left.exists()
        with staged_folder(tmp_path / "out") as second:
            assert first.exists() and second != first
            fill(second, "one")
        fill(first, "two")
    assert tree(tmp_path) == {"out/one": "new one", "out/two": "new two"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_file_in_the_way_raises_user_error(tmp_path):
    fill(tmp_path, "out")
    with pytest.raises(UserError, match=r"cannot write to .*out: "), staged_folder(tmp_path / "out") as folder:
        fill(folder, "one")
    with pytest.raises(UserError, match="cannot write to"), staged_folder(tmp_path / "out/below"):
        pass
    assert tree(tmp_path) == {"out": "new out"}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "--out is empty"),
        ("  ", "--out is empty"),
        ("a" * 300, "too long"),
        ("ok/" + "é" * 128, "too long"),
        ("a\0b", "zero byte"),
        ("~nobody-of-that-name/x", "no such home"),
    ],
)
def test_paths_that_cannot_be(path, words):
    with pytest.raises(UserError, match=words):
        given_path(path, "--out")


def test_paths_that_can_be():
    assert given_path(".", "--out") == Path(".")
    assert given_path("~/x", "--out") == Path.home() / "x"
    assert given_path("é" * 127, "--out") == Path("é" * 127)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": NaN}', '{"a": -Infinity}', "{", "\ud800"])
def test_damaged_json_raises_user_error(tmp_path, text):
    (tmp_path / "x.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError, match=r"x\.json is not valid JSON"):
        read_json(tmp_path / "x.json")


def test_append_to_a_fifo_does_not_wait_for_a_reader(tmp_path):
    os.mkfifo(tmp_path / "log.txt")
    with pytest.raises(OSError):
        open_to_append(tmp_path / "log.txt")

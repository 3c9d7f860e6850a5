"""Manifests as files: read back as written, and refused when touched."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_lt import CARDS, load_manifest, read_manifest
from data_lt.errors import UserError
from data_lt.manifest import MAGIC, Manifest
from data_lt.split import Recipe, split_pools


def example():
    pools = {"Café au lait": [f"bild {i}.png" for i in range(9)], "b": [f"{i}.jpg" for i in range(7)]}
    return Manifest("folder_lt", split_pools(pools, Recipe(n_max=5, n_min=2, test_per_class=2)))


def test_written_manifest_reads_back(tmp_path):
    manifest = example()
    manifest.write(tmp_path / "m.txt")
    again = read_manifest(tmp_path / "m.txt")
    assert again == manifest and again.checksum == manifest.checksum
    frame = load_manifest(str(tmp_path / "m.txt"))
    assert frame.equals(manifest.frame())
    assert set(frame.path[frame.label == 0]) == {f"Café au lait/{p}" for p in _names(manifest, "Café au lait")}


def _names(manifest, label):
    return manifest.split.train[label] + manifest.split.test[label]


def test_header_names_law_seed_counts_and_checksum():
    header = json.loads(CARDS["cub_lt"].manifest_path.read_text(encoding="utf-8").split("\n")[1])
    assert (header["law"], header["shape"], header["seed"]) == ("profile", 6.0, 1993)
    assert (header["classes"], header["train"], header["test"]) == (200, 1258, 4000)
    assert (header["n_max"], header["n_min"], header["largest"], header["smallest"]) == (40, 2, 40, 2)
    assert len(header["checksum"]) == 64


@given(st.data())
def test_any_changed_letter_is_noticed(tmp_path_factory, data):
    text = example().text()
    place = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.sampled_from("a0\t\n}x"))
    changed = text[:place] + letter + text[place + 1 :]
    path = tmp_path_factory.getbasetemp() / "changed.txt"
    path.write_bytes(changed.encode())
    if changed == text:
        assert read_manifest(path) == example()
    else:
        with pytest.raises(UserError, match=r"changed\.txt"):
            read_manifest(path)


@pytest.mark.parametrize(
    "edit",
    [
        lambda lines: lines[:-2] + lines[-1:],  # an image left out
        lambda lines: [*lines, "test\tmore.jpg", ""],
        lambda lines: [line.replace("test\t", "train\t") for line in lines],
        lambda lines: [lines[0], lines[1].replace('"seed": 0', '"seed": 1'), *lines[2:]],
        lambda lines: lines[: len(lines) // 2],
    ],
)
def test_edited_manifest_is_refused(tmp_path, edit):
    path = tmp_path / "mine.txt"
    path.write_text("\n".join(edit(example().text().split("\n"))), encoding="utf-8")
    with pytest.raises(UserError, match=r"mine.txt was edited or damaged.*build it anew"):
        read_manifest(path)


def give(split, label, train=None, test=None):
    """The split with other images in one class."""
    parts = {"train": train, "test": test}
    return dataclasses.replace(split, **{k: {**getattr(split, k), label: v} for k, v in parts.items() if v is not None})


def renamed(split, old, new):
    parts = {k: {new if c == old else c: v for c, v in getattr(split, k).items()} for k in ("train", "test", "pool")}
    return dataclasses.replace(split, **parts)


LIES = {
    "trained and tested on": (
        lambda s: give(s, "b", test=[s.train["b"][0], s.test["b"][0]]),
        "to train and in .* test",
    ),
    "twice": (lambda s: give(s, "b", train=[s.train["b"][0]] * 2), "is in class 'b' to train and in class 'b'"),
    "nothing to train on": (lambda s: give(s, "b", train=[]), "'b' has no training images"),
    "nothing to test on": (lambda s: give(s, "b", test=[]), "'b' has no test images"),
    "a class without a name": (lambda s: renamed(s, "b", " "), "' ' cannot be the name of a class"),
    "an escaping image": (lambda s: give(s, "b", test=["../x.jpg", "1.jpg"]), "'../x.jpg' cannot be the name"),
    "an absolute image": (lambda s: give(s, "b", test=["/etc/x.jpg", "1.jpg"]), "'/etc/x.jpg' cannot be the name"),
    "a deep escape": (lambda s: give(s, "b", test=["train/../x.jpg", "1.jpg"]), "'train/../x.jpg' cannot be the name"),
    "of Windows": (lambda s: give(s, "b", test=["..\\x.jpg", "1.jpg"]), "cannot be the name"),
    "no name": (lambda s: give(s, "b", test=["", "1.jpg"]), "'' cannot be the name"),
}


@pytest.mark.parametrize(("lie", "words"), LIES.values(), ids=LIES)
def test_manifest_with_a_fresh_checksum_must_still_make_sense(tmp_path, lie, words):
    Manifest("folder_lt", lie(example().split)).write(tmp_path / "m.txt")
    with pytest.raises(UserError, match=rf"m.txt was edited or damaged: .*{words}.*build it anew with .* folder_lt"):
        read_manifest(tmp_path / "m.txt")


def test_name_longer_than_any_file_raises_user_error():
    with pytest.raises(UserError, match="too long"):
        load_manifest("a" * 300)
    with pytest.raises(UserError, match="manifest is empty"):
        load_manifest("")


def test_windows_line_ends_are_no_edit(tmp_path):
    path = tmp_path / "crlf.txt"
    path.write_bytes(example().text().replace("\n", "\r\n").encode())
    assert read_manifest(path) == example()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "first line"),
        (b"path,label,split\n", "first line"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (f"{MAGIC}\nnot json\nclass\ta\t1\n".encode(), "cannot be read"),
        (f"{MAGIC}\n[]\nclass\ta\t1\n".encode(), "cannot be read"),
        (f"{MAGIC}\n{{}}\nclass\ta\t1\n".encode(), "cannot be read"),
        (f"{MAGIC}\n{'[' * 100_000}\nclass\ta\t1\n".encode(), "cannot be read"),
    ],
)
def test_other_files_are_no_manifests(tmp_path, content, words):
    path = tmp_path / "other.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"other.txt.*{words}"):
        read_manifest(path)


def test_missing_and_misspelt_manifests(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the manifest .*none.txt"):
        load_manifest(tmp_path / "none.txt")
    with pytest.raises(UserError, match="did you mean 'cub_lt'"):
        load_manifest("cub-lt")
    with pytest.raises(UserError, match="no manifest is shipped for folder_lt"):
        load_manifest("folder_lt")
    with pytest.raises(UserError, match="cannot read"):
        load_manifest(tmp_path)


def test_failed_write_leaves_the_old_manifest(tmp_path, monkeypatch):
    path = tmp_path / "m.txt"
    example().write(path)
    before = path.read_bytes()
    other = Manifest("folder_lt", split_pools({"a": map(str, range(30))}, Recipe()))
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match=r"m.txt: No space left"):
        other.write(path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["m.txt"]

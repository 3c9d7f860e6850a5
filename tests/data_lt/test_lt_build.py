"""`pilot-tal build` end to end: real pictures in every layout, through the real command line."""

import dataclasses
import hashlib
import tarfile

import pytest
from helpers.cli import ask
from lt_helpers import by_class, cub_files, food101_files, imagenetr_files, jpeg, make_folder, write_files
from PIL import Image

import data_lt
from data_lt import CARDS, Manifest, load_manifest, read_manifest
from data_lt.errors import UserError
from data_lt.files import progress
from data_lt.pictures import verify_images

CUB = ("CUB_200_2011/images/{path}", "cub/{part}/{path}", "{path}")
IMAGENETR = ("imagenet-r/{path}", "imagenet-r/{part}/{path}")
FOOD = ("food-101/images/{path}", "food101/{part}/{path}")


def build(*arguments):
    """What it printed; its refusals are raised."""
    answer = ask("build", *arguments)
    if answer.status:
        raise UserError(answer.err.removeprefix("error: "))
    return answer.out + answer.err


def small_copy(root, dataset, layout):
    """Real pictures under official names: the three fullest classes, in one layout."""
    if dataset == "food101_lt":
        train, test = ([f"{path}.jpg" for path in part] for part in food101_files())
    else:
        files = cub_files() if dataset == "cub_lt" else {p: k % 4 > 0 for k, p in enumerate(imagenetr_files())}
        train, test = ([p for p, flag in files.items() if flag is kind] for kind in (True, False))
    sizes = {label: len(names) for label, names in by_class(train + test).items()}
    chosen = sorted(sizes, key=lambda label: (-sizes[label], label))[:3]
    for part, paths in (("train", train), ("test", test)):
        mine = [path for path in paths if path.split("/")[0] in chosen]
        write_files(root, [layout.format(path=path, part=part) for path in mine], jpeg())
        if "images/" in layout and dataset == "food101_lt":
            lines = "".join(f"{path.removesuffix('.jpg')}\n" for path in mine)
            write_files(root, [f"food-101/meta/{part}.txt"], lines.encode())
    return root


@pytest.mark.parametrize(
    ("dataset", "layouts", "sizes"),
    [("cub_lt", CUB, (40, 20)), ("imagenetr_lt", IMAGENETR, (200, 25)), ("food101_lt", FOOD, (750, 25))],
)
def test_real_pictures_in_each_layout_give_one_and_the_same_set(tmp_path, dataset, layouts, sizes):
    texts = set()
    for number, layout in enumerate(layouts):
        root, out = small_copy(tmp_path / f"data {number}", dataset, layout), tmp_path / f"out {number}"
        options = ("--classes", "present", "--n-max", sizes[0], "--out", out)
        if number == 0:
            done = ask("build", dataset, "--data-root", root, *options, "--verify")
            assert done.status == 0, done.err
            assert "images can be read" in done.out and f"│ {dataset}" in done.out
        else:
            build(dataset, "--data-root", root, *options)
        texts.add((out / f"{dataset}.txt").read_bytes())
        frame = load_manifest(out / f"{dataset}.txt")
        train = frame[frame.split == "train"].label.value_counts()
        assert train.max() == sizes[0] and (frame.split == "test").sum() == 3 * sizes[1]
        assert [p.name for p in out.iterdir()] == [f"{dataset}.txt"]
    assert len(texts) == 1


def test_complete_copy_is_identical_and_a_changed_one_differs(tmp_path):
    root = tmp_path / "data"
    write_files(root / "cub", [f"{'train' if flag else 'test'}/{path}" for path, flag in cub_files().items()])
    done = ask("build", "cub_lt", "--data-root", root, "--out", tmp_path / "out")
    assert done.status == 0 and "identical" in done.out and "NOT" not in done.out
    assert (tmp_path / "out/cub_lt.txt").read_bytes() == CARDS["cub_lt"].manifest_path.read_bytes()
    used = set(load_manifest("cub_lt").path)
    spare = next(path for path in cub_files() if path not in used)
    next((root / "cub").rglob(spare.split("/")[1])).unlink()
    output = build("cub_lt", "--download", "--data-root", root, "--out", tmp_path / "out")
    assert "all images are there already" in output  # nothing is fetched for a file that the set does not use
    label = spare.split("/")[0]
    size = len(by_class(cub_files())[label])
    assert "NOT identical" in output and f"{label} ({size - 1} images, officially {size})" in output
    assert "differs" in output
    lost = sorted(used)[0]
    next((root / "cub").rglob(lost.split("/")[1])).unlink()
    with pytest.raises(UserError, match=r"1 of the 5,258 images"):
        build("cub_lt", "--data-root", root, "--out", tmp_path / "out")


def test_shipped_sets_are_shown_together_without_images(tmp_path):
    output = build("cub_lt", "imagenetr_lt", "food101_lt", "--shipped", "--out", tmp_path)
    for words in ("1,258", "10,911", "11,770", " 20 ", " 81 ", " 150 ", "77.7 %", "22.3 %", "4,000", "2,525"):
        assert words in output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sizes", [{"only": 12}, {"a": 13, "b": 13}])
def test_tiny_sets_can_be_built(tmp_path, sizes):
    make_folder(tmp_path / "data", sizes)
    output = build("folder_lt", "--data-root", tmp_path / "data", "--law", "none", "--out", tmp_path / "out")
    assert "none, seed 1993" in output and (tmp_path / "out/data.txt").is_file()


def test_options_reach_the_split(tmp_path):
    make_folder(tmp_path / "data", {"a": 60, "b": 50, "ç d": 40})
    options = ("--n-max", 30, "--n-min", 3, "--test-per-class", 5, "--seed", 4, "--law", "draw", "--shape", 2)
    build("folder_lt", "--data-root", tmp_path / "data", "--out", tmp_path, *options)
    recipe = read_manifest(tmp_path / "data.txt").split.recipe
    assert tuple(recipe.header.values()) == ("draw", 2.0, 30, 3, 5, 4)


def test_broken_pictures_are_named_and_no_manifest_is_written(tmp_path):
    root = make_folder(tmp_path / "data", {"a": 14, "b é": 14})
    (root / "a/000.jpg").write_bytes(jpeg(64)[:-200])
    (root / "a/001.jpg").write_bytes(b"")
    (root / "b é/002.jpg").write_text("<html>not found</html>")
    options = ("--data-root", root, "--n-max", 4, "--n-min", 4, "--out", tmp_path / "out")
    build("folder_lt", *options)  # names alone are fine
    (tmp_path / "out/data.txt").unlink()
    done = ask("build", "folder_lt", *options, "--verify")
    assert done.status == 2 and done.err.startswith("error: 3 of 28 images")
    for words in ("a/000.jpg (image file is truncated", "a/001.jpg (empty file)", "b é/002.jpg (not an image of the"):
        assert words in done.err
    assert not (tmp_path / "out/data.txt").exists()


@pytest.mark.parametrize("kind", ["png", "webp", "jpeg"])
def test_verify_finds_a_cut_in_any_format(tmp_path, kind):
    path = tmp_path / f"x.{kind}"
    Image.effect_noise((64, 64), 50).convert("RGB").save(path)
    assert verify_images(tmp_path, [path.name]) == (1, 0)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=f"1 of 1 images below .* cannot be read: x.{kind}"):
        verify_images(tmp_path, [path.name])


def test_download_from_the_command_line(tmp_path, monkeypatch):
    root, archive = small_copy(tmp_path / "made", "cub_lt", CUB[0]), tmp_path / "data/CUB_200_2011.tgz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(root / "CUB_200_2011", "CUB_200_2011")
    sum_ = hashlib.md5(archive.read_bytes()).hexdigest()
    # Put there by hand, as the message for people without a network says; the server is tested elsewhere.
    card = dataclasses.replace(CARDS["cub_lt"], url="http://127.0.0.1:9/CUB_200_2011.tgz", checksum=f"md5:{sum_}")
    monkeypatch.setitem(CARDS, "cub_lt", card)
    options = ("--data-root", tmp_path / "data", "--classes", "present", "--out", tmp_path / "out")
    output = build("cub_lt", "--download", *options)
    assert "Licence" in output and "extracted to" in output
    assert (tmp_path / "out/cub_lt.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cub_tl"], "did you mean 'cub_lt'"),
        (["cub_lt"], "data root data does not exist"),
        (["cub_lt", "--law", "zipf"], "law must be one of .*'zipf'"),
        (["cub_lt", "--classes", ","], "classes is empty"),
        (["cub_lt", "--name", "mine"], "name=mine is for an own dataset"),
        (["folder_lt", "--name", "cub_lt"], "no name of another"),
        (["folder_lt", "--name", "../x"], "name must be letters"),
        (["folder_lt", "--test-list", "x.txt"], "test_list needs train_list"),
        (["folder_lt", "--train-list", "x.txt", "--merge"], "leave merge out"),
        (["--check", "none.txt"], "cannot read the manifest none.txt"),
        ([], "name a dataset"),
        (["cub_lt", "--shipped", "--seed", "1"], "--shipped shows the shipped manifest"),
        (["folder_lt", "--shipped"], "--shipped shows the shipped manifest"),
        (["cub_lt", "--seed", "-1"], "seed must be"),
        (["folder_lt", "--n-max", "3", "--n-min", "9"], "n_min must not exceed n_max"),
        (["folder_lt", "--download"], "nothing to download for folder_lt"),
        (["folder_lt", "-o", ""], "--out is empty"),
        (["folder_lt", "--data-root", ""], "--data-root is empty"),
        (["cub_lt", "--rho", "4", "--n-min", "2"], "give one of the two"),
        (["cub_lt", "--shape", "1e300"], "shape must be"),
        (["cub_lt", "--n-max", "1" + "0" * 20], "n_max must be"),
        (["x" * 300], "unknown dataset"),
    ],
)
def test_wrong_options_are_one_sentence(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words):
        build(*arguments)
    assert list(tmp_path.rglob("*.txt")) == []


def test_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch):
    make_folder(tmp_path / "data", {"a": 30, "b": 25})
    options = ("folder_lt", "--data-root", tmp_path / "data", "--out", tmp_path / "out")
    build(*options)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def full(self, path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", full)
        with pytest.raises(UserError, match="No space left on device"):
            build(*options, "--seed", 5)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    build(*options, "--seed", 5)
    after = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert after.keys() == before.keys() and after["data.txt"] != before["data.txt"]


def test_turned_photographs_are_counted(tmp_path):
    root = make_folder(tmp_path / "data", {"a": 14, "b": 14})
    tags = Image.Exif()
    tags[0x0112] = 6
    Image.new("RGB", (8, 4)).save(root / "a/000.jpg", exif=tags)
    output = build("folder_lt", "--data-root", root, "--law", "natural", "--verify", "--out", tmp_path / "out")
    assert "all 28 images can be read" in output and "1 of them have an EXIF orientation" in output


def test_progress_of_a_short_job_is_silent_without_a_terminal(capsys):
    with progress("opening", 4) as bar:
        bar.update(4)
    assert capsys.readouterr().err == ""


def test_lists_are_built_and_an_edited_manifest_is_accepted_after_a_check(tmp_path):
    make_folder(tmp_path / "data", {"a": 5, "b": 3})
    (tmp_path / "train.txt").write_text("a/000.jpg 0\na/001.jpg 0\nb/000.jpg 1\n")
    (tmp_path / "test.txt").write_text("a/004.jpg 0\nb/002.jpg 1\n")
    lists = ("--train-list", tmp_path / "train.txt", "--test-list", tmp_path / "test.txt", "--name", "My pets")
    assert "my_pets" in build("folder_lt", "--data-root", tmp_path / "data", *lists, "--out", tmp_path / "out")
    path = tmp_path / "out/my_pets.txt"
    assert read_manifest(path).split.train == {"a": ["a/000.jpg", "a/001.jpg"], "b": ["b/000.jpg"]}
    path.write_text(path.read_text() + "train\tb/001.jpg\n")
    with pytest.raises(UserError, match=r"edited or damaged.*--check"):
        read_manifest(path)
    assert "4 training images" in build("--check", path)
    found = data_lt.prepare("folder_lt", tmp_path / "data", manifest=path)
    assert found.law["law"] == "natural" and found.law["train"] == 4
    assert set(found.frame.path[found.frame.split == "test"]) == {"a/004.jpg", "b/002.jpg"}

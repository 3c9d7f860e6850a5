"""Lists of training and test images: every format, and the line of every mistake."""

import pytest
from lt_helpers import make_folder

from data_lt import manifest_from_lists, prepare
from data_lt.errors import UserError
from data_lt.manifest import MAGIC, read_manifest, seal


@pytest.fixture
def images(tmp_path):
    """Two classes below `data/train`, and below `data/val` one folder for both."""
    make_folder(tmp_path / "data/train", {"n01": 4, "n02": 2}, b"")
    make_folder(tmp_path / "data", {"val": 4}, b"")
    return tmp_path / "data"


TRAIN = [("train/n01/000.jpg", "cat"), ("train/n01/001.jpg", "cat"), ("train/n02/000.jpg", "dog")]
TEST = [("train/n01/003.jpg", "cat"), ("train/n02/001.jpg", "dog")]
PATHS = '{"dataset": "folder_lt", "paths": true}'
NUMBER = {"cat": "0", "dog": "1"}


def write(path, lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def formats(folder):
    """name → (options, class names) for the same split in every format."""
    names = write(folder / "names.txt", ["cat", "dog"])

    def pair(stem, line, header=()):
        files = [write(folder / f"{stem}.{k}", [*header, *map(line, rows)]) for k, rows in enumerate((TRAIN, TEST))]
        return {"train_list": files[0], "test_list": files[1]}

    rows = [f"{p},{c},{s}" for s, part in (("train", TRAIN), ("TEST", TEST)) for p, c in part]
    both = write(folder / "both.csv", ["path,label,split", *rows, "val/000.jpg,cat,val"])
    return {
        "numbers": (pair("numbers", lambda r: f"{r[0]} {NUMBER[r[1]]}"), ["n01", "n02"]),
        "numbers with names": (
            pair("named", lambda r: f"{r[0]} {NUMBER[r[1]]}") | {"class_names": names},
            ["cat", "dog"],
        ),
        "names": (pair("words", lambda r: f"./{r[0]}\t{r[1]}"), ["cat", "dog"]),
        "paths": (pair("paths", lambda r: r[0]), ["n01", "n02"]),
        "tsv": (pair("tsv", lambda r: f"{r[1]}\t{r[0]}", ["Label\tPath"]), ["cat", "dog"]),
        "csv with a split": ({"train_list": both}, ["cat", "dog"]),
    }


def test_every_format_gives_the_listed_split(tmp_path, images):
    for name, (options, classes) in formats(tmp_path).items():
        found = prepare("folder_lt", images, **options)
        train, test = (found.frame[found.frame.split == side] for side in ("train", "test"))
        assert found.class_names == classes, name
        assert list(zip(train.path, train.label, strict=True)) == [(p, int(NUMBER[c])) for p, c in TRAIN], name
        assert list(zip(test.path, test.label, strict=True)) == [(p, int(NUMBER[c])) for p, c in TEST], name
        assert (found.law["law"], found.law["test_per_class"]) == ("natural", "all")


def test_numbers_without_a_folder_each_are_names_that_sort(tmp_path, images):
    train = write(tmp_path / "a.txt", ["val/000.jpg 2", "val/001.jpg 10"])
    test = write(tmp_path / "b.txt", ["train/n01/000.jpg 2", "train/n02/000.jpg 10"])
    assert prepare("folder_lt", images, train_list=train, test_list=test).class_names == ["02", "10"]


def test_numbers_are_named_after_their_training_folders(tmp_path, images):
    train = write(tmp_path / "a.txt", ["train/n01/000.jpg 2", "train/n02/000.jpg 10"])
    test = write(tmp_path / "b.txt", ["val/000.jpg 2", "val/001.jpg 10"])
    assert prepare("folder_lt", images, train_list=train, test_list=test).class_names == ["n01", "n02"]


def test_profile_subsamples_the_training_list(tmp_path, images):
    options, _ = formats(tmp_path)["names"]
    found = prepare("folder_lt", images, **options, law="none")
    assert found.law["largest"] == found.law["smallest"] == 1 and found.law["test"] == 2


def test_manifest_from_lists_is_found_again(tmp_path, images):
    options, _ = formats(tmp_path)["numbers"]
    manifest = manifest_from_lists(options["train_list"], options["test_list"], images)
    manifest.write(tmp_path / "m.txt")
    assert read_manifest(tmp_path / "m.txt") == manifest
    found = prepare("folder_lt", images, manifest=tmp_path / "m.txt")
    assert found.frame.equals(prepare("folder_lt", images, **options).frame) and found.checksum == manifest.checksum
    (images / TRAIN[0][0]).unlink()
    with pytest.raises(UserError, match="1 of the 5 images of Folder-LT are missing"):
        prepare("folder_lt", images, manifest=tmp_path / "m.txt")


GOOD = ["train/n01/000.jpg 0", "train/n02/000.jpg 1"]
WRONG = {
    "twice": ([*GOOD, GOOD[0]], ["val/000.jpg 0"], "train.txt, line 3: train/n01/000.jpg is listed twice, see line 1"),
    "both sides": (
        GOOD,
        [GOOD[1]],
        "test.txt, line 1: .* both a training and a test image, see .*train.txt, line 2",
    ),
    "a link": (GOOD, ["train/n01/link.jpg 0"], r"line 1: .*link.jpg \(the same file as train/n01/000.jpg\) is both"),
    "a hard link": (
        GOOD,
        ["train/n01/hard.jpg 0"],
        r"line 1: .*hard.jpg \(the same file as train/n01/000.jpg\) is both",
    ),
    "mixed": (
        [*GOOD, "train/n01/001.jpg"],
        ["val/000.jpg 0"],
        "train.txt, line 3: has no label, but .*train.txt, line 1 has a number",
    ),
    "mixed labels": (
        [*GOOD, "train/n01/001.jpg cat"],
        ["val/000.jpg 0"],
        "line 3: has a name as label, but .*line 1 has a number",
    ),
    "missing": (GOOD, ["val/9.jpg 0", "val/8.jpg 0"], r"test.txt, line 1: val/9.jpg does not exist .*\(nor do 1 more"),
    "no training": (GOOD, ["val/000.jpg 7"], "test.txt, line 1: class '7' has test images, but no training images"),
    "no test": (GOOD, ["train/n01/003.jpg 0"], "class 'n02' has 0 images to test on"),
    "outside": (["../x.jpg 0"], GOOD, "train.txt, line 1: '../x.jpg' must be a path"),
    "absolute": (["/x.jpg 0"], GOOD, "line 1: '/x.jpg' must be a path"),
    "no image": (["train/n01 0"], GOOD, "line 1: 'train/n01' does not end in .jpg"),
    "empty": ([], GOOD, "train.txt is empty"),
    "columns": (["path,label", "train/n01/000.jpg"], GOOD, "line 2: has 1 values, but the header has 2"),
    "no label": (["path,label", "train/n01/000.jpg,"], GOOD, "line 2: has no label"),
    "split": (["path,label,split", "train/n01/000.jpg,a,tset"], None, "line 2: split must be one of train, test"),
    "two splits": (["path,label,split", "train/n01/000.jpg,a,test"], GOOD, "leave test_list out"),
    "one side": (["path,label,split", "train/n01/000.jpg,a,train"], None, "has no test images in its column split"),
    "no path": (["file,class", "train/n01/000.jpg,a"], GOOD, "line 1: a table needs a column path"),
    "no rows": (["path,label"], GOOD, "train.txt is empty"),
    "no test list": (GOOD, None, "give the test images as test_list"),
}


@pytest.mark.parametrize(("train", "test", "words"), WRONG.values(), ids=WRONG)
def test_wrong_list_raises_user_error_with_its_line(tmp_path, images, train, test, words):
    (images / "train/n01/link.jpg").symlink_to("000.jpg")
    (images / "train/n01/hard.jpg").hardlink_to(images / "train/n01/000.jpg")
    options = {"train_list": write(tmp_path / "train.txt", train)}
    if test is not None:
        options["test_list"] = write(tmp_path / "test.txt", test)
    with pytest.raises(UserError, match=words) as caught:
        prepare("folder_lt", images, **options)
    assert len(str(caught.value).replace(str(tmp_path), "")) < 300


def test_class_names_must_name_every_label(tmp_path, images):
    names = write(tmp_path / "names.txt", ["cat"])
    options, _ = formats(tmp_path)["numbers"]
    write(tmp_path / "names.txt", ["cat"])
    with pytest.raises(UserError, match=r"numbers.0, line 3: unknown label '1': .*known: 0"):
        prepare("folder_lt", images, **options, class_names=names)
    options, _ = formats(tmp_path)["names"]
    write(tmp_path / "names.txt", ["cat", "god"])
    with pytest.raises(UserError, match=r"line 3: unknown label 'dog'.*known: cat, god"):
        prepare("folder_lt", images, **options, class_names=names)


def test_manifest_written_by_hand_is_sealed(tmp_path, images):
    path = tmp_path / "hand.txt"
    lines = ["class\tcat", "train\ttrain/n01/000.jpg", "test\tval/000.jpg", "test\tval/001.jpg"]
    more = ["class\tdog", "train\ttrain/n02/000.jpg", "test\tval/002.jpg"]
    write(path, [MAGIC, PATHS, *lines, *more])
    sealed = seal(path)
    assert read_manifest(path) == sealed and sealed.header["test_per_class"] == "all"
    before = path.read_bytes()
    seal(path)
    assert path.read_bytes() == before
    assert len(prepare("folder_lt", images, manifest=path).frame) == 5


def test_manifest_of_two_names_for_one_file_is_refused(tmp_path, images):
    (images / "val/link.jpg").symlink_to("../train/n01/000.jpg")
    path = write(tmp_path / "hand.txt", [MAGIC, PATHS, "class\tcat", "train\ttrain/n01/000.jpg", "test\tval/link.jpg"])
    seal(path)
    with pytest.raises(UserError, match=r"train/n01/000.jpg and val/link.jpg below .* are the same file"):
        prepare("folder_lt", images, manifest=path)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (['{"dataset": "nothing"}', "class\ta"], "dataset must be one of"),
        (['{"dataset": "folder_lt"}', "train\tx.jpg"], "line 3 must be class"),
        (['{"dataset": "folder_lt"}', "class\ta", "tarin\tx.jpg"], "line 4 must be class"),
        (['{"dataset": "folder_lt"}', "class\ta", "class\ta"], "line 4 must be class, a name that occurs once"),
        (
            ['{"dataset": "folder_lt"}', "class\ta", "train\tx.jpg", "test\tx.jpg"],
            "'x.jpg' is in class 'a' to train and in class 'a' to test",
        ),
        (['{"dataset": "folder_lt"}', "class\ta", "train\tx.jpg"], "'a' has no test images"),
        (
            [PATHS, "class\ta", "train\tx.jpg", "test\ty.jpg", "class\tb", "train\ty.jpg", "test\tz.jpg"],
            "'y.jpg' is in class 'a' to test and in class 'b' to train",
        ),
        (
            ['{"dataset": "folder_lt", "paths": true}', "class\ta", "train\t../x.jpg", "test\ty.jpg"],
            "cannot be the name",
        ),
        (["[]"], "second line must be a JSON object"),
    ],
)
def test_wrong_manifest_is_not_sealed(tmp_path, lines, words):
    path = write(tmp_path / "hand.txt", [MAGIC, *lines])
    before = path.read_bytes()
    with pytest.raises(UserError, match=words):
        seal(path)
    assert path.read_bytes() == before


def test_edited_recipe_becomes_natural_and_an_unedited_one_stays(tmp_path):
    manifest = read_manifest("cub_lt")
    manifest.write(tmp_path / "m.txt")
    assert seal(tmp_path / "m.txt") == manifest
    text = manifest.text().splitlines()
    first = next(k for k, line in enumerate(text) if line.startswith("train"))
    write(tmp_path / "m.txt", text[:first] + text[first + 1 :])
    sealed = seal(tmp_path / "m.txt")
    assert (sealed.split.recipe.law, sealed.split.recipe.test_per_class) == ("natural", 20)
    assert sealed.header["train"] == manifest.header["train"] - 1

"""From images on a disk to a set: the layouts of the known datasets, complete and incomplete copies, options."""

import hashlib
import re
import shutil

import pytest
from lt_helpers import by_class, cub_files, few_classes, food101_files, imagenetr_files, make_folder, write_files

from data_lt import CARDS, DatasetCard, LongTailedSet, exponential_counts, prepare, read_manifest
from data_lt.errors import UserError
from data_lt.prepare import build_manifest, find_pool
from data_lt.split import Recipe


def pick(path):
    """A 4 : 1 split of names, unrelated to ours."""
    return "train" if hashlib.md5(path.encode()).digest()[0] % 5 else "test"


LAYOUTS = {
    "cub_lt": {
        "official": lambda path, train: f"CUB_200_2011/images/{path}",
        "pilot": lambda path, train: f"cub/{'train' if train else 'test'}/{path}",
    },
    "imagenetr_lt": {
        "pilot": lambda path, train: f"imagenet-r/{pick(path)}/{path}",
    },
}


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """Complete copies (of empty files) of CUB and ImageNet-R in a layout, made once."""
    made = {}

    def make(dataset, layout):
        if (dataset, layout) not in made:
            root = tmp_path_factory.mktemp(f"{dataset}-{layout}")
            files = cub_files() if dataset == "cub_lt" else dict.fromkeys(imagenetr_files())
            write_files(root, [LAYOUTS[dataset][layout](path, train) for path, train in files.items()])
            if (dataset, layout) == ("cub_lt", "official"):
                lines = [f"{number} {path}" for number, path in enumerate(files, 1)]
                (root / "CUB_200_2011/images.txt").write_text("\n".join(lines) + "\n")
            made[dataset, layout] = root
        return made[dataset, layout]

    yield make
    for root in made.values():
        shutil.rmtree(root)


@pytest.mark.parametrize(("dataset", "layout"), [(d, layout) for d, some in LAYOUTS.items() for layout in some])
def test_every_layout_gives_the_shipped_set_and_rebuilds_it(complete, dataset, layout):
    root = complete(dataset, layout)
    shipped = read_manifest(dataset)
    result = prepare(dataset, root)
    assert isinstance(result, LongTailedSet) and result.card is CARDS[dataset] and result.name == dataset
    assert result.checksum == shipped.checksum and result.class_names == shipped.class_names
    assert result.law["law"] == "profile" and result.law["seed"] == 1993
    assert result.frame[["label", "split"]].equals(shipped.frame()[["label", "split"]])
    ends = ["/".join(path.split("/")[-2:]) for path in result.frame.path]
    assert ends == list(shipped.frame().path)
    assert all((result.root / path).is_file() for path in result.frame.path)
    rebuilt = build_manifest(CARDS[dataset], find_pool(CARDS[dataset], root))
    assert rebuilt.text() == shipped.text()


@pytest.mark.parametrize("below", ["", "CUB_200_2011", "CUB_200_2011/images"])
def test_data_root_may_be_the_folder_or_a_parent(complete, below):
    root = complete("cub_lt", "official") / below
    assert prepare("cub_lt", root).checksum == read_manifest("cub_lt").checksum
    seeded = prepare("cub_lt", root, seed=7)
    assert seeded.checksum == prepare("cub_lt", complete("cub_lt", "pilot"), seed=7).checksum


def test_files_outside_the_official_list_are_left_out(complete):
    root = complete("cub_lt", "official")
    extra = root / "CUB_200_2011/images/001.Black_footed_Albatross/copy.jpg"
    extra.write_bytes(b"")
    try:
        rebuilt = build_manifest(CARDS["cub_lt"], find_pool(CARDS["cub_lt"], root))
    finally:
        extra.unlink()
    assert rebuilt.text() == read_manifest("cub_lt").text()


def test_missing_images_are_counted_and_named_before_anything_else(complete):
    root = complete("cub_lt", "pilot")
    frame = prepare("cub_lt", root).frame
    gone = [root / "cub" / path for path in frame.path[[3, 700, 5000]]]
    for path in gone:
        path.unlink()
    try:
        with pytest.raises(UserError) as caught:
            prepare("cub_lt", root)
    finally:
        for path in gone:
            path.write_bytes(b"")
    message = str(caught.value)
    assert message.startswith("3 of the 5,258 images of CUB-LT are missing")
    assert all(f"{path.parent.name}/{path.name}" in message for path in gone)
    assert message.endswith(f"pilot-tal build cub_lt --download --data-root {root}")


def food_root(tmp_path, layout, classes=3):
    """A few complete classes of Food-101 (empty files) in one of its layouts."""
    train, test = (by_class(f"{path}.jpg" for path in part) for part in food101_files())
    for label in list(train)[:classes]:
        for part, names in (("train", train[label]), ("test", test[label])):
            folder = "images" if layout == "official" else part
            write_files(tmp_path / "food-101" / folder, [f"{label}/{name}" for name in names])
    if layout == "official":
        for part, paths in zip(("train", "test"), food101_files(), strict=True):
            write_files(tmp_path, [f"food-101/meta/{part}.txt"], "\n".join(paths).encode())
    return tmp_path


def test_food_uses_the_official_lists_in_both_layouts(tmp_path):
    roots = [food_root(tmp_path / layout, layout) for layout in ("official", "pilot")]
    one, two = (prepare("food101_lt", root, classes="present") for root in roots)
    assert one.checksum == two.checksum
    train, test = (set(part) for part in food101_files())
    for result in (one, two):
        names = ["/".join(path.split("/")[-2:]).removesuffix(".jpg") for path in result.frame.path]
        assert all(
            name in (train if split == "train" else test) for name, split in zip(names, result.frame.split, strict=True)
        )
    assert one.law["train"] == sum(Recipe(n_max=750, n_min=5).class_counts(3)) and one.law["test"] == 75
    again = prepare("food101_lt", roots[0] / "food-101/images", classes="present")
    assert again.checksum == one.checksum and again.frame.path[0].count("/") == 1


def test_food_without_lists_or_listed_files_is_rejected(tmp_path):
    root = food_root(tmp_path, "official", classes=1)
    gone = next((root / "food-101/images").rglob("*.jpg"))
    gone.unlink()
    with pytest.raises(UserError, match=rf"1 images that .*\.txt lists are not below .*{gone.name}"):
        prepare("food101_lt", root, classes="present")
    (root / "food-101/meta/test.txt").unlink()
    gone.write_bytes(b"")
    with pytest.raises(UserError, match=r"cannot read the official list .*meta/test.txt"):
        prepare("food101_lt", root, classes="present")


def test_present_classes_follow_the_law_of_as_many_classes(tmp_path):
    root, chosen = few_classes(tmp_path)
    result = prepare("cub_lt", root, classes="present")
    assert result.class_names == sorted(chosen) and set(result.frame.label) == set(range(5))
    counts = result.frame[result.frame.split == "train"].label.value_counts()
    assert sorted(counts, reverse=True) == Recipe(n_max=40, n_min=2).class_counts(5)
    with pytest.raises(UserError, match=r"195 of the 200 classes .*--download.*classes=present .*the 5 classes"):
        prepare("cub_lt", root)
    with pytest.raises(UserError, match="195 of the 200 classes"):
        prepare("cub_lt", root, seed=3)
    with pytest.raises(UserError, match=r"unknown class 'some'.*all, present, a number"):
        prepare("cub_lt", root, classes="some")


def test_laws_can_be_compared_on_the_same_test_images(tmp_path):
    root, _ = few_classes(tmp_path)
    sets = {law: prepare("cub_lt", root, classes="present", law=law) for law in ("profile", "exponential", "none")}
    tests = [set(result.frame.path[result.frame.split == "test"]) for result in sets.values()]
    assert tests[0] == tests[1] == tests[2] and len(tests[0]) == 100
    assert sets["none"].law["n_max"] == sets["none"].law["smallest"] == 40
    assert sets["exponential"].law["train"] == sum(exponential_counts(5, 40, 2))


def test_unusual_folder_can_be_named(tmp_path):
    make_folder(tmp_path / "birds of mine", {"a": 30, "b": 25}, b"")
    result = prepare("folder_lt", tmp_path, folder="birds of mine")
    assert result.root == tmp_path / "birds of mine" and result.class_names == ["a", "b"]
    with pytest.raises(UserError, match="nowhere does not exist"):
        prepare("folder_lt", tmp_path, folder="nowhere")


def test_official_image_in_both_parts_is_refused(tmp_path):
    label = "001.Black_footed_Albatross"
    write_files(tmp_path / "cub", [f"train/{label}/1.jpg", f"train/{label}/2.jpg", f"test/{label}/2.jpg"])
    with pytest.raises(UserError, match=f"has the name '2.jpg' twice, as train/{label}/2.jpg and test/{label}/2.jpg"):
        prepare("cub_lt", tmp_path)


def test_set_that_makes_its_images_keeps_its_official_parts(tmp_path, monkeypatch):
    def make(data_root):
        make_folder(data_root / "toy/train", {"a": 9, "b": 5}, b"")
        make_folder(data_root / "toy/test", {"a": 3, "b": 3}, b"")

    card = DatasetCard("toy_lt", "Toy-LT", 2, None, 9, 4, 3, official_split=True, folders=("toy",), make=make)
    monkeypatch.setitem(CARDS, "toy_lt", card)
    write_files(tmp_path, [f"other {k}/x.jpg" for k in range(9)])  # another dataset in the same data root
    result = prepare("toy_lt", tmp_path)
    assert result.root == tmp_path / "toy" and result.card is card
    assert all(path.startswith(f"{split}/") for path, split in zip(result.frame.path, result.frame.split, strict=True))
    assert len(result.frame) == result.law["train"] + 6


def test_wrong_names_and_roots_without_the_dataset(tmp_path):
    with pytest.raises(UserError, match=r"new does not exist: .*build food101_lt --download --data-root .*new$"):
        prepare("food101_lt", tmp_path / "new")
    with pytest.raises(UserError, match="did you mean 'imagenetr_lt'"):
        prepare("imagenet_lt", tmp_path)
    with pytest.raises(UserError, match=r"no images of CUB-LT.*CUB_200_2011/.*--download --data-root '.*a b'"):
        (tmp_path / "a b").mkdir()
        prepare("cub_lt", tmp_path / "a b")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rho": 10, "n_min": 4}, "rho = n_max / n_min sets n_min; give one of the two"),
        ({"rho": 0.5}, "rho must be a number from 1 to"),
        ({"law": "natural", "n_max": 4}, "law=natural does not use n_max; leave out n_max"),
        ({"law": "none", "n_min": 2, "rho": 2}, "rho = n_max / n_min"),
        ({"law": "none", "rho": 2}, "law=none does not use rho; leave out rho"),
        ({"law": "exponential", "shape": 2.0}, "law=exponential does not use shape; leave out shape"),
        ({"law": "zipf"}, "unknown law 'zipf'"),
        ({"law": "natural", "rho": 2}, "law=natural does not use rho; leave out rho"),
        ({"folder": "a" * 300}, "folder cannot be a path"),
        ({"folder": ""}, "folder is empty"),
        ({"manifest": "a" * 300}, "manifest cannot be a path"),
    ],
)
def test_wrong_options_are_refused_before_an_image_is_touched(tmp_path, options, words):
    root = make_folder(tmp_path / "mine", {"a": 30, "b": 25}, b"")
    with pytest.raises(UserError, match=words):
        prepare("folder_lt", root, **options)
    for wrong in ("", "a" * 300, "~nobody-of-that-name"):
        with pytest.raises(UserError, match="data_root"):
            prepare("folder_lt", wrong)


def test_natural_and_rho_reach_the_set(tmp_path):
    root = make_folder(tmp_path, {"a": 50, "b": 25}, b"")
    natural = prepare("folder_lt", root, law="natural")
    assert (natural.law["n_max"], natural.law["n_min"], natural.law["train"]) == (40, 15, 55)
    tail = prepare("folder_lt", root, law="exponential", rho=8, n_max=32)
    assert (tail.law["largest"], tail.law["smallest"]) == (32, 4) and "rho" not in tail.law


def test_cards_are_frozen_and_complete():
    for name in ("cub_lt", "imagenetr_lt", "food101_lt"):
        card = CARDS[name]
        assert card.name == name and card.licence and card.citation and card.source.startswith("http")
        assert card.url.startswith("https://") and re.fullmatch("md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", card.checksum)
        with pytest.raises(AttributeError):
            card.n_max = 3

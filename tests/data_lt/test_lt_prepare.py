"""From images on a disk to a set: every layout, complete and incomplete copies, strange files."""

import hashlib
import re
import shutil
import unicodedata

import pytest
from lt_helpers import by_class, cub_files, food101_files, imagenetr_files, make_folder, write_files

from data_lt import CARDS, DatasetCard, LongTailedSet, MissingImages, exponential_counts, prepare, read_manifest
from data_lt.errors import UserError
from data_lt.options import DataOptions
from data_lt.prepare import build_manifest, find_pool
from data_lt.split import Recipe


def pick(path):
    """A 4 : 1 split of names that has nothing to do with ours."""
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


def test_missing_images_are_counted_and_named_before_anything_else(complete):
    root = complete("cub_lt", "pilot")
    frame = prepare("cub_lt", root).frame
    gone = [root / "cub" / path for path in frame.path[[3, 700, 5000]]]
    for path in gone:
        path.unlink()
    try:
        with pytest.raises(MissingImages) as caught:
            prepare("cub_lt", root)
    finally:
        for path in gone:
            path.write_bytes(b"")
    assert sorted(caught.value.missing) == sorted(f"{p.parent.name}/{p.name}" for p in gone)
    message = str(caught.value)
    assert message.startswith("3 of the 5,258 images of CUB-LT are missing")
    assert gone[0].name in message
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


def few_classes(tmp_path, count=5):
    files = {k: v for k, v in by_class(cub_files()).items() if len(v) == 60}
    chosen = dict(list(files.items())[:count])
    write_files(tmp_path / "CUB_200_2011/images", [f"{k}/{name}" for k, names in chosen.items() for name in names])
    return tmp_path, chosen


def test_present_classes_follow_the_law_of_as_many_classes(tmp_path):
    root, chosen = few_classes(tmp_path)
    result = prepare("cub_lt", root, classes="present")
    assert result.class_names == sorted(chosen) and set(result.frame.label) == set(range(5))
    counts = result.frame[result.frame.split == "train"].label.value_counts()
    assert sorted(counts, reverse=True) == Recipe(n_max=40, n_min=2).class_counts(5)
    with pytest.raises(MissingImages, match=r"195 of the 200 classes .*--download.*classes=present .*the 5 classes"):
        prepare("cub_lt", root)
    with pytest.raises(MissingImages, match="195 of the 200 classes"):
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


def test_folder_lt_takes_any_image_folder(tmp_path):
    root = tmp_path / "mine"
    make_folder(root, {"größe eins": 30, "two words": 25, "images": 20, "train": 22})
    for name in ("a.PNG", "b.webp", "c.jpeg"):
        (root / "images" / name).write_bytes(b"")
    for name in ("notes.txt", "._000.jpg", ".hidden.png"):
        (root / "images" / name).write_bytes(b"")
    (root / "README.md").write_text("not a class")
    (root / ".cache").mkdir()
    result = prepare("folder_lt", root, n_max=12, n_min=3, test_per_class=10)
    assert result.class_names == ["größe eins", "images", "train", "two words"]
    pool = find_pool(CARDS["folder_lt"], root)
    assert len(pool.files["images"]) == 23
    nested = tmp_path / "nested"
    nested.mkdir()
    (nested / "images").symlink_to(root)
    open_end = prepare("folder_lt", root)
    assert prepare("folder_lt", nested).checksum == open_end.checksum
    assert open_end.law["n_max"] == 20 and open_end.law["largest"] == 20  # 30 images, 10 of them to test on
    merged = tmp_path / "merged"
    for k, path in enumerate(sorted(root.rglob("*.jpg"))):
        part = "train" if k % 3 else "test"
        write_files(merged, [f"{part}/{path.parent.name}/{path.name}"])
    assert set(find_pool(CARDS["folder_lt"], merged).files) == set(pool.files)


def test_demo_folder_is_not_a_class_of_an_own_dataset(tmp_path):
    make_folder(tmp_path, {"cat": 9, "dog": 9})
    (tmp_path / "demo_lt" / "train").mkdir(parents=True)
    with pytest.raises(UserError, match="class 'demo_lt' is empty"):
        prepare("folder_lt", tmp_path, n_max=4, n_min=2, test_per_class=2)
    (tmp_path / "demo_lt" / "info.json").write_text("{}")
    assert prepare("folder_lt", tmp_path, n_max=4, n_min=2, test_per_class=2).class_names == ["cat", "dog"]


def test_spelling_of_letters_does_not_change_the_split(tmp_path):
    sets = []
    for form in ("NFC", "NFD"):
        names = [unicodedata.normalize(form, f"Café/crème {i}.jpg") for i in range(20)]
        write_files(tmp_path / form, names + [f"b/{i}.jpg" for i in range(20)])
        sets.append(prepare("folder_lt", tmp_path / form))
    assert sets[0].checksum == sets[1].checksum
    assert all((s.root / path).is_file() for s in sets for path in s.frame.path)


def test_own_manifest_is_used_unchanged(tmp_path):
    root = make_folder(tmp_path / "mine", {"a": 30, "b": 25}, b"")
    built = prepare("folder_lt", root, seed=5)
    manifest = build_manifest(CARDS["folder_lt"], find_pool(CARDS["folder_lt"], root), DataOptions(split_seed=5))
    manifest.write(tmp_path / "m.txt")
    again = prepare("folder_lt", root, manifest=tmp_path / "m.txt")
    assert again.checksum == built.checksum and again.frame.equals(built.frame)
    with pytest.raises(UserError, match="already fixes the split; leave out n_max, split_seed"):
        prepare("folder_lt", root, manifest=tmp_path / "m.txt", seed=5, n_max=3)
    with pytest.raises(UserError, match="is of the dataset folder_lt, not of cub_lt"):
        prepare("cub_lt", few_classes(tmp_path)[0], manifest=tmp_path / "m.txt")
    (root / "a" / manifest.split.train["a"][0]).unlink()
    with pytest.raises(MissingImages, match=r"1 of the .* images of Folder-LT are missing"):
        prepare("folder_lt", root, manifest=tmp_path / "m.txt")


def test_unusual_folder_can_be_named(tmp_path):
    make_folder(tmp_path / "birds of mine", {"a": 30, "b": 25}, b"")
    result = prepare("folder_lt", tmp_path, folder="birds of mine")
    assert result.root == tmp_path / "birds of mine" and result.class_names == ["a", "b"]
    with pytest.raises(UserError, match="nowhere does not exist"):
        prepare("folder_lt", tmp_path, folder="nowhere")


def break_nothing_there(root):
    root.rename(root.with_name("moved"))


def break_root_is_a_file(root):
    break_nothing_there(root)
    root.write_bytes(b"")


def break_no_class(root):
    break_nothing_there(root)
    root.mkdir()


def break_empty_class(root):
    (root / "leer é").mkdir()


def break_class_link_circle(root):
    (root / "loop").symlink_to("loop")


def break_image_link_circle(root):
    (root / "a/loop.jpg").symlink_to("loop.jpg")


def break_dead_link(root):
    (root / "a/dead.jpg").symlink_to("/nowhere/x.jpg")


def break_class_twice(root):
    (root / "again").symlink_to("a")


def break_link_to_parent(root):
    (root / "up").symlink_to("..")


def break_control_character(root):
    (root / "a/new\nline.jpg").write_bytes(b"")


def break_two_spellings(root):
    for form in ("NFC", "NFD"):
        write_files(root, [unicodedata.normalize(form, "é/1.jpg")])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (break_nothing_there, "data root .*mine does not exist"),
        (break_root_is_a_file, "data root .*mine is not a folder"),
        (break_no_class, "no images of Folder-LT below .*mine"),
        (break_empty_class, "class 'leer é' is empty"),
        (break_class_link_circle, "loop is a link that leads nowhere or in a circle"),
        (break_image_link_circle, "loop.jpg is a link that leads nowhere or in a circle"),
        (break_dead_link, "dead.jpg is a link that leads nowhere"),
        (break_class_twice, "a/000.jpg and again/000.jpg .* are the same file"),
        (break_link_to_parent, "class 'up' is empty"),
        (break_control_character, r"a/new\\nline.jpg' has a control character"),
        (break_two_spellings, "has the name '1.jpg' twice"),
    ],
)
def test_damaged_folders_are_refused_by_name(tmp_path, damage, words):
    root = make_folder(tmp_path / "mine", {"a": 30, "b": 25}, b"")
    damage(root)
    with pytest.raises(UserError, match=words):
        prepare("folder_lt", root)


def test_official_image_in_both_parts_is_refused(tmp_path):
    label = "001.Black_footed_Albatross"
    write_files(tmp_path / "cub", [f"train/{label}/1.jpg", f"train/{label}/2.jpg", f"test/{label}/2.jpg"])
    with pytest.raises(UserError, match=f"has the name '2.jpg' twice, as train/{label}/2.jpg and test/{label}/2.jpg"):
        prepare("cub_lt", tmp_path)


def own_split(root, train="train", test="test", train_sizes=(20, 6), test_sizes=(8, 3)):
    """An own dataset in a training and a test folder, whose files share names."""
    for part, sizes in ((train, train_sizes), (test, test_sizes)):
        make_folder(root / part, dict(zip("ab", sizes, strict=True)), b"")
    return root


def paths_of(found, split):
    return set(found.frame.path[found.frame.split == split])


def files_in(root, part):
    return {path.relative_to(root).as_posix() for path in (root / part).rglob("*.jpg")}


@pytest.mark.parametrize(("train", "test"), [("train", "test"), ("Train", "VAL"), ("TRAIN", "validation")])
def test_training_and_test_folders_are_kept(tmp_path, train, test):
    root = own_split(tmp_path, train, test)
    found = prepare("folder_lt", root)
    assert paths_of(found, "train") == files_in(root, train) and paths_of(found, "test") == files_in(root, test)
    assert (found.law["law"], found.law["test_per_class"], found.law["largest"]) == ("natural", "all", 20)
    assert found.checksum == prepare("folder_lt", own_split(tmp_path / "same")).checksum
    assert found.notes == ()


def test_test_folder_is_preferred_to_val(tmp_path):
    root = own_split(own_split(tmp_path), "train", "val", test_sizes=(5, 5))
    assert paths_of(prepare("folder_lt", root), "test") == files_in(root, "test")


@pytest.mark.parametrize("options", [{"n_max": 10, "n_min": 2}, {"rho": 3}, {"law": "none"}])
def test_profile_subsamples_only_the_training_folder(tmp_path, options):
    root = own_split(tmp_path)
    found = prepare("folder_lt", root, **options)
    assert paths_of(found, "train") < files_in(root, "train") and paths_of(found, "test") == files_in(root, "test")
    some = prepare("folder_lt", root, test_per_class=2, **options)
    assert len(paths_of(some, "test")) == 4 and paths_of(some, "test") < files_in(root, "test")
    assert paths_of(some, "train") == paths_of(found, "train")


def test_merge_pools_both_folders_and_reports_it(tmp_path, capsys):
    found = prepare("folder_lt", own_split(tmp_path, train_sizes=(20, 20), test_sizes=(8, 8)), merge=True)
    assert found.law["n_max"] == 18 and found.frame.path.is_unique  # 28 images per class, 10 to test on
    assert {path.split("/")[0] for path in paths_of(found, "train")} == {"train", "test"}
    assert capsys.readouterr().err.splitlines() == list(found.notes) and "merge=true" in found.notes[0]


@pytest.mark.parametrize(
    ("extra", "words"),
    [("train/c/1.jpg", "class 'c' has 0 images to test on"), ("test/c/1.jpg", "class 'c' has 0 and the largest")],
)
def test_class_missing_in_train_or_test_is_refused(tmp_path, extra, words):
    write_files(own_split(tmp_path), [extra])
    with pytest.raises(UserError, match=words):
        prepare("folder_lt", tmp_path)


def test_links_to_one_file_are_refused(tmp_path):
    root = make_folder(tmp_path / "pool", {"a": 30, "b": 25}, b"")
    (root / "a/link.jpg").symlink_to("007.jpg")
    with pytest.raises(UserError, match=r"a/007.jpg and a/link.jpg below .* are the same file"):
        prepare("folder_lt", root)
    root = own_split(tmp_path / "split")
    (root / "test/a/link.jpg").symlink_to(root / "train/b/003.jpg")
    with pytest.raises(UserError, match=r"train/b/003.jpg and test/a/link.jpg below .* are the same file"):
        prepare("folder_lt", root)
    (root / "test/a/link.jpg").unlink()
    (root / "test/a/link.jpg").hardlink_to(root / "train/b/003.jpg")
    with pytest.raises(UserError, match=r"train/b/003.jpg and test/a/link.jpg below .* are the same file"):
        prepare("folder_lt", root)


def test_classes_are_chosen_by_number_names_and_file(tmp_path):
    root = make_folder(tmp_path / "mine", dict.fromkeys(("ant", "bee", "cat", "dog"), 15), b"")
    (tmp_path / "names.txt").write_text("dog\n\nbee\n")
    chosen = {2: ["ant", "bee"], ("dog", "cat"): ["cat", "dog"], str(tmp_path / "names.txt"): ["bee", "dog"]}
    for classes, names in chosen.items():
        assert prepare("folder_lt", root, classes=classes).class_names == names
    wrong = {5: "1 to 4", ("dgo", "cat"): "did you mean 'dog'", ("cat", "cat"): "'cat' twice", "0": "1 to 4"}
    for classes, words in wrong.items():
        with pytest.raises(UserError, match=words):
            prepare("folder_lt", root, classes=classes)
    root, names = few_classes(tmp_path)
    assert prepare("cub_lt", root, classes=sorted(names)[:2]).class_names == sorted(names)[:2]
    with pytest.raises(UserError, match="is not below"):
        prepare("cub_lt", root, classes=200)


def test_own_dataset_is_named_after_its_folder_or_as_asked(tmp_path):
    root = make_folder(tmp_path / "My pets", {"a": 15, "b": 15}, b"")
    found, named = prepare("folder_lt", root), prepare("folder_lt", root, name="Pets (mine)")
    assert (found.name, found.title) == ("my_pets", "My pets")
    assert (named.name, named.title) == ("pets_mine", "Pets (mine)") and named.checksum == found.checksum
    odd = make_folder(tmp_path / "cub_lt", {"a": 15, "b": 15}, b"")  # not CUB-LT
    assert prepare("folder_lt", odd).name == "folder_lt"


def test_all_test_images_need_a_test_folder(tmp_path):
    root = make_folder(tmp_path, {"a": 30, "b": 25}, b"")
    with pytest.raises(UserError, match="test_per_class=all needs a test folder"):
        prepare("folder_lt", root, test_per_class="all")


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


def test_linked_classes_and_images_are_welcome(tmp_path):
    make_folder(tmp_path / "store", {"a": 30, "b": 25})
    root = tmp_path / "mine"
    root.mkdir()
    (root / "a").symlink_to(tmp_path / "store/a")
    (root / "b").mkdir()
    for path in (tmp_path / "store/b").iterdir():
        (root / "b" / path.name).symlink_to(path)
    assert prepare("folder_lt", root).checksum == prepare("folder_lt", tmp_path / "store").checksum


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
        ({"law": "natural", "n_max": 4}, "law=natural keeps every image .*; leave out n_max"),
        ({"law": "natural", "rho": 2}, "law=natural does not use rho; leave rho out"),
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

"""Own datasets (`folder_lt`): folders per class, train and test folders, links, names and damaged folders."""

import unicodedata

import pytest
from lt_helpers import few_classes, make_folder, write_files

from data_lt import CARDS, prepare
from data_lt.errors import UserError
from data_lt.options import DataOptions
from data_lt.prepare import build_manifest, find_pool


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
    with pytest.raises(UserError, match=r"1 of the .* images of Folder-LT are missing"):
        prepare("folder_lt", root, manifest=tmp_path / "m.txt")


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


def test_linked_classes_and_images_are_accepted(tmp_path):
    make_folder(tmp_path / "store", {"a": 30, "b": 25})
    root = tmp_path / "mine"
    root.mkdir()
    (root / "a").symlink_to(tmp_path / "store/a")
    (root / "b").mkdir()
    for path in (tmp_path / "store/b").iterdir():
        (root / "b" / path.name).symlink_to(path)
    assert prepare("folder_lt", root).checksum == prepare("folder_lt", tmp_path / "store").checksum

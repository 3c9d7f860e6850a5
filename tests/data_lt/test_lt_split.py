"""Splits of random pools, and the shipped manifests rebuilt from the official lists."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lt_helpers import official_pools
from scipy.stats import chisquare

from data_lt import CARDS, load_manifest
from data_lt.errors import UserError
from data_lt.manifest import Manifest, read_manifest
from data_lt.options import make_recipe
from data_lt.split import Recipe, assign, largest_n_max, split_pools

NAMED = ("cub_lt", "imagenetr_lt", "food101_lt")


@pytest.mark.parametrize("name", NAMED)
def test_shipped_manifest_is_rebuilt_bit_for_bit_from_the_official_lists(name):
    card = CARDS[name]
    pools, test_pools = official_pools(name)
    assert sum(map(len, pools.values())) + sum(map(len, (test_pools or {}).values())) == card.images
    rebuilt = Manifest(name, split_pools(pools, make_recipe(card), test_pools))
    assert rebuilt.text().encode() == card.manifest_path.read_bytes()


@pytest.mark.parametrize("name", NAMED)
def test_shipped_manifest_keeps_its_promises(name):
    card, frame = CARDS[name], load_manifest(name)
    pools, test_pools = official_pools(name)
    train, test = frame[frame.split == "train"], frame[frame.split == "test"]
    assert list(frame.columns) == ["path", "label", "split"] and len(train) + len(test) == len(frame)
    assert frame.path.is_unique  # no image is in both splits
    assert test.label.value_counts().to_dict() == dict.fromkeys(range(card.classes), card.test_per_class)
    quotas = make_recipe(card).class_counts(card.classes)
    assert sorted(train.label.value_counts(), reverse=True) == quotas
    labels = {label: k for k, label in enumerate(sorted(pools))}
    for path, label, split in frame.itertuples(index=False):
        folder, file = path.split("/")
        assert labels[folder] == label
        assert file in (test_pools if test_pools and split == "test" else pools)[folder]


@st.composite
def pools_and_recipe(draw):
    sizes = draw(st.lists(st.integers(0, 60), min_size=1, max_size=20))
    pools = {f"klass é {k}": [f"image {i}.jpg" for i in range(n)] for k, n in enumerate(sizes)}
    low, high = sorted((draw(st.integers(1, 40)), draw(st.integers(1, 40))))
    law = draw(st.sampled_from(["profile", "draw", "exponential", "none"]))
    recipe = Recipe(law, draw(st.floats(0.8, 9)), high, low, draw(st.integers(1, 12)), draw(st.integers(0, 9)))
    return pools, recipe


@given(pools_and_recipe(), st.randoms(use_true_random=False))
def test_random_pools_are_split_as_promised_or_refused(case, shuffler):
    pools, recipe = case
    wanted = recipe.class_counts(len(pools))
    room = sorted((len(names) - recipe.test_per_class for names in pools.values()), reverse=True)
    if any(quota > size for quota, size in zip(wanted, room, strict=True)):
        with pytest.raises(UserError, match="class"):
            split_pools(pools, recipe)
        return
    split = split_pools(pools, recipe)
    assert sorted(map(len, split.train.values()), reverse=True) == wanted
    for label, names in pools.items():
        train, test = split.train[label], split.test[label]
        assert len(set(train) | set(test)) == len(train) + len(test)
        assert set(train) | set(test) <= set(names) and len(test) == recipe.test_per_class
        assert split.pool[label] == len(names)
    labels = list(pools)
    shuffler.shuffle(labels)
    again = {label: shuffler.sample(pools[label], len(pools[label])) for label in labels}
    assert Manifest("x", split_pools(again, recipe)).text() == Manifest("x", split).text()


@given(pools_and_recipe())
def test_open_n_max_is_the_largest_that_fits(case):
    pools, recipe = case
    sizes = {label: len(names) for label, names in pools.items()}
    ranked = sorted(sizes.values(), reverse=True)
    # A plain search over every n_max; `none` has no lower bound but 1.
    start = 1 if recipe.law == "none" else recipe.n_min
    fitting = []
    for n_max in range(start, ranked[0] + 1):
        other = Recipe(recipe.law, recipe.shape, n_max, min(recipe.n_min, n_max), 1, recipe.seed)
        if all(q <= size for q, size in zip(other.class_counts(len(ranked)), ranked, strict=True)):
            fitting.append(n_max)
    assert largest_n_max(sizes, recipe) == max(fitting, default=None)


def test_smaller_count_takes_a_subset_of_the_images():
    pools = {label: [f"{label}{i}" for i in range(40)] for label in "abc"}
    small, large = (split_pools(pools, Recipe("none", n_max=n_max)) for n_max in (7, 19))
    assert small.test == large.test
    assert all(set(small.train[k]) < set(large.train[k]) for k in pools)


def test_seed_changes_assignment_test_and_training_images():
    pools = {f"c{k}": [f"{i}" for i in range(60)] for k in range(10)}
    one, two = (split_pools(pools, Recipe(n_max=40, n_min=2, seed=seed)) for seed in (1, 2))
    assert [len(one.train[k]) for k in pools] != [len(two.train[k]) for k in pools]
    assert all(one.test[k] != two.test[k] for k in pools)


def test_classes_of_equal_names_draw_independent_images():
    split = split_pools({"a": map(str, range(50)), "b": map(str, range(50))}, Recipe(test_per_class=20))
    assert split.test["a"] != split.test["b"]


def test_choices_are_uniform():
    owners, tested = Counter(), Counter()
    pools = {"big": range(9), "mid": range(5), "also": range(5), "small": range(2)}
    for seed in range(1200):
        given_to = assign([4, 2, 1, 1], {k: len(v) for k, v in pools.items()}, seed)
        assert given_to["small"] <= 2
        owners[next(k for k, quota in given_to.items() if quota == 4)] += 1
        split = split_pools({"a": list("abcdefgh")}, Recipe(n_max=2, n_min=2, test_per_class=2, seed=seed))
        tested.update(split.test["a"])
    assert set(owners) == {"big", "mid", "also"}  # a pool of 2 never gets a quota of 4
    assert chisquare(list(owners.values())).pvalue > 0.01
    assert len(tested) == 8 and chisquare(list(tested.values())).pvalue > 0.01


def test_assignment_does_not_follow_the_class_index():
    counts = read_manifest("cub_lt").counts
    ranks = sorted(range(200), key=lambda k: counts[k])
    assert abs(sum((i - 99.5) * (ranks[i] - 99.5) for i in range(200)) / (200 * (200**2 - 1) / 12)) < 0.2


def test_random_state_of_other_modules_is_unchanged():
    random.seed(5)
    expected = random.random()
    random.seed(5)
    split_pools({"a": map(str, range(30))}, Recipe(n_max=5))
    assert random.random() == expected


def test_official_test_lists_give_the_test_images():
    pools = {"a": [f"t{i}" for i in range(9)], "b": [f"t{i}" for i in range(6)]}
    tests = {"a": ["x", "y", "z"], "b": ["u", "v", "w"]}
    split = split_pools(pools, Recipe(n_max=9, n_min=6, test_per_class=2), tests)
    assert set(split.test["a"]) < {"x", "y", "z"} and len(split.train["a"]) == 9
    assert split.pool == {"a": 12, "b": 9}


@pytest.mark.parametrize(
    ("pools", "recipe", "words"),
    [
        ({}, Recipe(), "at least one class"),
        ({"a": range(30), "tiny one": range(9)}, Recipe(), "'tiny one' has 9 images to test on"),
        ({"a": range(30), "small": range(11)}, Recipe(), "'small' has 1 and the largest class has 20"),
        (
            {"a": range(30), "b": range(20)},
            Recipe(n_max=21, n_min=3),
            "n_max=21 needs more .* largest n_max that fits is 20",
        ),
        ({"a": range(30), "b": range(14)}, Recipe("none", n_max=20), "fits is 4"),
        ({"a": range(30), "b": range(12)}, Recipe(n_max=9, n_min=5), "'b' has 2 .*change n_min, rho or test_per_class"),
    ],
)
def test_pools_that_cannot_be_split_are_refused_by_name(pools, recipe, words):
    with pytest.raises(UserError, match=words):
        split_pools({label: map(str, names) for label, names in pools.items()}, recipe)


def test_natural_keeps_all_but_the_test_images():
    pools = {"a": [str(k) for k in range(30)], "b": [str(k) for k in range(12)]}
    split = split_pools(pools, Recipe("natural", test_per_class=10))
    assert {k: len(v) for k, v in split.train.items()} == {"a": 20, "b": 2}
    assert all(set(split.train[k]) | set(split.test[k]) == set(pools[k]) for k in pools)
    assert (split.recipe.n_max, split.recipe.n_min) == (20, 2)
    assert split.test == split_pools(pools, Recipe(n_max=2, n_min=2)).test  # all laws share their test images
    with pytest.raises(UserError, match=r"too few images to train on: .* 'b' has 0"):
        split_pools(pools, Recipe("natural", test_per_class=12))
    with pytest.raises(UserError, match="law=natural takes them from the images"):
        Recipe("natural").class_counts(3)


@given(st.lists(st.integers(11, 200), min_size=2, max_size=20), st.floats(1, 40), st.sampled_from(["profile", "draw"]))
def test_rho_holds_for_the_largest_n_max_that_fits(sizes, rho, law):
    pools = {f"c{k}": [str(i) for i in range(size)] for k, size in enumerate(sizes)}
    try:
        split = split_pools(pools, Recipe(law, rho=rho))
    except UserError as error:
        assert "too few images" in str(error)
        return
    recipe = split.recipe
    assert recipe.rho is None and recipe.n_min == int(recipe.n_max / rho + 1e-9)
    assert split == split_pools(pools, Recipe(law, n_max=recipe.n_max, n_min=recipe.n_min))
    with pytest.raises(UserError):
        split_pools(pools, Recipe(law, n_max=recipe.n_max + 1, rho=rho))


def test_spelling_of_a_number_does_not_change_the_manifest():
    pools = {"a": list(map(str, range(30))), "b": list(map(str, range(30)))}
    plain = Manifest("x", split_pools(pools, Recipe(shape=6, n_max=9, n_min=3, seed=2)))
    other = Recipe(shape=np.float64(6), n_max=np.int64(9), n_min=np.int32(3), seed=np.int64(2))
    assert Manifest("x", split_pools(pools, other)).text() == plain.text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"law": "pareto"}, "unknown law 'pareto'"),
        ({"seed": -3}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"test_per_class": 0}, "test_per_class"),
        ({"n_max": 3, "n_min": 4}, "n_min must not exceed n_max"),
        ({"shape": -1.0}, "shape"),
        ({"shape": 1e300}, "shape"),
        ({"law": "draw", "shape": 1e-5}, "shape"),
        ({"n_max": 10**20}, "n_max"),
        ({"test_per_class": 10**20}, "test_per_class"),
        ({"rho": 0.5}, "rho must be"),
        ({"n_max": 40, "rho": 41}, "rho must be a number from 1 to 40"),
    ],
)
def test_wrong_recipes_are_refused(options, words):
    with pytest.raises(UserError, match=words):
        Recipe(**options)

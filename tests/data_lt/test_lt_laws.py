"""The class counts against published counts, the given tables and the law's own formula."""

import csv
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lt_helpers import OFFICIAL
from scipy.stats import ks_2samp

from data_lt import CARDS, exponential_counts, pareto_counts
from data_lt.errors import UserError
from data_lt.options import DataOptions, make_recipe
from data_lt.split import LAWS, SHAPES, class_counts, density_counts, smallest_class


def read_counts(name):
    with (OFFICIAL / name).open() as file:
        return sorted((int(row["count"]) for row in csv.DictReader(file)), reverse=True)


@pytest.mark.parametrize(
    ("name", "total", "rho"), [("cub_lt", 1258, 20), ("imagenetr_lt", 10911, 81), ("food101_lt", 11770, 150)]
)
def test_profile_equals_the_expected_table(name, total, rho):
    card = CARDS[name]
    counts = pareto_counts(card.classes, card.n_max, card.n_min)
    with (OFFICIAL / "lt_profiles.csv").open() as file:
        expected = [int(row["quota"]) for row in csv.DictReader(file) if row["dataset"] == card.title]
    assert counts == expected
    assert sum(counts) == total
    assert counts[0] / counts[-1] == rho
    assert all(type(count) is int for count in counts)


def test_draw_gives_the_published_counts_of_places_lt():
    drawn = pareto_counts(365, 4980, 5, shape=1.35, draw_seed=10)
    assert drawn == read_counts("places_lt_counts.csv")
    assert sum(drawn) == 62_500


def test_profile_is_close_to_the_published_counts_of_imagenet_lt():
    published = read_counts("imagenet_lt_counts.csv")
    profile = pareto_counts(1000, 1280, 5)
    assert sum(published) == 115_846 and sum(profile) == 111_683
    assert ks_2samp(profile, published).statistic < 0.03
    assert ks_2samp(exponential_counts(1000, 1280, 5), published).statistic > 0.1


def test_exponential_is_cifar_lts():
    # Cui et al. 2019: n_max * (1 / imbalance) ** (k / (C - 1)), here CIFAR-10-LT with imbalance 100.
    assert exponential_counts(10, 5000, 50) == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert exponential_counts(1, 7, 3) == [7]


@pytest.mark.parametrize(("rho", "total"), [(10, 19_573), (50, 12_608), (100, 10_847)])
def test_cifar100_lts_counts_are_those_of_ldams_code(rho, total):
    # Cao et al. 2019 truncate n_max * (1 / rho) ** (class / 99).
    expected = [int(500 * (1 / rho) ** (k / 99)) for k in range(100)]
    card = CARDS["cifar100_lt"]
    recipe = make_recipe(card, DataOptions(rho=rho))
    assert recipe.class_counts(card.classes) == expected and sum(expected) == total
    assert (recipe == make_recipe(card)) == (rho == 100)


def test_density_gives_a_published_food101_lt():
    counts = density_counts(101, 750, 6)
    assert (sum(counts), counts[0], counts[-1], len(counts)) == (11_153, 750, 4, 101)
    grid = np.linspace(1, 100 ** (1 / 6), 101)
    assert counts == np.ceil(750 * grid**-7.0).astype(int).tolist()
    recipe = make_recipe(CARDS["food101_lt"], DataOptions(law="density"))
    assert recipe.class_counts(101) == counts and recipe.n_min == 4
    for wrong, words in (({"n_min": 5}, "does not use n_min"), ({"rho": 150}, "does not use rho")):
        with pytest.raises(UserError, match=words):
            make_recipe(CARDS["food101_lt"], DataOptions(law="density", **wrong))


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_rho_sets_the_smallest_class(one, other):
    n_max, rho = max(one, other), min(one, other)
    assert smallest_class(n_max, rho) == n_max // rho >= 1
    assert smallest_class(n_max, n_max / rho) == rho  # what the user meant, whatever the last bit


@pytest.mark.parametrize("rho", [0, -1, 0.99, 501, math.nan, math.inf, "100", True, 1e300, 10**20])
def test_rho_out_of_range_is_refused(rho):
    with pytest.raises(UserError, match="rho must be a number from 1 to 500"):
        smallest_class(500, rho)


sizes = st.tuples(st.integers(1, 300), st.integers(1, 500), st.integers(1, 500)).map(
    lambda t: (t[0], max(t[1:]), min(t[1:]))
)


@given(
    sizes,
    st.floats(0.5, 12),
    st.sampled_from([law for law in LAWS if law != "natural"]),
    st.integers(0, 99),
)
def test_every_law_stays_in_its_bounds_and_is_sorted(size, shape, law, seed):
    num_classes, n_max, n_min = size
    counts = class_counts(law, num_classes, n_max, n_min, shape, seed)
    assert len(counts) == num_classes and counts[0] == n_max
    assert counts == sorted(counts, reverse=True) and counts[-1] >= (1 if law == "density" else n_min)
    assert counts == class_counts(law, num_classes, n_max, n_min, shape, seed)


@given(sizes, st.floats(0.5, 12))
def test_profile_is_the_laws_quantile_function(size, shape):
    num_classes, n_max, n_min = size
    p = (np.arange(1, num_classes + 1) - 0.3175) / (num_classes + 0.365)
    x = np.expm1(-np.log(p) / shape)  # the Lomax quantile at 1 - p, written another way
    exact = n_min + (n_max - n_min) * x / x[0]
    counts = np.array(pareto_counts(num_classes, n_max, n_min, shape))
    assert np.all(counts <= exact + 1e-6) and np.all(counts > exact - 1 - 1e-6)


def test_draw_depends_only_on_the_seed():
    np.random.seed(1)
    first = pareto_counts(50, 100, 2, draw_seed=4)
    np.random.seed(2)
    assert pareto_counts(50, 100, 2, draw_seed=4) == first != pareto_counts(50, 100, 2, draw_seed=5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 5, 1), "num_classes"),
        ((3, 5, 0), "n_min"),
        ((3, 2.5, 1), "n_max"),
        ((3, True, 1), "n_max"),
        ((3, 4, 5), "n_min must not exceed n_max"),
        ((3, 5, 1, 0), "shape"),
        ((3, 5, 1, math.nan), "shape"),
        ((3, 5, 1, "6"), "shape"),
        ((3, 5, 1, True), "shape"),
        ((3, 5, 1, 1e300), "shape must be a number from 0.1 to 1,000"),
        ((3, 5, 1, 1e-300), "shape must be a number from 0.1 to 1,000"),
        ((3, 5, 1, 1e-5, 1), "shape must be a number from 0.1 to 1,000"),
        ((3, 10**20, 1), "n_max must be a whole number from 1 to 1,000,000,000"),
        ((10**20, 5, 1), "num_classes must be a whole number from 1 to 1,000,000"),
        ((3, 5, 1, 6.0, -1), "seed"),
        ((3, 5, 1, 6.0, 2**32), "seed"),
    ],
)
def test_wrong_numbers_are_named(arguments, words):
    with pytest.raises(UserError, match=words):
        pareto_counts(*arguments)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [None, 0, 7])
@pytest.mark.parametrize("classes", [1, 2, 1000, 100_000])
def test_whole_range_of_shapes_works(shape, seed, classes):
    counts = pareto_counts(classes, 10**9, 1, shape, seed)
    assert counts[0] == 10**9 and counts[-1] >= 1 and len(counts) == classes


def test_unknown_law_suggests_the_nearest():
    with pytest.raises(UserError, match="did you mean 'exponential'"):
        class_counts("exponental", 3, 5, 1)

"""Metrics against scikit-learn, against numbers worked out by hand, and their properties."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from data_lt.errors import UserError
from pilot_tal import metrics


def random_run(seed: int, task_sizes=(4, 3, 3), tests=6):
    """Predictions after each task, some right, some wrong, over balanced test images."""
    rng = np.random.default_rng(seed)
    classes = sum(task_sizes)
    predictions = []
    for seen in np.cumsum(task_sizes):
        true = np.repeat(np.arange(seen), tests)
        pred = np.where(rng.random(true.size) < 0.5, true, rng.integers(0, seen, true.size))
        predictions.append((true, pred))
    return predictions, task_sizes, rng.integers(1, 150, classes), rng.permutation(classes)


@pytest.mark.parametrize("seed", range(5))
def test_same_numbers_as_scikit_learn(seed):
    predictions, task_sizes, counts, order = random_run(seed)
    found = metrics.summarize(predictions, task_sizes, counts, order)
    true, pred = predictions[-1]
    classes = np.arange(sum(task_sizes))
    nan = {"labels": classes, "average": None, "zero_division": np.nan}

    close = {"rtol": 1e-12, "atol": 0, "equal_nan": True}
    per_class = {key: np.array(value, dtype=float) for key, value in found["per_class"].items()}
    np.testing.assert_allclose(per_class["accuracy"], sk.recall_score(true, pred, **nan), **close)
    np.testing.assert_allclose(per_class["precision"], sk.precision_score(true, pred, **nan), **close)
    np.testing.assert_allclose(per_class["f1"], sk.f1_score(true, pred, labels=classes, average=None), **close)
    np.testing.assert_array_equal(
        metrics.confusion_matrix(true, pred, classes.size), sk.confusion_matrix(true, pred, labels=classes)
    )
    assert found["a_last"] == pytest.approx(sk.accuracy_score(true, pred), rel=1e-12)
    assert found["a_mean"] == pytest.approx(sk.balanced_accuracy_score(true, pred), rel=1e-12)
    assert found["macro_f1"] == pytest.approx(sk.f1_score(true, pred, average="macro"), rel=1e-12)
    assert found["a_avg"] == pytest.approx(np.mean([sk.accuracy_score(*p) for p in predictions]), rel=1e-12)
    bounds = np.cumsum([0, *task_sizes])
    for t, (true_t, pred_t) in enumerate(predictions):
        for j in range(len(task_sizes)):
            mask = (true_t >= bounds[j]) & (true_t < bounds[j + 1])
            expected = sk.accuracy_score(true_t[mask], pred_t[mask]) if j <= t else None
            value = found["task_matrix"][t][j]
            assert value == (None if expected is None else pytest.approx(expected, rel=1e-12))
        for key, part in (("old", true_t < bounds[t]), ("new", true_t >= bounds[t])):
            expected = pytest.approx(sk.accuracy_score(true_t[part], pred_t[part]), rel=1e-12) if part.any() else None
            assert found[f"{key}_after_task"][t] == expected
        tail = [label for label in found["tail_classes"] if label < bounds[t + 1]]
        expected = sk.recall_score(true_t, pred_t, labels=tail, average="macro") if tail else None
        assert found["tail_after_task"][t] == (None if expected is None else pytest.approx(expected, rel=1e-12))
    for key, values in (("a_tail_avg", "tail"), ("a_old", "old"), ("a_new", "new")):
        known = [value for value in found[f"{values}_after_task"] if value is not None]
        assert found[key] == pytest.approx(np.mean(known), rel=1e-12)


def test_tail_is_ranked_by_training_images_not_by_test_images():
    true = np.array([0] * 8 + [1] * 2 + [2] * 6 + [3] * 4)  # test images fall 8, 6, 4, 2; training images rise
    pred = np.array([0] * 8 + [0] * 2 + [2] * 6 + [0] * 4)
    found = metrics.summarize([(true, pred)], [4], [2, 50, 3, 40], [0, 1, 2, 3])
    assert found["tail_classes"] == [0, 2]
    assert (found["a_tail"], found["a_head"], found["a_mean"], found["a_last"]) == (1.0, 0.0, 0.5, 14 / 20)
    assert (found["third_rare"], found["few"]) == (1.0, 1.0)


def test_unbalanced_test_images_as_scikit_learn_counts_them():
    true = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 2])
    pred = np.array([0, 0, 1, 1, 0, 2, 2, 0, 0, 2])
    found = metrics.summarize([(true, pred)], [3], [5, 9, 2], [0, 1, 2])
    assert found["a_last"] == pytest.approx(sk.accuracy_score(true, pred))
    assert found["a_mean"] == pytest.approx(sk.balanced_accuracy_score(true, pred))
    assert found["a_last"] != found["a_mean"]


def test_metrics_equal_a_manual_example():
    # Two tasks of two classes, four test images a class. Original indices 3, 1, 0, 2.
    after_first = (np.repeat([0, 1], 4), np.array([0, 0, 0, 1, 1, 1, 1, 1]))  # 3/4, 4/4
    after_second = (
        np.repeat([0, 1, 2, 3], 4),
        np.array([0, 0, 2, 2, 1, 3, 3, 3, 2, 2, 2, 2, 3, 3, 3, 0]),  # 2/4, 1/4, 4/4, 3/4
    )
    found = metrics.summarize([after_first, after_second], [2, 2], [150, 19, 20, 20], [3, 1, 0, 2])
    assert found["per_class"]["accuracy"] == [0.5, 0.25, 1.0, 0.75]
    assert found["per_class"]["precision"] == [2 / 3, 1.0, 4 / 6, 0.5]
    assert found["tail_classes"] == [1, 2]  # 19, then of the two with 20 the one with original index 0
    assert found["a_tail"] == 0.625 and found["a_head"] == 0.625 and found["harmonic_mean"] == 0.625
    assert found["a_mean"] == found["a_last"] == 0.625
    assert found["a_avg"] == (0.875 + 0.625) / 2
    assert found["a_wavg"] == pytest.approx((2 * 0.875 + 4 * 0.625) / 6)
    assert found["many"] == 0.5 and found["medium"] == 0.875 and found["few"] == 0.25
    assert (found["third_rare"], found["third_middle"], found["third_frequent"]) == ((0.25 + 1) / 2, 0.75, 0.5)
    assert found["tail_after_task"] == [1.0, 0.625] and found["a_tail_avg"] == (1.0 + 0.625) / 2
    assert found["old_after_task"] == [None, 0.375] and found["a_old"] == 0.375
    assert found["new_after_task"] == [0.875, 0.875] and found["a_new"] == 0.875
    assert found["worst_class"] == 0.25 and found["worst_class_label"] == 1
    assert found["task_matrix"] == [[0.875, None], [0.375, 0.875]]
    assert found["forgetting"] == 0.5
    f1 = [4 / 7, 2 / 5, 8 / 10, 6 / 10]
    assert found["macro_f1"] == pytest.approx(sum(f1) / 4)


def test_forgetting_takes_the_best_earlier_accuracy_and_may_be_negative():
    nan = math.nan
    matrix = np.array([[0.5, nan, nan], [0.9, 0.2, nan], [0.6, 0.3, 1.0]])
    assert metrics.forgetting(matrix) == pytest.approx(((0.9 - 0.6) + (0.2 - 0.3)) / 2)
    assert math.isnan(metrics.forgetting(np.array([[0.5]])))


def test_half_of_101_classes_is_50_and_ties_go_by_original_index():
    assert len(metrics.tail_classes(np.arange(101), np.arange(101))) == 50
    order = [4, 2, 0, 3, 1]
    assert metrics.tail_classes([7] * 5, order).tolist() == [2, 4]  # the classes that were 0 and 1
    assert metrics.tail_classes([5], [0]).tolist() == []


def test_groups_without_classes_are_absent():
    predictions = [(np.array([0, 1]), np.array([0, 0]))]
    found = metrics.summarize(predictions, [2], [60, 3], [0, 1])
    assert "many" not in found
    assert (found["medium"], found["few"]) == (1.0, 0.0)
    assert found["harmonic_mean"] == 0.0
    assert found["forgetting"] is None


def test_never_predicted_class_has_no_precision_but_counts_in_f1():
    found = metrics.summarize([(np.array([0, 1]), np.array([0, 0]))], [2], [9, 3], [0, 1])
    assert found["per_class"]["precision"] == [0.5, None]
    assert found["per_class"]["f1"] == [pytest.approx(2 / 3), 0.0]


def test_class_without_test_images_stays_out_of_the_means():
    true, pred = np.array([0, 0, 2]), np.array([0, 1, 2])
    found = metrics.summarize([(true, pred)], [3], [5, 4, 3], [0, 1, 2])
    assert found["per_class"]["accuracy"] == [0.5, None, 1.0]
    assert found["a_mean"] == 0.75 and found["worst_class"] == 0.5
    assert found["macro_f1"] == pytest.approx(sk.f1_score(true, pred, labels=[0, 2], average="macro"))


def test_unfinished_run_is_measured_over_seen_classes():
    predictions, task_sizes, counts, order = random_run(3)
    part = metrics.summarize(predictions[:2], task_sizes, counts, order)
    assert part["tasks_done"] == 2 and len(part["per_class"]["accuracy"]) == 7
    assert part["tail_classes"] == metrics.tail_classes(counts, order).tolist()  # ranked over all classes
    tail = [label for label in part["tail_classes"] if label < 7]
    assert part["a_tail"] == pytest.approx(np.mean([part["per_class"]["accuracy"][label] for label in tail]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda p, s, c, o: (p + p, s, c, o), "predictions must cover 1 to 3 tasks, got 6"),
        (lambda p, s, c, o: ([], s, c, o), "predictions must cover 1 to 3 tasks, got 0"),
        (lambda p, s, c, o: (p, s, c[:-1], o), "one entry for each of 10 classes, got 9"),
        (lambda p, s, c, o: (p, s, c, [0] * 10), "must not repeat a class"),
        (lambda p, s, c, o: ([(p[0][0], p[0][1] + 4)], s, c, o), "pred labels must be 0 to 3"),
        (lambda p, s, c, o: ([(p[0][0] - 1, p[0][1])], s, c, o), "true labels must be 0 to 3"),
        (lambda p, s, c, o: ([(p[0][0], p[0][1][:-1])], s, c, o), "same length"),
        (lambda p, s, c, o: ([(np.array([]), np.array([]))], s, c, o), "no predictions after task 0"),
    ],
)
def test_wrong_input_is_refused_with_a_sentence(change, sentence):
    with pytest.raises(UserError, match=sentence):
        metrics.summarize(*change(*random_run(0)))


@given(seed=st.integers(0, 10**6), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_properties_of_the_summary(seed, sizes):
    predictions, task_sizes, counts, order = random_run(seed, tuple(sizes))
    found = metrics.summarize(predictions, task_sizes, counts, order)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    for key in metrics.DEFINITIONS.keys() - {"forgetting"}:
        assert found.get(key) is None or 0 <= found[key] <= 1
    accuracies = np.array(found["per_class"]["accuracy"])
    classes, tail = len(accuracies), len(found["tail_classes"])
    assert tail == classes // 2
    assert found["worst_class"] == accuracies.min() <= found["a_mean"] <= accuracies.max()
    if tail:
        whole = (tail * found["a_tail"] + (classes - tail) * found["a_head"]) / classes
        assert found["a_mean"] == pytest.approx(whole)
        low, high = sorted((found["a_tail"], found["a_head"]))
        assert low - 1e-12 <= found["harmonic_mean"] <= high + 1e-12
    for groups in (metrics.shot_groups(counts), metrics.thirds(counts, order)):
        assert sorted(np.concatenate(list(groups.values()))) == list(range(classes))


def test_thirds_depend_only_on_the_counts():
    counts, order = [5, 5, 90, 1, 7, 7, 7, 2], [7, 6, 5, 4, 3, 2, 1, 0]
    found = {name: part.tolist() for name, part in metrics.thirds(counts, order).items()}
    # 1, 2 and of the two with 5 the one with original index 6; then the other 5 and two of the 7s by original index.
    assert found == {"third_frequent": [2, 4], "third_middle": [0, 5, 6], "third_rare": [1, 3, 7]}
    assert set(metrics.thirds([4, 3], [0, 1])) == {"third_rare", "third_middle"}


@given(seed=st.integers(0, 10**6))
def test_names_of_the_classes_do_not_matter(seed):
    """Another class order inside one task relabels everything and changes no mean."""
    predictions, task_sizes, counts, order = random_run(seed, (8,))
    counts = np.minimum(counts, 40)  # many ties
    new_of_old = np.random.default_rng(seed + 1).permutation(8)
    old_of_new = np.argsort(new_of_old)
    relabelled = [(new_of_old[true], new_of_old[pred]) for true, pred in predictions]
    before = metrics.summarize(predictions, task_sizes, counts, order)
    after = metrics.summarize(relabelled, task_sizes, counts[old_of_new], order[old_of_new])
    for key in metrics.DEFINITIONS.keys() & before.keys():
        assert after[key] == (None if before[key] is None else pytest.approx(before[key], abs=1e-12))
    assert set(np.asarray(order)[before["tail_classes"]]) == set(order[old_of_new][after["tail_classes"]])


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=30), seed=st.integers(0, 999))
def test_no_head_class_has_fewer_images_than_a_tail_class(counts, seed):
    order = np.random.default_rng(seed).permutation(len(counts))
    tail = metrics.tail_classes(counts, order)
    head = np.setdiff1d(np.arange(len(counts)), tail)
    rank = [(count, original) for count, original in zip(counts, order, strict=True)]
    assert len(tail) == len(counts) // 2
    assert not tail.size or max(rank[k] for k in tail) < min(rank[k] for k in head)

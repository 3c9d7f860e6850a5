"""Class order and task split, against LAMDA-PILOT's."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from data_lt.errors import UserError
from pilot_tal.stream.task import (
    class_order,
    equal_tasks,
    given_tasks,
    imbalanced_counts,
    incremental_tasks,
    make_tasks,
)


def shuffled(classes, seed):
    return class_order("shuffled", seed, [str(k) for k in range(classes)], [1] * classes)


def test_class_order_is_the_one_lamda_pilot_draws():
    order = shuffled(200, 1993)
    assert order[:12] == [168, 136, 51, 9, 183, 101, 171, 99, 42, 159, 191, 70]
    assert order.index(0) == 27
    order = shuffled(100, 1993)
    assert order[:12] == [68, 56, 78, 8, 23, 84, 90, 65, 74, 76, 40, 89]
    assert order.index(0) == 69


NAMES, COUNTS = ["ant", "bee é", "cat", "dog"], [5, 9, 5, 2]


def test_orders_by_size_keep_equal_classes_by_label_and_know_no_seed():
    for seed in (1, 2):
        assert class_order("head_first", seed, NAMES, COUNTS) == [1, 0, 2, 3]
        assert class_order("tail_first", seed, NAMES, COUNTS) == [3, 0, 2, 1]


def test_order_can_be_a_file(tmp_path):
    (tmp_path / "order.txt").write_text("dog\nbee é\n\n cat \nant\n", encoding="utf-8")
    assert class_order(str(tmp_path / "order.txt"), 1, NAMES, COUNTS) == [3, 1, 2, 0]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("ant\ncat\ndog\n", "lacks 'bee é'; it must name each of the 4 classes"),
        ("ant\nbee é\ncat\ndog\nant\n", "has the name 'ant' twice"),
        ("ant\nbee\ncat\ndog\n", "unknown class in .*order.txt 'bee': did you mean 'bee é'"),
        ("", "order.txt is empty"),
        (b"\xff\xfe\x00", "cannot read order, the file of class names"),
    ],
)
def test_wrong_order_files_are_one_sentence(tmp_path, content, sentence):
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "order.txt").write_bytes(content)
    with pytest.raises(UserError, match=sentence) as caught:
        class_order(str(tmp_path / "order.txt"), 1, NAMES, COUNTS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("order", ["tail_frist", "", ".", "a" * 300, "x\0y"])
def test_orders_that_do_not_exist_are_one_sentence(order):
    with pytest.raises(UserError, match="order"):
        class_order(order, 1, NAMES, COUNTS)


def test_equal_tasks():
    assert equal_tasks(101, 5) == [21, 20, 20, 20, 20]
    assert equal_tasks(200, 10) == [20] * 10
    assert equal_tasks(7, 7) == [1] * 7


@given(st.integers(1, 300), st.data())
def test_equal_tasks_differ_by_one_at_most_and_never_grow(classes, data):
    sizes = equal_tasks(classes, data.draw(st.integers(1, classes)))
    assert sum(sizes) == classes and max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_incremental_tasks_are_those_of_lamda_pilot():
    assert incremental_tasks(200, 20, 20) == [20] * 10
    assert incremental_tasks(100, 50, 20) == [50, 20, 20, 10]
    assert incremental_tasks(101, 20, 20) == [20, 20, 20, 20, 20, 1]
    assert incremental_tasks(10, 10, 5) == [10]


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        (lambda: equal_tasks(5, 6), "tasks must be 1 to 5"),
        (lambda: equal_tasks(5, 0), "tasks must be 1 to 5"),
        (lambda: incremental_tasks(5, 6, 1), "init_cls must be 1 to 5"),
        (lambda: incremental_tasks(5, 2, 0), "increment must be at least 1"),
    ],
)
def test_impossible_splits_are_refused(split, sentence):
    with pytest.raises(UserError, match=sentence):
        split()


def test_tasks_own_consecutive_labels():
    tasks = make_tasks([2, 1], [9, 8, 7])
    assert [(t.first, t.stop, t.counts) for t in tasks] == [(0, 2, (9, 8)), (2, 3, (7,))]


def test_given_tasks_must_cover_every_class():
    assert given_tasks(35, (20, 5, 10)) == [20, 5, 10]
    with pytest.raises(UserError, match="task_sizes has 35 classes in all, but there are 40"):
        given_tasks(40, (20, 5, 10))


def test_later_tasks_are_rarer_by_task_rho():
    assert imbalanced_counts([1, 2, 1], [40, 40, 3, 40], 16) == [40, 10, 1, 2]
    assert imbalanced_counts([2, 1], [7, 5, 9], 1) == [7, 5, 9]
    with pytest.raises(UserError, match="at least two tasks"):
        imbalanced_counts([3], [7, 5, 9], 2)

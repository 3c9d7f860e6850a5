"""Metrics of a class-incremental run, from one confusion matrix per task: pure functions over NumPy arrays.

A confusion matrix has a row for each true class and a column for each predicted one. Values are fractions of 1 and
never rounded. Labels are those after the class order was applied. A class without test images has no accuracy: it is
NaN and stays out of every mean.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_lt.errors import UserError

Predictions = Sequence[tuple[np.ndarray, np.ndarray]]

MANY_ABOVE, FEW_BELOW = 100, 20  # training images; what lies between is "medium"

DEFINITIONS: dict[str, tuple[str, str]] = {
    "a_mean": ("A_Mean", "mean over all classes of the accuracy per class after the last task"),
    "a_tail": (
        "A_Tail",
        "the same mean over the tail: the half of the classes with the fewest training images, ranked over all classes "
        "of all tasks (rounded down: 50 of 101); ties are broken by original class index, smaller first",
    ),
    "a_head": ("A_Head", "the same mean over the other classes"),
    "harmonic_mean": ("Harmonic mean", "2·A_Head·A_Tail / (A_Head + A_Tail)"),
    "a_last": (
        "A_Last",
        "accuracy over images: share of all test images that are right after the last task; equals A_Mean where every "
        "class has as many test images",
    ),
    "a_avg": (
        "A_Avg",
        "mean over tasks of the accuracy over images after each task, on the test images of all classes seen by then",
    ),
    "a_wavg": ("wAvg", "the same mean weighted by the number of classes seen after each task"),
    "a_tail_avg": (
        "A_Tail over tasks",
        "mean over tasks of the mean accuracy, after each task, of the tail classes seen by then",
    ),
    "a_old": (
        "Old classes",
        "mean over all tasks but the first of the accuracy over images, after each task, on the classes of earlier "
        "tasks",
    ),
    "a_new": ("New classes", "mean over tasks of the accuracy over images, after each task, on its own classes"),
    "many": ("Many", f"mean accuracy of the classes with more than {MANY_ABOVE} training images"),
    "medium": ("Medium", f"mean accuracy of the classes with {FEW_BELOW} to {MANY_ABOVE} training images"),
    "few": ("Few", f"mean accuracy of the classes with fewer than {FEW_BELOW} training images"),
    "third_frequent": (
        "Frequent third",
        "mean accuracy of the third of all classes with the most training images; ranked as for the tail, the rarer "
        "thirds being larger where the classes do not divide by three",
    ),
    "third_middle": ("Middle third", "mean accuracy of the third between them"),
    "third_rare": ("Rare third", "mean accuracy of the third with the fewest training images"),
    "worst_class": ("Worst class", "lowest accuracy of any class after the last task"),
    "macro_f1": ("Macro F1", "mean over classes of 2·TP / (2·TP + FP + FN) after the last task"),
    "forgetting": (
        "Forgetting",
        "mean over all tasks but the last of: best accuracy on the task's images after any task from its own "
        "to the last but one, minus that after the last task (lower is better, may be negative)",
    ),
}
"""Scalar metrics: key in `summarize` → short name, definition. Higher is better except for forgetting."""
LOWER_IS_BETTER = ("forgetting",)
AFTER_TASK = ("accuracy_after_task", "tail_after_task", "old_after_task", "new_after_task")  # lists over the tasks


def confusion_matrix(true: np.ndarray, pred: np.ndarray, classes: int) -> np.ndarray:
    """Counts of (true class, predicted class), shape (classes, classes)."""
    true, pred = np.asarray(true, dtype=np.int64), np.asarray(pred, dtype=np.int64)
    if true.shape != pred.shape or true.ndim != 1:
        raise UserError(f"true and pred must be two lists of the same length, got shapes {true.shape} and {pred.shape}")
    for name, labels in (("true", true), ("pred", pred)):
        if labels.size and not (labels.min() >= 0 and labels.max() < classes):
            raise UserError(f"{name} labels must be 0 to {classes - 1}, got {labels.min()} to {labels.max()}")
    return np.bincount(true * classes + pred, minlength=classes**2).reshape(classes, classes)


def confusion_shares(true: np.ndarray, pred: np.ndarray, classes: int) -> np.ndarray:
    """Share of the images of each true class that go to each predicted one; NaN without test images."""
    confusion = confusion_matrix(true, pred, classes)
    return _ratio(confusion, confusion.sum(axis=1, keepdims=True))


def class_recall(confusion: np.ndarray) -> np.ndarray:
    """Recall of each class, which is its accuracy; NaN without test images."""
    return _ratio(np.diag(confusion), confusion.sum(axis=1))


def class_precision(confusion: np.ndarray) -> np.ndarray:
    """Precision of each class; NaN where the class was never predicted."""
    return _ratio(np.diag(confusion), confusion.sum(axis=0))


def class_f1(confusion: np.ndarray) -> np.ndarray:
    """F1 of each class; NaN without test images, 0 where no image was recognised."""
    support = confusion.sum(axis=1)
    scores = _ratio(2 * np.diag(confusion), support + confusion.sum(axis=0))
    return np.where(support > 0, scores, np.nan)


def accuracy(confusion: np.ndarray, classes: slice = slice(None)) -> float:
    """Share of right images, of all or among those of some classes."""
    return float(_ratio(np.diag(confusion)[classes].sum(), confusion[classes].sum()))


def forgetting(matrix: np.ndarray) -> float:
    """Mean drop from the best earlier accuracy, over all tasks but the last; NaN for one task.

    `matrix` is the accuracy after task t (row) on the images of task j (column), NaN for j > t.
    """
    return _mean(np.fmax.reduce(matrix[:-1, :-1]) - matrix[-1, :-1]) if len(matrix) > 1 else math.nan


def rank_classes(train_counts: Sequence[int], class_order: Sequence[int]) -> np.ndarray:
    """Labels from the fewest training images to the most; equal counts by original class index."""
    if len(train_counts) != len(class_order) or len(set(class_order)) != len(class_order):
        raise UserError("train_counts and class_order must have one length, and class_order must not repeat a class")
    return np.lexsort((class_order, train_counts))


def tail_classes(train_counts: Sequence[int], class_order: Sequence[int]) -> np.ndarray:
    """Labels of the tail, ascending: the half (rounded down) with the fewest images, whatever the class order."""
    return np.sort(rank_classes(train_counts, class_order)[: len(train_counts) // 2])


def shot_groups(train_counts: Sequence[int]) -> dict[str, np.ndarray]:
    """Labels of the many-, medium- and few-shot classes; a group without classes is left out."""
    counts = np.asarray(train_counts)
    many, few = counts > MANY_ABOVE, counts < FEW_BELOW
    groups = {"many": many, "medium": ~many & ~few, "few": few}
    return {name: np.flatnonzero(mask) for name, mask in groups.items() if mask.any()}


def thirds(train_counts: Sequence[int], class_order: Sequence[int]) -> dict[str, np.ndarray]:
    """Labels of the third of the classes with the most training images, of the middle and of the rare third."""
    rare, middle, frequent = np.array_split(rank_classes(train_counts, class_order), 3)
    parts = {"third_frequent": frequent, "third_middle": middle, "third_rare": rare}
    return {name: np.sort(part) for name, part in parts.items() if part.size}


def summarize(
    predictions: Predictions, task_sizes: Sequence[int], train_counts: Sequence[int], class_order: Sequence[int]
) -> dict[str, Any]:
    """All metrics of a run after its last finished task, ready for JSON (an undefined value is None).

    Args:
        predictions: true and predicted labels after each finished task, over all classes seen by then.
        task_sizes: number of classes of each task of the whole run.
        train_counts: training images of each class of the whole run.
        class_order: original index of each class.

    Returns:
        The scalars of `DEFINITIONS` (groups only where they have classes), the lists of `AFTER_TASK`, and
        `task_matrix`, `tail_classes`, `worst_class_label` and, under `per_class`, the `accuracy` (that is, the
        recall), `precision`, `f1` and `test_images` of each class seen.
    """
    if len(train_counts) != sum(task_sizes):
        classes = sum(task_sizes)
        raise UserError(f"train_counts must have one entry for each of {classes} classes, got {len(train_counts)}")
    confusions = _confusions(predictions, task_sizes)
    done, last, seen = len(confusions), confusions[-1], np.cumsum(task_sizes)
    tail = tail_classes(train_counts, class_order)
    matrix, after = _over_tasks(confusions, seen, tail)
    recall = class_recall(last)
    groups = shot_groups(train_counts) | thirds(train_counts, class_order)
    values = _class_means(recall, tail, groups) | {
        "a_last": after["accuracy_after_task"][-1],
        "a_avg": _mean(after["accuracy_after_task"]),
        "a_wavg": float(np.average(after["accuracy_after_task"], weights=seen[:done])),
        "a_tail_avg": _mean(after["tail_after_task"]),
        "a_old": _mean(after["old_after_task"]),
        "a_new": _mean(after["new_after_task"]),
        "macro_f1": _mean(class_f1(last)),
        "forgetting": forgetting(matrix),
    }
    scalars = {key: _plain(values[key]) for key in DEFINITIONS if key in values}
    return {
        "tasks_done": done,
        **scalars,
        "worst_class_label": int(np.nanargmin(recall)),
        **{key: _plain(after[key]) for key in AFTER_TASK},
        "task_matrix": _plain(matrix),
        "tail_classes": tail.tolist(),
        "per_class": {
            "accuracy": _plain(recall),
            "precision": _plain(class_precision(last)),
            "f1": _plain(class_f1(last)),
            "test_images": last.sum(axis=1).tolist(),
        },
    }


def _class_means(recall: np.ndarray, tail: np.ndarray, groups: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The scalars that average the accuracy of each class seen so far."""
    in_tail = np.isin(np.arange(len(recall)), tail)
    a_tail, a_head = _mean(recall[in_tail]), _mean(recall[~in_tail])
    learned = {name: labels[labels < len(recall)] for name, labels in groups.items()}
    return {
        "a_mean": _mean(recall),
        "a_tail": a_tail,
        "a_head": a_head,
        "harmonic_mean": 0.0 if a_head == a_tail == 0 else 2 * a_head * a_tail / (a_head + a_tail),
        "worst_class": float(np.nanmin(recall)),
        **{name: _mean(recall[labels]) for name, labels in learned.items() if labels.size},
    }


def _over_tasks(
    confusions: Sequence[np.ndarray], seen: np.ndarray, tail: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Accuracy after task t (row) on the images of task j (column), and the lists of `AFTER_TASK`; NaN if undefined."""
    done = len(confusions)
    matrix, after = np.full((done, done), np.nan), {key: np.full(done, np.nan) for key in AFTER_TASK}
    for t, confusion in enumerate(confusions):
        starts = [0, *seen[:t]]
        right, images = (np.add.reduceat(part, starts) for part in (np.diag(confusion), confusion.sum(axis=1)))
        matrix[t, : t + 1] = _ratio(right, images)
        after["accuracy_after_task"][t] = accuracy(confusion)
        after["tail_after_task"][t] = _mean(class_recall(confusion)[tail[tail < seen[t]]])
        after["old_after_task"][t] = accuracy(confusion, slice(starts[-1]))
        after["new_after_task"][t] = accuracy(confusion, slice(starts[-1], None))
    return matrix, after


def _confusions(predictions: Predictions, task_sizes: Sequence[int]) -> list[np.ndarray]:
    """The confusion matrix after each finished task."""
    if not 1 <= len(predictions) <= len(task_sizes):
        raise UserError(f"predictions must cover 1 to {len(task_sizes)} tasks, got {len(predictions)}")
    seen = np.cumsum(task_sizes).tolist()
    for task, (true, _) in enumerate(predictions):
        if not len(true):
            raise UserError(f"there are no predictions after task {task}")
    return [confusion_matrix(*labels, classes) for labels, classes in zip(predictions, seen, strict=False)]


@dataclass(frozen=True)
class Spread:
    """Mean over seeds and sample standard deviation (None with one seed)."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """Mean over seeds of paired differences, with its 95 % t-interval (None with one seed)."""

    mean: float
    low: float | None
    high: float | None
    n: int


def spread(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation (divisor n − 1) of the values of at least one seed."""
    array = np.asarray(values, dtype=float)
    if not array.size:
        raise UserError("a mean over seeds needs the value of at least one seed")
    std = float(array.std(ddof=1)) if array.size > 1 else None
    return Spread(float(array.mean()), 0.0 if std is not None and std < 1e-12 else std, array.size)


def paired_difference(values: Mapping[int, float], baseline: Mapping[int, float]) -> Difference | None:
    """`values` minus `baseline` over the seeds that both have; None when they share no seed."""
    seeds = sorted(values.keys() & baseline.keys())
    return mean_interval([values[seed] - baseline[seed] for seed in seeds]) if seeds else None


def mean_interval(values: Sequence[float]) -> Difference:
    """The mean of at least one value, with its interval: mean ± t(0.975, n − 1) · s / √n, s as in `spread`."""
    found = spread(values)
    if found.std is None:
        return Difference(found.mean, None, None, found.n)
    from scipy.special import stdtrit  # Student's quantile; scipy.stats would take a second to import

    half = float(stdtrit(found.n - 1, 0.975)) * found.std / math.sqrt(found.n)
    return Difference(found.mean, found.mean - half, found.mean + half, found.n)


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """`part / whole`, NaN where the whole is 0."""
    return np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=np.asarray(whole) > 0)


def _mean(values: np.ndarray) -> float:
    """Mean of what is not NaN; NaN when nothing is left."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan


def _plain(value: Any) -> Any:
    """Python floats and lists of them, None for NaN."""
    if isinstance(value, np.ndarray) and value.ndim:
        return [_plain(item) for item in value]
    return None if math.isnan(value) else float(value)

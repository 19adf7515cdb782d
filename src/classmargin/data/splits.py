"""Which samples are trained on, which choose models, which judge: deterministic and class by class.

``hold_out_rows`` takes validation (and, where a data set has none, test) samples out of the training part by
a rule that does not know the seed, so that two runs with different seeds are judged on the same samples.
``subset_rows`` then thins the rest: ``fraction`` first, the long tail second, both as prefixes of one order
per class, so that a smaller fraction is always contained in a larger one.
"""

from __future__ import annotations

import numpy as np

from classmargin._checks import check_int, check_number
from classmargin.data.randomness import Purpose, stream
from classmargin.data.raw import IntArray


def hold_out_rows(
    labels: IntArray, share: float, *, num_classes: int, part: int = 0
) -> tuple[IntArray, IntArray]:
    """Split rows into kept and held out; every class gives the same share.

    Args:
        labels: Classes, int64 ``[N]``.
        share: Part of every class that is held out, in [0, 1). With a positive share every class of two or
            more samples gives at least one and keeps at least one.
        num_classes: ``K``.
        part: Different numbers hold out different samples (0 validation, 1 test).

    Returns:
        Kept rows and held-out rows, both ascending.

    Example:
        >>> kept, held_out = hold_out_rows(np.array([0, 0, 0, 0, 1, 1]), 0.5, num_classes=2)
        >>> len(kept), len(held_out)
        (3, 3)
    """
    check_number("share", share, minimum=0.0, below=1.0)
    kept, held_out = [], []
    for rows in _rows_of_classes(labels, num_classes, stream(Purpose.HOLD_OUT, step=part)):
        count = 0 if share == 0.0 else min(max(round(share * len(rows)), 1), len(rows) - 1)
        held_out.append(rows[: max(count, 0)])
        kept.append(rows[max(count, 0) :])
    return _ascending(kept), _ascending(held_out)


def subset_rows(
    labels: IntArray, *, num_classes: int, fraction: float = 1.0, imbalance: float = 1.0, seed: int = 0
) -> IntArray:
    """Return the rows that stay in training.

    Args:
        labels: Classes, int64 ``[N]``.
        num_classes: ``K``.
        fraction: Part of every class that stays, in (0, 1]; at least one sample of each class stays.
        imbalance: Ratio ``R`` of the exponential long tail laid over what ``fraction`` left.
        seed: Chooses which samples stay, never how many.

    Returns:
        Rows, ascending, int64.

    Example:
        >>> subset_rows(np.array([0, 0, 1, 1]), num_classes=2, fraction=0.5).shape
        (2,)
    """
    check_number("fraction", fraction, above=0.0, maximum=1.0)
    check_number("imbalance", imbalance, minimum=1.0)
    classes = _rows_of_classes(labels, num_classes, stream(Purpose.SUBSET, seed=seed))
    classes = [rows[: max(round(fraction * len(rows)), min(1, len(rows)))] for rows in classes]
    if imbalance > 1.0:
        counts = long_tail_counts(max(len(rows) for rows in classes), num_classes, imbalance)
        classes = [rows[:count] for rows, count in zip(classes, counts, strict=True)]
    return _ascending(classes)


def long_tail_counts(largest: int, num_classes: int, imbalance: float) -> IntArray:
    """Return how many samples each class keeps: ``n_k = n_max * R^(-k / (K - 1))``, rounded down, at least 1.

    Args:
        largest: ``n_max``, the number of samples of class 0.
        num_classes: ``K``; the order of the tail is the order of the labels.
        imbalance: ``R >= 1``, how many times rarer the last class is than the first.

    Returns:
        Counts, int64 ``[K]``.

    Example:
        >>> long_tail_counts(500, 3, 100.0).tolist()
        [500, 50, 5]
        >>> int(long_tail_counts(500, 100, 100.0).sum())  # CIFAR-100-IB-100
        10847
    """
    check_int("largest", largest, minimum=1)
    check_int("num_classes", num_classes, minimum=1)
    check_number("imbalance", imbalance, minimum=1.0)
    position = np.arange(num_classes) / max(num_classes - 1, 1)
    # A hair is added because 500 * 0.01 ** 1.0 may come out as 4.999999999.
    counts = np.floor(largest * float(imbalance) ** -position + 1e-9).astype(np.int64)
    return np.maximum(counts, 1)


def _rows_of_classes(labels: IntArray, num_classes: int, random: np.random.Generator) -> list[IntArray]:
    """Return the rows of each class in one random order per class."""
    shuffled = random.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    ends = np.cumsum(np.bincount(labels, minlength=num_classes))
    return np.split(by_class, ends[:-1])


def _ascending(groups: list[IntArray]) -> IntArray:
    return np.sort(np.concatenate(groups)).astype(np.int64)

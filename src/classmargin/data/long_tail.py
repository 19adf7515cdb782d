"""Controlled imbalance: the exponential long tail of CIFAR-100-IB-100 (Cao et al., 2019)."""

from __future__ import annotations

import numpy as np

from classmargin._checks import check_int, check_number
from classmargin.data.raw import IntArray


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

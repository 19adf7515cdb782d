"""Accuracy, precision, recall and calibration per class, from counts.

Everything here is a function of small arrays (``[K]``, ``[K, K]`` or one number a sample), so that batches and
processes merge exactly by adding counts.
"""

from __future__ import annotations

import numpy as np

from classmargin.evaluation.inputs import AnyArray, FloatArray, IntArray

ECE_BINS = 15


def confusion_counts(labels: IntArray, predictions: IntArray, num_classes: int) -> IntArray:
    """Count pairs of true and predicted class.

    Args:
        labels: True classes ``[N]``.
        predictions: Predicted classes ``[N]``.
        num_classes: Number of classes K.

    Returns:
        Counts ``[K, K]``, row = true class, column = predicted class.

    Example:
        >>> confusion_counts(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
        array([[1, 1],
               [0, 1]])
    """
    flat = np.bincount(labels * num_classes + predictions, minlength=num_classes * num_classes)
    return flat.reshape(num_classes, num_classes)


def class_accuracy(confusion: AnyArray) -> FloatArray:
    """Return the accuracy (= recall) of each class ``[K]``, NaN for a class without samples."""
    return share(np.diagonal(confusion), confusion.sum(axis=1))


def class_precision(confusion: AnyArray) -> FloatArray:
    """Return the precision of each class ``[K]``, NaN for a class that is never predicted."""
    return share(np.diagonal(confusion), confusion.sum(axis=0))


def share(part: AnyArray, whole: AnyArray) -> FloatArray:
    """Return ``part / whole`` in float64, NaN where ``whole`` is 0.

    Example:
        >>> share(np.array([1, 0]), np.array([2, 0]))
        array([0.5, nan])
    """
    whole = np.asarray(whole, dtype=np.float64)
    return np.asarray(np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0))


def class_means(values: AnyArray, labels: IntArray, num_classes: int) -> FloatArray:
    """Return the mean of one number a sample within each class ``[K]``, NaN for an absent class.

    Example:
        >>> class_means(np.array([1.0, 3.0, 5.0]), np.array([0, 0, 2]), 3)
        array([ 2., nan,  5.])
    """
    sums = np.bincount(labels, weights=values, minlength=num_classes)
    return share(sums, np.bincount(labels, minlength=num_classes))


def class_calibration_error(
    confidence: AnyArray, correct: AnyArray, labels: IntArray, num_classes: int, *, bins: int = ECE_BINS
) -> FloatArray:
    """Return the expected calibration error of each true class ``[K]``, NaN for an absent class.

    Top-label confidence in ``bins`` equal bins ``(lower, upper]`` of [0, 1]:
    ``ECE_k = sum over bins of |sum of correct - sum of confidence| / n_k`` over the samples of class k.
    """
    sums = _bin_gaps(confidence, correct, labels, num_classes, bins)
    return share(np.abs(sums).sum(axis=1), np.bincount(labels, minlength=num_classes))


def calibration_error(confidence: AnyArray, correct: AnyArray, *, bins: int = ECE_BINS) -> float:
    """Return the expected calibration error over all samples.

    Example:
        >>> round(calibration_error(np.array([0.9, 0.9]), np.array([True, False])), 3)
        0.4
    """
    together = np.zeros(len(confidence), dtype=np.int64)
    return float(np.abs(_bin_gaps(confidence, correct, together, 1, bins)).sum() / len(confidence))


def _bin_gaps(
    confidence: AnyArray, correct: AnyArray, groups: IntArray, num_groups: int, bins: int
) -> FloatArray:
    # ceil - 1 puts a value on a bin's upper edge into that bin, as the usual definition (lower, upper] does.
    index = np.clip(
        np.ceil(np.asarray(confidence, dtype=np.float64) * bins).astype(np.int64) - 1, 0, bins - 1
    )
    gaps = np.bincount(groups * bins + index, weights=correct - confidence, minlength=num_groups * bins)
    return np.asarray(gaps.reshape(num_groups, bins), dtype=np.float64)

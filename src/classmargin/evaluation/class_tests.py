"""Per-class differences of two models with p-values: exact McNemar for one run each, Welch's t with seed noise for several."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from classmargin.evaluation.class_metrics import class_means, share
from classmargin.evaluation.inputs import AnyArray, FloatArray, IntArray
from classmargin.evaluation.significance import mcnemar_p_values

_ROUNDING = 1e-20  # far below the variance that a single odd sample of a million leaves


@dataclass(frozen=True)
class ClassDifferences:
    """Everything about the classes of a pair of models; arrays are ``[K]``.

    Attributes:
        n: Samples.
        baseline: Accuracy (mean over runs), NaN for n = 0.
        candidate: Accuracy (mean over runs), NaN for n = 0.
        gained: Samples that only the candidate gets right (expected number, if there are several runs).
        lost: Samples that only the baseline gets right.
        p_value: Two-sided, NaN for n = 0.
    """

    n: IntArray
    baseline: FloatArray
    candidate: FloatArray
    gained: AnyArray
    lost: AnyArray
    p_value: FloatArray


def class_differences(
    labels: IntArray, correct: AnyArray, runs: tuple[int, int], num_classes: int
) -> ClassDifferences:
    """Compare two models class by class.

    Args:
        labels: True classes ``[N]``.
        correct: Which run is right on which sample ``[N, M]``, the runs of the baseline first.
        runs: Number of runs of baseline and candidate; they sum to M.
        num_classes: Number of classes K.
    """
    first, second = correct[:, : runs[0]], correct[:, runs[0] :]
    n = np.bincount(labels, minlength=num_classes)
    # Chance that a random run of one model is right and a random run of the other is wrong.
    mean_first, mean_second = first.mean(axis=1), second.mean(axis=1)
    gained = np.bincount(labels, weights=mean_second * (1 - mean_first), minlength=num_classes)
    lost = np.bincount(labels, weights=mean_first * (1 - mean_second), minlength=num_classes)
    if runs == (1, 1):
        gained, lost = gained.astype(np.int64), lost.astype(np.int64)
        p_value = mcnemar_p_values(gained, lost)
    else:
        p_value = _t_test(labels, first, second, n)
    return ClassDifferences(
        n=n,
        baseline=class_means(mean_first, labels, num_classes),
        candidate=class_means(mean_second, labels, num_classes),
        gained=gained,
        lost=lost,
        p_value=np.where(n > 0, p_value, np.nan),
    )


def _t_test(labels: IntArray, first: AnyArray, second: AnyArray, n: IntArray) -> FloatArray:
    """Return p-values of a t-test whose variance has three parts: samples, runs of the one, runs of the other.

    Runs and samples are crossed, so what is peculiar to a run on a sample is in the variance over samples and in that over runs; it
    is taken out once. Degrees of freedom by Satterthwaite. Where nothing varies (a class that all runs of one model have wrong and all of
    the other right) or where the samples cannot tell (there is one), it is the sign test of n equal changes, 2 / 2^n.
    """
    from scipy.special import stdtr

    num_classes = len(n)
    difference = second.mean(axis=1) - first.mean(axis=1)
    mean = class_means(difference, labels, num_classes)
    parts = [(_variance_of_mean(difference, labels, mean, n), n - 1.0)]
    parts += [_run_variance(side, labels, num_classes) for side in (first, second)]
    largest = np.maximum.reduce([part for part, _ in parts])
    twice = sum(_interaction(side, labels, n) for side in (first, second))
    variance = np.maximum(sum(part for part, _ in parts) - twice, largest)
    spread = sum(
        np.divide(part**2, freedom, out=np.zeros(num_classes), where=freedom > 0) for part, freedom in parts
    )
    known = (variance > _ROUNDING) & (spread > 0) & (n > 1)
    freedom = np.divide(variance**2, spread, out=np.ones(num_classes), where=known)
    t = np.divide(np.abs(mean), np.sqrt(variance), out=np.zeros(num_classes), where=known)
    alike = np.where(np.abs(mean) > 0, np.exp2(1.0 - n), 1.0)
    return np.where(known, 2 * stdtr(freedom, -t), alike)


def _variance_of_mean(values: FloatArray, labels: IntArray, mean: FloatArray, n: IntArray) -> FloatArray:
    squares = np.bincount(labels, weights=(values - mean[labels]) ** 2, minlength=len(n))
    return np.nan_to_num(share(squares, n * np.maximum(n - 1, 1)))


def _run_variance(side: AnyArray, labels: IntArray, num_classes: int) -> tuple[FloatArray, FloatArray]:
    runs = side.shape[1]
    if runs == 1:
        return np.zeros(num_classes), np.ones(num_classes)
    accuracy = np.stack([class_means(run, labels, num_classes) for run in side.T])
    return np.nan_to_num(accuracy.var(axis=0, ddof=1)) / runs, np.full(num_classes, runs - 1.0)


def _interaction(side: AnyArray, labels: IntArray, n: IntArray) -> FloatArray:
    """Return the variance that the mean owes to what is peculiar to a run on a sample (residual mean square over n R)."""
    runs = side.shape[1]
    if runs == 1:
        return np.zeros(len(n))
    by_run = np.stack([class_means(run, labels, len(n)) for run in side.T], axis=1)
    residual = side - side.mean(axis=1, keepdims=True) - (by_run - by_run.mean(axis=1, keepdims=True))[labels]
    squares = np.bincount(labels, weights=(residual**2).sum(axis=1), minlength=len(n))
    return np.asarray(squares / np.maximum((runs - 1) * (n - 1) * n * runs, 1))

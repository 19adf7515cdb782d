"""Metrics per class: accuracy and calibration from counts, tiers, measures of disparity, Wilson's interval.

Easy, medium and hard thirds of the classes are ranked by
one of these rules:

- ``"corrected"``: estimates of the true class accuracies (:mod:`classmargin.evaluation.corrected`);
- ``"own"``: accuracies of the audited model on the audited samples (the paper): the same noise ranks and measures;
- ``"reference"``: accuracies from elsewhere (another model, another test set);
- ``"crossfit"``: ranked on one half of each class's samples, measured on the other half, both directions, averaged over several splits.
"""

from __future__ import annotations

from statistics import NormalDist  # scipy.stats costs half a second of import
from typing import Any

import numpy as np

from classmargin.evaluation.input_checks import AnyArray, FloatArray, IntArray

ECE_BINS = 15
TIERS = ("easy", "medium", "hard")
RANKINGS = ("corrected", "own", "reference", "crossfit")
_TIE_LEAN = 1e-13
REMAINDER_RULE = "classes beyond a multiple of three go to easy first, then to medium; ties by class index"


def confusion_counts(labels: IntArray, predictions: IntArray, num_classes: int) -> IntArray:
    """Count pairs of true and predicted class."""
    flat = np.bincount(labels * num_classes + predictions, minlength=num_classes * num_classes)
    return flat.reshape(num_classes, num_classes)


def class_accuracy(confusion: AnyArray) -> FloatArray:
    """Return the accuracy (= recall) of each class ``[K]``, NaN for a class without samples."""
    return share(np.diagonal(confusion), confusion.sum(axis=1))


def share(part: AnyArray, whole: AnyArray) -> FloatArray:
    """Return ``part / whole`` in float64, NaN where ``whole`` is 0."""
    whole = np.asarray(whole, dtype=np.float64)
    return np.asarray(np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0))


def normal_quantile(confidence: float) -> float:
    """Return the two-sided standard normal quantile, e.g. 1.96 for 0.95."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def wilson_interval(correct: AnyArray, n: AnyArray, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Return Wilson's score interval for a proportion, NaN where ``n`` is 0."""
    z = normal_quantile(confidence)
    n = np.asarray(n, dtype=np.float64)
    p = share(np.asarray(correct), n)
    safe = np.where(n > 0, n, 1.0)
    centre = (p + z**2 / (2 * safe)) / (1 + z**2 / safe)
    half = z / (1 + z**2 / safe) * np.sqrt(p * (1 - p) / safe + z**2 / (4 * safe**2))
    low = np.where(p <= 0, 0.0, np.maximum(centre - half, 0.0))
    high = np.where(p >= 1, 1.0, np.minimum(centre + half, 1.0))
    return low + 0 * p, high + 0 * p  # NaN where p is


def class_means(values: AnyArray, labels: IntArray, num_classes: int) -> FloatArray:
    """Return the mean of one number per sample within each class ``[K]``, NaN for an absent class."""
    sums = np.bincount(labels, weights=values, minlength=num_classes)
    return share(sums, np.bincount(labels, minlength=num_classes))


def class_calibration_error(confidence: AnyArray, correct: AnyArray, labels: IntArray, num_classes: int) -> FloatArray:
    """Return the expected calibration error of each true class ``[K]``, over equal bins ``(lower, upper]``; NaN for an absent class."""
    gaps = _bin_sums(confidence, correct - confidence, labels, num_classes)
    return share(np.abs(gaps).sum(axis=1), np.bincount(labels, minlength=num_classes))


def class_calibration_limits(
    confidence: AnyArray, correct: AnyArray, labels: IntArray, num_classes: int, quantile: float
) -> tuple[FloatArray, FloatArray]:
    """Return limits of the calibration error on endless samples ``[K]``; the lower allows for the noise that lifts the observed one."""
    n = np.bincount(labels, minlength=num_classes)
    gaps, right, count = (
        _bin_sums(confidence, values, labels, num_classes)
        for values in (correct - confidence, correct, np.ones(len(labels)))
    )
    settled = (right + 2) / (count + 4)  # as for Agresti and Coull's interval: no bin is certain
    deviation = np.sqrt(count * settled * (1 - settled))
    half = quantile * np.sqrt((deviation**2).sum(axis=1))
    error = np.abs(gaps).sum(axis=1)
    low = np.maximum(np.abs(gaps.sum(axis=1)) - half, error - np.sqrt(2 / np.pi) * deviation.sum(axis=1) - half)
    return share(np.maximum(low, 0.0), n), np.minimum(share(error + half, n), 1.0)


def calibration_error(confidence: AnyArray, correct: AnyArray) -> float:
    """Return the expected calibration error over all samples."""
    together = np.zeros(len(confidence), dtype=np.int64)
    return float(class_calibration_error(confidence, correct, together, 1)[0])


def _bin_sums(confidence: AnyArray, values: AnyArray, groups: IntArray, num_groups: int) -> FloatArray:
    # ceil - 1 puts a value on a bin's upper edge into that bin, as the usual definition (lower, upper] does.
    index = np.ceil(np.asarray(confidence, dtype=np.float64) * ECE_BINS).astype(np.int64) - 1
    cells = groups * ECE_BINS + np.clip(index, 0, ECE_BINS - 1)
    sums = np.bincount(cells, weights=values, minlength=num_groups * ECE_BINS)
    return np.asarray(sums.reshape(num_groups, ECE_BINS), dtype=np.float64)


def tier_sizes(num_classes: int) -> tuple[int, int, int]:
    """Return how many of ``num_classes`` classes are easy, medium and hard."""
    base, rest = divmod(num_classes, 3)
    return base + (rest > 0), base + (rest > 1), base


def tier_codes(ranking_accuracy: FloatArray) -> IntArray:
    """Assign every class a tier: 0 easy, 1 medium, 2 hard, -1 absent."""
    present = np.flatnonzero(~np.isnan(ranking_accuracy))
    order = present[np.argsort(-ranking_accuracy[present], kind="stable")]
    codes = np.full(len(ranking_accuracy), -1)
    codes[order] = np.repeat([0, 1, 2], tier_sizes(len(present)))
    return codes


def tier_means(accuracy: FloatArray, codes: IntArray) -> FloatArray:
    """Return the mean accuracy over the classes of each given tier ``[..., 3]``, NaN for an empty tier."""
    means = np.full((*accuracy.shape[:-1], 3), np.nan)
    for code in range(3):
        if (codes == code).any():
            means[..., code] = accuracy[..., codes == code].mean(axis=-1)
    return means


def ranked_tier_means(accuracy: FloatArray, ranked_by: FloatArray) -> FloatArray:
    """Return the mean accuracy of each tier ``[..., 3]`` when every row has its own ranking."""
    # A lean far below any difference of two accuracies breaks ties by class index, as a stable sort would six times slower.
    order = np.argsort(_TIE_LEAN * np.arange(accuracy.shape[-1]) - ranked_by, axis=-1)
    sorted_accuracy = np.take_along_axis(accuracy, np.broadcast_to(order, accuracy.shape), axis=-1)
    means = np.full((*accuracy.shape[:-1], 3), np.nan)
    start = 0
    for code, size in enumerate(tier_sizes(accuracy.shape[-1])):
        if size:
            means[..., code] = sorted_accuracy[..., start : start + size].mean(axis=-1)
        start += size
    return means


def unit_scale(values: FloatArray) -> tuple[FloatArray, int]:
    """Return values divided by the power of two that brings the largest into [0.5, 1), which keeps all digits, and its exponent."""
    exponent = int(np.frexp(np.abs(values).max(initial=0.0))[1])
    # In two halves: 2 to the power of the whole exponent may itself be no float.
    half = exponent // 2
    return np.asarray(np.ldexp(np.ldexp(values, -half), half - exponent)), exponent


def gini(accuracy: FloatArray) -> float:
    """Return the Gini index: mean absolute difference of all pairs over twice the mean; 0 = equal."""
    scaled, count = unit_scale(accuracy)[0], len(accuracy)
    total = float(scaled.sum())
    ranks = 2 * np.arange(1, count + 1) - count - 1
    return max(0.0, float((ranks * np.sort(scaled)).sum() / (count * total))) if total else 0.0


def generalized_entropy(accuracy: FloatArray) -> float:
    """Return the generalized-entropy index of order 2, half the squared coefficient of variation; 0 = equal."""
    scaled = unit_scale(accuracy)[0]
    mean = float(scaled.mean())
    # Rounding may leave a tiny negative number where all are equal.
    return max(0.0, float(((scaled / mean) ** 2 - 1).mean() / 2)) if mean else 0.0


def theil(accuracy: FloatArray) -> float:
    """Return the Theil index, the generalized entropy of order 1; 0 = equal."""
    scaled = unit_scale(accuracy)[0]
    relative = scaled / (float(scaled.mean()) or 1.0)
    positive = relative[relative > 0]  # x ln x -> 0
    return max(0.0, float((positive * np.log(positive)).sum() / len(accuracy)))


def disparity_measures(accuracy: FloatArray, class_names: tuple[str, ...]) -> dict[str, Any]:
    """Return all measures by name, as in ``Audit.disparity``, for the classes with samples (NaN marks the others)."""
    present = np.flatnonzero(~np.isnan(accuracy))
    values = accuracy[present]
    low, high = float(values.min()), float(values.max())

    def measure(of: Any, part: FloatArray = values) -> float:
        scaled, exponent = unit_scale(part)
        return float(np.ldexp(of(scaled), exponent))

    ascending = np.sort(values)
    return {
        "mean_class_accuracy": measure(np.mean),
        "best": high,
        "worst_class": class_names[int(present[np.argmin(values)])],
        "worst_5": measure(np.mean, ascending[:5]),
        "worst_10_percent": measure(np.mean, ascending[: max(1, round(len(values) / 10))]),
        "range": high - low,
        "ratio": low / high if high > 0 else float("nan"),
        "std": measure(np.std),
        "gini": gini(values),
        "generalized_entropy": generalized_entropy(values),
        "theil": theil(values),
    }

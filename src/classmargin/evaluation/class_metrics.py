"""Metrics per class: accuracy, precision and calibration from counts, measures of disparity, and any metric of your own.

Counts and sums (``[K]``, ``[K, K]``) merge exactly over batches and processes. :class:`Metric` states whether higher is better, so that
"worst class" is defined once. Measures of disparity take the accuracies of the classes that have samples, shape ``[K]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin.evaluation.input_checks import AnyArray, FloatArray, IntArray, check_inputs
from classmargin.evaluation.tiers import TIERS, tier_codes

if TYPE_CHECKING:
    import pandas as pd

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


def class_f1(confusion: AnyArray) -> FloatArray:
    """Return the harmonic mean of precision and recall of each class ``[K]``, NaN for a class that is neither seen nor predicted.

    Example:
        >>> class_f1(np.array([[3, 1], [1, 5]])).round(3).tolist()
        [0.75, 0.833]
    """
    return share(2 * np.diagonal(confusion), confusion.sum(axis=0) + confusion.sum(axis=1))


def share(part: AnyArray, whole: AnyArray) -> FloatArray:
    """Return ``part / whole`` in float64, NaN where ``whole`` is 0.

    Example:
        >>> share(np.array([1, 0]), np.array([2, 0]))
        array([0.5, nan])
    """
    whole = np.asarray(whole, dtype=np.float64)
    return np.asarray(np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0))


def class_means(values: AnyArray, labels: IntArray, num_classes: int) -> FloatArray:
    """Return the mean of one number per sample within each class ``[K]``, NaN for an absent class.

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
    gaps = _bin_sums(confidence, correct - confidence, labels, num_classes, bins)
    return share(np.abs(gaps).sum(axis=1), np.bincount(labels, minlength=num_classes))


def class_calibration_limits(
    confidence: AnyArray, correct: AnyArray, labels: IntArray, num_classes: int, quantile: float
) -> tuple[FloatArray, FloatArray]:
    """Return limits of the calibration error that each class would have on endless samples ``[K]``, NaN for an absent class.

    The observed error of a perfectly calibrated class is above zero, by noise alone: the lower limit allows for that in every bin, but
    not below what the mean confidence and the accuracy of the class already prove.

    Args:
        confidence: Top-label confidence ``[N]``.
        correct: Whether the sample is classified right ``[N]``.
        labels: True classes ``[N]``.
        num_classes: Number of classes K.
        quantile: Two-sided normal quantile, e.g. 1.96.
    """
    n = np.bincount(labels, minlength=num_classes)
    gaps, right, count = (
        _bin_sums(confidence, values, labels, num_classes, ECE_BINS)
        for values in (correct - confidence, correct, np.ones(len(labels)))
    )
    settled = (right + 2) / (count + 4)  # as for Agresti and Coull's interval: no bin is certain
    deviation = np.sqrt(count * settled * (1 - settled))
    half = quantile * np.sqrt((deviation**2).sum(axis=1))
    error = np.abs(gaps).sum(axis=1)
    low = np.maximum(
        np.abs(gaps.sum(axis=1)) - half, error - np.sqrt(2 / np.pi) * deviation.sum(axis=1) - half
    )
    return share(np.maximum(low, 0.0), n), np.minimum(share(error + half, n), 1.0)


def calibration_error(confidence: AnyArray, correct: AnyArray, *, bins: int = ECE_BINS) -> float:
    """Return the expected calibration error over all samples.

    Example:
        >>> round(calibration_error(np.array([0.9, 0.9]), np.array([True, False])), 3)
        0.4
    """
    together = np.zeros(len(confidence), dtype=np.int64)
    return float(class_calibration_error(confidence, correct, together, 1, bins=bins)[0])


def _bin_sums(
    confidence: AnyArray, values: AnyArray, groups: IntArray, num_groups: int, bins: int
) -> FloatArray:
    # ceil - 1 puts a value on a bin's upper edge into that bin, as the usual definition (lower, upper] does.
    index = np.clip(
        np.ceil(np.asarray(confidence, dtype=np.float64) * bins).astype(np.int64) - 1, 0, bins - 1
    )
    sums = np.bincount(groups * bins + index, weights=values, minlength=num_groups * bins)
    return np.asarray(sums.reshape(num_groups, bins), dtype=np.float64)


def unit_scale(values: FloatArray) -> tuple[FloatArray, int]:
    """Return values divided by the power of two that brings the largest magnitude into [0.5, 1), and its exponent.

    Squares and sums of the result neither underflow nor overflow, and a power of two costs no digit.

    Example:
        >>> unit_scale(np.array([0.0, 6.0]))
        (array([0.  , 0.75]), 3)
    """
    exponent = int(np.frexp(np.abs(values).max(initial=0.0))[1])
    # In two halves: 2 to the power of the whole exponent may itself be no float.
    half = exponent // 2
    return np.asarray(np.ldexp(np.ldexp(values, -half), half - exponent)), exponent


def _mean(values: FloatArray) -> float:
    scaled, exponent = unit_scale(values)
    return float(np.ldexp(scaled.mean(), exponent))


def worst_k(accuracy: FloatArray, k: int) -> float:
    """Return the mean of the ``k`` lowest accuracies (of all, if there are fewer).

    Example:
        >>> worst_k(np.array([0.9, 0.5, 0.7]), 2)
        0.6
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    return _mean(np.sort(accuracy)[:k])


def gini(accuracy: FloatArray) -> float:
    """Return the Gini index: mean absolute difference of all pairs over twice the mean; 0 = equal.

    Example:
        >>> gini(np.array([0.0, 1.0]))
        0.5
    """
    scaled, _ = unit_scale(accuracy)
    count, total = scaled.shape[0], float(scaled.sum())
    if total == 0:
        return 0.0
    ranks = 2 * np.arange(1, count + 1) - count - 1
    return max(0.0, float((ranks * np.sort(scaled)).sum() / (count * total)))


def generalized_entropy(accuracy: FloatArray, alpha: float = 2.0) -> float:
    """Return the generalized-entropy index of order α (1 = Theil, 0 = mean log deviation); 0 = equal.

    α = 2 is half the squared coefficient of variation. For α <= 0 a class at zero gives infinity.

    Example:
        >>> generalized_entropy(np.array([0.5, 1.5]))
        0.125
    """
    scaled, exponent = unit_scale(accuracy)
    mean = float(scaled.mean())
    if mean == 0:
        return 0.0
    if alpha <= 0 and (accuracy == 0).any():
        return float("inf")
    if alpha == 0:
        # Logarithms of the accuracies themselves: one far below the others would vanish when scaled with them.
        value = np.log(mean) + exponent * np.log(2.0) - np.log(accuracy).mean()
        return max(0.0, float(value))
    relative = scaled / mean
    if alpha == 1:
        positive = relative[relative > 0]  # x ln x -> 0
        return max(0.0, float((positive * np.log(positive)).sum() / accuracy.shape[0]))
    with np.errstate(over="ignore", divide="ignore"):  # infinity is the limit
        value = (relative**alpha - 1).mean() / (alpha * (alpha - 1))
    return max(0.0, float(value))  # rounding may leave a tiny negative number where all are equal


def disparity_measures(accuracy: FloatArray, class_names: tuple[str, ...]) -> dict[str, Any]:
    """Return all measures by name for the classes with samples (NaN marks the others).

    Keys: ``mean_class_accuracy``, ``best``, ``worst_class`` (name), ``worst_5``, ``worst_10_percent``, ``range``,
    ``ratio`` (worst over best), ``std`` (population), ``gini``, ``generalized_entropy`` (α = 2), ``theil``.
    """
    present = np.flatnonzero(~np.isnan(accuracy))
    values = accuracy[present]
    low, high = float(values.min()), float(values.max())
    scaled, exponent = unit_scale(values)
    return {
        "mean_class_accuracy": _mean(values),
        "best": high,
        "worst_class": class_names[int(present[np.argmin(values)])],
        "worst_5": worst_k(values, 5),
        "worst_10_percent": worst_k(values, max(1, round(len(values) / 10))),
        "range": high - low,
        "ratio": low / high if high > 0 else float("nan"),
        "std": float(np.ldexp(scaled.std(), exponent)),
        "gini": gini(values),
        "generalized_entropy": generalized_entropy(values, 2.0),
        "theil": generalized_entropy(values, 1.0),
    }


@dataclass(frozen=True)
class Metric:
    """A measure of how well predictions fit.

    Attributes:
        function: Takes labels ``[n]`` and predictions ``[n]`` of one group and returns a number.
        higher_is_better: Direction, which defines "worst".
    """

    function: Callable[[AnyArray, AnyArray], float]
    higher_is_better: bool = True


def accuracy(labels: AnyArray, predictions: AnyArray) -> float:
    """Return the share of equal entries."""
    return float(np.mean(labels == predictions))


@dataclass(frozen=True)
class ClassFrame:
    """Metrics of one model, split by true class and by tier.

    Attributes:
        metrics: The metrics by name.
        overall: Value of each metric on all samples (Series).
        by_class: One row per class (index: class name), one column per metric; NaN for a class without samples.
        by_tier: Rows easy, medium, hard: mean over the classes of the tier.
    """

    metrics: Mapping[str, Metric]
    overall: pd.Series
    by_class: pd.DataFrame
    by_tier: pd.DataFrame

    def worst(self) -> pd.Series:
        """Return the worst class value of each metric, in the direction the metric states."""
        return self._pick(best=False)

    def best(self) -> pd.Series:
        """Return the best class value of each metric."""
        return self._pick(best=True)

    def worst_class(self) -> pd.Series:
        """Return the name of the worst class for each metric."""
        import pandas as pd

        names = {
            name: self.by_class[name].idxmin() if metric.higher_is_better else self.by_class[name].idxmax()
            for name, metric in self.metrics.items()
        }
        return pd.Series(names)

    def difference(self) -> pd.Series:
        """Return largest minus smallest class value of each metric."""
        return self.by_class.max() - self.by_class.min()

    def ratio(self) -> pd.Series:
        """Return smallest over largest class value of each metric."""
        return self.by_class.min() / self.by_class.max()

    def tier_gap(self) -> pd.Series:
        """Return easy minus hard."""
        import pandas as pd

        easy, hard = (self.by_tier.to_numpy(dtype=np.float64)[TIERS.index(tier)] for tier in ("easy", "hard"))
        return pd.Series(easy - hard, index=self.by_tier.columns)

    def _pick(self, *, best: bool) -> pd.Series:
        import pandas as pd

        values = {
            name: self.by_class[name].max() if metric.higher_is_better == best else self.by_class[name].min()
            for name, metric in self.metrics.items()
        }
        return pd.Series(values)


def class_frame(
    labels: Any,
    predictions: Any,
    *,
    metrics: Mapping[str, Metric] | None = None,
    class_names: Any = None,
    num_classes: int | None = None,
    tiers: IntArray | None = None,
) -> ClassFrame:
    """Evaluate metrics overall, by class and by tier.

    Args:
        labels: True classes ``[N]``.
        predictions: Predicted classes ``[N]``.
        metrics: Name -> metric; accuracy by default.
        class_names: One name per class (or give ``num_classes``).
        num_classes: Number of classes.
        tiers: Tier of each class ``[K]`` (0 easy, 1 medium, 2 hard, -1 none); by own accuracy by default.

    Example:
        >>> frame = class_frame([0, 0, 1], [0, 1, 1], num_classes=2)
        >>> frame.by_class["accuracy"].tolist(), float(frame.worst()["accuracy"])
        ([0.5, 1.0], 0.5)
    """
    import pandas as pd

    inputs = check_inputs(labels, predictions=predictions, class_names=class_names, num_classes=num_classes)
    assert inputs.predictions is not None
    chosen = dict(metrics) if metrics is not None else {"accuracy": Metric(accuracy)}
    groups = [np.flatnonzero(inputs.labels == k) for k in range(inputs.num_classes)]
    columns = {
        name: [_value(metric, inputs.labels[rows], inputs.predictions[rows]) for rows in groups]
        for name, metric in chosen.items()
    }
    by_class = pd.DataFrame(columns, index=pd.Index(inputs.class_names, name="class_name"))
    own = np.array(
        [_value(Metric(accuracy), inputs.labels[rows], inputs.predictions[rows]) for rows in groups]
    )
    codes = tier_codes(own) if tiers is None else np.asarray(tiers)
    by_tier = pd.DataFrame({tier: by_class[codes == code].mean() for code, tier in enumerate(TIERS)}).T
    overall = {name: _value(metric, inputs.labels, inputs.predictions) for name, metric in chosen.items()}
    return ClassFrame(chosen, pd.Series(overall), by_class, by_tier)


def _value(metric: Metric, labels: AnyArray, predictions: AnyArray) -> float:
    return float(metric.function(labels, predictions)) if len(labels) else float("nan")

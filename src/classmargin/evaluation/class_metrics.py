"""Metrics per class: accuracy, precision and calibration from counts, measures of disparity, and any metric of your own.

Counts and sums (``[K]``, ``[K, K]``) merge exactly over batches and processes. :class:`Metric` states whether higher is better, so that
"worst class" is defined once. Measures of disparity take the accuracies of the classes that have samples, shape ``[K]``.

Easy, medium and hard thirds of the classes are ranked by one of these rules:

- ``"corrected"``: estimates of the true class accuracies, from which the noise of the test set has been taken away (see
  :mod:`classmargin.evaluation.corrected`); the tiers of classes are those of their estimates.
- ``"own"``: by the audited model's accuracies on the audited samples (the paper). The same noise ranks and
  measures, so the hard third looks harder, and the easy third easier, than they are.
- ``"reference"``: by accuracies from elsewhere (another model, another test set).
- ``"crossfit"``: ranked on one half of each class's samples, measured on the other half, both directions, averaged over
  several random splits. Ranking noise and measuring noise are independent.

Remainder rule: with ``K = 3q + r`` classes the first of the ``r`` extra classes goes to easy, the second to medium. Ties
are broken by class index (the lower index counts as easier). Classes without samples belong to no tier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin.evaluation.input_checks import AnyArray, FloatArray, IntArray, check_inputs

if TYPE_CHECKING:
    import pandas as pd

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


def class_precision(confusion: AnyArray) -> FloatArray:
    """Return the precision of each class ``[K]``, NaN for a class that is never predicted."""
    return share(np.diagonal(confusion), confusion.sum(axis=0))


def share(part: AnyArray, whole: AnyArray) -> FloatArray:
    """Return ``part / whole`` in float64, NaN where ``whole`` is 0."""
    whole = np.asarray(whole, dtype=np.float64)
    return np.asarray(np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0))


def class_means(values: AnyArray, labels: IntArray, num_classes: int) -> FloatArray:
    """Return the mean of one number per sample within each class ``[K]``, NaN for an absent class."""
    sums = np.bincount(labels, weights=values, minlength=num_classes)
    return share(sums, np.bincount(labels, minlength=num_classes))


def class_calibration_error(confidence: AnyArray, correct: AnyArray, labels: IntArray, num_classes: int) -> FloatArray:
    """Return the expected calibration error of each true class ``[K]``, NaN for an absent class.

    Top-label confidence in equal bins ``(lower, upper]`` of [0, 1]:
    ``ECE_k = sum over bins of |sum of correct - sum of confidence| / n_k`` over the samples of class k.
    """
    gaps = _bin_sums(confidence, correct - confidence, labels, num_classes)
    return share(np.abs(gaps).sum(axis=1), np.bincount(labels, minlength=num_classes))


def class_calibration_limits(
    confidence: AnyArray, correct: AnyArray, labels: IntArray, num_classes: int, quantile: float
) -> tuple[FloatArray, FloatArray]:
    """Return limits of the calibration error that each class would have on endless samples ``[K]``, NaN for an absent class.

    The observed error of a perfectly calibrated class is above zero, by noise alone: the lower limit allows for that in every bin, but
    not below what the mean confidence and the accuracy of the class already prove.
    """
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
    # A stable sort breaks ties by class index but is six times slower than the default one; a lean far below
    # any difference of two accuracies does the same.
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


def gini(accuracy: FloatArray) -> float:
    """Return the Gini index: mean absolute difference of all pairs over twice the mean; 0 = equal."""
    scaled, _ = unit_scale(accuracy)
    count, total = scaled.shape[0], float(scaled.sum())
    if total == 0:
        return 0.0
    ranks = 2 * np.arange(1, count + 1) - count - 1
    return max(0.0, float((ranks * np.sort(scaled)).sum() / (count * total)))


def generalized_entropy(accuracy: FloatArray) -> float:
    """Return the generalized-entropy index of order 2, half the squared coefficient of variation; 0 = equal."""
    scaled, _ = unit_scale(accuracy)
    mean = float(scaled.mean())
    # Rounding may leave a tiny negative number where all are equal.
    return max(0.0, float(((scaled / mean) ** 2 - 1).mean() / 2)) if mean else 0.0


def theil(accuracy: FloatArray) -> float:
    """Return the Theil index, the generalized entropy of order 1; 0 = equal."""
    scaled, _ = unit_scale(accuracy)
    if not scaled.any():
        return 0.0
    relative = scaled / float(scaled.mean())
    positive = relative[relative > 0]  # x ln x -> 0
    return max(0.0, float((positive * np.log(positive)).sum() / len(accuracy)))


def disparity_measures(accuracy: FloatArray, class_names: tuple[str, ...]) -> dict[str, Any]:
    """Return all measures by name for the classes with samples (NaN marks the others).

    Keys: ``mean_class_accuracy``, ``best``, ``worst_class`` (name), ``worst_5``, ``worst_10_percent``, ``range``,
    ``ratio`` (worst over best), ``std`` (population), ``gini``, ``generalized_entropy`` (α = 2), ``theil``.
    """
    present = np.flatnonzero(~np.isnan(accuracy))
    values = accuracy[present]
    low, high = float(values.min()), float(values.max())
    scaled, exponent = unit_scale(values)

    def worst(count: int) -> float:
        lowest, its_exponent = unit_scale(np.sort(values)[:count])
        return float(np.ldexp(lowest.mean(), its_exponent))

    return {
        "mean_class_accuracy": float(np.ldexp(scaled.mean(), exponent)),
        "best": high,
        "worst_class": class_names[int(present[np.argmin(values)])],
        "worst_5": worst(5),
        "worst_10_percent": worst(max(1, round(len(values) / 10))),
        "range": high - low,
        "ratio": low / high if high > 0 else float("nan"),
        "std": float(np.ldexp(scaled.std(), exponent)),
        "gini": gini(values),
        "generalized_entropy": generalized_entropy(values),
        "theil": theil(values),
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
        worst: pd.Series = self.by_class.idxmin().where(self._higher_is_better(), self.by_class.idxmax())
        return worst

    def difference(self) -> pd.Series:
        """Return largest minus smallest class value of each metric."""
        return self.by_class.max() - self.by_class.min()

    def ratio(self) -> pd.Series:
        """Return smallest over largest class value of each metric."""
        return self.by_class.min() / self.by_class.max()

    def tier_gap(self) -> pd.Series:
        """Return easy minus hard."""
        tiers = self.by_tier.T
        return tiers["easy"] - tiers["hard"]

    def _higher_is_better(self) -> AnyArray:
        return np.array([metric.higher_is_better for metric in self.metrics.values()])

    def _pick(self, *, best: bool) -> pd.Series:
        highest = self._higher_is_better() == best
        picked: pd.Series = self.by_class.max().where(highest, self.by_class.min())
        return picked


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

    def values_of(metric: Metric) -> list[float]:
        parts = [(inputs.labels[rows], inputs.predictions[rows]) for rows in groups]  # type: ignore[index]
        return [float(metric.function(*part)) if len(part[0]) else float("nan") for part in parts]

    columns = {name: values_of(metric) for name, metric in chosen.items()}
    by_class = pd.DataFrame(columns, index=pd.Index(inputs.class_names, name="class_name"))
    codes = tier_codes(np.array(values_of(Metric(accuracy)))) if tiers is None else np.asarray(tiers)
    by_tier = pd.DataFrame({tier: by_class[codes == code].mean() for code, tier in enumerate(TIERS)}).T
    overall = {name: float(metric.function(inputs.labels, inputs.predictions)) for name, metric in chosen.items()}
    return ClassFrame(chosen, pd.Series(overall), by_class, by_tier)

"""The class table: how each class does, the likeliest reason why it fails (``class_reasons``), and which properties of a class go
with its accuracy.

Label issues are the confident-learning estimate of Northcutt, Jiang and Chuang, "Confident Learning: Estimating Uncertainty in Dataset
Labels" (2021): a sample labelled i counts for class j when j is the most likely class among those whose probability reaches their
threshold t_j = mean probability of class j over the samples labelled j. Off-diagonal counts are label issues.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from classmargin._checks import check_number
from classmargin.evaluation.class_metrics import (
    class_accuracy,
    class_calibration_error,
    class_calibration_limits,
    class_f1,
    class_means,
    class_precision,
    share,
    unit_scale,
)
from classmargin.evaluation.class_reasons import NAMED_CONFUSIONS, ClassFacts, verdicts
from classmargin.evaluation.corrected import lagging
from classmargin.evaluation.feature_geometry import class_geometry, weight_angles
from classmargin.evaluation.input_checks import AnyArray, FloatArray, IntArray
from classmargin.evaluation.intervals import normal_quantile, wilson_interval
from classmargin.evaluation.tiers import TIERS

if TYPE_CHECKING:
    import pandas as pd

    from classmargin.evaluation.evidence import Evidence, SampleScores
    from classmargin.evaluation.headline_intervals import HeadlineEstimates

LOW_CONFIDENCE = 0.5
HIGH_CONFIDENCE = 0.8
# Pairs of classes that are told apart by their features, worst classes first: each takes some 20 ms.
MOST_PAIRS = 100


def class_table(
    evidence: Evidence,
    class_names: tuple[str, ...],
    confusion: IntArray,
    estimates: HeadlineEstimates,
    *,
    classifier_weight: AnyArray | None,
    mean_margin: float,
    confidence: float,
    costs: FloatArray | None = None,
    train_accuracy: FloatArray | None = None,
    separability: Callable[[AnyArray, IntArray], FloatArray] | None = None,
) -> pd.DataFrame:
    """Return the frame that :class:`~classmargin.evaluation.audit_result.Audit` describes under ``by_class``.

    Args:
        evidence: What was collected.
        class_names: One name per class.
        confusion: Counts ``[K, K]``.
        estimates: Headline numbers; tells the third of each class and its estimated true accuracy.
        classifier_weight: Weights of the head ``[K, d]``.
        mean_margin: Mean of the margins γ.
        confidence: Level of the intervals.
        costs: Cost of taking a class (row) for another (column) ``[K, K]``.
        train_accuracy: Accuracy of each class on its training samples ``[K]``.
        separability: Tells for classes (a mask ``[K]``) and the class that each is most often taken for ``[K]`` how well the two
            can be told apart ``[K]``.
    """
    import pandas as pd

    n = confusion.sum(axis=1)
    accuracy = class_accuracy(confusion)
    low, high = wilson_interval(np.diagonal(confusion), n, confidence)
    tier = ["absent" if code < 0 else TIERS[code] for code in estimates.codes.tolist()]
    columns: dict[str, AnyArray | list[str]] = {
        "class_name": list(class_names),
        "n": n,
        "accuracy": accuracy,
        "low": low,
        "high": high,
        "estimate": estimates.true.estimate,
        "estimate_low": estimates.true.low,
        "estimate_high": estimates.true.high,
        "lags": lagging(np.diagonal(confusion), n, confidence)[0],
        **_more_metrics(confusion, costs, confidence),
        "recall": accuracy.copy(),
        "tier": tier,
        **score_columns(evidence, len(class_names), confidence),
        **_top_columns(evidence, n, confidence),
        **feature_columns(evidence, len(class_names), mean_margin),
        **weight_columns(classifier_weight, class_names),
        **confusion_columns(confusion, class_names),
    }
    frame = pd.DataFrame(columns)
    # A class is to be explained if it lags, and if it is of the hard third and makes errors.
    explained = np.asarray(frame["lags"] | ((frame["tier"] == "hard") & (accuracy < 1)))
    unknown = np.full(len(class_names), np.nan)
    confused, counts = most_confused(confusion)
    wanted = explained & (counts[:, 0] > 0)
    if wanted.sum() > MOST_PAIRS:
        worst_first = np.lexsort((accuracy, ~np.asarray(frame["lags"]), ~wanted))
        wanted = np.isin(np.arange(len(wanted)), worst_first[:MOST_PAIRS])
    apart = unknown if separability is None else separability(wanted, confused[:, 0])
    frame["train_accuracy"] = unknown if train_accuracy is None else train_accuracy
    frame["separability"] = apart
    found = verdicts(
        ClassFacts(
            n=n.astype(np.float64),
            accuracy=accuracy,
            low=low,
            high=high,
            lags=np.asarray(frame["lags"]),
            explained=explained,
            spread=frame["spread"].to_numpy(),
            label_issues=frame["label_issues"].to_numpy(),
            confidently_wrong=frame["confidently_wrong"].to_numpy(),
            confused_with=[
                [class_names[k] for k, count in zip(row, line, strict=True) if count]
                for row, line in zip(confused.tolist(), counts.tolist(), strict=True)
            ],
            confused_samples=counts,
            train_accuracy=frame["train_accuracy"].to_numpy(),
            separability=apart,
        )
    )
    frame["reason"] = [verdict.reason for verdict in found]
    frame["verdict"] = [verdict.words for verdict in found]
    frame["next_step"] = [verdict.next_step for verdict in found]
    return frame


def _more_metrics(confusion: IntArray, costs: FloatArray | None, confidence: float) -> dict[str, FloatArray]:
    """Return precision, F1 and expected cost of each class, each with Wilson's limits."""
    right, true, predicted = np.diagonal(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    precision = wilson_interval(right, predicted, confidence)
    # F1 grows with the share of right samples among all that are of the class or taken for it, which is a proportion.
    overlap = [
        np.asarray(2 * end / (1 + end))
        for end in wilson_interval(right, true + predicted - right, confidence)
    ]
    columns = {
        "precision": class_precision(confusion),
        "precision_low": precision[0],
        "precision_high": precision[1],
    }
    columns |= {"f1": class_f1(confusion), "f1_low": overlap[0], "f1_high": overlap[1]}
    return columns | _cost_columns(confusion, costs, confidence)


def _cost_columns(confusion: IntArray, costs: FloatArray | None, confidence: float) -> dict[str, FloatArray]:
    """Return the mean cost of the samples of each class.

    Between the least and the largest cost of its row, a mean varies at most as much as a proportion: Wilson's limits hold.
    """
    names = ("cost", "cost_low", "cost_high")
    if costs is None:
        return {name: np.full(len(confusion), np.nan) for name in names}
    n = confusion.sum(axis=1)
    mean = share((confusion * costs).sum(axis=1), n)
    least, most = costs.min(axis=1), costs.max(axis=1)
    width = np.where(most > least, most - least, 1.0)
    low, high = wilson_interval(np.nan_to_num((mean - least) / width) * n, n, confidence)
    return dict(zip(names, (mean, least + width * low, np.minimum(least + width * high, most)), strict=True))


def _top_columns(evidence: Evidence, n: IntArray, confidence: float) -> dict[str, FloatArray]:
    """Return the share of samples whose class is among the five most likely ones; NaN without scores, or with up to five classes."""
    names = ("top5", "top5_low", "top5_high")
    if evidence.scores is None or len(n) <= 5:
        return {name: np.full(len(n), np.nan) for name in names}
    among = (evidence.scores.candidates[:, :5] == evidence.labels[:, None]).any(axis=1)
    hits = np.bincount(evidence.labels, weights=among, minlength=len(n))
    return dict(zip(names, (share(hits, n), *wilson_interval(hits, n, confidence)), strict=True))


def score_columns(evidence: Evidence, num_classes: int, confidence: float) -> dict[str, FloatArray]:
    """Return calibration, confidence and label-issue columns; NaN without logits or probabilities."""
    names = (
        "ece",
        "ece_low",
        "ece_high",
        "output_margin",
        "low_confidence",
        "confidently_wrong",
        "label_issues",
    )
    scores, labels = evidence.scores, evidence.labels
    if scores is None:
        return {name: np.full(num_classes, np.nan) for name in names}
    correct = labels == evidence.predictions
    doubtful = doubted_labels(labels, evidence.predictions, scores, num_classes)
    present = np.bincount(labels, minlength=num_classes) > 0
    values = (
        class_calibration_error(scores.confidence, correct, labels, num_classes),
        *class_calibration_limits(
            scores.confidence, correct, labels, num_classes, normal_quantile(confidence)
        ),
        class_means(scores.output_margin, labels, num_classes),
        class_means(scores.confidence < LOW_CONFIDENCE, labels, num_classes),
        class_means(~correct & (scores.confidence >= HIGH_CONFIDENCE), labels, num_classes),
        np.where(present, np.bincount(labels, weights=doubtful, minlength=num_classes), np.nan),
    )
    return dict(zip(names, values, strict=True))


def feature_columns(evidence: Evidence, num_classes: int, mean_margin: float) -> dict[str, FloatArray]:
    """Return spread, mean norm, r² and the margin γ; NaN without features."""
    sums = evidence.feature_sums
    if sums is None:
        return {name: np.full(num_classes, np.nan) for name in ("spread", "mean_norm", "sqnorm", "margin")}
    geometry = class_geometry(sums)
    return {
        "spread": geometry.spread,
        "mean_norm": geometry.mean_norm,
        "sqnorm": geometry.sqnorm,
        "margin": margins_of(geometry.sqnorm, mean_margin),
    }


def margins_of(sqnorm: FloatArray, mean_margin: float) -> FloatArray:
    """Return the margin γ that MR² would give each class (Eq. 1, 17); a class without samples gets the mean.

    The same as ``classmargin.mr2.class_margins``, without torch, which takes longer to load than most audits.

    Example:
        >>> margins_of(np.array([3.0, 4.0, np.nan, 10.0]), 1.0).round(4).tolist()
        [0.8346, 0.9186, 1.0, 1.2468]
    """
    check_number("mean_margin", mean_margin, above=0.0)
    seen = ~np.isnan(sqnorm)
    largest = sqnorm[seen].max(initial=0.0)
    roots = np.cbrt(sqnorm[seen] / largest) if largest > 0 else np.ones(int(seen.sum()))
    margins = np.full(len(sqnorm), float(mean_margin))
    margins[seen] = mean_margin * roots / roots.mean()
    return margins


def weight_columns(
    classifier_weight: AnyArray | None, class_names: tuple[str, ...]
) -> dict[str, FloatArray | list[str]]:
    """Return weight norm and the nearest class by angle; NaN and "" without a head."""
    count = len(class_names)
    if classifier_weight is None:
        empty = np.full(count, np.nan)
        return {"weight_norm": empty, "nearest_by_angle": [""] * count, "nearest_angle": empty.copy()}
    angles = weight_angles(classifier_weight)
    return {
        "weight_norm": angles.norms,
        "nearest_by_angle": ["" if k < 0 else class_names[k] for k in angles.nearest.tolist()],
        "nearest_angle": angles.nearest_degrees,
    }


def confusion_columns(confusion: IntArray, class_names: tuple[str, ...]) -> dict[str, FloatArray | list[str]]:
    """Return the class each class is most often taken for, and how often."""
    top, counts = most_confused(confusion, 1)
    count = counts[:, 0]
    names = [class_names[k] if c > 0 else "" for k, c in zip(top[:, 0].tolist(), count.tolist(), strict=True)]
    return {"nearest_by_confusion": names, "confusion_share": share(count, confusion.sum(axis=1))}


def most_confused(confusion: IntArray, most: int = NAMED_CONFUSIONS) -> tuple[IntArray, IntArray]:
    """Return the classes each class is most often taken for ``[K, most]``, most frequent first, and how often.

    Example:
        >>> most_confused(np.array([[5, 1, 2], [0, 8, 0], [0, 3, 5]]), 1)[0].tolist()
        [[2], [0], [1]]
    """
    num_classes = len(confusion)
    found = np.empty((num_classes, min(most, num_classes)), dtype=np.int64)
    counts = np.empty_like(found)
    for k in range(num_classes):  # row by row: a copy of all pairs of 10 000 classes would take 800 MB
        errors = confusion[k].copy()
        errors[k] = 0
        near = (
            np.argpartition(-errors, found.shape[1] - 1)[: found.shape[1]]
            if most > 1
            else errors.argmax()[None]
        )
        found[k] = near[np.lexsort((near, -errors[near]))]
        counts[k] = errors[found[k]]
    return found, counts


def doubted_labels(
    labels: IntArray, predictions: IntArray, scores: SampleScores, num_classes: int
) -> AnyArray:
    """Return for each sample whether its label is doubted ``[N]``.

    Those that confident learning takes for another class, and the wrong ones whose label the model believes no more than it
    believes the median of those. The flag alone misses labels of classes that are doubted as a whole; with injected label
    noise the union, ranked by the probability of the given label, finds more of it than either part.
    """
    flagged = label_issues(
        labels, scores.true_probability, scores.candidates, scores.candidate_probabilities, num_classes
    )
    if not flagged.any():
        return flagged
    unbelieved = scores.true_probability <= np.median(scores.true_probability[flagged])
    return np.asarray(flagged | ((labels != predictions) & unbelieved))


def label_issues(
    labels: IntArray,
    true_probability: FloatArray,
    candidates: IntArray,
    candidate_probabilities: FloatArray,
    num_classes: int,
) -> AnyArray:
    """Return for each sample whether confident learning takes it for another class ``[N]``.

    Args:
        labels: Given classes ``[N]``.
        true_probability: Probability of the given class ``[N]``.
        candidates: The most likely classes of each sample, most likely first ``[N, T]``.
        candidate_probabilities: Their probabilities ``[N, T]``.
        num_classes: Number of classes K.
    """
    thresholds = class_means(true_probability, labels, num_classes)
    thresholds = np.where(np.isnan(thresholds), np.inf, thresholds)  # no sample can belong to an absent class
    confident = candidate_probabilities >= thresholds[candidates]
    first = np.argmax(confident, axis=1)
    rows = np.arange(labels.shape[0])
    return np.asarray(confident[rows, first] & (candidates[rows, first] != labels))


AGAINST_ACCURACY = ("spread", "mean_norm", "sqnorm", "nearest_angle", "output_margin")


def pearson(x: FloatArray, y: FloatArray) -> float:
    """Return the linear correlation, NaN if one of them does not vary.

    Example:
        >>> round(pearson(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])), 6)
        1.0
    """
    if not len(x) or x.min() == x.max() or y.min() == y.max():
        return float("nan")  # their deviations from the mean may be rounding, which correlates with anything
    # A correlation has no unit: bring both near one, where squares neither vanish nor overflow.
    x, y = unit_scale(x)[0], unit_scale(y)[0]
    x, y = unit_scale(x - x.mean())[0], unit_scale(y - y.mean())[0]
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(np.clip(x @ y / scale, -1.0, 1.0)) if scale > 0 else float("nan")


def spearman(x: FloatArray, y: FloatArray) -> float:
    """Return the rank correlation (ties get their mean rank), NaN if one of them does not vary."""
    return pearson(mean_ranks(x), mean_ranks(y))


def mean_ranks(values: FloatArray) -> FloatArray:
    """Return ranks from 1, equal values sharing their mean rank.

    Example:
        >>> mean_ranks(np.array([10.0, 20.0, 20.0])).tolist()
        [1.0, 2.5, 2.5]
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[place.reshape(-1)])


def correlation_interval(value: float, count: int, measure: str, confidence: float) -> tuple[float, float]:
    """Return Fisher's interval; for rank correlation with the variance of Bonett and Wright (2000).

    Example:
        >>> low, high = correlation_interval(0.5, 100, "pearson", 0.95)
        >>> round(low, 3), round(high, 3)
        (0.337, 0.634)
    """
    if count < 4 or math.isnan(value):
        return float("nan"), float("nan")
    if abs(value) >= 1.0:
        return value, value
    variance = (1.0 if measure == "pearson" else 1.0 + value**2 / 2) / (count - 3)
    centre, half = math.atanh(value), normal_quantile(confidence) * math.sqrt(variance)
    return math.tanh(centre - half), math.tanh(centre + half)


def accuracy_correlations(by_class: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """Return Pearson and Spearman correlation of accuracy with each known column of the class table.

    Columns: ``x``, ``y`` ("accuracy"), ``measure``, ``value``, ``low``, ``high``, ``classes``. The interval takes the classes for
    a sample of classes; it says nothing about cause.
    """
    import pandas as pd

    rows = []
    for name in AGAINST_ACCURACY:
        both = by_class[[name, "accuracy"]].dropna().to_numpy(dtype=np.float64)
        if len(both) < 3:
            continue
        for measure, function in (("pearson", pearson), ("spearman", spearman)):
            value = function(both[:, 0], both[:, 1])
            low, high = correlation_interval(value, len(both), measure, confidence)
            rows.append((name, "accuracy", measure, value, low, high, len(both)))
    return pd.DataFrame(rows, columns=["x", "y", "measure", "value", "low", "high", "classes"])

"""The class table: how each class does, the likeliest reason why it fails (``class_reasons``), and which properties of a class go
with its accuracy.

Label issues are the confident-learning estimate of Northcutt, Jiang and Chuang, "Confident Learning: Estimating Uncertainty in Dataset
Labels" (2021): a sample labelled i counts for class j when j is the most likely class among those whose probability reaches their
threshold t_j = mean probability of class j over the samples labelled j. Off-diagonal counts are label issues.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._checks import check_number
from classmargin.evaluation.class_metrics import (
    TIERS,
    class_accuracy,
    class_calibration_error,
    class_calibration_limits,
    class_means,
    class_precision,
    share,
    unit_scale,
)
from classmargin.evaluation.class_reasons import FACTS, NAMED_CONFUSIONS, verdicts
from classmargin.evaluation.corrected import lagging
from classmargin.evaluation.feature_geometry import class_geometry, weight_angles
from classmargin.evaluation.input_checks import AnyArray, FloatArray, IntArray
from classmargin.evaluation.intervals import normal_quantile, wilson_interval

if TYPE_CHECKING:
    import pandas as pd

    from classmargin.evaluation.evidence import Evidence, SampleScores
    from classmargin.evaluation.headline_intervals import AuditSettings, HeadlineEstimates

LOW_CONFIDENCE = 0.5
HIGH_CONFIDENCE = 0.8
# Pairs of classes that are told apart by their features, worst classes first: each takes some 20 ms.
MOST_PAIRS = 100
# Columns of the class table in their order; what the given arrays do not tell is NaN.
BY_CLASS = (
    *("class_name", "n", "accuracy", "low", "high", "estimate", "estimate_low", "estimate_high", "lags"),
    *("precision", "precision_low", "precision_high", "f1", "f1_low", "f1_high"),
    *("cost", "cost_low", "cost_high", "recall", "tier", "ece", "ece_low", "ece_high", "output_margin"),
    *("low_confidence", "confidently_wrong", "label_issues", "top5", "top5_low", "top5_high"),
    *("spread", "mean_norm", "sqnorm", "margin", "weight_norm", "nearest_by_angle", "nearest_angle"),
    *("nearest_by_confusion", "confusion_share", "train_accuracy", "separability"),
)


def class_table(
    evidence: Evidence,
    class_names: tuple[str, ...],
    confusion: IntArray,
    estimates: HeadlineEstimates,
    settings: AuditSettings,
    *,
    classifier_weight: AnyArray | None,
    train_accuracy: FloatArray | None = None,
    separability: Callable[[AnyArray, IntArray], FloatArray] | None = None,
) -> pd.DataFrame:
    """Return the frame that :class:`~classmargin.evaluation.audit_result.Audit` describes under ``by_class``.

    ``separability`` tells for classes (a mask ``[K]``) and the class that each is most often taken for ``[K]`` how well the two can be
    told apart ``[K]``.
    """
    import pandas as pd

    right, n, predicted = np.diagonal(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    accuracy = class_accuracy(confusion)
    confused, counts = most_confused(confusion)
    top, top_counts = most_confused(confusion, 1)

    def proportion(name: str, value: AnyArray, hits: AnyArray, of: AnyArray) -> dict[str, AnyArray]:
        low, high = wilson_interval(hits, of, settings.confidence)
        return {name: value, f"{name}_low": low, f"{name}_high": high}

    # F1 grows with the share of right samples among all that are of the class or taken for it, which is a proportion.
    overlap = wilson_interval(right, n + predicted - right, settings.confidence)
    columns: dict[str, Any] = {
        "class_name": list(class_names),
        "n": n,
        "accuracy": accuracy,
        "estimate": estimates.true.estimate,
        "estimate_low": estimates.true.low,
        "estimate_high": estimates.true.high,
        "lags": lagging(right, n, settings.confidence)[0],
        **proportion("precision", class_precision(confusion), right, predicted),
        "f1": share(2 * right, n + predicted),
        **{f"f1_{end}": 2 * limit / (1 + limit) for end, limit in zip(("low", "high"), overlap, strict=True)},
        "recall": accuracy.copy(),
        "tier": ["absent" if code < 0 else TIERS[code] for code in estimates.codes.tolist()],
        "nearest_by_angle": "",
        "nearest_by_confusion": [
            class_names[k] if count else "" for k, count in zip(top[:, 0], top_counts[:, 0], strict=True)
        ],
        "confusion_share": share(top_counts[:, 0], n),
    }
    columns["low"], columns["high"] = wilson_interval(right, n, settings.confidence)
    if settings.costs is not None:
        columns |= _cost_columns(confusion, settings.costs, settings.confidence)
    if evidence.scores is not None:
        columns |= _score_columns(evidence, evidence.scores, n, settings.confidence)
        if len(n) > 5:
            among = (evidence.scores.candidates[:, :5] == evidence.labels[:, None]).any(axis=1)
            hits = np.bincount(evidence.labels, weights=among, minlength=len(n))
            columns |= proportion("top5", share(hits, n), hits, n)
    if evidence.feature_sums is not None:
        found = class_geometry(evidence.feature_sums)
        columns |= {"spread": found.spread, "mean_norm": found.mean_norm, "sqnorm": found.sqnorm}
        columns["margin"] = margins_of(found.sqnorm, settings.mean_margin)
    if classifier_weight is not None:
        angles = weight_angles(classifier_weight)
        nearest = ["" if k < 0 else class_names[k] for k in angles.nearest.tolist()]
        columns |= {"weight_norm": angles.norms, "nearest_by_angle": nearest}
        columns["nearest_angle"] = angles.nearest_degrees
    frame = pd.DataFrame(columns).reindex(columns=list(BY_CLASS))
    # A class is to be explained if it lags, and if it is of the hard third and makes errors.
    explained = frame["lags"] | ((frame["tier"] == "hard") & (accuracy < 1))
    wanted = np.asarray(explained) & (counts[:, 0] > 0)
    if wanted.sum() > MOST_PAIRS:
        worst_first = np.lexsort((accuracy, ~np.asarray(frame["lags"]), ~wanted))
        wanted = np.isin(np.arange(len(wanted)), worst_first[:MOST_PAIRS])
    if train_accuracy is not None:
        frame["train_accuracy"] = train_accuracy
    if separability is not None:
        frame["separability"] = separability(wanted, confused[:, 0])
    named = [
        [class_names[k] for k, count in zip(row, line, strict=True) if count]
        for row, line in zip(confused.tolist(), counts.tolist(), strict=True)
    ]
    said = verdicts(frame[list(FACTS)].assign(explained=explained), named, counts)
    frame["reason"], frame["verdict"], frame["next_step"] = zip(*said, strict=True)
    return frame


def _cost_columns(confusion: IntArray, costs: FloatArray, confidence: float) -> dict[str, FloatArray]:
    """Return the mean cost of the samples of each class.

    Between the least and the largest cost of its row, a mean varies at most as much as a proportion: Wilson's limits hold.
    """
    n = confusion.sum(axis=1)
    mean = share((confusion * costs).sum(axis=1), n)
    least, most = costs.min(axis=1), costs.max(axis=1)
    width = np.where(most > least, most - least, 1.0)
    low, high = wilson_interval(np.nan_to_num((mean - least) / width) * n, n, confidence)
    limits = {"cost_low": least + width * low, "cost_high": np.minimum(least + width * high, most)}
    return {"cost": mean, **limits}


def _score_columns(evidence: Evidence, scores: SampleScores, n: IntArray, confidence: float) -> dict[str, FloatArray]:
    """Return calibration, confidence and label-issue columns."""
    labels, count = evidence.labels, len(n)
    correct = labels == evidence.predictions
    doubtful = doubted_labels(labels, evidence.predictions, scores, count)
    low, high = class_calibration_limits(scores.confidence, correct, labels, count, normal_quantile(confidence))
    sure_and_wrong = ~correct & (scores.confidence >= HIGH_CONFIDENCE)
    return {
        "ece": class_calibration_error(scores.confidence, correct, labels, count),
        "ece_low": low,
        "ece_high": high,
        "output_margin": class_means(scores.output_margin, labels, count),
        "low_confidence": class_means(scores.confidence < LOW_CONFIDENCE, labels, count),
        "confidently_wrong": class_means(sure_and_wrong, labels, count),
        "label_issues": np.where(n > 0, np.bincount(labels, weights=doubtful, minlength=count), np.nan),
    }


def margins_of(sqnorm: FloatArray, mean_margin: float) -> FloatArray:
    """Return the margin γ that MR² would give each class (Eq. 1, 17); a class without samples gets the mean.

    The same as ``classmargin.mr2.class_margins``, without torch, which takes longer to load than most audits.
    """
    check_number("mean_margin", mean_margin, above=0.0)
    seen = ~np.isnan(sqnorm)
    largest = sqnorm[seen].max(initial=0.0)
    roots = np.cbrt(sqnorm[seen] / largest) if largest > 0 else np.ones(int(seen.sum()))
    margins = np.full(len(sqnorm), float(mean_margin))
    margins[seen] = mean_margin * roots / roots.mean()
    return margins


def most_confused(confusion: IntArray, most: int = NAMED_CONFUSIONS) -> tuple[IntArray, IntArray]:
    """Return the classes each class is most often taken for ``[K, most]``, most frequent first, and how often."""
    num_classes = len(confusion)
    found = np.empty((num_classes, min(most, num_classes)), dtype=np.int64)
    counts = np.empty_like(found)
    for k in range(num_classes):  # row by row: a copy of all pairs of 10 000 classes would take 800 MB
        errors = confusion[k].copy()
        errors[k] = 0
        size = found.shape[1]
        near = np.argpartition(-errors, size - 1)[:size] if most > 1 else errors.argmax()[None]
        found[k] = near[np.lexsort((near, -errors[near]))]
        counts[k] = errors[found[k]]
    return found, counts


def doubted_labels(labels: IntArray, predictions: IntArray, scores: SampleScores, num_classes: int) -> AnyArray:
    """Return for each sample whether its label is doubted ``[N]``.

    Those that confident learning takes for another class, and the wrong ones whose label the model believes no more than it
    believes the median of those. The flag alone misses labels of classes that are doubted as a whole; with injected label
    noise the union, ranked by the probability of the given label, finds more of it than either part.
    """
    flagged = label_issues(labels, scores, num_classes)
    if not flagged.any():
        return flagged
    unbelieved = scores.true_probability <= np.median(scores.true_probability[flagged])
    return np.asarray(flagged | ((labels != predictions) & unbelieved))


def label_issues(labels: IntArray, scores: SampleScores, num_classes: int) -> AnyArray:
    """Return for each sample whether confident learning takes it for another class ``[N]``."""
    thresholds = class_means(scores.true_probability, labels, num_classes)
    thresholds = np.where(np.isnan(thresholds), np.inf, thresholds)  # no sample can belong to an absent class
    confident = scores.candidate_probabilities >= thresholds[scores.candidates]
    first = np.argmax(confident, axis=1)
    rows = np.arange(len(labels))
    return np.asarray(confident[rows, first] & (scores.candidates[rows, first] != labels))


AGAINST_ACCURACY = ("spread", "mean_norm", "sqnorm", "nearest_angle", "output_margin")


def pearson(x: FloatArray, y: FloatArray) -> float:
    """Return the linear correlation, NaN if one of them does not vary."""
    if not len(x) or x.min() == x.max() or y.min() == y.max():
        return float("nan")  # their deviations from the mean may be rounding, which correlates with anything
    # A correlation has no unit: bring both near one, where squares neither vanish nor overflow.
    x, y = unit_scale(x)[0], unit_scale(y)[0]
    x, y = unit_scale(x - x.mean())[0], unit_scale(y - y.mean())[0]
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(np.clip(x @ y / scale, -1.0, 1.0)) if scale > 0 else float("nan")


def spearman(x: FloatArray, y: FloatArray) -> float:
    """Return the rank correlation (ties get their mean rank), NaN if one of them does not vary."""
    import pandas as pd

    first, second = (np.asarray(pd.Series(values).rank(), dtype=np.float64) for values in (x, y))
    return pearson(first, second)


def correlation_interval(value: float, count: int, measure: str, confidence: float) -> tuple[float, float]:
    """Return Fisher's interval; for rank correlation with the variance of Bonett and Wright (2000)."""
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

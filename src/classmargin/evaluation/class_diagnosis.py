"""The class table: how each class does, the likeliest reason why it fails (``class_reasons``), and what goes with its accuracy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin.evaluation.class_metrics import (
    TIERS,
    class_accuracy,
    class_calibration_error,
    class_calibration_limits,
    class_means,
    normal_quantile,
    share,
    unit_scale,
    wilson_interval,
)
from classmargin.evaluation.class_reasons import NAMED_CONFUSIONS, pair_separability, verdicts
from classmargin.evaluation.corrected import lagging
from classmargin.evaluation.feature_geometry import class_geometry, weight_angles
from classmargin.evaluation.input_checks import AnyArray, FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd

    from classmargin.evaluation.evidence import Evidence, SampleScores
    from classmargin.evaluation.headline_intervals import AuditSettings, HeadlineEstimates

LOW_CONFIDENCE, HIGH_CONFIDENCE = 0.5, 0.8
MOST_PAIRS = 100  # of classes that are told apart by their features, worst first: each takes some 20 ms
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
    features: tuple[AnyArray, IntArray] | None = None,
) -> pd.DataFrame:
    """Return the frame of ``Audit.by_class``; ``features`` ``[M, d]`` and their classes ``[M]`` tell which classes can be told apart."""
    import pandas as pd

    right, n, predicted = np.diagonal(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    accuracy = class_accuracy(confusion)
    confused, counts = most_confused(confusion)
    named = [[class_names[k] for k in row[line > 0]] for row, line in zip(confused, counts, strict=True)]

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
        **proportion("precision", share(right, predicted), right, predicted),
        "f1": share(2 * right, n + predicted),
        **{f"f1_{end}": 2 * limit / (1 + limit) for end, limit in zip(("low", "high"), overlap, strict=True)},
        "recall": accuracy.copy(),
        "tier": ["absent" if code < 0 else TIERS[code] for code in estimates.codes.tolist()],
        "nearest_by_angle": "",
        "nearest_by_confusion": [names[0] if names else "" for names in named],
        "confusion_share": share(counts[:, 0], n),
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
        columns |= {"weight_norm": angles.norms, "nearest_by_angle": nearest, "nearest_angle": angles.nearest_degrees}
    frame = pd.DataFrame(columns).reindex(columns=list(BY_CLASS))
    # A class is to be explained if it lags, and if it is of the hard third and makes errors.
    explained = frame["lags"] | ((frame["tier"] == "hard") & (accuracy < 1))
    wanted = np.asarray(explained) & (counts[:, 0] > 0)
    if wanted.sum() > MOST_PAIRS:
        worst_first = np.lexsort((accuracy, ~np.asarray(frame["lags"]), ~wanted))
        wanted = np.isin(np.arange(len(wanted)), worst_first[:MOST_PAIRS])
    if train_accuracy is not None:
        frame["train_accuracy"] = train_accuracy
    if features is not None:
        frame["separability"] = pair_separability(*features, wanted, confused[:, 0])
    said = verdicts(frame.assign(explained=explained), named, counts)
    frame["reason"], frame["verdict"], frame["next_step"] = zip(*said, strict=True)
    return frame


def _cost_columns(confusion: IntArray, costs: FloatArray, confidence: float) -> dict[str, FloatArray]:
    # Between the least and the largest cost of its row, a mean varies at most as much as a proportion: Wilson's limits hold.
    n = confusion.sum(axis=1)
    mean = share((confusion * costs).sum(axis=1), n)
    least, most = costs.min(axis=1), costs.max(axis=1)
    width = np.where(most > least, most - least, 1.0)
    low, high = wilson_interval(np.nan_to_num((mean - least) / width) * n, n, confidence)
    return {"cost": mean, "cost_low": least + width * low, "cost_high": np.minimum(least + width * high, most)}


def _score_columns(evidence: Evidence, scores: SampleScores, n: IntArray, confidence: float) -> dict[str, FloatArray]:
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
    """Return the margin γ that MR² would give each class (Eq. 1, 17), without loading torch; a class without samples gets the mean."""
    seen = ~np.isnan(sqnorm)
    largest = sqnorm[seen].max(initial=0.0)
    roots = np.cbrt(sqnorm[seen] / largest) if largest > 0 else np.ones(int(seen.sum()))
    margins = np.full(len(sqnorm), float(mean_margin))
    margins[seen] = mean_margin * roots / roots.mean()
    return margins


def most_confused(confusion: IntArray, most: int = NAMED_CONFUSIONS) -> tuple[IntArray, IntArray]:
    """Return the classes each class is most often taken for ``[K, most]``, most frequent first, and how often."""
    num_classes = len(confusion)
    size = min(most, num_classes)
    found, counts = np.empty((2, num_classes, size), dtype=np.int64)
    for k in range(num_classes):  # row by row: a copy of all pairs of 10 000 classes would take 800 MB
        errors = confusion[k].copy()
        errors[k] = 0
        rank = np.arange(num_classes) - num_classes * errors  # of equals the lower class first
        near = np.argpartition(rank, size - 1)[:size]
        found[k] = near[np.argsort(rank[near])]
        counts[k] = errors[found[k]]
    return found, counts


def doubted_labels(labels: IntArray, predictions: IntArray, scores: SampleScores, num_classes: int) -> AnyArray:
    """Return for each sample whether its label is doubted ``[N]``.

    Those that confident learning takes for another class, and the wrong ones whose label the model believes no more than the median
    of those: with injected label noise the union finds more of it than either part.
    """
    flagged = label_issues(labels, scores, num_classes)
    if not flagged.any():
        return flagged
    unbelieved = scores.true_probability <= np.median(scores.true_probability[flagged])
    return np.asarray(flagged | ((labels != predictions) & unbelieved))


def label_issues(labels: IntArray, scores: SampleScores, num_classes: int) -> AnyArray:
    """Return for each sample whether confident learning (Northcutt, Jiang and Chuang 2021) takes it for another class ``[N]``.

    That is the most likely class of those whose probability reaches its mean over the samples labelled with the class.
    """
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
    """Return ``Audit.correlations``: of accuracy with each known column of the class table, the classes taken for a sample."""
    import pandas as pd

    rows = []
    for name in AGAINST_ACCURACY:
        both = by_class[[name, "accuracy"]].dropna().to_numpy(dtype=np.float64)
        for measure, function in (("pearson", pearson), ("spearman", spearman)) if len(both) >= 3 else ():
            value = function(both[:, 0], both[:, 1])
            limits = correlation_interval(value, len(both), measure, confidence)
            rows.append((name, "accuracy", measure, value, *limits, len(both)))
    return pd.DataFrame(rows, columns=["x", "y", "measure", "value", "low", "high", "classes"])

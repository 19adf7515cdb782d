"""Correlations over classes with intervals: does accuracy go with spread, norm or angle?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from classmargin.evaluation.inputs import FloatArray
from classmargin.evaluation.intervals import normal_quantile

if TYPE_CHECKING:
    import pandas as pd

AGAINST_ACCURACY = ("spread", "mean_norm", "sqnorm", "nearest_angle", "output_margin")


def pearson(x: FloatArray, y: FloatArray) -> float:
    """Return the linear correlation, NaN if one of them does not vary.

    Example:
        >>> round(pearson(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])), 6)
        1.0
    """
    if not len(x) or x.min() == x.max() or y.min() == y.max():
        return float("nan")  # their deviations from the mean may be rounding, which correlates with anything
    x, y = x - x.mean(), y - y.mean()
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

"""Intervals: Wilson for one proportion, a centred bootstrap for everything that ranks, averages or takes minima.

Why centred. A third of ranked classes, or the lowest of many accuracies, is a biased statistic: noise decides part of the ranking.
The plain percentile interval then counts the bias twice (it misses in most cases; tests show it). Here the spread of the resampled
values around *their own mean* is laid around the observed value: the interval covers what the same procedure gives on average over
fresh test sets of the same size. Crossfit rankings remove the bias itself.
"""

from __future__ import annotations

from statistics import NormalDist  # scipy.stats costs half a second of import

import numpy as np

from classmargin.evaluation.class_metrics import share
from classmargin.evaluation.input_checks import AnyArray, FloatArray

Interval = tuple[float, float]


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


# With fewer wrong (or right) samples than this in a group, resampling knows too little about the tail.
FEW = 10
_NO_WIDTH = 1e-9  # limits that differ by rounding alone


def centred_interval(
    value: float, draws: FloatArray, confidence: float, *, proportion: bool, widen: float = 1.0
) -> Interval:
    """Return the spread of ``draws`` around their mean, laid around ``value``."""
    if np.isnan(value):
        return float("nan"), float("nan")
    tail = (1 - confidence) / 2
    if proportion:
        angles = np.arcsin(np.sqrt(np.clip(draws, 0, 1)))
        low, high = np.quantile(angles - angles.mean(), [tail, 1 - tail]) * widen
        middle = np.arcsin(np.sqrt(value))
        ends = np.sin(np.clip([middle - high, middle - low], 0, np.pi / 2)) ** 2
        return min(float(ends[0]), value), max(float(ends[1]), value)
    low, high = np.quantile(draws - draws.mean(), [tail, 1 - tail]) * widen
    return min(float(value - high), value), max(float(value - low), value)


def with_few_events(interval: Interval, right: float, n: float, confidence: float) -> Interval:
    """Return the interval, joined with Wilson's where a group has very few wrong or very few right samples.

    All right (or all wrong) leaves nothing to resample; Wilson still knows that n samples exclude only so much. So do classes that
    are all right beside classes that are all wrong: their interval has no width.
    """
    if n == 0 or (min(right, n - right) > FEW and interval[1] - interval[0] > _NO_WIDTH):
        return interval
    low, high = wilson_interval(np.array(right), np.array(n), confidence)
    return min(interval[0], float(low)), max(interval[1], float(high))


def class_mean_counts(events: FloatArray, n: AnyArray) -> tuple[FloatArray, float]:
    """Return events and samples of a single group that is as informative as the mean of class shares.

    A mean over classes is only as precise as its smallest classes: its variance goes with the mean of 1 / n. For classes of equal size
    this is the sum of events and of samples.
    """
    if not len(n):
        return np.zeros(np.shape(events)[:-1]), 0.0
    number = float(len(n) ** 2 / (1.0 / n).sum())
    # Rounded, so that equal sizes give whole numbers.
    return np.round(number * (events / n).mean(axis=-1), 6), round(number, 6)


def with_few_changes(interval: Interval, gained: float, lost: float, n: float, confidence: float) -> Interval:
    """Return the interval of a paired difference, joined with Newcombe's where hardly any sample changed sides, or hardly any did not."""
    changed = gained + lost
    if n == 0 or (min(changed, n - changed) > FEW and interval[1] - interval[0] > _NO_WIDTH):
        return interval
    low, high = wilson_interval(np.array([gained, lost]), np.array([n, n]), confidence)
    return with_few_in_parts(interval, (gained / n, low[0], high[0]), (lost / n, low[1], high[1]))


def with_few_in_parts(
    interval: Interval, first: tuple[float, float, float], second: tuple[float, float, float]
) -> Interval:
    """Return the interval of a difference, joined with what the limits of its two parts make of it (Newcombe 1998)."""
    below = float(np.hypot(first[0] - first[1], second[2] - second[0]))
    above = float(np.hypot(first[2] - first[0], second[0] - second[1]))
    value = first[0] - second[0]
    return min(interval[0], value - below), max(interval[1], value + above)


def small_sample_factor(n: AnyArray) -> float:
    """Return how much a resampled deviation is too short: drawing n of n has (n - 1) / n of the variance."""
    n = np.asarray(n, dtype=np.float64)
    n = n[n > 1]
    return float(np.sqrt(np.mean(n / (n - 1)))) if len(n) else 1.0

"""Intervals: Wilson for one proportion, a centred bootstrap for everything that ranks, averages or takes minima.

Why centred. A third of ranked classes, or the lowest of many accuracies, is a biased statistic: noise decides part of the ranking.
The plain percentile interval then counts the bias twice (it misses in most cases; tests show it). Here the spread of the resampled
values around *their own mean* is laid around the observed value: the interval covers what the same procedure gives on average over
fresh test sets of the same size. Crossfit rankings remove the bias itself.
"""

from __future__ import annotations

import numpy as np

from classmargin.evaluation.class_metrics import share
from classmargin.evaluation.input_checks import AnyArray, FloatArray


def normal_quantile(confidence: float) -> float:
    """Return the two-sided standard normal quantile, e.g. 1.96 for 0.95.

    Example:
        >>> round(normal_quantile(0.95), 4)
        1.96
    """
    from statistics import (
        NormalDist,
    )  # the standard library has it; scipy.stats costs half a second of import

    return NormalDist().inv_cdf(0.5 + confidence / 2)


def wilson_interval(
    correct: AnyArray, n: AnyArray, confidence: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    """Return Wilson's score interval for a proportion, NaN where ``n`` is 0.

    Args:
        correct: Number of successes, any shape (need not be whole: an effective number is fine).
        n: Number of trials, same shape.
        confidence: Level in (0, 1).

    Returns:
        Lower and upper limits.

    Example:
        >>> low, high = wilson_interval(np.array([9]), np.array([10]))
        >>> low.round(3), high.round(3)
        (array([0.596]), array([0.982]))
    """
    z = normal_quantile(confidence)
    n = np.asarray(n, dtype=np.float64)
    p = share(np.asarray(correct), n)
    safe = np.where(n > 0, n, 1.0)
    centre = (p + z**2 / (2 * safe)) / (1 + z**2 / safe)
    half = z / (1 + z**2 / safe) * np.sqrt(p * (1 - p) / safe + z**2 / (4 * safe**2))
    return np.where(p <= 0, 0.0, np.maximum(centre - half, 0.0)) + 0 * p, np.where(
        p >= 1, 1.0, np.minimum(centre + half, 1.0)
    ) + 0 * p


# With fewer wrong (or right) samples than this in a group, resampling knows too little about the tail.
FEW = 10
_NO_WIDTH = 1e-9  # limits that differ by rounding alone


def centred_interval(
    value: float, draws: FloatArray, confidence: float, *, proportion: bool, widen: float = 1.0
) -> tuple[float, float]:
    """Return the spread of ``draws`` around their mean, laid around ``value``.

    Args:
        value: Observed statistic.
        draws: Resampled statistics ``[B]``.
        confidence: Level in (0, 1).
        proportion: Whether the statistic lies in [0, 1]; then the work is done on the arcsine scale, on which the variance of
            a proportion does not depend on its value, and limits stay inside.
        widen: Factor on all deviations (few runs, few samples per class).

    Example:
        >>> low, high = centred_interval(0.5, np.linspace(0.5, 0.7, 101), 0.9, proportion=False)
        >>> round(low, 2), round(high, 2)
        (0.41, 0.59)
    """
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


def with_few_events(
    interval: tuple[float, float], right: float, n: float, confidence: float
) -> tuple[float, float]:
    """Return the interval, joined with Wilson's where a group has very few wrong or very few right samples.

    All right (or all wrong) leaves nothing to resample; Wilson still knows that n samples exclude only so much. So do classes that
    are all right beside classes that are all wrong: their interval has no width.

    Example:
        >>> low, high = with_few_events((1.0, 1.0), 100, 100, 0.95)
        >>> round(low, 3), high
        (0.963, 1.0)
    """
    if n == 0 or (min(right, n - right) > FEW and _has_width(interval)):
        return interval
    low, high = wilson_interval(np.array(right), np.array(n), confidence)
    return min(interval[0], float(low)), max(interval[1], float(high))


def class_mean_counts(events: FloatArray, n: AnyArray) -> tuple[FloatArray, float]:
    """Return events and samples of a single group that is as informative as the mean of class shares.

    A mean over classes is only as precise as its smallest classes: its variance goes with the mean of 1 / n. For classes of equal size
    this is the sum of events and of samples.

    Args:
        events: Numbers of events in each class ``[..., K]``.
        n: Samples of each class ``[K]``, at least 1.

    Example:
        >>> events, number = class_mean_counts(np.array([1000.0, 3.0]), np.array([1000, 4]))
        >>> float(events), number
        (13.944223, 15.936255)
    """
    if not len(n):
        return np.zeros(np.shape(events)[:-1]), 0.0
    number = float(len(n) ** 2 / (1.0 / n).sum())
    # Rounded, so that equal sizes give whole numbers.
    return np.round(number * (events / n).mean(axis=-1), 6), round(number, 6)


def with_few_changes(
    interval: tuple[float, float], gained: float, lost: float, n: float, confidence: float
) -> tuple[float, float]:
    """Return the interval of a paired difference, joined with Newcombe's where hardly any sample changed sides, or hardly any did not.

    Example:
        >>> low, high = with_few_changes((0.0, 0.0), 0, 0, 100, 0.95)
        >>> round(low, 3), round(high, 3)
        (-0.037, 0.037)
    """
    changed = gained + lost
    if n == 0 or (min(changed, n - changed) > FEW and _has_width(interval)):
        return interval
    low, high = wilson_interval(np.array([gained, lost]), np.array([n, n]), confidence)
    up, down = gained / n, lost / n
    below = float(np.hypot(up - low[0], high[1] - down))
    above = float(np.hypot(high[0] - up, down - low[1]))
    return min(interval[0], up - down - below), max(interval[1], up - down + above)


def with_few_in_parts(
    interval: tuple[float, float], first: tuple[float, float, float], second: tuple[float, float, float]
) -> tuple[float, float]:
    """Return the interval of a difference, joined with what the limits of its two parts make of it (Newcombe 1998).

    Args:
        interval: Interval of ``first - second``.
        first: Value and limits of the part with few events.
        second: Value and limits of the other.

    Example:
        >>> low, high = with_few_in_parts((1.0, 1.0), (1.0, 0.97, 1.0), (0.0, 0.0, 0.04))
        >>> round(low, 3), high
        (0.95, 1.0)
    """
    below = float(np.hypot(first[0] - first[1], second[2] - second[0]))
    above = float(np.hypot(first[2] - first[0], second[0] - second[1]))
    value = first[0] - second[0]
    return min(interval[0], value - below), max(interval[1], value + above)


def _has_width(interval: tuple[float, float]) -> bool:
    return interval[1] - interval[0] > _NO_WIDTH


def small_sample_factor(n: AnyArray) -> float:
    """Return how much a resampled deviation is too short: drawing n of n has (n - 1) / n of the variance.

    Example:
        >>> round(small_sample_factor(np.array([10, 10])), 4)
        1.0541
    """
    n = np.asarray(n, dtype=np.float64)
    n = n[n > 1]
    return float(np.sqrt(np.mean(n / (n - 1)))) if len(n) else 1.0

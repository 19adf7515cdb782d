"""Intervals for proportions of one class."""

from __future__ import annotations

import numpy as np

from classmargin.evaluation.class_metrics import share
from classmargin.evaluation.inputs import AnyArray, FloatArray


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

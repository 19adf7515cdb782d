"""Exact tests for paired outcomes, and control for testing many classes at once.

scipy.special has the binomial tail as a vectorised function; its import is late because it is not needed for a plain audit.
"""

from __future__ import annotations

import numpy as np

from classmargin.evaluation.inputs import AnyArray, FloatArray


def mcnemar_p_values(gained: AnyArray, lost: AnyArray) -> FloatArray:
    """Return two-sided p-values of the exact McNemar test.

    Args:
        gained: Samples that only the second model gets right, any shape.
        lost: Samples that only the first model gets right, same shape.

    Returns:
        ``min(1, 2 P(X <= min(gained, lost)))`` with X binomial(gained + lost, 1/2); 1 where both are 0.

    Example:
        >>> mcnemar_p_values(np.array([0, 8]), np.array([5, 8])).round(4).tolist()
        [0.0625, 1.0]
    """
    from scipy.special import bdtr

    gained, lost = np.asarray(gained), np.asarray(lost)
    return np.asarray(np.minimum(1.0, 2.0 * bdtr(np.minimum(gained, lost), gained + lost, 0.5)))


def drop_p_values(gained: AnyArray, lost: AnyArray) -> FloatArray:
    """Return one-sided exact McNemar p-values: how likely so many losses are if nothing got worse.

    Example:
        >>> drop_p_values(np.array([0]), np.array([5])).tolist()
        [0.03125]
    """
    from scipy.special import bdtr

    gained, lost = np.asarray(gained), np.asarray(lost)
    return np.asarray(bdtr(gained, gained + lost, 0.5))


def benjamini_hochberg(p_values: FloatArray) -> FloatArray:
    """Return q-values: the smallest false discovery rate at which each test is called; NaN stays NaN.

    Example:
        >>> benjamini_hochberg(np.array([0.01, 0.04, 0.03, np.nan])).round(3).tolist()
        [0.03, 0.04, 0.04, nan]
    """
    return _stepped(p_values, lambda count: count / np.arange(1, count + 1), from_largest=True)


def holm(p_values: FloatArray) -> FloatArray:
    """Return Holm-adjusted p-values, which keep the chance of any false call below alpha; NaN stays NaN.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03])).round(3).tolist()
        [0.03, 0.06, 0.06]
    """
    return _stepped(p_values, lambda count: np.arange(count, 0, -1.0), from_largest=False)


def _stepped(p_values: FloatArray, factors: object, *, from_largest: bool) -> FloatArray:
    assert callable(factors)
    shape = np.shape(p_values)
    flat = np.asarray(p_values, dtype=np.float64).reshape(-1)
    known = np.flatnonzero(~np.isnan(flat))
    order = known[np.argsort(flat[known], kind="stable")]
    scaled = flat[order] * factors(len(order))
    if from_largest:
        scaled = np.minimum.accumulate(scaled[::-1])[::-1]
    else:
        scaled = np.maximum.accumulate(scaled)
    adjusted = np.full(flat.shape, np.nan)
    adjusted[order] = np.minimum(scaled, 1.0)
    return adjusted.reshape(shape)

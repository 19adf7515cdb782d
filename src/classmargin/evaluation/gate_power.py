"""What the gate can see: the exact probability that a true drop in one class makes it fail."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from classmargin.evaluation.inputs import IntArray


def catch_probability(drop: float, n: int, *, churn: float, max_drop: float, level: float) -> float:
    """Return the probability that a true drop in one class is caught.

    A class fails if it lost more than ``max_drop`` of its samples on balance and the one-sided exact McNemar test is at or below
    ``level``. Each sample is lost with probability ``churn / 2 + drop`` and gained with ``churn / 2``, independently.

    Args:
        drop: True drop of the class accuracy, in [0, 1].
        n: Samples of the class.
        churn: Share of samples that change sides between two equally good models.
        max_drop: Tolerated drop.
        level: Level of the single test (alpha over the number of tests: the first step of Holm).

    Returns:
        The exact probability (sum over all numbers of lost samples).

    Example:
        >>> round(catch_probability(0.05, 100, churn=0.0, max_drop=0.02, level=0.05), 3)
        0.564
    """
    from scipy.special import bdtr

    gained_chance = min(churn / 2, max(1 - drop, 0.0) / 2)
    lost_chance = min(gained_chance + drop, 1 - gained_chance)
    lost = np.arange(n + 1)
    most_gained = _largest_gain_still_caught(lost, n, max_drop, level)
    chance = np.diff(bdtr(lost, n, lost_chance), prepend=0.0)
    rest = gained_chance / (1 - lost_chance) if lost_chance < 1 else 0.0
    caught = np.where(most_gained >= 0, bdtr(np.maximum(most_gained, 0), np.maximum(n - lost, 0), rest), 0.0)
    caught = np.where((most_gained >= 0) & (most_gained >= n - lost), 1.0, caught)
    return float(np.clip((chance * caught).sum(), 0.0, 1.0))


def smallest_caught_drop(
    n: int, *, churn: float, max_drop: float, level: float, probability: float = 0.8
) -> float:
    """Return the smallest drop (in steps of half a point) that is caught with the given probability, NaN if none is."""
    steps = range(1, 201)
    first = (
        bisect_left(  # the probability grows with the drop, so halving finds the first step that reaches it
            steps,
            probability,
            key=lambda step: catch_probability(step / 200, n, churn=churn, max_drop=max_drop, level=level),
        )
    )
    return steps[first] / 200 if first < len(steps) else float("nan")


def _largest_gain_still_caught(lost: IntArray, n: int, max_drop: float, level: float) -> IntArray:
    """For each number of lost samples, return how many gained samples still let the class fail (-1: none)."""
    from scipy.special import bdtr

    # Both conditions weaken with every gained sample, so the largest number is found by halving.
    low, high = np.full(lost.shape, -1), np.minimum(lost, n - lost)
    while (low < high).any():
        middle = (low + high + 1) // 2
        fails = (bdtr(np.maximum(middle, 0), middle + lost, 0.5) <= level) & (
            (lost - middle) > max_drop * n + 1e-9
        )
        low, high = np.where(fails, middle, low), np.where(fails, high, middle - 1)
    return low

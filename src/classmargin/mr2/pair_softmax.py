"""Eq. 2 from squared distances: the loss of each row, and how hard each pair is pulled together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from classmargin.mr2.class_groups import Integers

SAFE_EXPONENT = 500.0  # float64 overflows at 709


def pair_softmax(
    distances: NDArray[Any], ends: Integers, rows: int, slack: float, temperature: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return ``ln(1 + Σ_j exp e_ij)`` of each row and what the two ends of each pair weigh together.

    Args:
        distances: ``‖φ_i - φ_j‖²`` of each pair ``[P]``.
        ends: Rows ``i`` and ``j`` in turn ``[2 P]``.
        rows: ``B``.
        slack: ``2 s̄``: ``e_ij = (‖φ_i - φ_j‖² - 2 s̄) / τ``.
        temperature: ``τ``.

    Returns:
        Losses ``[B]``, and ``exp(e_ij) / (1 + Σ_j' exp e_ij') + exp(e_ij) / (1 + Σ_i' exp e_i'j)`` ``[P]``.

    Example:
        >>> losses, pull = pair_softmax(np.array([3.0]), np.array([0, 1]), 3, slack=3.0, temperature=1.0)
        >>> losses.round(4).tolist(), pull.tolist()
        ([0.6931, 0.6931, 0.0], [1.0])
    """
    left, right = ends[0::2], ends[1::2]
    exponent = distances.astype(np.float64)
    exponent -= slack
    exponent /= temperature
    if np.maximum.reduce(exponent) <= SAFE_EXPONENT:
        scaled = np.exp(exponent, out=exponent)
        total: NDArray[Any] = np.bincount(ends, scaled.repeat(2), rows)
        total += 1.0
        inverse = 1.0 / total
        return np.log(total), scaled * (inverse.take(left) + inverse.take(right))
    # Around the largest exponent of the row (at least 0, the exponent of the 1), so that nothing overflows.
    top = np.zeros(rows)
    np.maximum.at(top, left, exponent)
    np.maximum.at(top, right, exponent)
    from_left, from_right = np.exp(exponent - top[left]), np.exp(exponent - top[right])
    total = np.bincount(left, from_left, rows) + np.bincount(right, from_right, rows) + np.exp(-top)
    return top + np.log(total), from_left / total[left] + from_right / total[right]

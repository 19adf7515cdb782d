"""Loops over classes, pairs and columns of a batch, in plain Python that :mod:`classmargin.mr2.compiled_table` compiles.

What :mod:`classmargin.mr2.class_table` does with one call after the other, each a pass over memory that no cache holds,
is done here row by row while the row is at hand. Nothing in here allocates more than ``O(B + d + P)``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from classmargin.mr2.class_groups import Integers
from classmargin.mr2.pair_softmax import SAFE_EXPONENT


def measure(
    rows: NDArray[Any], order: Integers, edges: Integers, num_pairs: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return squared distances within classes, sums by class, and the largest squared norm of a row.

    Args:
        rows: Features ``[B, d]``.
        order: Rows by class ``[B]``.
        edges: First place of each class in that order, and the end ``[S + 1]``.
        num_pairs: ``P``.

    Returns:
        ``‖φ_i - φ_j‖²`` of each pair ``[P]``, class by class and in the order of the first end, then of the second;
        their sum and ``Σ_i ‖φ_i‖²`` of each class ``[2, S]``; the largest ``‖φ_i‖²``, inf or NaN where a row is not finite.
    """
    dim = rows.shape[1]
    zero = rows.dtype.type(0.0)
    distances = np.empty(num_pairs)
    sums = np.zeros((2, len(edges) - 1))
    largest = 0.0
    pair = 0
    for group in range(len(edges) - 1):
        for first in range(edges[group], edges[group + 1]):
            row = rows[order[first]]
            square = zero
            for column in range(dim):
                square += row[column] * row[column]
            sums[1, group] += square
            if not square <= largest:  # also for NaN
                largest = square
            for second in range(first + 1, edges[group + 1]):
                other = rows[order[second]]
                square = zero
                for column in range(dim):
                    difference = row[column] - other[column]
                    square += difference * difference
                distances[pair] = square
                sums[0, group] += square
                pair += 1
    return distances, sums, largest


def move(
    rows: NDArray[Any],
    order: Integers,
    ordered: Integers,
    edges: Integers,
    sums: NDArray[np.float64],
    power_sums: NDArray[Any],
    decay: float,
    class_mean: NDArray[Any],
    scalars: NDArray[Any],
) -> None:
    """Mix a batch into the moving averages of its classes (formulas: :mod:`classmargin.mr2.class_table`).

    Args:
        rows: Features in the type of ``class_mean`` ``[B, d]``.
        order: Rows by class ``[B]``.
        ordered: Their classes ``[B]``.
        edges: First place of each class in that order, and the end ``[S + 1]``.
        sums: Of squared distances and of squared norms ``[2, S]``.
        power_sums: Of squared Lp norms ``[K]``; empty for p = 2.
        decay: Weight of the past.
        class_mean: ``[K, d]``, changed.
        scalars: Weight, spread, mean squared L2 norm and mean squared Lp norm ``[4, K]``, changed.
    """
    dim = rows.shape[1]
    zero = rows.dtype.type(0.0)
    batch_mean = np.empty(dim, rows.dtype)
    for group in range(len(edges) - 1):
        start, stop = edges[group], edges[group + 1]
        label, count = ordered[start], float(stop - start)
        past, fresh = scalars[0, label] * decay, count * (1.0 - decay)
        keep, take = past / (past + fresh), fresh / (past + fresh)
        mean, step = class_mean[label], rows.dtype.type(take)
        square = zero
        if stop == start + 1:
            row = rows[order[start]]
            for column in range(dim):
                shift = row[column] - mean[column]
                square += shift * shift
                mean[column] += step * shift
        else:
            share = rows.dtype.type(1.0 / count)
            batch_mean[:] = zero
            for place in range(start, stop):
                row = rows[order[place]]
                for column in range(dim):
                    batch_mean[column] += share * row[column]
            for column in range(dim):
                shift = batch_mean[column] - mean[column]
                square += shift * shift
                mean[column] += step * shift
        # Around the new mean: the batch is δ away from the old one, and the new one lies between.
        spread = sums[0, group] / (count * count) + keep * square
        sqnorm = sums[1, group] / count
        power = power_sums[label] / count if len(power_sums) else sqnorm
        scalars[0, label] = past + fresh
        scalars[1, label] = keep * scalars[1, label] + take * spread
        scalars[2, label] = keep * scalars[2, label] + take * sqnorm
        scalars[3, label] = keep * scalars[3, label] + take * power


def pull(
    rows: NDArray[Any],
    order: Integers,
    edges: Integers,
    distances: NDArray[np.float64],
    slack: float,
    temperature: float,
    scale: float,
    gradient: NDArray[Any],
) -> float:
    """Return the sum of ``ln(1 + Σ_j exp e_ij)`` over rows, and write ``scale · Σ_j pull_ij (φ_i - φ_j)``.

    Args:
        rows: Features ``[B, d]``.
        order: Rows by class ``[B]``.
        edges: First place of each class in that order, and the end ``[S + 1]``.
        distances: Of each pair ``[P]``.
        slack: ``2 s̄``: ``e_ij = (‖φ_i - φ_j‖² - 2 s̄) / τ``.
        temperature: ``τ``.
        scale: One number for all.
        gradient: ``[B, d]``, written; of no row where it is not wanted.
    """
    dim = rows.shape[1]
    zero = rows.dtype.type(0.0)
    # By place in the order: the largest exponent (at least 0, that of the 1), and Σ exp around it.
    top, total = np.zeros(len(order)), np.empty(len(order))
    loss = 0.0
    first_pair = 0
    for group in range(len(edges) - 1):
        start, stop = edges[group], edges[group + 1]
        if len(gradient):
            for place in range(start, stop):
                gradient[order[place]] = zero
        if stop == start + 1:
            continue
        largest = SAFE_EXPONENT
        last_pair = first_pair + (stop - start) * (stop - start - 1) // 2
        for pair in range(first_pair, last_pair):
            largest = max(largest, (distances[pair] - slack) / temperature)
        if largest > SAFE_EXPONENT:
            pair = first_pair
            for first in range(start, stop):
                for second in range(first + 1, stop):
                    exponent = (distances[pair] - slack) / temperature
                    top[first] = max(top[first], exponent)
                    top[second] = max(top[second], exponent)
                    pair += 1
        for place in range(start, stop):
            total[place] = np.exp(-top[place])
        pair = first_pair
        for first in range(start, stop):
            for second in range(first + 1, stop):
                exponent = (distances[pair] - slack) / temperature
                total[first] += np.exp(exponent - top[first])
                total[second] += np.exp(exponent - top[second])
                pair += 1
        for place in range(start, stop):
            loss += top[place] + np.log(total[place])
        if len(gradient):
            pair = first_pair
            for first in range(start, stop):
                row, pulled = rows[order[first]], gradient[order[first]]
                for second in range(first + 1, stop):
                    exponent = (distances[pair] - slack) / temperature
                    weight = np.exp(exponent - top[first]) / total[first]
                    weight += np.exp(exponent - top[second]) / total[second]
                    force = rows.dtype.type(scale * weight)
                    other, pushed = rows[order[second]], gradient[order[second]]
                    for column in range(dim):
                        step = force * (row[column] - other[column])
                        pulled[column] += step
                        pushed[column] -= step
                    pair += 1
        first_pair = last_pair
    return loss

"""Class means and same-class differences of a batch, one under the other: all that a common step needs of the features.

With the mean ``m_k`` of the ``n_k`` rows of each class and the squared distance ``D_k`` summed over its pairs,

* ``Σ_i ‖φ_i - m_k‖² = D_k / n_k`` and ``Σ_i ‖φ_i‖² = n_k ‖m_k‖² + D_k / n_k``: sums of what is not negative, so nothing
  cancels however far from the origin the class is;
* with ``δ_k = m_k - μ̂_k`` the running mean moves by a share of ``δ_k`` and the squared deviations around it follow from
  ``‖δ_k‖²``: the averages touch one row a class that occurs instead of one a sample;
* the pull on each row is a weighted sum of differences.

Both table and pull are products with a sparse matrix. ``torch.embedding_bag`` does such a product in one pass: it reads the rows
where they are and writes every row of the result once, where gather, subtract, scale and scatter would each pass
over memory that no cache holds.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classmargin.mr2.class_groups import CompactGroups, Integers, pair_places
from classmargin.mr2.pair_softmax import pair_softmax

NUMPY_TYPES = {torch.float32: np.float32, torch.float64: np.float64}
SMALL = 1 << 14  # entries; below, the price of a call outweighs its arithmetic, and NumPy's calls are cheaper
_HAS_VECDOT = hasattr(np, "vecdot")  # NumPy 2; half the time of einsum on large arrays


class ClassTable(NamedTuple):
    """What :func:`tabulate` returns, for ``S`` classes that occur and ``P`` pairs.

    Attributes:
        groups: Rows of the batch by class.
        left, right: Rows at both ends of each pair ``[P]``.
        ends: The same, left and right in turn ``[2 P]``.
        rows: Class means, then ``φ_left - φ_right``, without gradient ``[S + P, d]``.
        mean_squares: ``‖m_k‖²`` ``[S]``.
        distances: ``‖φ_left - φ_right‖²`` ``[P]``.
        finite: Whether features are finite and far from where sums of their squares would not be.
    """

    groups: CompactGroups
    left: Integers
    right: Integers
    ends: Integers
    rows: Tensor
    mean_squares: NDArray[Any]
    distances: NDArray[Any]
    finite: bool

    def move(
        self, class_mean: NDArray[Any], scalars: NDArray[Any], decay: float, power_sums: NDArray[Any] | None
    ) -> None:
        """Mix the batch into the moving averages, in place; see :func:`move_averages`."""
        move_averages(self, class_mean, scalars, decay, power_sums)

    def pull(
        self, slack: float, temperature: float, weight: float, wants_gradient: bool
    ) -> tuple[float, Tensor | None]:
        """Return the mean of Eq. 2 and the gradient of ``weight`` times it (:class:`~.batch_table.BatchTable`)."""
        rows = len(self.groups.labels)
        if not len(self.left):
            return 0.0, self.rows.new_zeros(rows, self.rows.shape[1]) if wants_gradient else None
        losses, pull = pair_softmax(self.distances, self.ends, rows, slack, temperature)
        mean = float(np.add.reduce(losses)) / rows
        scale = 2.0 * weight / (temperature * rows)
        return mean, pull_together(self, pull, scale) if wants_gradient else None


def tabulate(rows: Tensor, groups: CompactGroups) -> ClassTable:
    """Return class means and same-class differences of detached ``rows``.

    Example:
        >>> from classmargin.mr2.class_groups import group_compact
        >>> tabulate(torch.tensor([[1.0], [5.0], [4.0]]), group_compact(torch.tensor([0, 1, 0]))).rows.T
        tensor([[ 2.5000,  5.0000, -3.0000]])
    """
    order, counts = groups.order, groups.counts
    first, second = pair_places(groups)
    left, right = order.take(first), order.take(second)
    size, classes, pairs = len(order), len(counts), len(first)
    members = np.empty(size + 2 * pairs, dtype=np.int64)
    members[:size], members[size::2], members[size + 1 :: 2] = order, left, right
    offsets = np.empty(classes + pairs + 1, dtype=np.int64)
    offsets[:classes] = groups.edges[:-1]
    offsets[classes:] = np.arange(size, size + 2 * pairs + 1, 2)
    weights = np.empty(size + 2 * pairs, dtype=NUMPY_TYPES[rows.dtype])
    weights[:size] = (1.0 / counts).repeat(counts)
    weights[size::2], weights[size + 1 :: 2] = 1.0, -1.0
    table = _weighted_sums(rows, members, offsets, weights)
    squares = row_squares(table.numpy())
    return ClassTable(
        groups, left, right, members[size:], table, squares[:classes], squares[classes:], _all_finite(squares)
    )


def pull_together(table: ClassTable, pull: NDArray[Any], scale: float) -> Tensor:
    """Return ``scale · Σ_j pull_ij (φ_i - φ_j)`` over the classmates ``j`` of each row ``[B, d]``.

    Args:
        table: The pairs.
        pull: One number for each pair ``[P]``.
        scale: One number for all.
    """
    ends, batch = table.ends, len(table.groups.labels)
    by_row = ends.argsort(kind="stable")
    signed = np.empty(len(ends), dtype=NUMPY_TYPES[table.rows.dtype])
    np.multiply(pull, scale, out=signed[0::2], casting="same_kind")
    np.multiply(pull, -scale, out=signed[1::2], casting="same_kind")
    offsets = np.zeros(batch + 1, dtype=np.int64)
    np.bincount(ends, minlength=batch).cumsum(out=offsets[1:])
    by_row_sign = signed.take(by_row)
    by_row >>= 1  # two ends a pair
    by_row += len(table.mean_squares)  # the pairs come after the classes
    return _weighted_sums(table.rows, by_row, offsets, by_row_sign)


def move_averages(
    table: ClassTable,
    class_mean: NDArray[Any],
    scalars: NDArray[Any],
    decay: float,
    power_sums: NDArray[Any] | None,
) -> None:
    """Mix a batch into the count-weighted moving averages of its classes, in place. Uses the class means up.

    Arguments as of :meth:`~classmargin.mr2.batch_table.BatchTable.move`.
    """
    groups, counts = table.groups, table.groups.counts.astype(np.float64)
    classes = groups.classes
    pairs = np.bincount(groups.labels.take(table.left), table.distances, len(class_mean))
    within = pairs.take(classes) / counts
    means, running = table.rows.numpy()[: len(counts)], class_mean.take(classes, axis=0)
    shift = np.subtract(means, running, out=means if means.dtype == running.dtype else None)
    old = scalars.take(classes, axis=1)
    past = old[0] * decay
    weight = past + counts * (1.0 - decay)
    share, keep = (1.0 - decay) / weight, past / weight
    new = np.empty((4, len(counts)))
    new[0] = weight
    # Around the new mean: the batch is δ away from the old one, and the new one lies between.
    np.multiply(row_squares(shift), keep, out=new[1])
    new[2:] = table.mean_squares
    new[1:] *= counts
    new[1:] += within
    if power_sums is not None:
        new[3] = power_sums.take(classes)
    new[1:] *= share
    new[1:] += old[1:] * keep
    scalars[:, classes] = new
    counts *= share
    _add_scaled(running, shift, counts.astype(shift.dtype)[:, None])
    class_mean[classes] = running


def _add_scaled(target: NDArray[Any], rows: NDArray[Any], factors: NDArray[Any]) -> None:
    """Add ``factors [n, 1]`` times ``rows [n, d]`` to ``target``; uses ``rows`` up."""
    if rows.size <= SMALL:
        rows *= factors
        target += rows
    else:
        torch.from_numpy(target).addcmul_(torch.from_numpy(rows), torch.from_numpy(factors))


def _all_finite(squares: NDArray[Any]) -> bool:
    # One call, and no warning on overflow. Squares beyond the root of the type's range count as not finite.
    return math.isfinite(squares.dot(squares))


def row_squares(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the squared norm of each row: ``[n, d] -> [n]``."""
    if rows.size <= SMALL or not _HAS_VECDOT:
        return np.einsum("nd,nd->n", rows, rows)  # type: ignore[no-any-return]
    with np.errstate(over="ignore", invalid="ignore"):  # einsum does not look for them either
        return np.vecdot(rows, rows)  # type: ignore[no-any-return]


def _weighted_sums(rows: Tensor, members: Integers, offsets: Integers, weights: NDArray[Any]) -> Tensor:
    """Return ``Σ weight · row`` over ``members[offsets[s] : offsets[s + 1]]`` for every ``s``."""
    return torch.embedding_bag(
        rows,
        torch.from_numpy(members),
        torch.from_numpy(offsets),
        mode=0,  # sum
        per_sample_weights=torch.from_numpy(weights),
        include_last_offset=True,
    )[0]

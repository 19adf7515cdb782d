"""Which rows of a batch belong to the same class, found once and shared by statistics and pairs.

Two layouts, one meaning. On the CPU only the classes that occur are touched (:class:`CompactGroups`); its bookkeeping
on a few hundred numbers is done by NumPy, whose calls cost a third of torch's. On an accelerator and while
``torch.compile`` traces, shapes must not depend on values and the host must not wait: there every class has its row
(:class:`DenseGroups`), and rows that do not count have weight 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Integers = NDArray[np.int64]
SMALL = 1 << 14  # entries; below, the price of a call outweighs its arithmetic, and NumPy's calls are cheaper


class CompactGroups:
    """Rows of a batch in class order. What only some callers need is worked out when first asked for.

    Args:
        labels: Class of each row ``[B]``.

    Attributes:
        labels: As given.
        order: Rows sorted by class ``[B]``.
        ordered: Their classes ``[B]``.
    """

    def __init__(self, labels: Integers) -> None:
        self.labels = labels
        self.order: Integers = labels.argsort(kind="stable")
        self.ordered: Integers = labels.take(self.order)

    @cached_property
    def later(self) -> Integers:
        """Classmates still to come after each place of the sorted order ``[B]``."""
        return self.ordered.searchsorted(self.ordered, side="right") - np.arange(1, len(self.ordered) + 1)

    @cached_property
    def longest(self) -> int:
        """Rows of the class with most of them."""
        return int(self.later.max()) + 1 if len(self.labels) else 0

    @property
    def num_pairs(self) -> int:
        """Number of unordered same-class pairs."""
        return int(self.later.sum())

    @property
    def lowest_and_highest(self) -> tuple[int, int]:
        """Smallest and largest label (0, 0 without rows)."""
        return (int(self.ordered[0]), int(self.ordered[-1])) if len(self.ordered) else (0, 0)

    @cached_property
    def starts(self) -> Integers:
        """First place in the sorted order of each class that occurs ``[S]``."""
        return np.flatnonzero(np.diff(self.ordered, prepend=-1))

    @cached_property
    def counts(self) -> Integers:
        """Rows of each class that occurs ``[S]``."""
        return self.later[self.starts] + 1


class DenseGroups(NamedTuple):
    """Rows by class with static shapes.

    Attributes:
        labels: Class of each row, some valid class where the row does not count, int64 ``[B]``.
        counts: Rows of each class ``[K]``, float.
        row_weight: 0 for rows that do not count, 1 otherwise ``[B]``; None where all count.
    """

    labels: Tensor
    counts: Tensor
    row_weight: Tensor | None


Groups = CompactGroups | DenseGroups


# torch.func.grad and friends wrap tensors so that NumPy cannot see them; torch has no public name for the question.
_transforms_are_active: Callable[[], bool] = getattr(
    torch._C, "_are_functorch_transforms_active", lambda: False
)


def uses_dense_layout(tensor: Tensor) -> bool:
    """Return whether value-dependent shapes (and NumPy views) are to be avoided for ``tensor``."""
    return torch.compiler.is_compiling() or tensor.device.type != "cpu" or _transforms_are_active()


def group_compact(labels: Tensor) -> CompactGroups:
    """Group rows by the classes that occur.

    Example:
        >>> group_compact(torch.tensor([4, 1, 4])).counts.tolist()
        [1, 2]
    """
    return CompactGroups(labels.detach().numpy())


def group_dense(labels: Tensor, num_classes: int, row_weight: Tensor | None) -> DenseGroups:
    """Count the rows of every class; rows with weight 0 must carry some valid label.

    Example:
        >>> group_dense(torch.tensor([2, 0, 2]), 3, None).counts
        tensor([1., 0., 2.])
    """
    weight = torch.ones_like(labels, dtype=torch.float32) if row_weight is None else row_weight
    counts = torch.zeros(num_classes, dtype=weight.dtype, device=labels.device).index_add_(0, labels, weight)
    return DenseGroups(labels, counts, row_weight)


def same_class_pairs(groups: CompactGroups) -> tuple[Integers, Integers]:
    """Return the rows ``i`` and ``j`` of every unordered same-class pair, each ``[P]``.

    Example:
        >>> left, right = same_class_pairs(group_compact(torch.tensor([5, 7, 5])))
        >>> left.tolist(), right.tolist()
        ([0], [2])
    """
    later = groups.later
    first = np.arange(len(later)).repeat(later)
    # The pairs of one row follow one another: count on from the row's own first pair.
    offset = np.arange(1, len(first) + 1) - (later.cumsum() - later).take(first)
    return groups.order.take(first), groups.order.take(first + offset)


class PairList(NamedTuple):
    """The same-class pairs of a batch with their differences.

    Attributes:
        left, right: Rows at both ends ``[P]``.
        difference: ``φ_left - φ_right`` ``[P, d]``, without gradient.
        distance: Its squared norm ``[P]``.
    """

    left: Integers
    right: Integers
    difference: Tensor
    distance: NDArray[Any]


def list_pairs(rows: Tensor, groups: CompactGroups) -> PairList:
    """Return all same-class pairs of detached ``rows``."""
    left, right = same_class_pairs(groups)
    if len(left) * rows.shape[1] <= SMALL:
        values = rows.numpy()
        between = values.take(left, axis=0)
        between -= values.take(right, axis=0)
        return PairList(left, right, torch.from_numpy(between), row_squares(between))
    difference = rows.index_select(0, torch.from_numpy(left))
    difference.sub_(rows.index_select(0, torch.from_numpy(right)))
    return PairList(left, right, difference, torch.linalg.vector_norm(difference, dim=1).square_().numpy())


def row_squares(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the squared norm of each row: ``[n, d] -> [n]``."""
    squares: NDArray[Any] = np.einsum("nd,nd->n", rows, rows)
    return squares


def class_sums(values: Tensor, groups: DenseGroups) -> Tensor:
    """Sum rows by class: ``[B, ...] -> [K, ...]``; rows with weight 0 must already be zero."""
    return values.new_zeros((groups.counts.shape[0], *values.shape[1:])).index_add_(0, groups.labels, values)

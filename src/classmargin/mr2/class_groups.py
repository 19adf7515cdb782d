"""Which rows of a batch belong to the same class, found once and shared by statistics and pairs.

Two layouts, one meaning. On the CPU only the classes that occur are touched (:class:`CompactGroups`); its bookkeeping
on a few hundred numbers is done by NumPy, whose calls cost a third of torch's. On an accelerator and while
``torch.compile`` traces, shapes must not depend on values and the host must not wait: there every class has its row
(:class:`DenseGroups`), and rows that do not count have weight 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Integers = NDArray[np.int64]


class CompactGroups:
    """Rows of a batch in class order.

    Args:
        labels: Class of each row ``[B]``.

    Attributes:
        labels: As given.
        order: Rows sorted by class ``[B]``.
        ordered: Their classes ``[B]``.
        edges: First place of each class in that order, and the end of the last class ``[S + 1]``.
        counts: Rows of each class that occurs ``[S]``.
        num_pairs: Number of unordered same-class pairs.
    """

    def __init__(self, labels: Integers) -> None:
        self.labels = labels
        self.order: Integers = labels.argsort(kind="stable")
        self.ordered: Integers = labels.take(self.order)
        new = np.empty(len(labels) + 1, dtype=bool)
        new[0] = new[-1] = True
        np.not_equal(self.ordered[1:], self.ordered[:-1], out=new[1:-1])
        self.edges: Integers = new.nonzero()[0]
        self.counts: Integers = self.edges[1:] - self.edges[:-1]
        self.num_pairs = (int(self.counts.dot(self.counts)) - len(labels)) // 2

    @property
    def starts(self) -> Integers:
        """First place in the sorted order of each class that occurs ``[S]``."""
        return self.edges[:-1]

    @property
    def classes(self) -> Integers:
        """The classes that occur, in ascending order ``[S]``."""
        return self.ordered.take(self.edges[:-1])

    @property
    def longest(self) -> int:
        """Rows of the class with most of them."""
        return int(self.counts.max()) if len(self.labels) else 0

    def all_within(self, num_classes: int) -> bool:
        """Return whether every label is in ``[0, K)``."""
        return not len(self.ordered) or bool(self.ordered[0] >= 0 and self.ordered[-1] < num_classes)


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
    return torch.compiler.is_compiling() or not tensor.is_cpu or _transforms_are_active()


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


def pair_places(groups: CompactGroups) -> tuple[Integers, Integers]:
    """Return the places in the sorted order of both ends of every unordered same-class pair, each ``[P]``."""
    place = np.arange(len(groups.order) + 1)
    end = groups.edges[1:].repeat(groups.counts)  # of the class of each place
    later = end - place[1:]  # classmates still to come
    first = place[:-1].repeat(later)
    # The pairs of one place follow one another, and so do their second ends: count on up to the end of the class.
    second = (end - later.cumsum()).take(first)
    second += np.arange(len(first))
    return first, second


def same_class_pairs(groups: CompactGroups) -> tuple[Integers, Integers]:
    """Return the rows ``i`` and ``j`` of every unordered same-class pair, each ``[P]``.

    Example:
        >>> left, right = same_class_pairs(group_compact(torch.tensor([5, 7, 5])))
        >>> left.tolist(), right.tolist()
        ([0], [2])
    """
    first, second = pair_places(groups)
    return groups.order.take(first), groups.order.take(second)


def class_sums(values: Tensor, groups: DenseGroups) -> Tensor:
    """Sum rows by class: ``[B, ...] -> [K, ...]``; rows with weight 0 must already be zero."""
    return values.new_zeros((groups.counts.shape[0], *values.shape[1:])).index_add_(0, groups.labels, values)

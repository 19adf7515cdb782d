"""Which rows of a batch belong to the same class, found once and shared by statistics and pairs.

Two layouts, one meaning. On the CPU only the classes that occur are touched (*compact*: ``torch.unique``). On an
accelerator and while ``torch.compile`` traces, shapes must not depend on values and the host must not wait, so
every class gets a segment (*dense*).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ClassGroups(NamedTuple):
    """Segments of a batch by class.

    Attributes:
        classes: Class of each segment, int64 ``[S]``; None where segment ``s`` simply is class ``s``.
        segment: Segment of each row, int64 ``[B]``.
        counts: Rows (or summed row weights) in each segment, ``[S]``.
        row_weight: 0 for rows that do not count, 1 otherwise, ``[B]``; None where all count.
    """

    classes: Tensor | None
    segment: Tensor
    counts: Tensor
    row_weight: Tensor | None = None

    @property
    def size(self) -> int:
        """Number of segments ``S``."""
        return int(self.counts.shape[0])


def uses_dense_layout(tensor: Tensor) -> bool:
    """Return whether value-dependent shapes are to be avoided for ``tensor``."""
    return torch.compiler.is_compiling() or tensor.device.type != "cpu"


def group_compact(labels: Tensor) -> ClassGroups:
    """Group rows by the classes that occur.

    Example:
        >>> group_compact(torch.tensor([4, 1, 4])).counts
        tensor([1, 2])
    """
    classes, segment, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    return ClassGroups(classes, segment, counts)


def group_dense(labels: Tensor, num_classes: int, row_weight: Tensor | None) -> ClassGroups:
    """Give every class a segment; rows with weight 0 must carry some valid label.

    Example:
        >>> group_dense(torch.tensor([2, 0, 2]), 3, None).counts
        tensor([1., 0., 2.])
    """
    weight = torch.ones_like(labels, dtype=torch.float32) if row_weight is None else row_weight
    counts = torch.zeros(num_classes, dtype=weight.dtype, device=labels.device).index_add_(0, labels, weight)
    return ClassGroups(None, labels, counts, row_weight)


def group_by_class(labels: Tensor, num_classes: int, row_weight: Tensor | None = None) -> ClassGroups:
    """Group the rows of a batch by class in the layout that suits device and compiler.

    Args:
        labels: Classes, int64 ``[B]``.
        num_classes: ``K``.
        row_weight: 0/1 weight of each row ``[B]``; rows with weight 0 are left out of the counts.
    """
    if uses_dense_layout(labels) or row_weight is not None:
        return group_dense(labels, num_classes, row_weight)
    return group_compact(labels)


def segment_sum(values: Tensor, groups: ClassGroups) -> Tensor:
    """Sum rows by segment: ``[B, ...] -> [S, ...]``; rows with weight 0 must already be zero."""
    out = values.new_zeros((groups.size, *values.shape[1:]))
    return out.index_add_(0, groups.segment, values)

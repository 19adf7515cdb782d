"""Class statistics of fixed features: exact sums over the whole training set, and the margins that follow.

Features that no training changes need no moving average. Sums of weights and of ``weight · ‖φ‖_p²`` add up over the
batches of ``partial_fit`` and give ``r²_{k,p}`` (Eq. 17) exactly; a row of weight 2 counts as two rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classmargin.mr2 import class_margins
from classmargin.mr2.class_moments import squared_norm

FloatArray = NDArray[np.float64]
# The same limits as those of MR2Loss: one class of tiny or huge features must not run away.
MARGIN_LIMITS = (0.1, 10.0)
CHUNK_ROWS = 8192


def class_sqnorm_sums(
    rows: Tensor, labels: Tensor, row_weight: Tensor, num_classes: int, norm_order: float
) -> FloatArray:
    """Return the sums of weights and of weighted squared norms of each class, ``[2, K]``.

    Args:
        rows: Features ``[N, d]``.
        labels: Classes ``[N]``.
        row_weight: Weight of each row ``[N]``.
        num_classes: ``K``.
        norm_order: ``p``.

    Example:
        >>> phi = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 2.0]])
        >>> class_sqnorm_sums(phi, torch.tensor([0, 1, 0]), torch.ones(3), 2, 2.0).round(6).tolist()
        [[2.0, 1.0], [6.0, 4.0]]
    """
    sums = torch.zeros(2, num_classes, dtype=torch.float64, device=rows.device)
    for start in range(0, rows.shape[0], CHUNK_ROWS):  # norms of order 3 copy what they read
        part = slice(start, start + CHUNK_ROWS)
        weight = row_weight[part].double()
        # In float64: squares of large float32 features overflow.
        values = torch.stack((weight, weight * squared_norm(rows[part].double(), norm_order)))
        sums.index_add_(1, labels[part], values)
    result: FloatArray = sums.cpu().numpy()
    return result


def sqnorm_of(sums: FloatArray) -> FloatArray:
    """Return ``r²`` of each class ``[K]``; 0 for a class without weight."""
    weight, total = sums
    result: FloatArray = np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)
    return result


def margins_of(sums: FloatArray, mean_margin: float) -> NDArray[Any]:
    """Return the margins ``γ`` (Eq. 14 and 17) of each class ``[K]``; ``c̄`` for a class without weight.

    Example:
        >>> margins_of(np.array([[1.0, 1.0, 1.0], [3.0, 4.0, 10.0]]), 1.0).round(6).tolist()
        [0.834621, 0.91862, 1.246759]
    """
    statistic, seen = torch.from_numpy(sqnorm_of(sums)), torch.from_numpy(sums[0] > 0)
    result: NDArray[Any] = class_margins(statistic, mean_margin, seen=seen, limits=MARGIN_LIMITS).numpy()
    return result

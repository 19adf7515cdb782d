"""From losses of rows to one number: the mean over rows, or over classes, of all processes."""

from __future__ import annotations

import torch
from torch import Tensor

from classmargin._distributed import all_reduce_sum, global_mean


def mean_over_rows(
    losses: Tensor, weights: Tensor | None, synchronize: bool, *, denominators: Tensor | None = None
) -> Tensor:
    """Return the mean over rows (of all processes): weighted by ``weights``, or ``sum / sum(denominators)``."""
    if denominators is not None:
        total = denominators.sum()
        if not synchronize:
            return losses.sum() / torch.where(total > 0, total, torch.ones_like(total))
        # global_mean divides by the rows of all processes, what is wanted is divided by their denominators
        rows, total = all_reduce_sum(torch.stack((total.new_tensor(float(losses.shape[0])), total)))
        return global_mean(losses * (rows / torch.where(total > 0, total, torch.ones_like(total))))
    if synchronize:
        return global_mean(losses, weights)
    if weights is None:
        return losses.mean() if losses.shape[0] else losses.sum()
    total = weights.sum()
    return (losses * weights).sum() / torch.where(total > 0, total, torch.ones_like(total))


def mean_over_classes(
    losses: Tensor, labels: Tensor, num_classes: int, row_weight: Tensor | None, synchronize: bool
) -> Tensor:
    """Average inside each class with at least two rows, sum over classes, divide by ``K``."""
    ones = torch.ones_like(losses) if row_weight is None else row_weight
    count = losses.new_zeros(num_classes).index_add(0, labels, ones)
    if synchronize:
        count = all_reduce_sum(count)
    several = (count > 1).to(losses.dtype) / count.clamp_min(1.0)
    share = ones * several.index_select(0, labels) / num_classes
    if not synchronize:
        return (losses * share).sum()
    # global_mean divides by the rows of all processes; this term is a sum
    rows = all_reduce_sum(losses.new_tensor(float(losses.shape[0])))
    return global_mean(losses * share * rows)

"""The collective operations of class statistics, pair losses and bookkeeping, each a no-op in one process.

Data-parallel training (DDP) *averages* the gradients of the ranks. A loss that is a mean over the global batch is therefore returned
as ``world size x local sum / global count``; its gradient, averaged over ranks, is the gradient of the global mean, even when ranks
hold different numbers of samples.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_distributed() -> bool:
    """Return whether more than one process works on this batch."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def world_size() -> int:
    """Return the number of processes (1 without ``torch.distributed``)."""
    return dist.get_world_size() if is_distributed() else 1


def rank() -> int:
    """Return the number of this process (0 without ``torch.distributed``)."""
    return dist.get_rank() if is_distributed() else 0


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Return the sum of ``tensor`` over all ranks, without gradient."""
    if not is_distributed():
        return tensor
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def gather_objects(value: Any) -> list[Any]:
    """Return the values of all processes in rank order."""
    if not is_distributed():
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def global_mean(per_sample: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the (weighted) mean of ``per_sample`` ``[B]`` over all ranks; no sample with positive weight anywhere gives 0."""
    if weights is None:
        local_sum, local_count = per_sample.sum(), per_sample.new_tensor(float(per_sample.shape[0]))
    else:
        local_sum, local_count = (per_sample * weights).sum(), weights.sum()
    if not is_distributed():
        return local_sum / _at_least_tiny(local_count)
    totals = all_reduce_sum(torch.stack([local_sum.detach(), local_count.detach()]))
    count = _at_least_tiny(totals[1])
    share = local_sum * (world_size() / count)
    return share + (totals[0] / count - share).detach()


def _at_least_tiny(count: Tensor) -> Tensor:
    return torch.where(count > 0, count, torch.ones_like(count))


class _GatherWithGradient(torch.autograd.Function):
    """Concatenates equally shaped blocks of all ranks; the gradient of each block is summed back to its rank."""

    @staticmethod
    def forward(ctx: Any, block: Tensor) -> Tensor:
        ctx.rows = block.shape[0]
        blocks = [torch.empty_like(block) for _ in range(dist.get_world_size())]
        dist.all_gather(blocks, block.contiguous())
        return torch.cat(blocks)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Tensor:
        total: Tensor = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        start = dist.get_rank() * ctx.rows
        return total[start : start + ctx.rows]


def gather_blocks(block: Tensor) -> Tensor:
    """Return the blocks of all ranks one after another, of one shape; gradients are summed and flow back to their rank."""
    gathered: Tensor = _GatherWithGradient.apply(block) if is_distributed() else block  # type: ignore[no-untyped-call]
    return gathered


def gather_rows(rows: Tensor) -> tuple[Tensor, int]:
    """Return the rows of all ranks, in rank order, and where this rank's start; gradients flow back to a row's rank."""
    if not is_distributed():
        return rows, 0
    counts = torch.zeros(dist.get_world_size(), dtype=torch.long, device=rows.device)
    counts[dist.get_rank()] = rows.shape[0]
    sizes: list[int] = all_reduce_sum(counts).tolist()
    longest = max(sizes)  # ranks may differ (the last batch): blocks are padded, and the padding is cut out again
    padding = rows.new_zeros((longest - rows.shape[0], *rows.shape[1:]))
    gathered = gather_blocks(torch.cat([rows, padding]))
    parts = [gathered[i * longest : i * longest + size] for i, size in enumerate(sizes)]
    return torch.cat(parts), sum(sizes[: dist.get_rank()])

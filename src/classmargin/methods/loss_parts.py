"""Small pieces that several methods need: safe precision, class means over all processes, class weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from classmargin._distributed import all_reduce_sum, is_distributed, world_size
from classmargin._precision import at_least_float32 as at_least_float32  # methods take it from here
from classmargin.methods.base import LoopContext, MethodLoss, Step


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy of each sample ``[B]``, in float32 or better, with classes or class probabilities."""
    scores = at_least_float32(logits)
    target = labels.to(scores.dtype) if labels.is_floating_point() else labels
    return F.cross_entropy(scores, target, reduction="none", label_smoothing=label_smoothing)


def focal_factor(losses: Tensor, focusing: float) -> Tensor:
    """Return ``(1 - p_y)^focusing`` of each sample from its cross-entropy ``-ln p_y``, with gradient."""
    # 1 - p is kept off 0 because powers below 1 have an infinite slope there.
    return (-torch.expm1(-losses)).clamp(min=1e-12) ** focusing


def refuse_above(limit: float, values: Tensor, expected: str) -> None:
    """Refuse the logits of another head, which would pass for what is expected (on the CPU alone)."""
    if not torch.compiler.is_compiling() and values.device.type == "cpu" and values.numel():
        largest = float(values.detach().max())
        if largest > limit:
            raise ValueError(f"logits must be {expected}, got a value of size {largest:.4g}")


def class_sums(values: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return sum and count per class of ``values``, ``[B]`` or ``[B, d]``, over this process's samples."""
    sums = values.new_zeros((num_classes, *values.shape[1:])).index_add(0, labels, values)
    counts = values.new_zeros(num_classes).index_add(0, labels, values.new_ones(labels.shape[0]))
    return sums, counts


def class_means(per_sample: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return each class's mean loss over the samples of all processes, 0 if absent, and whether it is present ``[K]``.

    The gradient, averaged over processes as data-parallel training does, is that of the global means.
    """
    sums, counts = class_sums(per_sample, labels, num_classes)
    if not is_distributed():
        return sums / counts.clamp(min=1), counts > 0
    totals = all_reduce_sum(torch.stack([sums.detach(), counts]))
    global_counts = totals[1].clamp(min=1)
    share = sums * (world_size() / global_counts)
    return share + (totals[0] / global_counts - share).detach(), totals[1] > 0


def training_class_means(
    context: LoopContext, value: Callable[[Step], Tensor], num_classes: int
) -> tuple[Tensor, Tensor]:
    """Return the mean of ``value(step)`` per class over the training set, and which classes have samples."""
    sums: Tensor | float = 0.0
    counts: Tensor | float = 0.0
    with torch.no_grad():
        for step in context.training_pass():
            more, number = class_sums(at_least_float32(value(step)), step.labels, num_classes)
            sums, counts = sums + more, counts + number
    if not isinstance(sums, Tensor) or not isinstance(counts, Tensor):
        raise ValueError("context.training_pass() must yield at least one batch on every process, got none")
    sums, counts = all_reduce_sum(sums), all_reduce_sum(counts)
    divisor = counts.clamp(min=1).reshape(-1, *[1] * (sums.dim() - 1))
    return sums / divisor, counts > 0


def effective_number_weights(class_counts: Tensor, beta: float) -> Tensor:
    """Return ``(1 - β) / (1 - β^n)`` scaled to sum to ``K``, in float64; a class without samples counts as one."""
    counts = class_counts.double().clamp(min=1)
    if beta == 0:
        return torch.ones_like(counts)
    # expm1 keeps 1 - β^n exact where β is close to 1 and n small.
    weights = -1.0 / torch.expm1(counts * math.log(beta))
    return weights * (len(counts) / weights.sum())


def log_prior(class_counts: Tensor) -> Tensor:
    """Return ``ln π`` of each class in float64; a class without samples counts as one sample."""
    counts = class_counts.double().clamp(min=1)
    return (counts / counts.sum()).log()


@contextmanager
def frozen_running_statistics(module: nn.Module) -> Iterator[None]:
    """Let normalisation layers use the batch as before but leave their running statistics alone."""
    layers = [m for m in module.modules() if getattr(m, "track_running_stats", False)]
    for layer in layers:
        layer.track_running_stats = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True  # type: ignore[assignment]


def with_parts(total: Tensor, **parts: Tensor) -> MethodLoss:
    """Return a loss whose parts are detached for the log."""
    return MethodLoss(total, {name: part.detach() for name, part in parts.items()})

"""Margin cross-entropy: cross-entropy of logits divided by the margin of the true class (Eq. 1 and 5).

``ℓ_γ(z, y) = -ln softmax(z / γ_y)_y = ln[1 + Σ_{y'≠y} exp((z_y' - z_y) / γ_y)]``. γ is chosen by the *true* label: one
number per sample. With ``γ = 1`` it is cross-entropy, and everything ``nn.CrossEntropyLoss`` takes is taken here.

The paper says that ``ℓ_γ`` grows with γ; that holds only where ``z_y`` is the largest logit
(``z = (0, 1)``, ``y = 0``: 1.313262 at γ = 1, 0.974077 at γ = 2).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from classmargin._checks import check_choice, check_floating, check_hard_labels, check_number

Reduction = Literal["mean", "sum", "none"]
REDUCTIONS = ("mean", "sum", "none")


def margin_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    class_margins: Tensor,
    *,
    log_prior: Tensor | None = None,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return the γ-margin cross-entropy ``-ln softmax(z / γ_y + log_prior)_y`` (Eq. 1).

    Args:
        logits: Scores ``z``, shape ``[B, K]``.
        labels: Classes ``[B]`` (int64), or class probabilities ``[B, K]`` (mixup, cutmix, distillation). With
            probabilities the margin of a sample is the same mix of margins, ``γ_i = Σ_k t_ik γ_k``.
        class_margins: ``γ``, shape ``[K]``, positive.
        log_prior: Offset ``[K]`` added *after* the division by γ, so that a prior keeps its strength
            (``ln π`` gives LA + MR²).
        weight: Weight of each class ``[K]``, as in ``F.cross_entropy``.
        label_smoothing: As in ``F.cross_entropy``; the margin stays that of the true class.
        ignore_index: Label of samples that do not count.
        reduction: ``"mean"`` (weighted like ``F.cross_entropy``; 0 if no sample counts), ``"sum"`` or ``"none"``.

    Returns:
        Scalar, or ``[B]`` for ``reduction="none"``. Half precision inputs are computed in float32.

    Example:
        >>> z, y = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0])
        >>> margin_cross_entropy(z, y, torch.ones(3))
        tensor(0.4076)
    """
    check_choice("reduction", reduction, REDUCTIONS)
    check_floating("logits", logits, dim=2)
    check_number("label_smoothing", label_smoothing, minimum=0.0, maximum=1.0)
    num_classes = logits.shape[1]
    for name, vector in (("class_margins", class_margins), ("log_prior", log_prior), ("weight", weight)):
        check_class_vector(name, vector, num_classes)
    check_targets(labels, batch=logits.shape[0], num_classes=num_classes, ignore_index=ignore_index)
    labels = labels if labels.is_floating_point() else labels.long()
    scores = at_least_float32(logits)
    margins = sample_margins(class_margins.to(scores.dtype), labels, ignore_index)
    losses = per_sample_losses(scores, labels, margins, log_prior, weight, label_smoothing, ignore_index)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.sum() / _denominator(losses, labels, weight, ignore_index)


def check_class_vector(name: str, vector: Tensor | None, num_classes: int) -> None:
    """Check an optional ``[K]`` vector."""
    if vector is not None and tuple(check_floating(name, vector, dim=1).shape) != (num_classes,):
        raise ValueError(f"{name} must have shape ({num_classes},), got {tuple(vector.shape)}")


def check_targets(labels: Any, *, batch: int, num_classes: int, ignore_index: int | None) -> None:
    """Check hard labels ``[B]`` or class probabilities ``[B, K]``."""
    if isinstance(labels, Tensor) and labels.is_floating_point():
        if tuple(labels.shape) != (batch, num_classes):
            raise ValueError(
                f"labels given as probabilities must have shape ({batch}, {num_classes}), got {tuple(labels.shape)}"
            )
        return
    check_hard_labels("labels", labels, batch=batch, num_classes=num_classes, ignore_index=ignore_index)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return half-precision tensors as float32, others as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def sample_margins(class_margins: Tensor, labels: Tensor, ignore_index: int | None = None) -> Tensor:
    """Return the margin of each sample ``[B]``: ``γ_y``, or the mix ``Σ_k t_k γ_k`` for soft labels."""
    if labels.is_floating_point():
        return labels.to(class_margins.dtype) @ class_margins
    safe = labels if ignore_index is None else labels.masked_fill(labels == ignore_index, 0)
    return class_margins.index_select(0, safe)


def scaled_logits(logits: Tensor, margins: Tensor, log_prior: Tensor | None) -> Tensor:
    """Return the logits that ℓ_γ sees: divided by the margin of their sample, then shifted by the prior."""
    scaled = logits / margins.unsqueeze(1)
    return scaled if log_prior is None else scaled + log_prior.to(scaled.dtype)


def per_sample_losses(
    logits: Tensor,
    labels: Tensor,
    margins: Tensor,
    log_prior: Tensor | None,
    weight: Tensor | None,
    label_smoothing: float,
    ignore_index: int,
) -> Tensor:
    """Return the loss of each sample ``[B]`` (times its class weight, 0 if ignored), without checks."""
    scaled = scaled_logits(logits, margins, log_prior)
    target = labels.to(scaled.dtype) if labels.is_floating_point() else labels
    class_weight = None if weight is None else weight.to(scaled.dtype)
    return F.cross_entropy(
        scaled,
        target,
        class_weight,
        ignore_index=ignore_index,
        reduction="none",
        label_smoothing=label_smoothing,
    )


def confidences(logits: Tensor, labels: Tensor, margins: Tensor, log_prior: Tensor | None) -> Tensor:
    """Return the probability of each sample's own class ``[B]`` as ℓ_γ sees it; of its mix of classes for soft labels."""
    probabilities = torch.softmax(scaled_logits(logits, margins, log_prior), 1)
    if labels.is_floating_point():
        return (probabilities * labels.to(probabilities.dtype)).sum(1)
    return probabilities.gather(1, labels.unsqueeze(1)).squeeze(1)


def _denominator(losses: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor | float:
    if labels.is_floating_point():
        return max(losses.shape[0], 1)
    total = sample_weights(labels, weight, ignore_index, losses.dtype).sum()
    return torch.where(total > 0, total, torch.ones_like(total))


def sample_weights(labels: Tensor, weight: Tensor | None, ignore_index: int, dtype: torch.dtype) -> Tensor:
    """Return what each sample adds to the denominator of a weighted mean ``[B]``."""
    counts = (labels != ignore_index).to(dtype)
    if weight is None:
        return counts
    return counts * weight.to(dtype).index_select(0, labels.masked_fill(labels == ignore_index, 0))

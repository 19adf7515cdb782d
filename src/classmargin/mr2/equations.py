"""Every equation of the method as one pure function: tensors in, tensors out, nothing kept.

====================================================== ================================================================
``γ_k = c̄ K a_k^p / Σ_j a_j^p``                       :func:`class_margins` (Eq. 1, 14, 17)
``ℓ_γ = -ln softmax(z / γ_y)_y``                       :func:`margin_cross_entropy` (Eq. 1, 5)
``ℓ_s̄ = ln[1 + Σ_{x⁺} exp(‖φ - φ⁺‖² - 2 s̄)]``         :func:`representation_margin` over pairs of the batch (Eq. 2)
``max(0, max_{x⁺} ‖φ - φ⁺‖² - 2 s̄)``                  :func:`hard_representation_margin` (Eq. 3)
``ln[1 + exp(‖φ̃ - μ̃_y‖² + s̃_y - 2 s̄̃)]``              :func:`moment_losses`: Eq. 2 with one average classmate
====================================================== ================================================================

The closed form takes standardised features, see :mod:`classmargin.mr2.standardize`.
Labels are classes ``[B]`` or class probabilities ``[B, K]``; a hard label is a one-hot row that need not be built. Half
precision is computed in float32.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from classmargin._checks import (
    check_choice,
    check_class_vector,
    check_floating,
    check_hard_labels,
    check_number,
    check_targets,
)
from classmargin._precision import at_least_float32, full_float32

Reduction = Literal["mean", "sum", "none"]
REDUCTIONS = ("mean", "sum", "none")
PAPER_POWER = 1.0 / 3.0
TINY_MARGIN = 1e-12
SMALLEST_MARGIN = 0.1  # of the mean margin
NO_PAIR = -1e30  # exponent of a pair that does not exist: exp gives 0, and no inf - inf can arise
MOST_PAIRED_ROWS = 8192  # [B, B] distances of more rows are refused: 256 MiB each


# --- sums per class ---------------------------------------------------------------------------------------------------


def squared_norm(rows: Tensor, norm_order: float) -> Tensor:
    """Return ``‖x‖_p²`` of each row; scaled by the largest entry, so no power overflows: ``[B, d] -> [B]``."""
    if norm_order == 2.0:
        norm: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return norm.square()
    magnitude = rows.abs()
    largest = magnitude.amax(1) if rows.shape[1] else magnitude.sum(1)
    if norm_order == math.inf:
        return largest.square()
    share = magnitude / largest.clamp_min(torch.finfo(rows.dtype).tiny).unsqueeze(1)
    return largest.square() * share.pow(norm_order).sum(1).pow(2.0 / norm_order)


def class_sums(values: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the sum of ``values`` over the rows of each class: ``[B, ...] -> [K, ...]``.

    Args:
        values: One row per sample ``[B, c]``, or one number ``[B]``.
        labels: Classes ``[B]``, or weights ``[B, K]``.
        num_classes: ``K``.
    """
    if labels.is_floating_point():
        with full_float32(values):
            return labels.to(values.dtype).T @ values
    return values.new_zeros(num_classes, *values.shape[1:]).index_add_(0, labels.long(), values)


def of_class(per_class: Tensor, labels: Tensor) -> Tensor:
    """Return what each sample takes from its class, or from its mix of classes: ``[K, ...] -> [B, ...]``."""
    if labels.is_floating_point():
        with full_float32(per_class):
            return labels.to(per_class.dtype) @ per_class
    return per_class.index_select(0, labels)


# --- class margins (Eq. 1, 14, 17) -----------------------------------------------------------------------------------


def class_margins(
    class_sqnorm: Tensor, mean_margin: float, *, power: float = PAPER_POWER, seen: Tensor | None = None
) -> Tensor:
    """Return the margin of each class (Eq. 1; Corollary 1 for ``power=1/3``; Eq. 17 with an Lp statistic).

    Args:
        class_sqnorm: Non-negative statistic ``a`` of each class, shape ``[K]``; ``r²_{k,p}`` in the paper.
        mean_margin: ``c̄ > 0``, the mean of the margins.
        power: Exponent; 1/3 minimises the bound of Proposition 1, 0 gives uniform margins.
        seen: Which classes have a statistic, bool ``[K]``; the others are left out and get ``c̄``.

    Returns:
        Margins ``γ``, shape ``[K]``, with mean exactly ``c̄`` up to rounding.

    Raises:
        ValueError: ``mean_margin <= 0``, or a statistic of the wrong shape.

    Example:
        >>> class_margins(torch.tensor([3.0, 4.0, 10.0]), 1.0)
        tensor([0.8346, 0.9186, 1.2468])
    """
    check_number("mean_margin", mean_margin, above=0.0)
    check_number("power", power, minimum=0.0)
    check_floating("class_sqnorm", class_sqnorm, dim=1)
    if power == 0.0:
        return torch.full_like(class_sqnorm, mean_margin)
    if seen is None:
        seen = torch.ones_like(class_sqnorm, dtype=torch.bool)
    # Relative to the largest no power overflows; where all statistics are 0, all are equal.
    largest = class_sqnorm.masked_fill(~seen, 0.0).max() if class_sqnorm.numel() else class_sqnorm.sum()
    shares = torch.where(largest > 0, class_sqnorm / denominator(largest), 1.0).masked_fill(~seen, 0.0)
    relative = relative_margins(shares, power, seen.sum().clamp_min(1), floor=TINY_MARGIN)
    return mean_margin * relative.masked_fill(~seen, 1.0)


def relative_margins(statistic: Tensor, power: float, num_seen: Tensor | int, floor: float = SMALLEST_MARGIN) -> Tensor:
    """Return ``γ / c̄`` ``[K]``, with mean 1 over the classes seen; no checks. Statistics that are all 0 give 1.

    Classes never seen have a statistic of 0 and count nothing. ``floor`` is there because a class of one sample has no spread, and
    a margin of 0 would divide by it.
    """
    powered = statistic.pow(power)
    mean = powered.sum() / num_seen
    return (powered / mean).clamp_min(floor).masked_fill(mean == 0, 1.0)


# --- margin cross-entropy (Eq. 1 and 5) ------------------------------------------------------------------------------


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

    γ is chosen by the *true* label: one number per sample. With ``γ = 1`` it is cross-entropy. The paper says that ``ℓ_γ``
    grows with γ; that holds only where ``z_y`` is the largest logit (``z = (0, 1)``, ``y = 0``: 1.313262 at γ = 1, 0.974077 at γ = 2).

    Args:
        logits: Scores ``z``, shape ``[B, K]``.
        labels: Classes ``[B]`` (int64), or class probabilities ``[B, K]`` (mixup, CutMix, distillation). With
            probabilities the margin of a sample is the same mix of margins, ``γ_i = Σ_k t_ik γ_k``.
        class_margins: ``γ``, shape ``[K]``, positive.
        log_prior: Offset ``[K]`` added *after* the division by γ, so that a prior keeps its strength
            (``ln π`` gives LA + MR²).
        weight: Weight of each class ``[K]``, as in ``F.cross_entropy``.
        label_smoothing: As in ``F.cross_entropy``; the margin stays that of the true class.
        ignore_index: Label of samples that do not count.
        reduction: ``"mean"`` (weighted like ``F.cross_entropy``; 0 if no sample counts), ``"sum"`` or ``"none"``.

    Returns:
        Scalar, or ``[B]`` for ``reduction="none"``.

    Example:
        >>> z, y = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0])
        >>> margin_cross_entropy(z, y, torch.ones(3))
        tensor(0.4076)
    """
    check_choice("reduction", reduction, REDUCTIONS)
    check_floating("logits", logits, dim=2)
    check_number("label_smoothing", label_smoothing, minimum=0.0, maximum=1.0)
    for name, vector in (("class_margins", class_margins), ("log_prior", log_prior), ("weight", weight)):
        check_class_vector(name, vector, logits.shape[1])
    check_targets(labels, batch=logits.shape[0], num_classes=logits.shape[1], ignore_index=ignore_index)
    scores = at_least_float32(logits)
    keep = torch.ones_like(scores[:, :1]).squeeze(1)
    if not labels.is_floating_point():
        keep = (labels != ignore_index).to(scores.dtype)
        labels = labels.long().masked_fill(keep == 0, 0)
    margins = of_class(class_margins.to(scores.dtype), labels)
    losses, _ = margin_losses(scores, labels, margins, log_prior, weight, label_smoothing)
    return _reduce(losses.masked_fill(keep == 0, 0.0), reduction, class_weights_of(labels, weight, scores) * keep)


def margin_losses(
    logits: Tensor,
    labels: Tensor,
    margins: Tensor | None,
    log_prior: Tensor | None = None,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return Eq. 1 per row ``[B]``, and the probability it sees for the row's class (or mix of classes) ``[B]``.

    Arguments as for :func:`margin_cross_entropy`, unchecked, but ``margins``: ``γ`` of each row ``[B]``; None = 1.
    """
    scores = logits if margins is None else logits / margins.unsqueeze(1)
    if log_prior is not None:
        scores = scores + log_prior.to(scores.dtype)
    log_probability = torch.log_softmax(scores, 1)
    per_class = log_probability if weight is None else log_probability * weight.to(scores.dtype)
    if labels.is_floating_point():
        target = labels.to(scores.dtype)
        losses = -(per_class * target).sum(1)
        probability = (log_probability.detach().exp() * target).sum(1)
    else:
        losses = F.nll_loss(log_probability, labels, reduction="none")
        probability = losses.detach().neg().exp()
        if weight is not None:
            losses = losses * of_class(weight.to(scores.dtype), labels)
    if label_smoothing:
        # As a share of the sum: the gradient of a mean would fill an array [B, K] of its own.
        share = label_smoothing / scores.shape[1]
        losses = torch.add((1.0 - label_smoothing) * losses, per_class.sum(1), alpha=-share)
    return losses, probability


def class_weights_of(labels: Tensor, weight: Tensor | None, like: Tensor) -> Tensor:
    """Return what each sample adds to the denominator of the weighted mean ``[B]``, as ``F.cross_entropy`` has it."""
    if weight is None or labels.is_floating_point():
        return like.new_ones(like.shape[0])
    return of_class(weight.to(like.dtype), labels)


def denominator(total: Tensor) -> Tensor:
    """Return a sum of weights to divide by: 0 / tiny is a mean of 0 that keeps the graph where nothing counts."""
    return total.clamp_min(torch.finfo(total.dtype).tiny)


# --- representation margin over pairs (Eq. 2 and 3) ------------------------------------------------------------------


def representation_margin(
    features: Tensor,
    labels: Tensor,
    mean_spread: Tensor | float,
    *,
    temperature: Tensor | float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return the representation margin of each sample against its classmates in the batch (Eq. 2).

    ``ℓ_s̄(x, y) = ln[1 + Σ_{x⁺ ≠ x, same class} exp((‖φ(x) - φ(x⁺)‖² - 2 s̄) / τ)]``. The factor 2 is there because
    ``E‖φ - φ⁺‖² = 2‖s‖²``.

    Args:
        features: ``φ``, shape ``[B, d]``, at most ``MOST_PAIRED_ROWS`` rows: all distances are held at once.
        labels: Classes, int64 ``[B]``.
        mean_spread: ``s̄``, mean over classes of the mean squared deviation; a constant for autograd.
        temperature: ``τ > 0`` dividing the exponent; 1 in the paper.
        reduction: ``"mean"`` over samples, ``"sum"`` or ``"none"``.

    Returns:
        Scalar, or ``[B]`` for ``reduction="none"``. A sample without classmate gives 0 and keeps the graph.

    Example:
        >>> phi = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [1.0, 2.0]])
        >>> representation_margin(phi, torch.tensor([0, 1, 2, 0]), 1 / 3)
        tensor(1.6842)
    """
    if not isinstance(temperature, Tensor):
        check_number("temperature", temperature, above=0.0)
    rows = _checked_rows(features, labels, reduction)
    return _reduce(pair_losses(rows / temperature**0.5, labels, mean_spread / temperature), reduction)


def hard_representation_margin(
    features: Tensor, labels: Tensor, mean_spread: Tensor | float, *, reduction: Reduction = "mean"
) -> Tensor:
    """Return ``max(0, max_j ‖φ_i - φ_j‖² - 2 s̄)`` over the classmates ``j`` of each sample (Eq. 3).

    Args:
        features: ``φ``, shape ``[B, d]``.
        labels: Classes, int64 ``[B]``.
        mean_spread: ``s̄``.
        reduction: ``"mean"`` over samples, ``"sum"`` or ``"none"``.

    Example:
        >>> phi = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
        >>> hard_representation_margin(phi, torch.tensor([0, 0]), 1 / 3)
        tensor(3.3333)
    """
    rows = _checked_rows(features, labels, reduction)
    excess = squared_distances(rows) - 2.0 * mean_spread
    excess = torch.where(labels.unsqueeze(0) == labels.unsqueeze(1), excess, 0.0).clamp_min(0.0)
    return _reduce(excess.amax(1) if labels.shape[0] else excess.sum(1), reduction)


def _checked_rows(features: Tensor, labels: Tensor, reduction: str) -> Tensor:
    check_choice("reduction", reduction, REDUCTIONS)
    check_floating("features", features, dim=2)
    check_hard_labels("labels", labels, batch=features.shape[0], num_classes=2**62)
    return at_least_float32(features)


def _reduce(losses: Tensor, reduction: str, counts: Tensor | None = None) -> Tensor:
    if reduction == "none":
        return losses
    total = losses.new_tensor(losses.shape[0]) if counts is None else counts.sum()
    return losses.sum() if reduction == "sum" else losses.sum() / denominator(total)


def squared_distances(rows: Tensor) -> Tensor:
    """Return ``‖x_i - x_j‖²`` for all pairs of rows, ``[B, d] -> [B, B]``, never negative.

    Rows are centred first: that changes no distance, and keeps small ones exact far from the origin.
    """
    if rows.shape[0] > MOST_PAIRED_ROWS:
        raise ValueError(
            f"features must have at most {MOST_PAIRED_ROWS} rows where pairs are formed, got {rows.shape[0]}; "
            "representation='moments' needs no pairs"
        )
    near = rows - rows.detach().mean(0) if rows.shape[0] else rows
    square = near.square().sum(1)
    with full_float32(near):
        return torch.addmm(square.unsqueeze(0) + square.unsqueeze(1), near, near.T, alpha=-2.0).clamp_min(0.0)


def pair_losses(rows: Tensor, labels: Tensor, mean_spread: Tensor | float, row_weight: Tensor | None = None) -> Tensor:
    """Return Eq. 2 of each row ``[B]``, without checks; a soft pair counts with the probability of a common class.

    Arguments as for :func:`representation_margin`; ``row_weight`` is 0 for rows that take part in no pair ``[B]``.
    """
    exponent = squared_distances(rows) - 2.0 * mean_spread
    if labels.is_floating_point():
        target = labels.detach().to(rows.dtype)
        target = target if row_weight is None else target * row_weight.sign().unsqueeze(1)
        common = target @ target.T
        exponent, pairs = exponent + denominator(common).log(), common > 0
    else:
        labels = labels if row_weight is None else labels.masked_fill(row_weight == 0, -1)
        pairs = labels.unsqueeze(0) == labels.unsqueeze(1)
    itself = torch.eye(rows.shape[0], dtype=torch.bool, device=rows.device)
    exponent = torch.where(pairs & ~itself, exponent, NO_PAIR)
    return F.softplus(torch.logsumexp(exponent, 1), threshold=40.0)


# --- representation margin in closed form ----------------------------------------------------------------------------


def moment_losses(distance: Tensor, spread: Tensor, mean_spread: Tensor | float, spread_slack: float = 1.0) -> Tensor:
    """Return ``ln[1 + exp(‖φ̃ - μ̃_y‖² + s̃_y - 2 s̄̃)]`` per row, ``[B]``: Eq. 2 with one average classmate.

    ``‖φ̃ - μ̃_y‖² + s̃_y`` is the expected squared distance of ``φ̃`` to a classmate. By Jensen's inequality the result lies below
    the mean of the pair form over that classmate.

    Args:
        distance: ``‖φ̃ - μ̃_y‖²`` to the mean of the class of each row ``[B]``.
        spread: ``s̃_y`` of that class ``[B]``.
        mean_spread: ``s̄̃``.
        spread_slack: Factor on it.

    Example:
        >>> moment_losses(torch.ones(1), torch.ones(1), 1.0)
        tensor([0.6931])
    """
    return F.softplus(torch.sub(distance + spread, mean_spread, alpha=2.0 * spread_slack))

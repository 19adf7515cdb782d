"""Representation margin: pairs of one class should be no farther apart than the average pair (Eq. 2 and 3).

``ℓ_s̄(x, y) = ln[1 + Σ_{x⁺ ≠ x, same class} exp((‖φ(x) - φ(x⁺)‖² - 2 s̄) / τ)]`` with ``τ = 1`` in the paper; the hard form is
``max(0, max_{x⁺} ‖φ(x) - φ(x⁺)‖² - 2 s̄) <= ℓ_s̄``. The factor 2 is there because ``E‖φ - φ⁺‖² = 2‖s‖²``.

Where squared distances come from inner products, features are *centred* first: subtracting a constant from all features of a class
changes no distance, and keeps small distances exact far from the origin. Four layouts with the same values:

* listed (CPU, few pairs): differences of the pairs that exist, ``[P, d]``;
* grouped (CPU, many pairs): classes with at least two rows are padded to ``[G, m, d]``;
* full (accelerator, ``torch.compile``, very uneven groups): one ``[B, B]`` matrix and a mask, static shapes;
* weighted (soft labels): a pair counts with ``t_i · t_j``, the probability that both are of one class.

Memory is ``O(B·d + pairs)``; no layout forms ``[B, B, d]``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from classmargin._checks import check_choice, check_floating, check_hard_labels, check_number
from classmargin.mr2.class_groups import (
    CompactGroups,
    Groups,
    group_compact,
    same_class_pairs,
    uses_dense_layout,
)
from classmargin.mr2.logit_margin import REDUCTIONS, Reduction, at_least_float32

NO_PAIR = -1e30  # exponent of a pair that does not exist: exp gives 0, and no inf - inf can arise
MOST_LISTED_PAIRS = 4  # listed layout only while pairs <= this many times the batch, so memory stays O(B·d)
LARGEST_PADDING = 4  # grouped layout only while padded rows <= this many times the batch


def representation_margin(
    features: Tensor,
    labels: Tensor,
    mean_spread: Tensor | float,
    *,
    temperature: Tensor | float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return the representation margin of each sample against its classmates in the batch (Eq. 2).

    Args:
        features: ``φ``, shape ``[B, d]``.
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
    features = _checked(features, labels, temperature, reduction)
    losses = pair_losses(features, labels, mean_spread, temperature)
    return _reduce(losses, reduction)


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
    features = _checked(features, labels, 1.0, reduction)
    distances = squared_distances(features - features.detach().mean(0))
    excess = (distances - 2.0 * mean_spread).masked_fill(~_same_class(labels), 0.0)
    return _reduce(excess.amax(1).clamp_min(0.0) if labels.shape[0] else excess.sum(1), reduction)


def _checked(features: Tensor, labels: Tensor, temperature: Tensor | float, reduction: str) -> Tensor:
    check_choice("reduction", reduction, REDUCTIONS)
    check_floating("features", features, dim=2)
    check_hard_labels("labels", labels, batch=features.shape[0], num_classes=2**62)
    if not isinstance(temperature, Tensor):
        check_number("temperature", temperature, above=0.0)
    return at_least_float32(features)


def _reduce(losses: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / max(losses.shape[0], 1)


def squared_distances(rows: Tensor) -> Tensor:
    """Return ``‖x_i - x_j‖²`` for all pairs of rows: ``[..., m, d] -> [..., m, m]``, never negative."""
    square = rows.square().sum(-1)
    sums = square.unsqueeze(-1) + square.unsqueeze(-2)
    if rows.dim() == 3:
        return torch.baddbmm(sums, rows, rows.transpose(1, 2), alpha=-2.0).clamp_min(0.0)
    return torch.addmm(sums, rows, rows.T, alpha=-2.0).clamp_min(0.0)


def log_one_plus_sum_exp(exponents: Tensor) -> Tensor:
    """Return ``ln(1 + Σ exp(e))`` over the last dimension without overflow."""
    total = torch.logsumexp(exponents, -1)
    return torch.logaddexp(total, torch.zeros_like(total))


def pair_losses(
    features: Tensor,
    labels: Tensor,
    mean_spread: Tensor | float,
    temperature: Tensor | float,
    groups: Groups | None = None,
    row_weight: Tensor | None = None,
) -> Tensor:
    """Return the loss of each row ``[B]`` in the layout that suits device and group sizes, without checks.

    Args:
        features: ``[B, d]``, float32 or float64.
        labels: Classes ``[B]``, or class probabilities ``[B, K]``.
        mean_spread: ``s̄``.
        temperature: ``τ``.
        groups: Compact groups of ``labels`` where they are already known.
        row_weight: 0 for rows that take no part, ``[B]`` (static-shape layout only).
    """
    if labels.is_floating_point():
        return _weighted_pair_losses(features, labels, mean_spread, temperature)
    if uses_dense_layout(features) or row_weight is not None:
        return _full_pair_losses(features, _same_class(labels, row_weight), mean_spread, temperature)
    groups = groups if isinstance(groups, CompactGroups) else group_compact(labels)
    if not groups.num_pairs:  # nobody has a classmate: a zero that keeps the graph
        return features[:, :0].sum(1)
    if groups.num_pairs <= MOST_LISTED_PAIRS * labels.shape[0]:
        return listed_pair_losses(features, groups, mean_spread, temperature)
    padded = pad_groups(groups)
    if padded.rows.numel() > LARGEST_PADDING * labels.shape[0]:
        return _full_pair_losses(features, _same_class(labels), mean_spread, temperature)
    return _grouped_pair_losses(features, padded, mean_spread, temperature)


def listed_pair_losses(
    features: Tensor, groups: CompactGroups, mean_spread: Tensor | float, temperature: Tensor | float
) -> Tensor:
    """Return the loss of each row ``[B]`` from the list of same-class pairs."""
    pairs = same_class_pairs(groups)
    left, right = torch.from_numpy(pairs[0]), torch.from_numpy(pairs[1])
    difference = features.index_select(0, left) - features.index_select(0, right)
    exponent = (difference.square().sum(1) - 2.0 * mean_spread) / temperature
    both, twice = torch.cat([left, right]), torch.cat([exponent, exponent])
    # ln(1 + Σ exp e) around the largest exponent of the row (at least 0, the exponent of the 1)
    top = features.new_zeros(features.shape[0]).scatter_reduce(
        0, both, twice.detach(), "amax", include_self=True
    )
    return top + torch.log((-top).exp().index_add(0, both, (twice - top[both]).exp()))


class PaddedGroups(NamedTuple):
    """Rows of the classes with at least two members, padded to one length.

    Attributes:
        rows: Row of the batch at each place, int64 ``[G, m]``; padding points at row 0.
        counts: Members of each group ``[G]``.
        valid: False at padding, ``[G, m]``.
    """

    rows: Tensor
    counts: Tensor
    valid: Tensor


def pad_groups(groups: CompactGroups) -> PaddedGroups:
    """Return the classes with at least two rows, padded to the length of the largest.

    Example:
        >>> pad_groups(group_compact(torch.tensor([5, 7, 5]))).rows
        tensor([[0, 2]])
    """
    several = groups.counts > 1
    counts, starts = groups.counts[several, None], groups.starts[several, None]
    place = np.arange(groups.longest)
    valid = place < counts
    rows = np.where(valid, groups.order[np.where(valid, starts + place, 0)], 0)
    return PaddedGroups(torch.from_numpy(rows), torch.from_numpy(counts[:, 0]), torch.from_numpy(valid))


def _grouped_pair_losses(
    features: Tensor, padded: PaddedGroups, mean_spread: Tensor | float, temperature: Tensor | float
) -> Tensor:
    count, length = padded.rows.shape
    flat = padded.rows.flatten()
    members = features.index_select(0, flat).view(count, length, -1)
    with torch.no_grad():
        mask = padded.valid.unsqueeze(2).to(features.dtype)
        centre = (members * mask).sum(1, keepdim=True) / padded.counts.view(-1, 1, 1)
        pair = padded.valid.unsqueeze(1) & ~torch.eye(length, dtype=torch.bool)
    exponents = (squared_distances(members - centre) - 2.0 * mean_spread) / temperature
    losses = log_one_plus_sum_exp(exponents.masked_fill(~pair, NO_PAIR))
    out = features.new_zeros(features.shape[0])
    return out.index_add(0, flat, (losses * padded.valid).flatten())


def _same_class(labels: Tensor, row_weight: Tensor | None = None) -> Tensor:
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    if row_weight is not None:
        counts = row_weight > 0
        same = same & counts.unsqueeze(0) & counts.unsqueeze(1)
    return same & ~torch.eye(labels.shape[0], dtype=torch.bool, device=labels.device)


def _full_pair_losses(
    features: Tensor, pair: Tensor, mean_spread: Tensor | float, temperature: Tensor | float
) -> Tensor:
    distances = squared_distances(features - features.detach().mean(0))
    exponents = (distances - 2.0 * mean_spread) / temperature
    return log_one_plus_sum_exp(exponents.masked_fill(~pair, NO_PAIR))


def _weighted_pair_losses(
    features: Tensor, probabilities: Tensor, mean_spread: Tensor | float, temperature: Tensor | float
) -> Tensor:
    with torch.no_grad():
        target = probabilities.to(features.dtype)
        together = (target @ target.T).fill_diagonal_(0.0)
        log_weight = together.log().clamp_min(NO_PAIR)
    distances = squared_distances(features - features.detach().mean(0))
    return log_one_plus_sum_exp((distances - 2.0 * mean_spread) / temperature + log_weight)

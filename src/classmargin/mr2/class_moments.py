"""Sums over the rows of each class, from which every class statistic of a batch follows (any norm order)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from classmargin._checks import check_floating, check_number
from classmargin.mr2.class_groups import class_sums, group_dense
from classmargin.mr2.logit_margin import at_least_float32, check_targets


class ClassMoments(NamedTuple):
    """Sums over the rows of each class; sums of two batches add up to the sums of both.

    Attributes:
        count: Rows of each class ``[K]``.
        feature_sum: Sum of features ``[K, d]``.
        sqnorm_sum: Sum of squared L2 norms ``[K]``.
        lp_sqnorm_sum: Sum of squared Lp norms ``[K]``.
    """

    count: Tensor  # type: ignore[assignment]  # the name hides tuple.count, which nobody needs here
    feature_sum: Tensor
    sqnorm_sum: Tensor
    lp_sqnorm_sum: Tensor

    @property
    def mean(self) -> Tensor:
        """Class means ``μ̂``, ``[K, d]`` (0 for absent classes)."""
        return self.feature_sum / self.count.clamp_min(1.0).unsqueeze(1)

    @property
    def class_mean_sqnorm(self) -> Tensor:
        """``‖μ̂_k‖²``, ``[K]``."""
        return self.mean.square().sum(1)

    @property
    def class_sqnorm(self) -> Tensor:
        """``r²_{k,p}``, ``[K]``."""
        return self.lp_sqnorm_sum / self.count.clamp_min(1.0)

    @property
    def class_spread(self) -> Tensor:
        """``‖ŝ_k‖²``, ``[K]``."""
        return (self.sqnorm_sum / self.count.clamp_min(1.0) - self.class_mean_sqnorm).clamp_min(0.0)


def class_moments(
    features: Tensor, labels: Tensor, num_classes: int, norm_order: float = 2.0
) -> ClassMoments:
    """Return the sums from which all class statistics of a batch follow.

    Args:
        features: ``φ``, shape ``[B, d]``.
        labels: Classes ``[B]``, or class probabilities ``[B, K]`` (then rows count with their probability).
        num_classes: ``K``.
        norm_order: ``p >= 1`` (``math.inf`` allowed) of the squared norms in ``lp_sqnorm_sum``.

    Example:
        >>> phi = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [1.0, 2.0]])
        >>> class_moments(phi, torch.tensor([0, 1, 2, 0]), 3).class_sqnorm
        tensor([ 3.,  4., 10.])
    """
    check_floating("features", features, dim=2)
    check_number("norm_order", norm_order, minimum=1.0, finite=False)
    check_targets(labels, batch=features.shape[0], num_classes=num_classes, ignore_index=None)
    rows = at_least_float32(features)
    square = rows.square().sum(1)
    power = squared_norm(rows, norm_order)
    if labels.is_floating_point():
        target = labels.to(rows.dtype).T
        return ClassMoments(target.sum(1), target @ rows, target @ square, target @ power)
    groups = group_dense(labels.long(), num_classes, torch.ones_like(square))
    sums = (class_sums(rows, groups), class_sums(square, groups), class_sums(power, groups))
    return ClassMoments(groups.counts, *sums)


def squared_norm(rows: Tensor, norm_order: float) -> Tensor:
    """Return ``‖x‖_p²`` of each row; scaled by the largest entry, so no power overflows: ``[B, d] -> [B]``."""
    if norm_order == 2.0:  # one pass and no copy of the rows, unlike rows.square().sum(1)
        norm: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return norm.square_()
    if norm_order == 1.0:
        return rows.abs().sum(1).square()
    magnitude = rows.abs()
    largest = magnitude.amax(1) if rows.shape[1] else magnitude.sum(1)
    if norm_order == float("inf"):
        return largest.square()
    share = magnitude / largest.clamp_min(torch.finfo(rows.dtype).tiny).unsqueeze(1)
    return largest.square() * share.pow(norm_order).sum(1).pow(2.0 / norm_order)

"""Class statistics of a whole data set, exactly: for features that do not change while a head is trained on them.

::

    batches of (features, labels) ──> float64 sums by class ──> means, spreads, r² ──> the buffers of ClassStatistics

A moving average follows features that move. Frozen features do not, so one pass gives better numbers than any number
of steps would, and no step has to pay for statistics.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from classmargin.mr2.class_moments import ClassMoments, class_moments, squared_norm

if TYPE_CHECKING:
    from classmargin.mr2.class_statistics import ClassStatistics

SETTLED = 1 << 30  # counts as so many updates, beyond any warm-up


def fit_statistics(statistics: ClassStatistics, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Replace the averages by those of all samples in ``batches``.

    Args:
        statistics: Its buffers are overwritten.
        batches: Features ``[b, d]`` with classes ``[b]``, each sample once.

    Raises:
        ValueError: No sample came, or features are not finite.
    """
    total: ClassMoments | None = None
    released = statistics.sqnorm_form == "mean_plus_deviation"
    if released:  # read twice: deviations need the means first
        batches = list(batches)
    for features, labels in batches:
        part = class_moments(
            features.detach().double(), labels, statistics.num_classes, statistics.norm_order
        )
        total = part if total is None else ClassMoments(*(a + b for a, b in zip(total, part, strict=True)))
    if total is None or not bool((total.count > 0).any()):
        raise ValueError("batches must hold at least one sample, got none")
    if not all(bool(torch.isfinite(sums).all()) for sums in total):
        raise ValueError("features must be finite, got NaN or inf")
    _write(statistics, total)
    if released:
        _write_released(statistics, total, batches)


def _write(statistics: ClassStatistics, total: ClassMoments) -> None:
    statistics.take_shape(total.feature_sum.shape[1])
    safe = total.count.clamp_min(1.0)
    statistics.class_scalars.copy_(
        torch.stack((total.count, total.class_spread, total.sqnorm_sum / safe, total.class_sqnorm))
    )
    if statistics.estimator == "moments":
        statistics.class_mean.copy_(total.mean)
        statistics.renew_separation()
    samples = total.count.sum()
    mean = total.feature_sum.sum(0) / samples
    statistics.feature_mean.copy_(mean)
    statistics.feature_variance.copy_(total.sqnorm_sum.sum() / samples - mean.square().sum())
    statistics.feature_weight.fill_(1.0)
    statistics.updates.fill_(SETTLED)


def _write_released(
    statistics: ClassStatistics, total: ClassMoments, batches: Iterable[tuple[Tensor, Tensor]]
) -> None:
    """Write ``mean ‖φ - mean‖_p²`` and ``‖mean‖_p² + mean ‖φ - mean‖_p²`` in place of spread and ``r²``, as the release does."""
    order, deviation_sum = statistics.norm_order, torch.zeros_like(total.count)
    for features, labels in batches:
        deviation = features.detach().double() - total.mean.index_select(0, labels)
        deviation_sum.index_add_(0, labels, squared_norm(deviation, order))
    spread = deviation_sum / total.count.clamp_min(1.0)
    sqnorm = squared_norm(total.mean, order) + spread
    statistics.class_scalars[1:].copy_(torch.stack((spread, sqnorm, sqnorm)) * (total.count > 0))

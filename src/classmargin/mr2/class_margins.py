"""Statistics of the classes -> margins with a given mean (Eq. 1, 14 and 17).

``γ_k = c̄ · K · a_k^power / Σ_j a_j^power``, with ``a_k = r²_{k,p}`` and ``power = 1/3`` in the paper. Written as
``γ_k = c̄ · ρ_k`` with relative margins ``ρ`` of mean 1, three guarantees are easy to keep whatever the statistics do:
the mean stays ``c̄``; unseen classes get exactly ``c̄``; and ``ρ`` stays within stated limits, by shrinking all of
``ρ - 1`` by one common factor (which keeps mean and order; clamping single entries would keep neither).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classmargin._checks import check_floating, check_number

PAPER_POWER = 1.0 / 3.0
NO_LIMITS = (0.0, math.inf)
# Floor of a_k relative to the largest, before and after the power: both stay inside float32.
SMALLEST_SHARE = 1e-36
SMALLEST_POWERED_SHARE = 1e-30


def class_margins(
    class_sqnorm: Tensor,
    mean_margin: float,
    *,
    power: float = PAPER_POWER,
    seen: Tensor | None = None,
    limits: tuple[float, float] = NO_LIMITS,
) -> Tensor:
    """Return the margin of each class (Eq. 1; Corollary 1 for ``power=1/3``; Eq. 17 with an Lp statistic).

    Args:
        class_sqnorm: Non-negative statistic ``a`` of each class, shape ``[K]``; ``r²_{k,p}`` in the paper.
        mean_margin: ``c̄ > 0``, the mean of the margins.
        power: Exponent; 1/3 minimises the bound of Proposition 1, 0 gives uniform margins.
        seen: Which classes have a statistic, bool ``[K]``; the others are left out and get ``c̄``.
        limits: Smallest and largest allowed ``γ_k / c̄``.

    Returns:
        Margins ``γ``, shape ``[K]``, with mean exactly ``c̄`` up to rounding.

    Raises:
        ValueError: ``mean_margin <= 0``, limits that do not enclose 1, or a statistic of the wrong shape.

    Example:
        >>> class_margins(torch.tensor([3.0, 4.0, 10.0]), 1.0)
        tensor([0.8346, 0.9186, 1.2468])
    """
    check_number("mean_margin", mean_margin, above=0.0)
    check_number("power", power)
    check_floating("class_sqnorm", class_sqnorm, dim=1)
    check_limits(limits)
    return mean_margin * relative_margins(class_sqnorm, power, seen, limits)


def relative_margins(
    statistic: Tensor, power: float, seen: Tensor | None, limits: tuple[float, float]
) -> Tensor:
    """Return ``γ / c̄`` without checking the arguments (the part that runs in every step)."""
    if seen is None:
        powered = _powered(statistic, power)
        return _within_limits(powered / powered.mean(), limits)
    # Unseen classes carry the statistic 0: they do not move the maximum, and are masked out of the mean.
    powered = _powered(statistic, power) * seen
    mean = powered.sum() / seen.sum().clamp_min(1)
    ratio = torch.where(seen, powered / mean, 1.0)
    return _within_limits(ratio.to(statistic.dtype), limits)


def relative_margins_on_host(
    statistic: NDArray[Any], power: float, limits: tuple[float, float]
) -> NDArray[Any] | None:
    """Return the same for the common case on the CPU in a few calls, or None where it does not apply.

    Applies when every class has been seen, every statistic is positive and no limit binds.
    """
    smallest, largest = float(np.minimum.reduce(statistic)), float(np.maximum.reduce(statistic))
    if not (smallest > 1e-6 * largest and largest < math.inf and abs(power) <= 3.0):
        return None
    powered: NDArray[Any] = statistic**power
    mean = float(np.add.reduce(powered)) / len(powered)  # mean() costs five times as much
    extremes = (smallest**power / mean, largest**power / mean)
    if not (0.0 < mean < math.inf and min(extremes) >= limits[0] and max(extremes) <= limits[1]):
        return None
    powered /= mean
    return powered


def _powered(statistic: Tensor, power: float) -> Tensor:
    # Relative to the largest, the power cannot overflow; the floor keeps margins positive and makes
    # all-zero statistics all equal instead of 0/0.
    scaled = statistic / statistic.max().clamp_min(torch.finfo(statistic.dtype).tiny)
    floor = (
        SMALLEST_SHARE if power == 0.0 else max(SMALLEST_SHARE, SMALLEST_POWERED_SHARE ** (1.0 / abs(power)))
    )
    return scaled.clamp_min(floor).pow(power)


def _within_limits(ratio: Tensor, limits: tuple[float, float]) -> Tensor:
    low, high = limits
    if low <= 0.0 and high == math.inf:
        return ratio
    smallest, largest = torch.aminmax(ratio)
    tiny = torch.finfo(ratio.dtype).tiny
    shrink = torch.minimum(
        (1.0 - low) / (1.0 - smallest).clamp_min(tiny), (high - 1.0) / (largest - 1.0).clamp_min(tiny)
    ).clamp_max(1.0)
    return torch.lerp(torch.ones_like(ratio), ratio, shrink)


def check_limits(limits: tuple[float, float]) -> None:
    """Check that the limits of ``γ / c̄`` enclose 1."""
    low, high = limits
    if not (0.0 <= low <= 1.0 <= high):
        raise ValueError(f"limits must satisfy 0 <= low <= 1 <= high, got {limits}")

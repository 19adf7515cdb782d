"""Seeing feature collapse before it ruins a run.

The representation margin can be made arbitrarily small by mapping everything to one point. Compact classes far apart
are fine (neural collapse); *all* features shrinking together are not. The sign is the total variance of the features
(within plus between classes) falling to a small fraction of the largest value it ever had.
"""

from __future__ import annotations

import sys
import warnings

from torch import Tensor

from classmargin.mr2.class_statistics import ClassStatistics

COLLAPSE_FRACTION = 1e-3


class FeatureCollapseWarning(UserWarning):
    """All features are shrinking to one point; the representation weight λ is too large for their scale."""


def collapse_ratio(statistics: ClassStatistics, peak_variance: Tensor) -> Tensor:
    """Return total feature variance over its peak so far, in ``[0, 1]`` (1 before the first batch)."""
    return ((statistics.total_variance + 1e-30) / (peak_variance + 1e-30)).clamp_max(1.0)


def _caller_level() -> int:
    """Return the stack level of the first frame outside this package and torch: the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        ("classmargin.mr2", "torch.")
    ):
        frame, level = frame.f_back, level + 1
    return level


def warn_of_collapse(ratio: float, representation_weight: float, mean_spread: float) -> None:
    """Say what happens, with the numbers, and what to change."""
    warnings.warn(
        f"features are collapsing to one point: their total variance is {ratio:.1e} of its peak (mean_spread={mean_spread:.2e}). "
        f"Lower representation_weight (now {representation_weight:g}), set warmup_steps, or use temperature='total-variance'.",
        FeatureCollapseWarning,
        stacklevel=_caller_level(),
    )

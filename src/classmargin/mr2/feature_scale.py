"""How large the features are, and what follows: the temperature of the representation margin, and a look for collapse.

::

    ClassStatistics.total_variance ──> peak_variance (largest so far) ──> τ of Eq. 2
                                  └──> collapse_ratio = now / peak ─────> FeatureCollapseWarning

The exponent of Eq. 2 is a squared distance. Divided by the *largest* total variance so far it is scale-free, and
the pull does not grow as features shrink, which would speed collapse up.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from classmargin._checks import check_int, check_number
from classmargin.mr2.class_groups import uses_dense_layout
from classmargin.mr2.class_statistics import ClassStatistics
from classmargin.mr2.collapse import COLLAPSE_FRACTION, collapse_ratio, warn_of_collapse
from classmargin.mr2.full_precision import FullPrecisionModule
from classmargin.mr2.settings import checked_temperature


class FeatureScale(FullPrecisionModule):
    """The largest total variance of the features so far, and the temperature that it gives.

    Args:
        temperature: A number, ``"total-variance"`` or ``"dimension"``.
        factor: On a rule; 1 with a number.
        collapse_check_interval: Updates between two looks for collapse (0 = never).

    Example:
        >>> scale = FeatureScale("dimension", 10.0)
        >>> scale.temperature_of(64, on_host=True)
        640.0
    """

    peak_variance: Tensor

    def __init__(
        self, temperature: float | str, factor: float = 1.0, collapse_check_interval: int = 0
    ) -> None:
        super().__init__()
        self.temperature = checked_temperature(temperature, factor)
        self.factor = check_number("temperature_factor", factor, above=0.0)
        self.collapse_check_interval = check_int(
            "collapse_check_interval", collapse_check_interval, minimum=0
        )
        self.register_buffer("peak_variance", torch.zeros(()))
        self._calls_since_check = 0
        self._warned_of_collapse = False

    def temperature_of(self, feature_dim: int, on_host: bool) -> Tensor | float:
        """Return ``τ``: a number on the host, a tensor where reading it would make a device wait."""
        if self.temperature == "total-variance":
            # Nothing seen yet, or all features equal: an infinite temperature leaves ln(1 + pairs), without a pull.
            peak = self._buffer("peak_variance")
            if on_host:
                return self.factor * peak.item() or math.inf
            return torch.where(peak > 0, self.factor * peak, math.inf)
        if self.temperature == "dimension":
            return self.factor * feature_dim
        return float(self.temperature)

    def follow(self, statistics: ClassStatistics) -> None:
        """Raise the peak to the total variance of now, where that is larger."""
        variance = statistics.total_variance
        if self.peak_variance.dtype != variance.dtype:  # statistics have become float64
            self.peak_variance = self.peak_variance.to(variance.dtype)
        if uses_dense_layout(variance):
            self.peak_variance.copy_(torch.maximum(self.peak_variance, variance))
        elif float(variance) > float(self.peak_variance):
            self.peak_variance.copy_(variance)

    def start_from(self, statistics: ClassStatistics) -> None:
        """Take the total variance of now as the peak: these are other features than those seen before."""
        self.peak_variance.zero_()
        self.follow(statistics)

    def look_for_collapse(self, statistics: ClassStatistics, representation_weight: float) -> None:
        """Warn once if the features shrink to one point; a real look at every ``collapse_check_interval``-th call."""
        if not self.collapse_check_interval:
            return
        calls = self._calls_since_check + 1
        self.__dict__["_calls_since_check"] = calls  # setting an attribute of a module costs a dozen look-ups
        if self._warned_of_collapse or calls < self.collapse_check_interval:
            return
        self._calls_since_check = 0
        ratio = float(collapse_ratio(statistics, self.peak_variance))
        if ratio < COLLAPSE_FRACTION:
            self._warned_of_collapse = True
            warn_of_collapse(ratio, representation_weight, float(statistics.mean_spread))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        saved = state_dict.get(f"{prefix}peak_variance")
        if isinstance(saved, Tensor) and saved.dtype == torch.float64:
            self.peak_variance = self.peak_variance.double()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

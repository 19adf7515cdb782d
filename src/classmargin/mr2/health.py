"""Two signs that a training is going wrong, kept on the device and read every so many steps.

::

    total variance of the features ──> moving average ──> over its peak: collapse_ratio ──> FeatureCollapseWarning
                                  └──> NaN or inf in the last batch ────────────────────────> ValueError

Compact classes far apart are fine (neural collapse); *all* features shrinking together are not: the sign is their total
variance (within plus between classes) falling to a fraction of the largest value it had. The objective with standardised
features gains nothing from that; the printed one does, and can ruin a model.

Reading a tensor makes an accelerator wait, so it is read every ``READ_EVERY`` calls there and at every call on the CPU;
never inside a compiled or captured step, where :meth:`Health.read` can be called between steps.
"""

from __future__ import annotations

import math
import sys
import warnings

import torch
from torch import Tensor

from classmargin._precision import FullPrecisionModule

READ_EVERY = 50
COLLAPSE_FRACTION = 0.1
DECAY = 0.9


class FeatureCollapseWarning(UserWarning):
    """All features are shrinking to one point; the representation weight λ is too large for their scale."""


class Health(FullPrecisionModule):
    """Follows the total variance of the features.

    Attributes:
        latest: Total variance of the last batch, scalar; NaN or inf if its features were.
        variance: Its moving average, scalar; from 0 before the first batch.
        peak_variance: The largest value of that so far, scalar.
        bad_targets: Whether the last probabilities given as labels were none, scalar.
    """

    latest: Tensor
    variance: Tensor
    peak_variance: Tensor
    bad_targets: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("latest", "variance", "peak_variance"):
            self.register_buffer(name, torch.zeros(()))
        self.register_buffer("bad_targets", torch.zeros((), dtype=torch.bool))
        self._calls, self._warned = 0, False

    @property
    def collapse_ratio(self) -> Tensor:
        """Total variance of the features over its peak so far, scalar in ``[0, 1]``; near 0 means collapse."""
        return torch.where(self.peak_variance > 0, self.variance / self.peak_variance, 1.0)

    def follow(self, variance: Tensor) -> Tensor:
        """Mix in the total variance of one batch; nothing is read. Return whether it is finite, bool scalar."""
        self.latest.copy_(variance)
        finite = self.latest < torch.inf
        self.variance.lerp_(torch.where(finite, self.latest, self.variance), 1.0 - DECAY)
        torch.maximum(self.peak_variance, self.variance, out=self.peak_variance)
        return finite

    def tick(self, representation_weight: float) -> None:
        """Count a call and read the signs when they are due."""
        device = self.variance.device.type
        if torch.compiler.is_compiling() or device == "meta":
            return
        if device != "cpu":
            self._calls += 1
            capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
            if self._calls % READ_EVERY or capturing:
                return
        self.read(representation_weight)

    def read(self, representation_weight: float) -> None:
        """Read the signs now: raise on NaN or inf in the last batch, warn once of collapse.

        Raises:
            ValueError: The features of the last batch were not finite, or its probabilities were none.
        """
        if bool(self.bad_targets):
            raise ValueError(
                "labels given as probabilities must be rows >= 0 that sum to 1, got others in the last batch"
            )
        if not math.isfinite(float(self.latest)):
            raise ValueError(
                "features must be finite, got NaN or inf in the last batch (or values whose squares overflow); the class "
                "statistics have not taken them in"
            )
        variance, peak = float(self.variance), float(self.peak_variance)
        if not self._warned and representation_weight > 0.0 and variance < COLLAPSE_FRACTION * peak:
            self._warned = True
            warnings.warn(
                f"features are collapsing to one point: their total variance is {variance / peak:.2g} of its peak. Lower "
                f"representation_weight (now {representation_weight:g}), or use the recommended settings, which gain nothing "
                "from shrinking features.",
                FeatureCollapseWarning,
                stacklevel=_caller_level(),
            )


def _caller_level() -> int:
    """Return the stack level of the first frame outside this package and torch: the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(("classmargin.mr2", "torch.")):
        frame, level = frame.f_back, level + 1
    return level

"""What only the authors' released code does, for those who want to reproduce its numbers.

Against the paper: statistics in the Lp norm as ``‖mean‖_p² + mean ‖φ - mean‖_p²`` (p = 5) and the spread in the Lp norm too; an exponent
divided by ``10 d``; ``ℓ_s̄`` averaged inside each class with a pair, summed over classes and multiplied by ``d / (10 K)``; classes
never seen counted with statistics of 0; λ = 0.1, decay 0.999, no c̄.
"""

from __future__ import annotations

import torch
from torch import Tensor

from classmargin.mr2.equations import (
    TINY_MARGIN,
    class_sums,
    denominator,
    of_class,
    pair_losses,
    squared_norm,
)
from classmargin.mr2.loss import MR2Loss, Rows
from classmargin.mr2.statistics import ClassStatistics, Current

DIMENSION_FACTOR = 10.0


class ReleasedStatistics(ClassStatistics):
    """Scalars in the Lp norm, and classes never seen counted as 0."""

    def current(self) -> Current:
        """Return the scalars of now, averaged over all classes."""
        now = super().current()
        classes = torch.full_like(now.num_seen, self.num_classes)
        return now._replace(num_seen=classes, mean_spread=now.spread.sum() / classes)

    @torch.no_grad()
    def mix(self, rows: Tensor, labels: Tensor, row_weight: Tensor, moves: Tensor, synchronize: bool = False) -> None:
        """Mix the scalars of a batch in; arguments as for :meth:`ClassStatistics.mix`."""
        rows = rows.to(self.averages.dtype).masked_fill(~moves, 0.0)
        weight = (row_weight * moves).unsqueeze(1)
        sums = class_sums(torch.cat((rows * weight, weight), 1), labels, self.num_classes)
        count = denominator(sums[:, -1:])
        mean = sums[:, :-1] / count
        own_mean = of_class(mean, labels)
        deviation = squared_norm(rows - own_mean, self.norm_order)
        spread = (class_sums(deviation.unsqueeze(1) * weight, labels, self.num_classes) / count).squeeze(1)
        sqnorm = squared_norm(mean, self.norm_order) + spread
        self.take(torch.stack((spread, sqnorm, sums[:, -1].sign()), 1))
        self.updates.add_(moves)


class ReleasedMR2Loss(MR2Loss):
    """``MR2Loss.preset("release", num_classes)``: see the module text. Labels must be classes."""

    statistics_type = ReleasedStatistics
    smallest_margin = TINY_MARGIN

    @property
    def class_margins(self) -> Tensor:
        """Current margins ``γ`` ``[K]``; next to 0 for classes never seen."""
        return self._margins(self.statistics.current())

    def _check(self, logits: Tensor, labels: Tensor, features: Tensor | None = None) -> None:
        super()._check(logits, labels, features)
        if features is not None and labels.is_floating_point():
            raise ValueError("labels must be classes with the preset 'release', got probabilities")

    def _pair_losses(self, batch: Rows, points: Tensor, slack: Tensor) -> Tensor:
        dim = points.shape[1]
        temperature = DIMENSION_FACTOR * dim
        losses = pair_losses(points / temperature**0.5, batch.labels, slack / temperature, batch.weight)
        count = class_sums(batch.weight.unsqueeze(1), batch.labels, self.num_classes).squeeze(1)
        share = (count > 1).to(points.dtype) / (count.clamp_min(1.0) * self.num_classes)
        # The mean over rows that follows divides by their number; this term is a sum over classes.
        return losses * of_class(share, batch.labels) * batch.weight.sum() * (dim / DIMENSION_FACTOR)

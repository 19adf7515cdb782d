"""Loss and gradient of a linear head on fixed features, over all rows at once.

``f(W, b) = Σ_i w_i ℓ_γ(W φ_i + b, y_i) + α/2 ‖W‖²`` with ``Σ w_i = 1`` and constant margins γ (Eq. 1): a convex problem
in ``(W, b)``. Written out by hand instead of through autograd: one matrix product forth and one back, in chunks that stay
in the cache, nothing of size ``[N, K]`` is ever kept.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

# Logits handled at once: 1 M numbers are 4 MB in float32.
CHUNK_ENTRIES = 1 << 20


class MarginObjective:
    """The objective of one training set.

    Args:
        rows: Features ``[N, d]``.
        labels: Classes ``[N]``.
        row_weight: Weights ``[N]`` with sum 1.
        class_margins: ``γ`` ``[K]``.
        alpha: ``α >= 0`` of the penalty on the weights; the intercept is free.

    Example:
        >>> rows, labels = torch.eye(2), torch.tensor([0, 1])
        >>> objective = MarginObjective(rows, labels, torch.full((2,), 0.5), torch.ones(2), 0.0)
        >>> value, gradient, _ = objective(torch.zeros(2, 2), torch.zeros(2))
        >>> round(value, 6), gradient.tolist()
        (0.693147, [[-0.25, 0.25], [0.25, -0.25]])
    """

    def __init__(
        self, rows: Tensor, labels: Tensor, row_weight: Tensor, class_margins: Tensor, alpha: float
    ) -> None:
        self.rows, self.labels, self.alpha = rows, labels, alpha
        self.row_weight = row_weight.to(rows.dtype)
        self.num_classes = class_margins.shape[0]
        self.inverse_margin = (1.0 / class_margins.to(rows.dtype)).index_select(0, labels)
        self.chunk_rows = max(1, CHUNK_ENTRIES // max(self.num_classes, 1))

    def with_rows(self, rows: Tensor) -> MarginObjective:
        """Return the same objective of other features of the same rows ``[N, d']``."""
        other = copy.copy(self)
        other.rows = rows
        return other

    def scaled_logits(self, coef: Tensor, intercept: Tensor) -> Tensor:
        """Return ``(W φ + b) / γ_y`` of all rows ``[N, K]``; for small sets only."""
        return torch.addmm(intercept, self.rows, coef.T) * self.inverse_margin.unsqueeze(1)

    def __call__(self, coef: Tensor, intercept: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return the value and the gradients with respect to ``coef`` ``[K, d]`` and ``intercept`` ``[K]``.

        Losses are summed in float64: near the minimum, float32 sums would drown the progress of a step.
        """
        loss = torch.zeros((), dtype=torch.float64, device=coef.device)
        coef_gradient = coef * self.alpha
        intercept_gradient = torch.zeros_like(intercept)
        for start in range(0, self.rows.shape[0], self.chunk_rows):
            part = slice(start, start + self.chunk_rows)
            rows, labels, inverse = self.rows[part], self.labels[part, None], self.inverse_margin[part, None]
            weight = self.row_weight[part, None]
            scaled = torch.addmm(intercept, rows, coef.T).mul_(inverse)
            log_share = torch.log_softmax(scaled, 1)
            loss -= (weight.double() * log_share.gather(1, labels)).sum()
            residual = log_share.exp_()
            residual.scatter_add_(1, labels, torch.full_like(weight, -1.0)).mul_(weight * inverse)
            coef_gradient.addmm_(residual.T, rows)
            intercept_gradient += residual.sum(0)
        penalty = 0.5 * self.alpha * float(coef.double().square().sum())
        return float(loss) + penalty, coef_gradient, intercept_gradient

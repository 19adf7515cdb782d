"""Newton's method for linear heads of few variables.

A quasi-Newton method amplifies rounding: two orders of the same rows end at points that differ in the third digit, both
within the tolerance. For small problems it costs nothing to end at the minimum itself, where order, duplicates and
weights of rows make no difference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from classmargin.integrations.sklearn_parts.margin_objective import MarginObjective

# Relative decrement from which one more step reaches the precision of float64: errors are squared in every step.
LAST_STEP = 1e-11
SMALLEST_CURVATURE = 1e-15  # relative to the largest; what is flatter is rounding
HALVINGS = 40
ARMIJO = 1e-4


def newton(
    objective: MarginObjective, intercept: Tensor, *, learns_intercept: bool, iterations: int
) -> tuple[Tensor, Tensor, float, int, bool]:
    """Return weights, intercepts, the value there, the number of steps and whether the minimum was reached.

    Args:
        objective: Of rows in float64.
        intercept: First intercepts ``[K]``; the weights start at 0.
        learns_intercept: Whether the intercepts move.
        iterations: Most steps.

    Example:
        >>> rows, labels = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64), torch.tensor([0, 1, 1])
        >>> objective = MarginObjective(rows, labels, torch.full((3,), 1 / 3), torch.ones(2), 0.1)
        >>> start = torch.zeros(2, dtype=torch.float64)
        >>> coef, intercept, value, steps, reached = newton(objective, start, learns_intercept=True, iterations=50)
        >>> reached, bool(objective(coef, intercept)[1].abs().max() < 1e-9)
        (True, True)
    """
    size = objective.rows.shape[1]
    point = torch.cat((objective.rows.new_zeros(len(intercept), size), intercept.unsqueeze(1)), 1)
    value, gradient = _evaluate(objective, point, learns_intercept)
    for step in range(1, iterations + 1):
        direction = _direction(objective, point, gradient, learns_intercept)
        decrement = -float((gradient * direction).sum())
        if decrement <= LAST_STEP * abs(value):
            point = point + direction
            value, _ = _evaluate(objective, point, learns_intercept)
            return point[:, :-1], point[:, -1], value, step, True
        length = 1.0
        for _ in range(HALVINGS):
            candidate = point + length * direction
            new, new_gradient = _evaluate(objective, candidate, learns_intercept)
            if new <= value - ARMIJO * length * decrement:
                break
            length *= 0.5
        else:  # rounding hides every further decrease
            return point[:, :-1], point[:, -1], value, step, True
        point, value, gradient = candidate, new, new_gradient
    return point[:, :-1], point[:, -1], value, iterations, False


def _evaluate(objective: MarginObjective, point: Tensor, learns_intercept: bool) -> tuple[float, Tensor]:
    """Return value and gradient ``[K, d + 1]``; the last column belongs to the intercepts."""
    value, coef_gradient, intercept_gradient = objective(point[:, :-1], point[:, -1])
    return value, torch.cat((coef_gradient, intercept_gradient.unsqueeze(1) * learns_intercept), 1)


def _direction(objective: MarginObjective, point: Tensor, gradient: Tensor, learns_intercept: bool) -> Tensor:
    hessian = hessian_at(objective, point, learns_intercept)
    direction = -solve(hessian, gradient.reshape(-1)).view_as(point)
    direction[:, -1] *= learns_intercept
    return direction


def hessian_at(objective: MarginObjective, point: Tensor, learns_intercept: bool) -> Tensor:
    """Return the second derivatives at weights and intercepts ``[K, d + 1]``, as a matrix ``[K (d + 1), K (d + 1)]``.

    The same shift of all intercepts changes nothing; there, some curvature is added that keeps it at 0.
    """
    classes, columns = point.shape
    last = torch.full_like(objective.rows[:, :1], float(learns_intercept))
    rows = torch.cat((objective.rows, last), 1)
    share = torch.softmax(objective.scaled_logits(point[:, :-1], point[:, -1]), 1)
    bend = objective.row_weight * objective.inverse_margin.square()
    # Σ bend · (diag(p) - p pᵀ) ⊗ φφᵀ
    mixed = (share.unsqueeze(2) * rows.unsqueeze(1)).reshape(rows.shape[0], -1)
    hessian = -(mixed.T @ (mixed * bend.unsqueeze(1)))
    for k in range(classes):
        block = slice(k * columns, (k + 1) * columns)
        hessian[block, block] += rows.T @ (rows * (bend * share[:, k]).unsqueeze(1))
    penalty = torch.full_like(point, objective.alpha)
    penalty[:, -1] = 0.0
    hessian.diagonal().add_(penalty.reshape(-1))
    intercepts = torch.arange(columns - 1, classes * columns, columns, device=rows.device)
    hessian[intercepts.unsqueeze(1), intercepts] += 1.0 / classes
    return hessian


def solve(hessian: Tensor, gradient: Tensor) -> Tensor:
    """Return ``|H|⁻¹ g``: where the curvature is negative its size counts, so that the way back leads down everywhere."""
    curvature, axes = torch.linalg.eigh(hessian)
    keep = curvature.abs() > SMALLEST_CURVATURE * curvature.abs().max()
    axes = axes[:, keep]
    solution: Tensor = axes @ ((axes.T @ gradient) / curvature[keep].abs())
    return solution

"""Newton's method for the last steps of a small cosine head.

For the reason of :mod:`classmargin.integrations.sklearn_parts.newton`: at the minimum itself order, duplicates and weights of rows
make no difference, somewhere near it they do. The problem is not convex, so L-BFGS leads into a valley first; here its bottom is
found.

Variables are steps from the last point: ``u_k -> normalised(u_k + v_k)``, ``b_k -> b_k + β_k``, ``scale -> scale · e^t``. With
``W_k = scale · u_k``, ``g_k = ∂f/∂W_k`` and ``P_k = I - u_k u_kᵀ`` their second derivatives at 0 are those of ``f`` in the weights,
through the Jacobian, and what comes from the bend of the sphere:

    v_k v_k: -scale (g_k · u_k) P_k        v_k t: scale P_k g_k        t t: scale Σ_k g_k · u_k
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from classmargin.integrations.sklearn_parts.margin_objective import MarginObjective
from classmargin.integrations.sklearn_parts.network import SMALLEST_NORM
from classmargin.integrations.sklearn_parts.newton import ARMIJO, HALVINGS, LAST_STEP, hessian_at, solve

SMALLEST_SINGULAR_VALUE = 1e-10  # relative to the largest; rows do not reach into directions below


class CosinePoint(NamedTuple):
    """A cosine head.

    Attributes:
        directions: Of the weights ``[K, d]``, of length 1.
        intercept: Offsets ``[K]``.
        scale: Common length of the weights, scalar.
    """

    directions: Tensor
    intercept: Tensor
    scale: Tensor

    @property
    def coef(self) -> Tensor:
        """Weights ``[K, d]``."""
        return self.scale * self.directions

    def moved(self, step: Tensor) -> CosinePoint:
        """Return the point a step ``[K (d + 1) + 1]`` away."""
        turn, offset = step[:-1].view(len(self.intercept), -1).tensor_split([-1], 1)
        return CosinePoint(
            F.normalize(self.directions + turn, dim=1),
            self.intercept + offset[:, 0] - offset.mean(),
            self.scale * step[-1].exp(),
        )


def finish_cosine(
    objective: MarginObjective,
    coef: Tensor,
    intercept: Tensor,
    *,
    learns_intercept: bool,
    learns_scale: bool,
    iterations: int,
) -> tuple[Tensor, Tensor, float, int, bool]:
    """Return weights, offsets, the value there, the number of steps and whether the minimum was reached.

    Weights stay in the span of the rows: no row tells anything about the rest of the space. A weight outside of it (of a class
    without rows) has no direction there; then everything stays as it is.

    Args:
        objective: Of rows of length 1 in float64.
        coef: Weights of one length, near a minimum ``[K, d]``.
        intercept: Offsets there ``[K]``.
        learns_intercept: Whether the offsets move.
        learns_scale: Whether the length of the weights does.
        iterations: Most steps.
    """
    basis = row_space(objective.rows)
    scale = torch.linalg.vector_norm(coef, dim=1).mean()
    if bool((torch.linalg.vector_norm(coef @ basis.T, dim=1) < SMALLEST_NORM * scale).any()):
        return coef, intercept, objective(coef, intercept)[0], 1, True
    objective = objective.with_rows(objective.rows @ basis.T)
    point = CosinePoint(F.normalize(coef @ basis.T, dim=1), intercept, scale)
    size, steps, reached = len(basis) + 1, 0, False
    while steps < iterations and not reached:
        value, gradient, hessian = derivatives(
            objective, point, learns_intercept=learns_intercept, learns_scale=learns_scale
        )
        step = -solve(hessian, gradient)
        step[size - 1 : -1 : size] *= float(
            learns_intercept
        )  # exactly: rounding must not move what is not learned
        step[-1] *= float(learns_scale)
        decrement = -float(gradient @ step)
        last = decrement <= LAST_STEP * abs(value)
        length = 1.0 if last else _length(objective, point, step, value, ARMIJO * decrement)
        point = point.moved(length * step)
        steps, reached = steps + 1, last or length == 0.0
    value = objective(point.coef, point.intercept)[0]
    return point.coef @ basis, point.intercept, value, steps, reached


def row_space(rows: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of the rows ``[r, d]``.

    Example:
        >>> row_space(torch.tensor([[3.0, 0.0], [1.0, 0.0]])).abs().tolist()
        [[1.0, 0.0]]
    """
    _, singular, axes = torch.linalg.svd(rows, full_matrices=False)
    basis: Tensor = axes[singular > SMALLEST_SINGULAR_VALUE * singular[0]]
    return basis


def derivatives(
    objective: MarginObjective, point: CosinePoint, *, learns_intercept: bool, learns_scale: bool
) -> tuple[float, Tensor, Tensor]:
    """Return the value and its first and second derivatives in the variables of the module text.

    Variables are ordered class by class, ``v_k`` and ``β_k``, then ``t``. What changes nothing (the length of ``u_k``, a common offset,
    a scale that is not learned) gets curvature 1, so that no step goes there.
    """
    size, scale = point.directions.shape[1], point.scale
    value, slope, intercept_slope = objective(point.coef, point.intercept)
    along = (slope * point.directions).sum(1)
    # One block [d + 1, d + 1] a class; its last row and column belong to the offset.
    length = point.directions.unsqueeze(2) * point.directions.unsqueeze(1)
    tangent = torch.eye(size, dtype=scale.dtype, device=scale.device) - length
    gain = F.pad(scale * tangent, (0, 1, 0, 1))
    gain[:, -1, -1] = 1.0
    bend = F.pad(length - scale * along[:, None, None] * tangent, (0, 1, 0, 1))
    grow = F.pad(point.coef, (0, 1)).reshape(-1, 1) * float(learns_scale)
    jacobian = torch.cat((_diagonal(gain), grow), 1)
    hessian = jacobian.T @ _weight_hessian(objective, point, learns_intercept) @ jacobian
    hessian[:-1, :-1] += _diagonal(bend)
    if learns_scale:
        turning = F.pad(scale * (slope - along.unsqueeze(1) * point.directions), (0, 1)).reshape(-1)
        hessian[:-1, -1] += turning
        hessian[-1, :-1] += turning
    hessian[-1, -1] += scale * along.sum() if learns_scale else 1.0
    slopes = torch.cat((slope, intercept_slope.unsqueeze(1) * float(learns_intercept)), 1)
    return value, jacobian.T @ slopes.reshape(-1), hessian


def _diagonal(blocks: Tensor) -> Tensor:
    """Return one matrix with the blocks ``[K, m, m]`` on its diagonal."""
    whole: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return whole


def _weight_hessian(objective: MarginObjective, point: CosinePoint, learns_intercept: bool) -> Tensor:
    return hessian_at(objective, torch.cat((point.coef, point.intercept.unsqueeze(1)), 1), learns_intercept)


def _length(
    objective: MarginObjective, point: CosinePoint, step: Tensor, value: float, wanted: float
) -> float:
    """Return how much of a step lowers the value enough; 0 where rounding hides every decrease."""
    length = 1.0
    for _ in range(HALVINGS):
        candidate = point.moved(length * step)
        if objective(candidate.coef, candidate.intercept)[0] <= value - length * wanted:
            return length
        length *= 0.5
    return 0.0

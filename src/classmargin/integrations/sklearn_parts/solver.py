"""Fitting a head on fixed features: objective + coordinates + L-BFGS of SciPy.

SciPy keeps the variables in float64; products run in the precision and on the device of the features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classmargin.integrations.sklearn_parts.coordinates import (
    CosineCoordinates,
    LinearCoordinates,
    feature_curvature,
)
from classmargin.integrations.sklearn_parts.cosine_newton import finish_cosine
from classmargin.integrations.sklearn_parts.margin_objective import MarginObjective
from classmargin.integrations.sklearn_parts.newton import newton

FloatArray = NDArray[np.float64]
Function = Callable[[FloatArray], tuple[float, FloatArray]]
COSINE_ROUNDS = 10
HISTORY = 10  # pairs of steps and gradients that L-BFGS remembers
# Up to so many variables, and variables times rows, Newton's method takes milliseconds.
NEWTON_VARIABLES = 200
NEWTON_WORK = 200_000
# Relative decrease of the value below which a step shows nothing but the rounding of its sums.
SMALLEST_DECREASE = {torch.float32: 1e-10, torch.float64: 1e-14}


class FittedHead(NamedTuple):
    """A head and how it was found.

    Attributes:
        coef: Weights ``[K, d]``.
        intercept: Offsets ``[K]``.
        objective: Value of the objective there.
        iterations: Steps taken, at least 1.
        converged: Whether it stopped by itself and not for want of iterations.
    """

    coef: Tensor
    intercept: Tensor
    objective: float
    iterations: int
    converged: bool


def fit_linear_head(
    rows: Tensor,
    labels: Tensor,
    row_weight: Tensor,
    class_margins: Tensor,
    *,
    alpha: float,
    intercept: bool,
    iterations: int,
    tol: float,
) -> FittedHead:
    """Minimise ``Σ w ℓ_γ + α/2 · v ‖W‖²`` over weights and intercepts: the one minimum of a convex problem.

    Args:
        rows: Features ``[N, d]``.
        labels: Classes ``[N]``.
        row_weight: Weights ``[N]`` with sum 1.
        class_margins: ``γ`` ``[K]``.
        alpha: ``α``, relative to the total variance ``v`` of the features.
        intercept: Whether there are intercepts; without, ``v`` is the mean squared length of the features.
        iterations: Most steps.
        tol: Stop once the Newton decrement, a sign of how far the value is above its minimum, is below ``tol`` times
            the value.

    Example:
        >>> rows, labels = torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([0, 0, 1, 1])
        >>> options = {"alpha": 0.1, "intercept": True, "iterations": 50, "tol": 1e-8}
        >>> head = fit_linear_head(rows, labels, torch.full((4,), 0.25), torch.ones(2), **options)
        >>> (rows @ head.coef.T + head.intercept).argmax(1).tolist()
        [0, 0, 1, 1]
    """
    given, small = rows.dtype, _is_small(rows, class_margins.shape[0])
    rows = rows.double() if small else rows
    # Centring changes nothing but the intercept, which is free, and saves the digits that a large mean would take.
    centre = row_weight.to(rows.dtype) @ rows if intercept else torch.zeros_like(rows[0])
    centred = rows - centre
    # In units of their own: beside curvatures of 1 (intercepts), those of very large or small features would be lost.
    unit = centred.abs().amax() if centred.numel() else centred.new_ones(())
    unit = torch.where(unit > 0, unit, torch.ones_like(unit))
    centred = centred / unit
    alpha = alpha * _total_variance(centred, row_weight)
    share, mean_margin = _class_share(labels, row_weight, class_margins), float(class_margins.mean())
    objective = MarginObjective(centred, labels, row_weight, class_margins, alpha)
    coordinates = LinearCoordinates(
        feature_curvature(centred, objective.row_weight),
        share.to(rows.dtype),
        mean_margin=mean_margin,
        alpha=alpha,
        intercept=intercept,
    )
    if small:
        start = coordinates.widths.start_intercept
        head = FittedHead(*newton(objective, start, learns_intercept=intercept, iterations=iterations))
    else:
        variables, value, steps, converged = _search(objective, coordinates, iterations, tol)
        head = FittedHead(*coordinates.head(variables), value, steps, converged)
    coef = head.coef / unit
    moved = head.intercept - coef @ centre
    return head._replace(coef=coef.to(given), intercept=moved.to(given))


def fit_cosine_head(
    rows: Tensor,
    labels: Tensor,
    row_weight: Tensor,
    class_margins: Tensor,
    *,
    alpha: float,
    intercept: bool,
    scale: float | None,
    iterations: int,
    tol: float,
) -> FittedHead:
    """Minimise the same over weights of one common length (``scale``; learned if None).

    Args:
        rows: Features of length 1 ``[N, d]``.
        labels: Classes ``[N]``.
        row_weight: Weights ``[N]`` with sum 1.
        class_margins: ``γ`` ``[K]``.
        alpha: ``α``; what it weighs is ``K · scale²``, so it keeps a learned scale finite on separable data.
        intercept: Whether there are intercepts.
        scale: Length of the weights, or None.
        iterations: Most steps.
        tol: As in :func:`fit_linear_head`.
    """
    given, small = rows.dtype, _is_small(rows, class_margins.shape[0])
    rows = rows.double() if small else rows
    share, mean_margin = _class_share(labels, row_weight, class_margins), float(class_margins.mean())
    objective = MarginObjective(rows, labels, row_weight, class_margins, alpha)
    class_sum = rows.new_zeros(class_margins.shape[0], rows.shape[1])
    class_sum.index_add_(0, labels, rows * objective.row_weight.unsqueeze(1))
    coordinates = CosineCoordinates(
        feature_curvature(rows, objective.row_weight),
        class_sum / share.clamp_min(torch.finfo(rows.dtype).tiny).to(rows.dtype).unsqueeze(1),
        share.to(rows.dtype),
        mean_margin=mean_margin,
        alpha=alpha,
        intercept=intercept,
        scale=scale,
    )
    steps = 0
    for _ in range(COSINE_ROUNDS):
        variables, value, more, converged = _search(objective, coordinates, iterations - steps, tol)
        steps += more
        coordinates.move_to(variables)
        if more == 1 or steps >= iterations:  # flat at the start of a round: this is the end
            break
    coef, offsets = coordinates.anchor * coordinates.first_scale, coordinates.widths.start_intercept
    head = FittedHead(coef, offsets, value, steps, converged)
    if small and steps < iterations:
        learned = {"learns_intercept": intercept, "learns_scale": scale is None}
        found = finish_cosine(objective, coef, offsets, iterations=iterations - steps, **learned)
        head = FittedHead(*found)._replace(iterations=steps + found[3])
    return head._replace(coef=head.coef.to(given), intercept=head.intercept.to(given))


def _search(
    objective: MarginObjective,
    coordinates: LinearCoordinates | CosineCoordinates,
    iterations: int,
    tol: float,
) -> tuple[FloatArray, float, int, bool]:
    def function(variables: FloatArray) -> tuple[float, FloatArray]:
        value, coef_gradient, intercept_gradient = objective(*coordinates.head(variables))
        return value, coordinates.gradient(variables, coef_gradient, intercept_gradient)

    decrease = SMALLEST_DECREASE[objective.rows.dtype]
    return minimize(function, coordinates.start, iterations=iterations, tol=tol, decrease=decrease)


def _is_small(rows: Tensor, num_classes: int) -> bool:
    variables = num_classes * (rows.shape[1] + 1)
    return variables <= NEWTON_VARIABLES and variables * rows.shape[0] <= NEWTON_WORK


def minimize(
    function: Function, start: FloatArray, *, iterations: int, tol: float, decrease: float = 1e-14
) -> tuple[FloatArray, float, int, bool]:
    """Return the best point, its value, the number of steps and whether the search ended by itself.

    Args:
        function: Variables -> value and gradient. Variables should be scaled so that curvatures are near 1: then half the
            squared gradient is about the distance to the minimal value (the Newton decrement).
        start: First point.
        iterations: Most steps.
        tol: Stop once half the squared gradient is below ``tol`` times the value.
        decrease: Stop, too, once a step lowers the value by less than this share.

    Example:
        >>> point, value, steps, converged = minimize(lambda x: (1 + float(x @ x), 2 * x), np.ones(3), iterations=9, tol=1e-9)
        >>> value, converged
        (1.0, True)
    """
    from scipy import optimize

    first, gradient = function(start)
    latest: dict[str, Any] = {}
    if _decrement(gradient) <= tol * abs(first):
        return start, first, 1, True

    def remembered(variables: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = function(variables)
        latest.update(point=variables.copy(), flat=_decrement(gradient) <= tol * abs(value))
        return value, gradient

    def stop_when_flat(variables: FloatArray) -> None:
        # The accepted point is nearly always the last one looked at; if not, one more step does no harm.
        if latest["flat"] and np.array_equal(variables, latest["point"]):
            raise StopIteration

    options = {
        "maxiter": iterations,
        "maxfun": 10 * iterations,
        "maxcor": HISTORY,
        "gtol": 0.0,
        "ftol": decrease,
    }
    search: Any = optimize.minimize  # its types know nothing of a callback that may stop it
    found = search(remembered, start, jac=True, method="L-BFGS-B", callback=stop_when_flat, options=options)
    # Status 1: out of iterations. Status 2: no more decrease along the line, which in float32 is what a minimum looks like.
    return found.x, float(found.fun), max(int(found.nit), 1), latest["flat"] or found.status != 1


def _total_variance(centred: Tensor, row_weight: Tensor) -> float:
    squares = torch.linalg.vector_norm(centred, dim=1).double().square()
    return float(row_weight.double() @ squares)


def _decrement(gradient: FloatArray) -> float:
    return 0.5 * float(gradient @ gradient)


def _class_share(labels: Tensor, row_weight: Tensor, class_margins: Tensor) -> Tensor:
    weight = row_weight.double()
    return weight.new_zeros(class_margins.shape[0]).index_add_(0, labels, weight)

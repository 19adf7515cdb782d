"""A linear or cosine head on fixed features: the minimum of one smooth problem, found by SciPy's L-BFGS.

``f(W, b) = Σ_i w_i ℓ_γ(W φ_i + b, y_i) + α/2 ‖W‖²`` with ``Σ w_i = 1`` and constant margins γ (Eq. 1), convex in ``(W, b)``; a cosine
head minimises it over weights of one common length.

Data flow: variables -> :meth:`Coordinates.head` -> weights and offsets -> :class:`MarginObjective` -> value and gradient -> back through
the coordinates by autograd. SciPy keeps the variables in float64; products run in the precision and on the device of the features.

**Coordinates.** The choice of variables does not change the minimum, but it changes how many steps the search takes. Raw features
have steep and flat directions that differ by many orders of magnitude. With probabilities near the class shares ``π`` the curvature in
the weights of class k is about ``h_k C + α I``, with ``C = Σ w φφᵀ`` and ``h_k = π_k (1 - π_k) / c̄²``. In the eigenvectors ``Q`` of
``C`` (eigenvalues λ) that is diagonal, so ``W = (V · S) Qᵀ`` with ``S_kj = (h_k λ_j + α)^-½``: all curvatures start near 1.

**The last digits.** A quasi-Newton method amplifies rounding: two orders of the same rows end at points that differ in the third digit,
both within the tolerance. Small problems therefore end with Newton steps from there, whose second derivatives autograd
gives; at the minimum itself order, duplicates and weights of rows make no difference, which is what scikit-learn checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from classmargin.integrations.sklearn_parts.minibatch import SMALLEST_NORM, START_SCALE

FloatArray = NDArray[np.float64]
Function = Callable[[FloatArray], tuple[float, FloatArray]]
CHUNK_ENTRIES = 1 << 20  # logits handled at once: 4 MB in float32
HISTORY = 10  # pairs of steps and gradients that L-BFGS remembers
COSINE_ROUNDS = 10
# Above, the eigenvalue problem costs more than the steps it saves; the diagonal of C must do.
LARGEST_ROTATION = 2048
# Rows behind C for each of its columns; more would sharpen what need not be sharp.
ROWS_PER_COLUMN, LEAST_ROWS = 8, 8192
# Floor of the eigenvalues relative to their mean, and of class shares relative to equal ones.
SMALLEST_EIGENVALUE, SMALLEST_SHARE = 1e-6, 1e-3
LARGEST_LOG_CHANGE = 50.0  # of the scale of cosines; a line search may try points far away
# Up to so many variables, and variables times rows, second derivatives take milliseconds.
NEWTON_VARIABLES, NEWTON_WORK = 200, 200_000
NEWTON_STEPS, HALVINGS, ARMIJO = 50, 20, 1e-4
SMALLEST_CURVATURE = 1e-14  # relative to the largest; what is flatter is rounding
# Relative decrease of the value below which a step shows nothing but the rounding of its sums.
SMALLEST_DECREASE = {torch.float32: 1e-10, torch.float64: 1e-14}


class FittedHead(NamedTuple):
    """A head and how it was found.

    Attributes:
        coef: Weights ``[K, d]``.
        intercept: Offsets ``[K]``.
        objective: Value of the objective there.
        iterations: Steps taken, at least 1.
        converged: Whether it stopped by itself rather than at the limit of iterations.
    """

    coef: Tensor
    intercept: Tensor
    objective: float
    iterations: int
    converged: bool


class MarginObjective:
    """The objective of one training set.

    Value and gradient are written out by hand: one matrix product forward and one backward, in chunks that stay in the cache; nothing
    of size ``[N, K]`` is ever kept.

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
        self.inverse_margin = (1.0 / class_margins.to(rows.dtype)).index_select(0, labels)
        self.chunk_rows = max(1, CHUNK_ENTRIES // max(class_margins.shape[0], 1))

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

    def value(self, coef: Tensor, intercept: Tensor) -> Tensor:
        """Return the value, scalar, with its graph; for small sets."""
        logits = torch.addmm(intercept, self.rows, coef.T) * self.inverse_margin.unsqueeze(1)
        losses = F.cross_entropy(logits, self.labels, reduction="none")
        return self.row_weight @ losses + 0.5 * self.alpha * coef.square().sum()


class Coordinates:
    """Variables ``(V, β, t)`` of a head: ``W = (V · S) Qᵀ`` and offsets.

    With an anchor ``W = scale · e^t · normalised(anchor + (V · S) Qᵀ)``.

    Args:
        objective: What is minimised.
        class_share: Share ``π`` of the weight in each class ``[K]``.
        mean_margin: ``c̄``.
        learns_intercept: Whether there are offsets.
        anchor: Directions that a cosine head starts from ``[K, d]``; None for a linear head, which starts from 0.
        scale: Length of the weights of a cosine head at the start.
        learns_scale: Whether it moves.
    """

    def __init__(
        self,
        objective: MarginObjective,
        class_share: Tensor,
        *,
        mean_margin: float,
        learns_intercept: bool,
        anchor: Tensor | None = None,
        scale: float = 1.0,
        learns_scale: bool = False,
    ) -> None:
        share = class_share.clamp_min(SMALLEST_SHARE / class_share.shape[0])
        bend = share * (1.0 - share).clamp_min(SMALLEST_SHARE) / mean_margin**2
        eigenvalues, self.rotation = feature_curvature(objective.rows, objective.row_weight)
        self.width = (bend.unsqueeze(1) * eigenvalues + objective.alpha).rsqrt() / scale
        # Width 0: the variable has no effect and stays where it is.
        self.intercept_width = bend.rsqrt() * learns_intercept
        # With weights 0 the best offsets give the class shares.
        self.intercept = mean_margin * (share.log() - share.log().mean()) * learns_intercept
        self.anchor, self.scale, self.learns_scale = anchor, scale, learns_scale

    def start(self) -> FloatArray:
        """Return the first point."""
        return np.zeros(self.width.numel() + self.width.shape[0] + 1)

    def head(self, variables: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights ``[K, d]`` and offsets ``[K]``."""
        flat, count = variables.to(self.width), self.width.numel()
        turn = flat[:count].view_as(self.width) * self.width
        turn = turn if self.rotation is None else turn @ self.rotation.T
        # The same shift of all offsets changes nothing: without it there is one answer, and no flat direction.
        shift = flat[count:-1] * self.intercept_width
        intercept = self.intercept + shift - shift.mean()
        if self.anchor is None:
            return turn, intercept
        change = flat[-1].clamp(max=LARGEST_LOG_CHANGE) * self.learns_scale
        direction = F.normalize(self.anchor + turn, dim=1, eps=SMALLEST_NORM)
        return self.scale * change.exp() * direction, intercept

    def move_to(self, variables: FloatArray) -> None:
        """Make a cosine head at ``variables`` the new start.

        Every step lengthens the sum that is normalised, and the longer it is, the less the same step turns it, until everything
        looks flat. A new start of length 1 undoes that.
        """
        coef, self.intercept = self.head(torch.from_numpy(variables))
        scale = float(torch.linalg.vector_norm(coef, dim=1).max())
        self.anchor, self.width, self.scale = coef / scale, self.width * (self.scale / scale), scale


def feature_curvature(rows: Tensor, row_weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return eigenvalues ``λ`` ``[d]`` and eigenvectors ``Q`` ``[d, d]`` of the second moments of ``rows`` ``[N, d]``.

    From evenly spaced rows if there are many; with many columns the diagonal takes the place of the eigenvalues.
    """
    count, size = rows.shape
    step = max(1, count // max(LEAST_ROWS, ROWS_PER_COLUMN * size))
    rows, weight = rows[::step], row_weight[::step].unsqueeze(1)
    weight = weight / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)
    if size <= LARGEST_ROTATION:
        eigenvalues, rotation = torch.linalg.eigh(rows.T @ (rows * weight))
    else:
        eigenvalues, rotation = (rows.square() * weight).sum(0), None
    mean = float(eigenvalues.mean())
    floor = SMALLEST_EIGENVALUE * mean if mean > 0.0 and math.isfinite(mean) else 1.0
    return eigenvalues.clamp_min(floor), rotation


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
    """Minimise ``Σ w ℓ_γ + α/2 · v ‖W‖²`` over weights and offsets: the one minimum of a convex problem.

    Args:
        rows: Features ``[N, d]``.
        labels: Classes ``[N]``.
        row_weight: Weights ``[N]`` with sum 1.
        class_margins: ``γ`` ``[K]``.
        alpha: ``α``, relative to the total variance ``v`` of the features.
        intercept: Whether there are offsets; without, ``v`` is the mean squared length of the features.
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
    # Centring changes nothing but the offset, which is free, and saves the digits that a large mean would take.
    centre = row_weight.to(rows.dtype) @ rows if intercept else torch.zeros_like(rows[0])
    centred = rows - centre
    # In units of their own: beside curvatures of 1 (offsets), those of very large or small features would be lost.
    unit = centred.abs().amax() if centred.numel() else centred.new_ones(())
    unit = torch.where(unit > 0, unit, torch.ones_like(unit))
    centred = centred / unit
    squares = torch.linalg.vector_norm(centred, dim=1).double().square()
    objective = MarginObjective(
        centred, labels, row_weight, class_margins, alpha * float(row_weight.double() @ squares)
    )
    coordinates = Coordinates(
        objective,
        _class_share(labels, row_weight, class_margins).to(rows.dtype),
        mean_margin=float(class_margins.mean()),
        learns_intercept=intercept,
    )
    head, point = _search(objective, coordinates, iterations, tol)
    head = _finish(objective, coordinates, head, point) if small and head.converged else head
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

    The search starts from the directions of the class means, the nearest-mean classifier, and so needs no random numbers.

    Rows have length 1, and ``α`` weighs ``K · scale²``, which keeps a learned scale finite on separable data; the other arguments
    are those of :func:`fit_linear_head`.
    """
    given, small = rows.dtype, _is_small(rows, class_margins.shape[0])
    rows = rows.double() if small else rows
    share, mean_margin = _class_share(labels, row_weight, class_margins), float(class_margins.mean())
    objective = MarginObjective(rows, labels, row_weight, class_margins, alpha)
    means = rows.new_zeros(class_margins.shape[0], rows.shape[1])
    means.index_add_(0, labels, rows * objective.row_weight.unsqueeze(1))
    means /= share.clamp_min(torch.finfo(rows.dtype).tiny).to(rows.dtype).unsqueeze(1)
    lost = torch.linalg.vector_norm(means, dim=1, keepdim=True) < SMALLEST_NORM
    coordinates = Coordinates(
        objective,
        share.to(rows.dtype),
        mean_margin=mean_margin,
        learns_intercept=intercept,
        anchor=F.normalize(torch.where(lost, torch.ones_like(means), means), dim=1),
        scale=START_SCALE * mean_margin if scale is None else float(scale),
        learns_scale=scale is None,
    )
    steps = 0
    for _ in range(COSINE_ROUNDS):
        head, point = _search(objective, coordinates, iterations - steps, tol)
        steps += head.iterations
        coordinates.move_to(point)
        if head.iterations == 1 or steps >= iterations:  # flat at the start of a round: this is the end
            break
    # A class without rows has no direction of its own.
    if small and head.converged and bool((share > 0).all()):
        head = _finish(objective, coordinates, head, coordinates.start())
    return head._replace(coef=head.coef.to(given), intercept=head.intercept.to(given), iterations=steps)


def _search(
    objective: MarginObjective, coordinates: Coordinates, iterations: int, tol: float
) -> tuple[FittedHead, FloatArray]:
    @torch.enable_grad()
    def function(point: FloatArray) -> tuple[float, FloatArray]:
        variables = torch.from_numpy(point).requires_grad_()
        coef, intercept = coordinates.head(variables)
        value, *slopes = objective(coef.detach(), intercept.detach())
        (gradient,) = torch.autograd.grad((coef, intercept), variables, slopes)
        return value, gradient.numpy()

    decrease = SMALLEST_DECREASE[objective.rows.dtype]
    point, value, steps, converged = minimize(
        function, coordinates.start(), iterations=iterations, tol=tol, decrease=decrease
    )
    return FittedHead(*coordinates.head(torch.from_numpy(point)), value, steps, converged), point


def _finish(
    objective: MarginObjective, coordinates: Coordinates, head: FittedHead, point: FloatArray
) -> FittedHead:
    point, value = newton_steps(lambda x: objective.value(*coordinates.head(x)), point)
    coef, intercept = coordinates.head(torch.from_numpy(point))
    return head._replace(coef=coef, intercept=intercept, objective=value)


@torch.enable_grad()
def newton_steps(function: Callable[[Tensor], Tensor], point: FloatArray) -> tuple[FloatArray, float]:
    """Return the minimum near ``point`` and the value there, to the last digits.

    Args:
        function: Variables ``[n]`` in float64 -> value with its graph.
        point: Near a minimum, e.g. where L-BFGS ended ``[n]``.

    Example:
        >>> point, value = newton_steps(lambda x: (x - 1).square().sum() + x[0] ** 4, np.array([0.5, 0.9]))
        >>> point.round(9).tolist(), round(value, 9)
        ([0.589754512, 1.0], 0.289273424)
    """
    best = torch.from_numpy(point)
    value, slope = _value_and_slope(function, best)
    for _ in range(NEWTON_STEPS):
        hessian = torch.autograd.functional.hessian(function, best, vectorize=True)  # type: ignore[no-untyped-call]
        curvature, axes = torch.linalg.eigh(hessian)
        size = curvature.abs()  # where it is negative its size counts, so that every step leads down
        inverse = torch.where(size > SMALLEST_CURVATURE * size.max(), 1.0 / size, 0.0)
        step = axes @ (inverse * (axes.T @ slope))
        for length in 0.5 ** np.arange(HALVINGS):
            candidate = best - float(length) * step
            new, new_slope = _value_and_slope(function, candidate)
            lower = new <= value - ARMIJO * float(length) * float(slope @ step)
            if lower or float(new_slope.norm()) < float(slope.norm()):
                best, value, slope = candidate, new, new_slope
                break
        else:  # rounding hides every further decrease
            break
    result: FloatArray = best.numpy()
    return result, value


def _value_and_slope(function: Callable[[Tensor], Tensor], point: Tensor) -> tuple[float, Tensor]:
    variables = point.detach().requires_grad_()
    value = function(variables)
    return float(value.detach()), torch.autograd.grad(value, variables)[0]


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
        # The accepted point is nearly always the last one evaluated; if not, one more step does no harm.
        if latest["flat"] and np.array_equal(variables, latest["point"]):
            raise StopIteration

    limits = {"maxiter": iterations, "maxfun": 10 * iterations}
    options = {**limits, "maxcor": HISTORY, "gtol": 0.0, "ftol": decrease}
    search: Any = optimize.minimize  # its stubs do not know that a callback may stop it
    found = search(remembered, start, jac=True, method="L-BFGS-B", callback=stop_when_flat, options=options)
    # Status 1: out of iterations. Status 2: no more decrease along the line, which in float32 is what a minimum looks like.
    return found.x, float(found.fun), max(int(found.nit), 1), latest["flat"] or found.status != 1


def _decrement(gradient: FloatArray) -> float:
    return 0.5 * float(gradient @ gradient)


def _class_share(labels: Tensor, row_weight: Tensor, class_margins: Tensor) -> Tensor:
    weight = row_weight.double()
    return weight.new_zeros(class_margins.shape[0]).index_add_(0, labels, weight)

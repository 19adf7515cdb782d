"""A linear or cosine head on fixed features: the minimum of one smooth problem, found by SciPy's L-BFGS.

``f(W, b) = Σ_i w_i ℓ_γ(W φ_i + b, y_i) + α/2 ‖W‖²`` with ``Σ w_i = 1`` and constant margins γ (Eq. 1), convex in ``(W, b)``; a cosine
head minimises it over weights of one common length. SciPy keeps its variables in float64; products run in the precision and on the
device of the features.

**Coordinates.** Raw features have steep and flat directions that differ by many orders of magnitude, which take many
steps. With probabilities near the class shares ``π`` the curvature in the weights of class k is about ``h_k C + α I``,
with ``C = Σ w φφᵀ`` and ``h_k = π_k (1 - π_k) / c̄²``. In the eigenvectors ``Q`` of ``C`` (eigenvalues λ) that is
diagonal, so ``W = (V · S) Qᵀ`` with ``S_kj = (h_k λ_j + α)^-½``: all curvatures start near 1.

**The last digits.** A quasi-Newton method amplifies rounding of the order of rows up to its tolerance. Small problems
therefore end with Newton steps: at the minimum order, duplicates and weights of rows make no difference, which is what
scikit-learn checks.
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
HeadOf = Callable[[Tensor], tuple[Tensor, Tensor]]
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
    """A head ``[K, d]``, ``[K]``; ``converged``: the search stopped by itself, not at the limit of iterations."""

    coef: Tensor
    intercept: Tensor
    objective: float
    iterations: int
    converged: bool


class MarginObjective:
    """The objective on rows ``[N, d]`` with labels, weights of sum 1 and margins, in chunks that fit the cache."""

    def __init__(self, rows: Tensor, labels: Tensor, row_weight: Tensor, class_margins: Tensor, alpha: float) -> None:
        self.rows, self.labels, self.alpha = rows, labels, alpha
        self.row_weight = row_weight.to(rows.dtype)
        self.inverse_margin = (1.0 / class_margins.to(rows.dtype)).index_select(0, labels)
        self.chunk_rows = max(1, CHUNK_ENTRIES // max(class_margins.shape[0], 1))

    def __call__(self, coef: Tensor, intercept: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return the value and its gradients; float64 sums, as float32 would drown the progress near the minimum."""
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
    """Variables ``(V, β, t)`` of a head, ``W = (V · S) Qᵀ`` ``[K, d]`` and offsets ``[K]``.

    A cosine head, ``W = length · e^t · normalised(directions + (V · S) Qᵀ)``, starts from those of the class means.
    """

    def __init__(
        self,
        objective: MarginObjective,
        class_share: Tensor,
        mean_margin: float,
        intercept: bool,
        cosine: bool,
        scale: float | None,
    ) -> None:
        share = class_share.to(objective.rows.dtype).clamp_min(SMALLEST_SHARE / class_share.shape[0])
        bend = share * (1.0 - share).clamp_min(SMALLEST_SHARE) / mean_margin**2
        eigenvalues, self.rotation = feature_curvature(objective.rows, objective.row_weight)
        self.length = START_SCALE * mean_margin if scale is None else float(scale)
        self.learns_length = scale is None
        self.width = (bend.unsqueeze(1) * eigenvalues + objective.alpha).rsqrt() / (self.length if cosine else 1.0)
        # Width 0: the variable has no effect and stays where it is.
        self.shift_width = bend.rsqrt() * intercept
        # With weights 0 the best offsets give the class shares.
        self.offsets = mean_margin * (share.log() - share.log().mean()) * intercept
        self.directions = _mean_directions(objective, class_share) if cosine else None

    def head(self, variables: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights and offsets."""
        flat, count = variables.to(self.width), self.width.numel()
        turn = flat[:count].view_as(self.width) * self.width
        turn = turn if self.rotation is None else turn @ self.rotation.T
        # The same shift of all offsets changes nothing: without it there is one answer, and no flat direction.
        shift = flat[count:-1] * self.shift_width
        offsets = self.offsets + shift - shift.mean()
        if self.directions is None:
            return turn, offsets
        change = flat[-1].clamp(max=LARGEST_LOG_CHANGE) * self.learns_length
        return self.length * change.exp() * F.normalize(self.directions + turn, dim=1, eps=SMALLEST_NORM), offsets

    def move_to(self, coef: Tensor, offsets: Tensor) -> None:
        """Make a cosine head the new start: steps lengthen the sum that is normalised until everything looks flat."""
        length = float(torch.linalg.vector_norm(coef, dim=1).max())
        self.width = self.width * (self.length / length)
        self.directions, self.length, self.offsets = coef / length, length, offsets


def feature_curvature(rows: Tensor, row_weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return eigenvalues ``[d]`` and eigenvectors ``[d, d]`` of the second moments of rows; the diagonal if large."""
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


def fit_head(
    rows: Tensor,
    labels: Tensor,
    row_weight: Tensor,
    class_margins: Tensor,
    *,
    alpha: float,
    intercept: bool,
    iterations: int,
    tol: float,
    cosine: bool = False,
    scale: float | None = None,
) -> FittedHead:
    """Minimise ``Σ w ℓ_γ + α/2 · v ‖W‖²`` until the Newton decrement is below ``tol`` times the value.

    ``v`` is the total variance of the features (without intercept: mean squared length). A cosine head is given rows of
    length 1, its weights have one length (``scale``; learned if None), ``α`` weighs ``K · scale²``, and it starts from
    the class means.
    """
    given, num_classes = rows.dtype, class_margins.shape[0]
    variables = num_classes * (rows.shape[1] + 1)
    small = variables <= NEWTON_VARIABLES and variables * rows.shape[0] <= NEWTON_WORK
    rows = rows.double() if small else rows
    weight, mean_margin = row_weight.double(), float(class_margins.mean())
    share = weight.new_zeros(num_classes).index_add_(0, labels, weight)
    centre, unit = torch.zeros_like(rows[0]), rows.new_ones(())
    if not cosine:
        # Centring changes nothing but the offset, which is free, and saves the digits that a large mean would take.
        centre = row_weight.to(rows.dtype) @ rows if intercept else centre
        rows = rows - centre
        # In units of their own: beside curvatures of 1 (offsets), those of very large or small features would be lost.
        largest = rows.abs().amax() if rows.numel() else unit
        unit = torch.where(largest > 0, largest, unit)
        rows = rows / unit
        alpha = alpha * float(weight @ torch.linalg.vector_norm(rows, dim=1).double().square())
    objective = MarginObjective(rows, labels, row_weight, class_margins, alpha)
    coordinates = Coordinates(objective, share, mean_margin, intercept, cosine, scale)
    steps = 0
    for _ in range(COSINE_ROUNDS if cosine else 1):
        head, point = _search(objective, coordinates.head, np.zeros(variables + 1), iterations - steps, tol)
        steps += head.iterations
        if cosine:
            coordinates.move_to(head.coef, head.intercept)
            point = np.zeros(variables + 1)
        if head.iterations == 1 or steps >= iterations:  # flat at the start of a round: this is the end
            break
    # A class without rows has no direction of its own.
    if small and head.converged and not (cosine and bool((share == 0).any())):
        point, value = newton_steps(lambda x: objective.value(*coordinates.head(x)), point)
        head = FittedHead(*coordinates.head(torch.from_numpy(point)), value, steps, head.converged)
    coef = head.coef / unit
    offsets = head.intercept - coef @ centre
    return head._replace(coef=coef.to(given), intercept=offsets.to(given), iterations=steps)


def _mean_directions(objective: MarginObjective, share: Tensor) -> Tensor:
    """Return the directions of the class means ``[K, d]``."""
    rows = objective.rows
    means = rows.new_zeros(share.shape[0], rows.shape[1])
    means.index_add_(0, objective.labels, rows * objective.row_weight.unsqueeze(1))
    means /= share.clamp_min(torch.finfo(rows.dtype).tiny).to(rows.dtype).unsqueeze(1)
    lost = torch.linalg.vector_norm(means, dim=1, keepdim=True) < SMALLEST_NORM
    return F.normalize(torch.where(lost, torch.ones_like(means), means), dim=1)


def _search(
    objective: MarginObjective, head_of: HeadOf, point: FloatArray, iterations: int, tol: float
) -> tuple[FittedHead, FloatArray]:
    """Return the head where L-BFGS ends, and its variables; half the squared gradient is about the Newton decrement."""
    from scipy import optimize

    latest: dict[str, Any] = {}

    @torch.enable_grad()
    def function(point: FloatArray) -> tuple[float, FloatArray]:
        variables = torch.from_numpy(point).requires_grad_()
        coef, intercept = head_of(variables)
        value, *slopes = objective(coef.detach(), intercept.detach())
        gradient = torch.autograd.grad((coef, intercept), variables, slopes)[0].numpy()
        latest.update(point=point.copy(), flat=0.5 * float(gradient @ gradient) <= tol * abs(value))
        return value, gradient

    def stop_when_flat(point: FloatArray) -> None:
        # The accepted point is nearly always the last one evaluated; if not, one more step does no harm.
        if latest["flat"] and np.array_equal(point, latest["point"]):
            raise StopIteration

    steps, converged = 1, True
    value, _ = function(point)
    if not latest["flat"]:
        decrease = SMALLEST_DECREASE[objective.rows.dtype]
        limits = {"maxiter": iterations, "maxfun": 10 * iterations}
        options = {**limits, "maxcor": HISTORY, "gtol": 0.0, "ftol": decrease}
        search: Any = optimize.minimize  # its stubs do not know that a callback may stop it
        found = search(function, point, jac=True, method="L-BFGS-B", callback=stop_when_flat, options=options)
        point, value, steps = found.x, float(found.fun), max(int(found.nit), 1)
        # Status 1: out of iterations. Status 2: no more decrease along the line, in float32 what a minimum looks like.
        converged = latest["flat"] or found.status != 1
    return FittedHead(*head_of(torch.from_numpy(point)), value, steps, converged), point


@torch.enable_grad()
def newton_steps(function: Callable[[Tensor], Tensor], point: FloatArray) -> tuple[FloatArray, float]:
    """Return the minimum near ``point`` ``[n]``, e.g. where L-BFGS ended, and the value there, to the last digits."""
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
    return best.numpy(), value


def _value_and_slope(function: Callable[[Tensor], Tensor], point: Tensor) -> tuple[float, Tensor]:
    variables = point.detach().requires_grad_()
    value = function(variables)
    return float(value.detach()), torch.autograd.grad(value, variables)[0]

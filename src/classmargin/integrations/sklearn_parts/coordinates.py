"""In which variables a head is looked for, so that a quasi-Newton method needs few steps.

The minimum does not depend on the variables, the way there does. Raw features make steep and flat directions that differ
by many orders of magnitude. With probabilities near the class shares ``π``, the curvature of the loss in the weights of
class k is about ``h_k C + α I``, with ``C = Σ w φφᵀ`` and ``h_k = π_k (1 - π_k) / c̄²``. In the eigenvectors ``Q`` of ``C``
(eigenvalues λ) that is diagonal, so the weights are written as ``W = (V · S) Qᵀ``, ``S_kj = (h_k λ_j + α)^-½``: all
curvatures start near 1. The price is one matrix product ``[d, N] x [N, d]`` and one eigenvalue problem.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from classmargin.integrations.sklearn_parts.network import SMALLEST_NORM, START_SCALE

FloatArray = NDArray[np.float64]
# Above, the eigenvalue problem costs more than the steps it saves; the diagonal of C must do.
LARGEST_ROTATION = 2048
# Rows behind C for each of its columns; more would sharpen what need not be sharp.
ROWS_PER_COLUMN = 8
LEAST_ROWS = 8192
# Floor of the eigenvalues relative to their mean, and of class shares relative to equal ones.
SMALLEST_EIGENVALUE = 1e-6
SMALLEST_SHARE = 1e-3
LARGEST_LOG_CHANGE = 50.0  # of the scale of cosines; a line search may look too far


class Curvature(NamedTuple):
    """Second moments of the features, ``C = Q diag(λ) Qᵀ``.

    Attributes:
        eigenvalues: ``λ`` ``[d]``, positive.
        rotation: ``Q`` ``[d, d]``, or None for a diagonal approximation.
    """

    eigenvalues: Tensor
    rotation: Tensor | None

    def rotate(self, weights: Tensor) -> Tensor:
        """Return ``weights Qᵀ``: from the eigenvectors to the features."""
        return weights if self.rotation is None else weights @ self.rotation.T

    def rotate_back(self, weights: Tensor) -> Tensor:
        """Return ``weights Q``."""
        return weights if self.rotation is None else weights @ self.rotation


def feature_curvature(rows: Tensor, row_weight: Tensor) -> Curvature:
    """Return the second moments of ``rows`` ``[N, d]``, from evenly spaced rows if there are many."""
    count, size = rows.shape
    step = max(1, count // max(LEAST_ROWS, ROWS_PER_COLUMN * size))
    rows, weight = rows[::step], row_weight[::step].unsqueeze(1)
    weight = weight / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)
    rotation = None
    if size <= LARGEST_ROTATION:
        moments = rows.T @ (rows * weight)
        eigenvalues, rotation = torch.linalg.eigh(moments)
    else:
        eigenvalues = (rows.square() * weight).sum(0)
    mean = float(eigenvalues.mean())
    floor = SMALLEST_EIGENVALUE * mean if mean > 0.0 and math.isfinite(mean) else 1.0
    return Curvature(eigenvalues.clamp_min(floor), rotation)


class _Widths:
    """Scales of the variables: curvatures near 1 while probabilities are near the class shares."""

    def __init__(
        self, curvature: Curvature, class_share: Tensor, *, mean_margin: float, alpha: float, intercept: bool
    ) -> None:
        self.curvature, self.learns_intercept = curvature, intercept
        share = class_share.clamp_min(SMALLEST_SHARE / class_share.shape[0])
        bend = share * (1.0 - share).clamp_min(SMALLEST_SHARE) / mean_margin**2
        self.width = (bend.unsqueeze(1) * curvature.eigenvalues + alpha).rsqrt()
        self.intercept_width = (
            bend.rsqrt() * intercept
        )  # width 0: the variable has no effect and stays where it is
        # With weights 0 the best intercepts give the class shares.
        self.start_intercept = mean_margin * (share.log() - share.log().mean()) * intercept

    def split(self, variables: FloatArray) -> tuple[Tensor, Tensor]:
        """Return what the variables add to the weights ``[K, d]``, and the intercepts ``[K]``."""
        flat = torch.from_numpy(variables).to(self.width)
        count, classes = self.width.numel(), self.width.shape[0]
        inner, rest = flat[:count].view_as(self.width), flat[count : count + classes]
        # The same shift of all intercepts changes nothing: without it there is one answer, and no flat direction.
        change = rest * self.intercept_width
        return self.curvature.rotate(inner * self.width), self.start_intercept + change - change.mean()

    def join(self, coef_gradient: Tensor, intercept_gradient: Tensor, *more: Tensor) -> FloatArray:
        """Return the gradient in the variables."""
        inner = self.curvature.rotate_back(coef_gradient) * self.width
        balanced = intercept_gradient - intercept_gradient.mean()
        parts = (inner, balanced * self.intercept_width, *more)
        result: FloatArray = torch.cat([part.reshape(-1) for part in parts]).double().cpu().numpy()
        return result


class LinearCoordinates:
    """Variables ``(V, β)`` of a linear head; the start is ``W = 0``.

    Args:
        curvature: Of the features (centred, if there is an intercept).
        class_share: Share ``π`` of the weight in each class ``[K]``.
        mean_margin: ``c̄``.
        alpha: ``α``.
        intercept: Whether there are intercepts.
    """

    def __init__(
        self, curvature: Curvature, class_share: Tensor, *, mean_margin: float, alpha: float, intercept: bool
    ) -> None:
        self.widths = _Widths(
            curvature, class_share, mean_margin=mean_margin, alpha=alpha, intercept=intercept
        )

    @property
    def start(self) -> FloatArray:
        """The first point."""
        return np.zeros(self.widths.width.numel() + self.widths.width.shape[0])

    def head(self, variables: FloatArray) -> tuple[Tensor, Tensor]:
        """Return weights ``[K, d]`` and intercepts ``[K]``."""
        return self.widths.split(variables)

    def gradient(
        self, variables: FloatArray, coef_gradient: Tensor, intercept_gradient: Tensor
    ) -> FloatArray:
        """Return the gradient in the variables."""
        return self.widths.join(coef_gradient, intercept_gradient)


class CosineCoordinates:
    """Variables ``(V, β, ln scale)`` of a cosine head: ``W = scale · normalised(U)``, ``U = U₀ + (V · S) Qᵀ``.

    ``U₀`` are the directions of the class means: the nearest-mean classifier, a start without chance.

    Args:
        curvature: Of the normalised features.
        class_mean: Means of the normalised features ``[K, d]``.
        class_share: ``π`` ``[K]``.
        mean_margin: ``c̄``.
        alpha: ``α``.
        intercept: Whether there are intercepts.
        scale: Fixed factor of the cosines; None learns it.
    """

    def __init__(
        self,
        curvature: Curvature,
        class_mean: Tensor,
        class_share: Tensor,
        *,
        mean_margin: float,
        alpha: float,
        intercept: bool,
        scale: float | None,
    ) -> None:
        self.learns_scale = scale is None
        self.first_scale = START_SCALE * mean_margin if scale is None else float(scale)
        self.widths = _Widths(
            curvature, class_share, mean_margin=mean_margin, alpha=alpha, intercept=intercept
        )
        self.widths.width /= self.first_scale
        lost = torch.linalg.vector_norm(class_mean, dim=1, keepdim=True) < SMALLEST_NORM
        self.anchor = F.normalize(torch.where(lost, torch.ones_like(class_mean), class_mean), dim=1)

    @property
    def start(self) -> FloatArray:
        """The first point."""
        return np.zeros(self.widths.width.numel() + self.widths.width.shape[0] + 1)

    def head(self, variables: FloatArray) -> tuple[Tensor, Tensor]:
        """Return weights of length ``scale`` ``[K, d]`` and intercepts ``[K]``."""
        turn, intercept = self.widths.split(variables)
        directions = F.normalize(self.anchor + turn, dim=1, eps=SMALLEST_NORM)
        return self._scale(variables) * directions, intercept

    def gradient(
        self, variables: FloatArray, coef_gradient: Tensor, intercept_gradient: Tensor
    ) -> FloatArray:
        """Return the gradient in the variables: only what turns a weight moves its direction."""
        raw = self.anchor + self.widths.split(variables)[0]
        length = torch.linalg.vector_norm(raw, dim=1, keepdim=True).clamp_min(SMALLEST_NORM)
        direction, scale = raw / length, self._scale(variables)
        along = (coef_gradient * direction).sum(1, keepdim=True)
        turning = (coef_gradient - along * direction) * (scale / length)
        return self.widths.join(turning, intercept_gradient, scale * along.sum() * self.learns_scale)

    def move_to(self, variables: FloatArray) -> None:
        """Make the head at ``variables`` the new start.

        Steps only ever lengthen ``U``, and a long ``U`` is turned less by the same step: seen from there everything looks
        flat. From a start of length 1 it does not.
        """
        coef, intercept = self.head(variables)
        scale = self._scale(variables)
        self.anchor, self.widths.start_intercept = coef / scale, intercept
        self.widths.width *= self.first_scale / scale
        self.first_scale = scale

    def _scale(self, variables: FloatArray) -> float:
        change = min(float(variables[-1]), LARGEST_LOG_CHANGE) if self.learns_scale else 0.0
        return self.first_scale * math.exp(change)

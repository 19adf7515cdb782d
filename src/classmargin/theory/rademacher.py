"""Empirical γ-margin Rademacher complexity of linear heads (Eq. 10): its value and its bounds.

For heads {x ↦ w_yᵀφ(x), ‖w_y‖_q <= Λ} with 1/p + 1/q = 1 the supremum in the definition is a dual norm::

    sup_f Σ_i Σ_y ε_iy f(x_i, y)/γ_{y_i}  =  Λ Σ_y ‖u_y‖_p,      u_y = Σ_i ε_iy φ(x_i)/γ_{y_i}

and the K vectors u_y have one distribution, so the complexity is exactly (K Λ/N)·E‖u‖_p with N signs, not
N·K. Data flow: ``features, labels, class_margins`` -> :func:`rademacher_monte_carlo` (the value) and
:func:`rademacher_bound` (Lemma 2, Proposition 2); :func:`rademacher_bound_from_statistics` needs class
statistics only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from classmargin._checks import check_int, check_number
from classmargin.mr2 import class_moments
from classmargin.mr2.equations import squared_norm
from classmargin.theory._inputs import (
    Constants,
    FloatArray,
    LabelArray,
    as_class_counts,
    as_class_margins,
    as_float64,
    as_samples,
    check_norm_order,
)
from classmargin.theory.norm_constants import norm_constant

_CHUNK_ELEMENTS = 2**21  # signs and sums held at once (16 MB), whatever N, d and the number of draws


class MonteCarloEstimate(NamedTuple):
    """A simulated mean with its standard error.

    Attributes:
        mean: The estimate; exact if ``exact``.
        standard_error: Standard error of ``mean``; 0 if ``exact``.
        draws: How many sign vectors were evaluated.
        exact: Whether all sign vectors were enumerated instead of drawn.
    """

    mean: float
    standard_error: float
    draws: int
    exact: bool


def rademacher_monte_carlo(
    features: FloatArray,
    labels: LabelArray,
    class_margins: FloatArray,
    *,
    weight_bound: float = 1.0,
    norm_order: float = 2.0,
    draws: int = 2048,
    generator: torch.Generator | None = None,
) -> MonteCarloEstimate:
    """Return the empirical γ-margin Rademacher complexity of linear heads (Eq. 10) by simulation.

    Each draw takes the exact supremum through the dual norm (see the top of the module); only the mean over
    signs is simulated. When 2^(N−1) <= ``draws``, all sign vectors are enumerated (up to a common sign,
    which changes no norm) and the result is exact. Signs are made and used in pieces, so memory does not
    grow with ``draws``.

    Args:
        features: φ(x_i), shape ``[N, d]``.
        labels: Classes, shape ``[N]``; class sizes may differ, classes may be empty.
        class_margins: γ, shape ``[K]``, all above zero; its length defines K.
        weight_bound: Λ > 0, the bound on ‖w_y‖_q.
        norm_order: p in [1, ∞]; the weights are bounded in the conjugate norm q.
        draws: Number of sign vectors, at least 2.
        generator: CPU generator for reproducible signs; the global one if None.

    Returns:
        Mean, standard error, number of draws and whether the value is exact.

    Raises:
        TypeError: If the features are not floating point or the labels not integer.
        ValueError: If a shape or a value is out of range.

    Example:
        >>> unit_vectors, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
        >>> rademacher_monte_carlo(unit_vectors, labels, torch.ones(2), norm_order=1.0)  # ‖u‖_1 is always 4
        MonteCarloEstimate(mean=2.0, standard_error=0.0, draws=8, exact=True)
    """
    gamma = as_class_margins(class_margins).detach()
    vectors, classes = as_samples(features, labels, num_classes=gamma.shape[0])
    p = check_norm_order(norm_order)
    scale = gamma.shape[0] * check_number("weight_bound", weight_bound, above=0.0) / vectors.shape[0]
    check_int("draws", draws, minimum=2)
    scaled = vectors / gamma[classes][:, None]
    exact = vectors.shape[0] - 1 <= math.log2(draws)
    signs = _all_signs(scaled) if exact else _random_signs(scaled, draws, generator)
    norms = torch.cat([squared_norm(chunk @ scaled, p).sqrt() for chunk in signs]) * scale
    error = 0.0 if exact else float(norms.std()) / math.sqrt(len(norms))
    return MonteCarloEstimate(float(norms.mean()), error, len(norms), exact)


def rademacher_bound(
    features: FloatArray,
    labels: LabelArray,
    class_margins: FloatArray,
    *,
    weight_bound: float = 1.0,
    norm_order: float = 2.0,
    constants: Constants = "correct",
) -> float:
    """Return the bound of Lemma 2 (p = 2) and Proposition 2 (any p) on the complexity of these features.

    Same arguments as :func:`rademacher_monte_carlo`, so that value and bound can be compared; the formula
    and its proof are in :func:`rademacher_bound_from_statistics`.

    Example:
        >>> unit_vectors, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
        >>> rademacher_bound(unit_vectors, labels, torch.ones(2), norm_order=1.0)
        2.0
        >>> rademacher_bound(unit_vectors, labels, torch.ones(2), norm_order=1.0, constants="paper")  # false
        1.0
    """
    gamma = as_class_margins(class_margins).detach()
    vectors, classes = as_samples(features, labels, num_classes=gamma.shape[0])
    moments = class_moments(vectors, classes, gamma.shape[0], norm_order)
    return rademacher_bound_from_statistics(
        moments.class_sqnorm,
        moments.count,
        gamma,
        feature_dim=vectors.shape[1],
        weight_bound=weight_bound,
        norm_order=norm_order,
        constants=constants,
    )


def rademacher_bound_from_statistics(
    class_sqnorm: FloatArray,
    class_counts: Tensor | npt.NDArray[np.generic] | Sequence[float],
    class_margins: FloatArray,
    *,
    feature_dim: int,
    weight_bound: float = 1.0,
    norm_order: float = 2.0,
    constants: Constants = "correct",
) -> float:
    """Return C(p)·Λ·(K/√N)·√(Σ_k (N_k/N) r²_{k,p}/γ_k²), Lemma 2 and Proposition 2 for any class sizes.

    Proof. The complexity is (K Λ/N)·E‖Σ_i ε_i v_i‖_p with v_i = φ(x_i)/γ_{y_i} (top of the module). By the
    definition of C(p) it is at most (K Λ/N)·C(p)·√(Σ_i ‖v_i‖_p²), and Σ_i ‖v_i‖_p² = Σ_k N_k r²_{k,p}/γ_k². ∎
    C(p) is proved in :func:`~classmargin.theory.norm_constants.norm_constant`; for p = 2 it is 1 and
    r²_k = ‖μ̂_k‖² + ‖ŝ_k‖², which is Lemma 2.

    **Unequal class sizes.** The paper assumes N_k = N/K; the bound then is C(p)·Λ·√(K/N)·√(Σ_k r²_k/γ_k²), as
    printed. In general a class counts by its share N_k/N of the sample, and a class without samples not at
    all; K stays the number of weight vectors.

    Args:
        class_sqnorm: r²_{k,p}, the mean of ‖φ‖_p² over each class, shape ``[K]``, >= 0.
        class_counts: N_k, shape ``[K]``.
        class_margins: γ, shape ``[K]``, all above zero.
        feature_dim: d, on which C(p) depends for p != 2.
        weight_bound: Λ > 0, the bound on ‖w_y‖_q.
        norm_order: p in [1, ∞], the norm of ``class_sqnorm``.
        constants: ``"correct"``, or ``"paper"`` for C(p) as printed, which is **no upper bound** for p < 2
            and for p = ∞ with few dimensions.

    Returns:
        The bound on the complexity.

    Raises:
        ValueError: If a shape or a value is out of range.

    Example:
        >>> toy = torch.tensor([3.0, 4.0, 10.0])  # r² of three classes with 2, 1 and 1 samples
        >>> round(rademacher_bound_from_statistics(toy, [2, 1, 1], torch.ones(3), feature_dim=2), 6)
        3.354102
    """
    gamma = as_class_margins(class_margins).detach()
    num_classes = gamma.shape[0]
    sqnorm = as_float64("class_sqnorm", class_sqnorm, dim=1).detach()
    if sqnorm.shape != gamma.shape or bool((sqnorm < 0).any()):
        raise ValueError(f"class_sqnorm must be {num_classes} values >= 0, got {sqnorm.tolist()}")
    counts = as_class_counts(class_counts, num_classes=num_classes)
    total = float(counts.sum())
    weight_bound = check_number("weight_bound", weight_bound, above=0.0)
    constant = norm_constant(norm_order, feature_dim, num_samples=math.ceil(total), constants=constants)
    reach = math.sqrt(float((counts / total * sqnorm / gamma**2).sum()))
    return constant * weight_bound * num_classes / math.sqrt(total) * reach


def _random_signs(vectors: Tensor, draws: int, generator: torch.Generator | None) -> Iterator[Tensor]:
    num_samples = vectors.shape[0]
    for start, stop in _pieces(draws, vectors):
        bits = torch.randint(0, 2, (stop - start, num_samples), generator=generator, dtype=torch.int8)
        yield bits.to(torch.float64).mul_(2.0).sub_(1.0)


def _all_signs(vectors: Tensor) -> Iterator[Tensor]:
    """Yield the 2^(N−1) sign vectors whose last entry is +1."""
    num_samples = vectors.shape[0]
    places = torch.arange(num_samples)
    for start, stop in _pieces(2 ** (num_samples - 1), vectors):
        bits = (torch.arange(start, stop)[:, None] >> places) & 1
        yield 1.0 - 2.0 * bits.to(torch.float64)


def _pieces(total: int, vectors: Tensor) -> Iterator[tuple[int, int]]:
    size = max(1, _CHUNK_ELEMENTS // sum(vectors.shape))
    for start in range(0, total, size):
        yield start, min(start + size, total)

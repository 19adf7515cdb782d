"""Empirical γ-margin Rademacher complexity of linear heads (Eq. 10): its value, its bounds and their constant C(p).

For heads {x ↦ w_yᵀφ(x), ‖w_y‖_q <= Λ} with 1/p + 1/q = 1 the supremum in the definition is a dual norm::

    sup_f Σ_i Σ_y ε_iy f(x_i, y)/γ_{y_i}  =  Λ Σ_y ‖u_y‖_p,      u_y = Σ_i ε_iy φ(x_i)/γ_{y_i}

and the K vectors u_y have one distribution, so the complexity is exactly (K Λ/N)·E‖u‖_p with N signs, not N·K. Data
flow: ``features, labels, class_margins`` -> :func:`rademacher_monte_carlo` (the value) and :func:`rademacher_bound`
(Lemma 2, Proposition 2); :func:`rademacher_bound_from_statistics` needs class statistics only.

The constant C(p) of Proposition 2 says how far a random sum of vectors can reach in the Lp norm: for vectors v_1 … v_N
in R^d, independent random signs ε_i, u = Σ_i ε_i v_i and B² = Σ_i ‖v_i‖_p², it is valid if E‖u‖_p <= C(p)·B always (it
is then a type-2 constant of the space). ``"paper"`` gives the printed constants, ``"correct"`` the smallest that is
proved here.
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
from classmargin.theory import _inputs as inputs
from classmargin.theory._inputs import Constants, FloatArray, LabelArray

# Points of the search over s. Every s gives a valid constant, a finer grid only a slightly smaller one.
_ORDERS_TRIED = 128


def norm_constant(
    norm_order: float, feature_dim: int, *, num_samples: int | None = None, constants: Constants = "correct"
) -> float:
    """Return C(p) of Proposition 2 (Eq. 16), as printed or as proved.

    Write σ_j² = Σ_i v_ij², the variance of the coordinate u_j. The ``"correct"`` constants and their proofs:

    * **1 <= p <= 2: min(d, N)^(1/p − 1/2).** By Hölder, then Jensen with uncorrelated signs, then p <= 2::

        E‖u‖_p <= d^(1/p−1/2) E‖u‖_2,   E‖u‖_2 <= (Σ_i ‖v_i‖_2²)^(1/2),   ‖v_i‖_2 <= ‖v_i‖_p

      With N in place of d: Jensen twice, t ↦ t^(p/2) is sub-additive, Hölder over the N samples::

        (E‖u‖_p)^p <= Σ_j E|u_j|^p <= Σ_j σ_j^p <= Σ_j Σ_i |v_ij|^p = Σ_i ‖v_i‖_p^p <= N^(1−p/2) B^p

      Sharp: unit vectors.
    * **2 < p < ∞: Haagerup's constant** H_p = √2·(Γ((p+1)/2)/√π)^(1/p) of :func:`khintchine_constant`. By Jensen,
      Khintchine in every coordinate and the triangle inequality of the L_{p/2} norm (v_i² is taken by coordinate)::

        E‖u‖_p <= (Σ_j E|u_j|^p)^(1/p) <= H_p (Σ_j σ_j^p)^(1/p) = H_p ‖Σ_i v_i²‖_{p/2}^(1/2)
               <= H_p (Σ_i ‖v_i²‖_{p/2})^(1/2) = H_p·B

    * **p = ∞: √(2 ln 2d).** ‖u‖_∞ is the largest of the 2d variables ±u_j, each sub-Gaussian with proxy
      σ_j² <= B², and the expected maximum of n such variables is at most B·√(2 ln n).
    * **Small d, or p near ∞: the smallest of several.** For 2 <= s <= p, ‖u‖_p <= ‖u‖_s and ‖v‖_s <=
      d^(1/s−1/p) ‖v‖_p, so H_s·d^(1/s−1/p) is valid too: s = p is H_p, s = 2 is d^(1/2−1/p), which is 1 for
      d = 1 and sharp for d = 2. Likewise ‖u‖_p <= d^(1/p) ‖u‖_∞ and ‖v‖_∞ <= ‖v‖_p make d^(1/p)·√(2 ln 2d)
      valid. The smallest of all these is returned.

    What is printed (``"paper"``): 1 for p <= 2, **false below 2** (d unit vectors, p = 1: E‖u‖_1 = d, but B = √d);
    √(2 ln d) at p = ∞, **false for small d** (0 for d = 1); H_p^p in between, valid but loose.

    Args:
        norm_order: p in [1, ∞]; ``math.inf`` is allowed.
        feature_dim: d >= 1.
        num_samples: N, if known; it only helps for p < 2 and N < d.
        constants: ``"correct"`` or ``"paper"``.

    Example:
        >>> norm_constant(1.0, 100), norm_constant(1.0, 100, constants="paper")
        (10.0, 1.0)
        >>> round(norm_constant(3.0, 64), 4), round(norm_constant(3.0, 64, constants="paper"), 4)
        (1.1686, 1.5958)
        >>> norm_constant(math.inf, 1), norm_constant(math.inf, 1, constants="paper")
        (1.0, 0.0)
    """
    p = check_number("norm_order", norm_order, minimum=1.0, finite=False)
    check_int("feature_dim", feature_dim, minimum=1)
    if num_samples is not None:
        check_int("num_samples", num_samples, minimum=1)
    if inputs.as_printed(constants):
        if math.isinf(p):
            return math.sqrt(2 * math.log(feature_dim))
        exponent = p * math.log(khintchine_constant(p))
        return math.exp(exponent) if exponent < 700 else math.inf
    if p <= 2:
        smaller = feature_dim if num_samples is None else min(feature_dim, num_samples)
        return math.pow(smaller, 1 / p - 1 / 2)
    through_maximum = math.pow(feature_dim, 1 / p) * math.sqrt(2 * math.log(2 * feature_dim))
    return min(_through_lower_orders(p, feature_dim), through_maximum)


def khintchine_constant(norm_order: float) -> float:
    """Return the best H_p with (E|Σ_i a_i ε_i|^p)^(1/p) <= H_p ‖a‖_2 for all a.

    It is 1 for p <= 2 and (E|g|^p)^(1/p) above, with g standard normal.

    For p <= 2 this is Jensen's inequality. For p >= 3 exchange one sign after the other for a standard normal g = ε√t,
    t = g²: the mean of f''(x + v) over |v| <= √t grows with t when f'' is convex, so t ↦ E f(x + a√t ε) is convex for f
    = |·|^p and, since E t = 1, Jensen gives E f(x + aε) <= E f(x + ag). For 2 < p < 3 see Haagerup (1981), who also
    shows that H_p is the smallest; many equal a_i come arbitrarily near by the central limit theorem.

    Example:
        >>> round(khintchine_constant(4.0) ** 4, 12)  # the fourth moment of a normal variable
        3.0
    """
    p = check_number("norm_order", norm_order, minimum=1.0, finite=False)
    if p <= 2:
        return 1.0
    if math.isinf(p):
        return math.inf
    return math.sqrt(2) * math.exp((math.lgamma((p + 1) / 2) - 0.5 * math.log(math.pi)) / p)


def _through_lower_orders(p: float, d: int) -> float:
    """Return the smallest H_s·d^(1/s − 1/p) over 2 <= s <= p on a grid that holds both ends."""
    # H_s grows like √(s/e), so that nothing beyond a small multiple of ln d can be the best order.
    top = min(p, 2.0 + 4.0 * math.log(d))
    orders = [2.0 * (top / 2.0) ** (i / _ORDERS_TRIED) for i in range(_ORDERS_TRIED + 1)]
    finite_end = [] if math.isinf(p) else [p]
    return min(khintchine_constant(s) * math.pow(d, 1 / s - 1 / p) for s in [*orders, *finite_end])


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

    Each draw takes the exact supremum through the dual norm (see the top of the module). When 2^(N−1) <= ``draws``, all
    sign vectors are enumerated (up to a common sign, which changes no norm) and the result is exact.

    Args:
        features: φ(x_i) ``[N, d]``.
        labels: Classes ``[N]``; some may be empty.
        class_margins: γ ``[K]``, all above zero.
        weight_bound: Λ > 0, the bound on ‖w_y‖_q.
        norm_order: p in [1, ∞], conjugate to q.
        draws: Number of sign vectors, at least 2.
        generator: CPU generator of the signs; the global one if None.

    Example:
        >>> unit_vectors, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
        >>> rademacher_monte_carlo(unit_vectors, labels, torch.ones(2), norm_order=1.0)  # ‖u‖_1 is always 4
        MonteCarloEstimate(mean=2.0, standard_error=0.0, draws=8, exact=True)
    """
    gamma = inputs.as_class_margins(class_margins).detach()
    vectors, classes = inputs.as_samples(features, labels, num_classes=gamma.shape[0])
    p = check_number("norm_order", norm_order, minimum=1.0, finite=False)
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
    gamma = inputs.as_class_margins(class_margins).detach()
    vectors, classes = inputs.as_samples(features, labels, num_classes=gamma.shape[0])
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
    C(p) is proved in :func:`~classmargin.theory.rademacher.norm_constant`; for p = 2 it is 1 and
    r²_k = ‖μ̂_k‖² + ‖ŝ_k‖², which is Lemma 2.

    The paper assumes N_k = N/K. In general a class counts by its share N_k/N of the sample; K stays the number of weight
    vectors.

    Args:
        class_sqnorm: r²_{k,p} ``[K]``, the mean of ‖φ‖_p² over each class.
        class_counts: N_k ``[K]``.
        class_margins: γ ``[K]``, all above zero.
        feature_dim: d, on which C(p) depends for p != 2.
        weight_bound: Λ > 0, the bound on ‖w_y‖_q.
        norm_order: p in [1, ∞], the norm of ``class_sqnorm``.
        constants: ``"correct"``, or ``"paper"``: **no upper bound** for p < 2 and for p = ∞ with small d.

    Example:
        >>> toy = torch.tensor([3.0, 4.0, 10.0])  # r² of three classes with 2, 1 and 1 samples
        >>> round(rademacher_bound_from_statistics(toy, [2, 1, 1], torch.ones(3), feature_dim=2), 6)
        3.354102
    """
    gamma = inputs.as_class_margins(class_margins).detach()
    num_classes = gamma.shape[0]
    sqnorm = inputs.as_float64("class_sqnorm", class_sqnorm, dim=1).detach()
    if sqnorm.shape != gamma.shape or bool((sqnorm < 0).any()):
        raise ValueError(f"class_sqnorm must be {num_classes} values >= 0, got {sqnorm.tolist()}")
    counts = inputs.as_class_counts(class_counts, num_classes=num_classes)
    total = float(counts.sum())
    weight_bound = check_number("weight_bound", weight_bound, above=0.0)
    constant = norm_constant(norm_order, feature_dim, num_samples=math.ceil(total), constants=constants)
    reach = math.sqrt(float((counts / total * sqnorm / gamma**2).sum()))
    return constant * weight_bound * num_classes / math.sqrt(total) * reach


def _random_signs(vectors: Tensor, draws: int, generator: torch.Generator | None) -> Iterator[Tensor]:
    num_samples = vectors.shape[0]
    for piece in _pieces(draws, vectors):
        bits = torch.randint(0, 2, (len(piece), num_samples), generator=generator, dtype=torch.int8)
        yield bits.to(torch.float64).mul_(2.0).sub_(1.0)


def _all_signs(vectors: Tensor) -> Iterator[Tensor]:
    """Yield the 2^(N−1) sign vectors whose last entry is +1."""
    places = torch.arange(vectors.shape[0])
    for piece in _pieces(2 ** (len(places) - 1), vectors):
        bits = (torch.arange(piece.start, piece.stop)[:, None] >> places) & 1
        yield 1.0 - 2.0 * bits.to(torch.float64)


def _pieces(total: int, vectors: Tensor) -> Iterator[range]:
    size = max(1, _CHUNK_ELEMENTS // sum(vectors.shape))
    return (range(start, min(start + size, total)) for start in range(0, total, size))

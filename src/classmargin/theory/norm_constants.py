"""The constant C(p) of Proposition 2: how far a random sum of vectors can reach in the Lp norm.

For vectors v_1 … v_N in R^d, independent random signs ε_i, u = Σ_i ε_i v_i and B² = Σ_i ‖v_i‖_p², a
constant is valid if E‖u‖_p <= C(p)·B always (C(p) is then a type-2 constant of the space). ``"paper"``
gives the printed constants, ``"correct"`` the smallest that is proved here.
"""

from __future__ import annotations

import math

from classmargin._checks import check_int
from classmargin.theory._inputs import Constants, check_constants, check_norm_order

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
    * **2 < p < ∞: Haagerup's constant** H_p = √2·(Γ((p+1)/2)/√π)^(1/p) of :func:`khintchine_constant`. By
      Jensen, Khintchine in every coordinate and the triangle inequality of the L_{p/2} norm (v_i² is taken
      by coordinate)::

        E‖u‖_p <= (Σ_j E|u_j|^p)^(1/p) <= H_p (Σ_j σ_j^p)^(1/p) = H_p ‖Σ_i v_i²‖_{p/2}^(1/2)
               <= H_p (Σ_i ‖v_i²‖_{p/2})^(1/2) = H_p·B

    * **p = ∞: √(2 ln 2d).** ‖u‖_∞ is the largest of the 2d variables ±u_j, each sub-Gaussian with proxy
      σ_j² <= B², and the expected maximum of n such variables is at most B·√(2 ln n).
    * **Small d, or p near ∞: the smallest of several.** For 2 <= s <= p, ‖u‖_p <= ‖u‖_s and ‖v‖_s <=
      d^(1/s−1/p) ‖v‖_p, so H_s·d^(1/s−1/p) is valid too: s = p is H_p, s = 2 is d^(1/2−1/p), which is 1 for
      d = 1 and sharp for d = 2. Likewise ‖u‖_p <= d^(1/p) ‖u‖_∞ and ‖v‖_∞ <= ‖v‖_p make d^(1/p)·√(2 ln 2d)
      valid. The smallest of all these is returned.

    What is printed (``"paper"``), and why it differs:

    * 1 for p <= 2 is **false below 2**: for the d unit vectors and p = 1, E‖u‖_1 = d, but B = √d.
    * √(2 ln d) at p = ∞ counts d variables where its proof has 2d, and is **false for small d**: it is 0 for
      d = 1, and for d = 2 and v = (1, 1), (1, −1), ‖u‖_∞ is always 2, but √(2 ln 2)·B = 1.67.
    * H_p^p for 2 < p < ∞ lacks the p-th root: valid, as H_p >= 1, but loose. (Its proof passes through
      Σ_j σ_j², which belongs to the L2 norm of the features and not to the Lp norm of the statement.)

    Args:
        norm_order: p in [1, ∞]; ``math.inf`` is allowed.
        feature_dim: d >= 1.
        num_samples: N, if known; it only helps for p < 2 and N < d.
        constants: ``"correct"`` (default) or ``"paper"``.

    Returns:
        C(p) >= 1, or what is printed.

    Raises:
        ValueError: If p < 1, d < 1, N < 1 or ``constants`` is unknown.

    Example:
        >>> norm_constant(1.0, 100), norm_constant(1.0, 100, constants="paper")
        (10.0, 1.0)
        >>> round(norm_constant(3.0, 64), 4), round(norm_constant(3.0, 64, constants="paper"), 4)
        (1.1686, 1.5958)
        >>> norm_constant(math.inf, 1), norm_constant(math.inf, 1, constants="paper")
        (1.0, 0.0)
    """
    p = check_norm_order(norm_order)
    check_int("feature_dim", feature_dim, minimum=1)
    if num_samples is not None:
        check_int("num_samples", num_samples, minimum=1)
    if check_constants(constants) == "paper":
        return _printed_constant(p, feature_dim)
    if p <= 2:
        smaller = feature_dim if num_samples is None else min(feature_dim, num_samples)
        return math.pow(smaller, 1 / p - 1 / 2)
    return min(_through_lower_orders(p, feature_dim), _through_maximum(p, feature_dim))


def khintchine_constant(norm_order: float) -> float:
    """Return the best H_p with (E|Σ_i a_i ε_i|^p)^(1/p) <= H_p ‖a‖_2 for all a.

    It is 1 for p <= 2 and (E|g|^p)^(1/p) above, with g standard normal.

    For p <= 2 this is Jensen's inequality. For p >= 3 exchange one sign after the other for a standard
    normal g = ε√t, t = g²: the mean of f''(x + v) over |v| <= √t grows with t when f'' is convex, so t ↦ E
    f(x + a√t ε) is convex for f = |·|^p and, since E t = 1, Jensen gives E f(x + aε) <= E f(x + ag). For 2
    < p < 3 see Haagerup (1981), who also shows that H_p is the smallest; many equal a_i come arbitrarily
    near by the central limit theorem.

    Example:
        >>> round(khintchine_constant(4.0) ** 4, 12)  # the fourth moment of a normal variable
        3.0
    """
    p = check_norm_order(norm_order)
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


def _through_maximum(p: float, d: int) -> float:
    return math.pow(d, 1 / p) * math.sqrt(2 * math.log(2 * d))


def _printed_constant(p: float, d: int) -> float:
    if math.isinf(p):
        return math.sqrt(2 * math.log(d))
    if p <= 2:
        return 1.0
    exponent = p * math.log(khintchine_constant(p))
    return math.exp(exponent) if exponent < 700 else math.inf

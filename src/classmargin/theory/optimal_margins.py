"""Margins that minimise the complexity term at a given mean (Corollary 1, Eq. 14 and 17), in two ways.

The problem is min Σ_k α_k/γ_k^a subject to mean γ = c̄ and γ > 0: :func:`optimal_margins` has the formula (that of training),
:func:`minimise_margins` descends without knowing it. ``objective`` says which bound is minimised, hence α and a:

* ``"overall"``: the risk over all samples (Lemma 2, Proposition 1–2); α_k = (N_k/N)·r²_k, a = 2;
* ``"balanced"``: the mean of the K class bounds
  (:func:`~classmargin.theory.risk_bounds.class_risk_bounds`); α_k = r_k/√N_k, a = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from classmargin._checks import check_choice, check_number
from classmargin.mr2 import class_margins
from classmargin.theory._inputs import FloatArray, as_class_counts, as_positive

Objective: TypeAlias = Literal["overall", "balanced"]
CountArray: TypeAlias = "Tensor | npt.NDArray[np.generic] | Sequence[float]"


def optimal_margins(
    class_sqnorm: FloatArray,
    mean_margin: float,
    *,
    class_counts: CountArray | None = None,
    objective: Objective = "overall",
) -> Tensor:
    """Return the class margins of Corollary 1, γ_k = c̄·K·α_k^(1/3) / Σ_j α_j^(1/3).

    α_k is r²_k for equal class sizes (Eq. 14; Eq. 17 for p != 2).

    Proof. With e = 1/(a+1), Hölder's inequality with the exponents 1/e and 1/(1−e) gives::

        Σ_k α_k^e  =  Σ_k (α_k/γ_k^a)^e · γ_k^(1−e)  <=  (Σ_k α_k/γ_k^a)^e · (Σ_k γ_k)^(1−e)

    As Σ_k γ_k = c̄·K is fixed, the objective Σ_k α_k/γ_k^a is at least (Σ_k α_k^e)^(a+1)/(c̄·K)^a, with
    equality only for γ_k ∝ α_k^e. ∎ The paper's case is a = 2.

    **Unequal class sizes.** For the risk over all samples α_k = N_k·r²_k, so *frequent* classes get the larger margins, as
    errors on them cost more. If all classes should count alike, minimise the mean of the class bounds,
    ``objective="balanced"``: γ_k ∝ r_k^(1/2)·N_k^(−1/4), larger for *rare* classes (the exponent of LDAM). The constant
    C(p) is taken as the same for all classes and does not matter.

    Args:
        class_sqnorm: r²_{k,p} ``[K]``, the mean of ‖φ‖_p² over each class (p = 2: ‖μ̂_k‖² + ‖ŝ_k‖²), all above zero.
        mean_margin: c̄ > 0, the mean of the margins.
        class_counts: N_k ``[K]``, all above zero; None means equal sizes.
        objective: ``"overall"`` (Corollary 1) or ``"balanced"``.

    Returns:
        γ ``[K]``, float64, exact while the α_k are within a factor of 1e36 of one another.

    Example:
        >>> [round(g, 6) for g in optimal_margins(torch.tensor([3.0, 4.0, 10.0]), 2.0).tolist()]
        [1.669243, 1.83724, 2.493518]
        >>> [round(g, 6) for g in optimal_margins([1.0, 1.0], 1.0, class_counts=[8, 1]).tolist()]
        [1.333333, 0.666667]
    """
    weights, exponent = _problem(class_sqnorm, class_counts, objective)
    mean = check_number("mean_margin", mean_margin, above=0.0)
    return class_margins(weights, mean, power=1 / (exponent + 1))


def minimise_margins(
    class_sqnorm: FloatArray,
    mean_margin: float,
    *,
    class_counts: CountArray | None = None,
    objective: Objective = "overall",
) -> Tensor:
    """Return the same margins as :func:`optimal_margins`, found numerically and without its formula.

    With γ = c̄·K·softmax(θ) the constraints always hold, and the logarithm of the objective, LSE(ln α − a·θ) + a·LSE(θ)
    + constant, is convex in θ as a sum of log-sum-exps of affine maps. Any minimiser is therefore global; scipy's
    trust-region Newton method finds it from θ = 0, and a few plain Newton steps take it to full precision.

    Raises:
        RuntimeError: The minimiser does not converge.

    Example:
        >>> [round(g, 4) for g in minimise_margins(torch.tensor([3.0, 4.0, 10.0]), 2.0).tolist()]
        [1.6692, 1.8372, 2.4935]
    """
    from scipy.optimize import minimize
    from scipy.special import logsumexp, softmax

    weights, a = _problem(class_sqnorm, class_counts, objective)
    budget = check_number("mean_margin", mean_margin, above=0.0) * weights.shape[0]
    log_weights = weights.log().numpy()

    def value_and_slope(theta: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        terms = log_weights - a * theta
        return float(logsumexp(terms) + a * logsumexp(theta)), a * (softmax(theta) - softmax(terms))

    def curvature(theta: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        q, s = softmax(log_weights - a * theta), softmax(theta)
        return a * a * (np.diag(q) - np.outer(q, q)) + a * (np.diag(s) - np.outer(s, s))

    start = np.zeros(len(log_weights))
    # Not trust-exact: that of SciPy 1.11 can loop for ever where a curvature is all but singular.
    theta = minimize(value_and_slope, start, jac=True, hess=curvature, method="trust-ncg", options={"gtol": 1e-7}).x
    for _ in range(4):
        # Rounding of the value stops any descent at slopes of about 1e-8; Newton steps on the slope continue.
        # Adding 1 to the curvature settles the direction (1, …, 1), along which the softmax does not change.
        theta = theta - np.linalg.solve(curvature(theta) + 1.0, value_and_slope(theta)[1])
    slope = float(np.abs(value_and_slope(theta)[1]).max())
    if not slope < 1e-10:
        raise RuntimeError(f"no minimum found: the largest slope is still {slope:.1e}")
    return torch.from_numpy(budget * softmax(theta))


def margin_objective(
    class_sqnorm: FloatArray,
    class_margins: FloatArray,
    *,
    class_counts: CountArray | None = None,
    objective: Objective = "overall",
) -> float:
    """Return Σ_k α_k/γ_k^a, the part of the bound that depends on the margins (α, a: top of the module)."""
    weights, exponent = _problem(class_sqnorm, class_counts, objective)
    margins = as_positive("class_margins", class_margins, dim=1)
    if margins.shape != weights.shape:
        raise ValueError(f"class_margins must have shape {tuple(weights.shape)}, got {tuple(margins.shape)}")
    return float((weights / margins**exponent).sum())


def _problem(class_sqnorm: FloatArray, class_counts: CountArray | None, objective: str) -> tuple[Tensor, int]:
    """Return α and a of min Σ_k α_k/γ_k^a."""
    sqnorm = as_positive("class_sqnorm", class_sqnorm, dim=1).detach()
    if not len(sqnorm):
        raise ValueError("class_sqnorm must name at least one class, got none")
    counts = torch.ones_like(sqnorm) if class_counts is None else as_class_counts(class_counts, num_classes=len(sqnorm))
    as_positive("class_counts", counts, dim=1)
    if check_choice("objective", objective, ("overall", "balanced")) == "balanced":
        return (sqnorm / counts).sqrt(), 1
    return counts / counts.sum() * sqnorm, 2

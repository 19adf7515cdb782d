"""Bounds on the true risk, term by term: Lemma 1, Proposition 1 (Eq. 11, 13), per-class bound (Eq. 15).

A bound is the sum of an empirical, a complexity and a confidence term. ``constants="correct"`` (default) uses the smallest
constants proved in the docstrings, ``"paper"`` the printed ones.

What the bounds assume, and training breaks: the features φ, the margins γ and the weight bound Λ are fixed before the sample
is drawn. If φ or γ were fitted on the same sample, evaluate on samples held out from that fit (the head may be trained on
them), or read the bound as a description. Heads with a bias are covered by appending a constant 1 to the features.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from classmargin._checks import check_choice, check_number
from classmargin.mr2 import class_moments
from classmargin.theory._inputs import Constants, FloatArray, LabelArray, as_class_margins, as_printed, as_samples
from classmargin.theory.margin_losses import class_margin_loss, surrogate_loss
from classmargin.theory.rademacher import norm_constant, rademacher_bound

EmpiricalLoss: TypeAlias = Literal["cross_entropy", "margin"]


class RiskBound(NamedTuple):
    """A bound on the risk and the three terms it is the sum of.

    Attributes:
        total: The bound; above 1 it says nothing (no clipping, so that bounds stay comparable).
        empirical: Mean loss on the sample.
        complexity: Factor times Rademacher complexity.
        confidence: What holding with probability 1 − δ costs.
    """

    total: float
    empirical: float
    complexity: float
    confidence: float


class ClassRiskBounds(NamedTuple):
    """The same three terms for every class, each ``[K]`` in float64; NaN for a class without samples."""

    total: Tensor
    empirical: Tensor
    complexity: Tensor
    confidence: Tensor


def risk_bound(
    logits: FloatArray,
    labels: LabelArray,
    features: FloatArray,
    class_margins: FloatArray,
    *,
    weight_bound: float,
    norm_order: float = 2.0,
    delta: float = 0.05,
    empirical_loss: EmpiricalLoss = "cross_entropy",
    complexity: float | None = None,
    constants: Constants = "correct",
) -> RiskBound:
    """Return the bound R(f) <= R̂ + c·R̂ad + 3√(ln(2/δ)/(2N)) of Lemma 1 and Proposition 1.

    It holds with probability 1 − δ for all linear heads at once. Lemma 1 is ``empirical_loss="margin"``: R̂ is the mean of
    ℓ_γ (Eq. 9). Proposition 1 is ``"cross_entropy"``: R̂ is the mean of ℓ_{γ,ce}/ln 2, which is larger by Lemma 3. R̂ad is
    :func:`~classmargin.theory.rademacher.rademacher_bound` unless ``complexity`` is given.

    Proof, with c = 4. Let g_i(z) = Φ_{γ_{y_i}}(z_{y_i} − max_{y'≠y_i} z_{y'}) in [0, 1], never below the
    0-1 loss. By the standard bound for such classes (Mohri et al., Theorem 3.3), R(f) <= R̂ + 2·R̂ad(G) +
    3√(ln(2/δ)/(2N)). The margin has the (sub)gradient e_y − e_{y*} of length √2, so g_i is
    (√2/γ_{y_i})-Lipschitz in the L2 norm, and the vector contraction inequality (Maurer 2016; Lemma 5 of
    Cortes et al. 2016) gives R̂ad(G) <= √2·√2·R̂ad^γ(F). Hence 2·R̂ad(G) <= 4·R̂ad^γ(F). ∎

    ``constants="paper"`` has c = 4√(2K) instead: valid, but √(2K) times larger than needed.

    Args:
        logits: Scores of the head ``[N, K]``.
        labels: True classes ``[N]``.
        features: φ(x_i) ``[N, d]``.
        class_margins: γ ``[K]``, all above zero.
        weight_bound: Λ > 0 with ‖w_y‖_q <= Λ for every class.
        norm_order: p in [1, ∞]; q is its conjugate.
        delta: Probability with which the bound may fail, in (0, 1).
        empirical_loss: ``"cross_entropy"`` (Proposition 1) or ``"margin"`` (Lemma 1).
        complexity: Complexity to use instead of its bound, e.g. ``rademacher_monte_carlo(...).mean``.
        constants: ``"correct"`` or ``"paper"``.

    Example:
        >>> features, labels = torch.eye(2).repeat(200, 1), torch.tensor([0, 1]).repeat(200)
        >>> gamma = torch.ones(2)
        >>> bound = risk_bound(9 * features, labels, features, gamma, weight_bound=9.0, empirical_loss="margin")
        >>> [round(term, 3) for term in bound]
        [3.804, 0.0, 3.6, 0.204]
    """
    losses, vectors, classes, gamma = _prepare(logits, labels, features, class_margins, empirical_loss)
    if complexity is None:
        complexity = rademacher_bound(
            vectors, classes, gamma, weight_bound=weight_bound, norm_order=norm_order, constants=constants
        )
    check_number("complexity", complexity, minimum=0.0)
    factor = 4.0 * math.sqrt(2 * gamma.shape[0]) if as_printed(constants) else 4.0
    confidence = float(_confidence_term(delta, torch.tensor(losses.shape[0], dtype=torch.float64)))
    terms = float(losses.mean()), factor * complexity, confidence
    return RiskBound(sum(terms), *terms)


def class_risk_bounds(
    logits: FloatArray,
    labels: LabelArray,
    features: FloatArray,
    class_margins: FloatArray,
    *,
    weight_bound: float,
    norm_order: float = 2.0,
    delta: float = 0.05,
    simultaneous: bool = False,
    empirical_loss: EmpiricalLoss = "cross_entropy",
    constants: Constants = "correct",
) -> ClassRiskBounds:
    """Return for each class a bound on its own error R_k, the mean 0-1 loss over x given y = k (Eq. 15).

    ``"correct"``: R_k(f) <= R̂_k + (2K/γ_k)·C(p)·Λ·r_{k,p}/√N_k + 3√(ln(2/δ)/(2N_k)).

    Proof. Given the labels, the N_k inputs of class k are an independent sample of x given y = k, and as in
    :func:`risk_bound` R_k <= R̂_k + 2·R̂ad_k(G) + 3√(ln(2/δ)/(2N_k)). Φ_{γ_k} is 1/γ_k-Lipschitz, so R̂ad_k(G)
    is at most 1/γ_k times the complexity of {z_k − max_{y≠k} z_y}. Sums of functions have at most the sum of
    the complexities, and so have maxima, by induction on max(a, b) = (a + b + |a − b|)/2, where |·| is
    1-Lipschitz. In all this is K times the complexity of a single weight vector::

        (1/N_k)·E sup_{‖w‖_q<=Λ} wᵀ Σ_i ε_i φ_i  =  (Λ/N_k)·E‖Σ_i ε_i φ_i‖_p  <=  C(p)·Λ·r_{k,p}/√N_k  ∎

    ``"paper"``: the complexity term as printed, (4/γ_k)·C(p)·Λ·r_{k,p}, which **loses the factor 1/√N_k** and therefore
    does not fall with more data. With the root restored it is **false** for many classes, because 4 stands for 2K: a head
    with a weight vector for every point outside the sample gets the sample right by γ_k and everything else wrong
    (tests/theory builds it). Only γ_k ∝ r_k/√N_k makes the bounds equal.

    Arguments are those of :func:`risk_bound`; ``delta`` is for the bound of one class, with ``simultaneous=True`` for
    any of the K bounds (each is then computed at δ/K).

    Example:
        >>> features, labels = torch.eye(2).repeat(200, 1), torch.tensor([0, 1]).repeat(200)
        >>> gamma = torch.tensor([1.0, 3.0])
        >>> bounds = class_risk_bounds(9 * features, labels, features, gamma, weight_bound=9.0)
        >>> [round(term, 3) for term in bounds.complexity.tolist()]
        [2.546, 0.849]
    """
    losses, vectors, classes, gamma = _prepare(logits, labels, features, class_margins, empirical_loss)
    num_classes = gamma.shape[0]
    moments = class_moments(vectors, classes, num_classes, norm_order)
    counts = torch.where(moments.count > 0, moments.count, torch.nan)
    empirical = torch.zeros(num_classes, dtype=torch.float64).index_add(0, classes, losses) / counts
    reach = check_number("weight_bound", weight_bound, above=0.0) * moments.class_sqnorm.sqrt() / gamma
    complexity = reach * _class_factors(counts, vectors.shape[1], norm_order, constants)
    confidence = _confidence_term(delta, counts, events=num_classes if simultaneous else 1)
    return ClassRiskBounds(empirical + complexity + confidence, empirical, complexity, confidence)


def _prepare(
    logits: FloatArray, labels: LabelArray, features: FloatArray, class_margins: FloatArray, empirical_loss: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return losses ``[N]``, features ``[N, d]``, labels ``[N]`` and class margins ``[K]``, all checked."""
    gamma = as_class_margins(class_margins).detach()
    vectors, classes = as_samples(features, labels, num_classes=gamma.shape[0])
    choice = check_choice("empirical_loss", empirical_loss, ("cross_entropy", "margin"))
    loss = surrogate_loss if choice == "cross_entropy" else class_margin_loss
    return loss(logits, classes, gamma).detach(), vectors, classes, gamma


def _class_factors(counts: Tensor, feature_dim: int, norm_order: float, constants: Constants) -> Tensor:
    """Return what multiplies Λ·r_k/γ_k in the complexity term of each class; NaN where ``counts`` is NaN."""
    if as_printed(constants):
        printed = 4.0 * norm_constant(norm_order, feature_dim, constants="paper")
        return torch.where(counts.isnan(), counts, printed)
    # A class without samples is NaN through its count, whatever its constant.
    sizes = counts.nan_to_num(1.0).tolist()
    norms = [norm_constant(norm_order, feature_dim, num_samples=int(size)) for size in sizes]
    return 2.0 * len(norms) * torch.tensor(norms, dtype=torch.float64) / counts.sqrt()


def _confidence_term(delta: float, counts: Tensor, *, events: int = 1) -> Tensor:
    """Return 3·√(ln(2·events/δ)/(2N)) for each sample size N."""
    check_number("delta", delta, above=0.0, below=1.0)
    return 3.0 * torch.sqrt(math.log(2 * events / delta) / (2 * counts))

"""The statements of the paper as checkable functions: margins, complexity, risk bounds, optimal margins.

Every function states its lemma and proves the constant it uses; what the paper prints instead, and why it differs, is on
the page Theory of the documentation. Everything is computed in float64 on the CPU. Arguments of a wrong type are a
``TypeError``, shapes and values out of range a ``ValueError``.
"""

from classmargin.theory.margin_losses import (
    class_margin_loss,
    margin_loss,
    prediction_margin,
    surrogate_loss,
    zero_one_loss,
)
from classmargin.theory.optimal_margins import margin_objective, minimise_margins, optimal_margins
from classmargin.theory.rademacher import (
    MonteCarloEstimate,
    khintchine_constant,
    norm_constant,
    rademacher_bound,
    rademacher_bound_from_statistics,
    rademacher_monte_carlo,
)
from classmargin.theory.risk_bounds import ClassRiskBounds, RiskBound, class_risk_bounds, risk_bound

__all__ = [
    "ClassRiskBounds",
    "MonteCarloEstimate",
    "RiskBound",
    "class_margin_loss",
    "class_risk_bounds",
    "khintchine_constant",
    "margin_loss",
    "margin_objective",
    "minimise_margins",
    "norm_constant",
    "optimal_margins",
    "prediction_margin",
    "rademacher_bound",
    "rademacher_bound_from_statistics",
    "rademacher_monte_carlo",
    "risk_bound",
    "surrogate_loss",
    "zero_one_loss",
]

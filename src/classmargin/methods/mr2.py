"""MR² as a plug-in of the loop, with the ablations that differ only in fixed hyper-parameters."""

from __future__ import annotations

from typing import Any

from classmargin._checks import check_number
from classmargin.methods._shared import log_prior, with_parts
from classmargin.methods.base import Method, MethodLoss, Requirements, Step, TaskInfo
from classmargin.methods.registry import MethodInfo, register

_PAPER = "Zhu et al., Reducing Class-Wise Performance Disparity via Margin Regularization, ICLR 2026"
_SEARCH = {
    "mean_margin": (1.0, 2.0, 3.0),
    "representation_weight": (0.1, 0.3, 0.5, 0.7, 0.9),
    "norm_order": (2.0, 3.0, 5.0),
}


def _variant(name: str, title: str, summary: str, **fixed: Any) -> MethodInfo:
    search = {key: values for key, values in _SEARCH.items() if key not in fixed}
    return MethodInfo(name, title, _PAPER, "ours", summary, search=search, fixed=fixed)


# Rows (b) to (f) of the paper's component table, and LA + MR² of its long-tail table.
@register(
    _variant("mr2", "MR²", "Class margins on the logits from feature spread, and a representation margin."),
    _variant("mr2-logit", "ℓ_γ", "Only the class margins on the logits.", representation_weight=0.0),
    _variant(
        "mr2-representation",
        "CE + ℓ_s̄",
        "Cross-entropy and the representation margin.",
        margin_source="uniform",
        mean_margin=1.0,
    ),
    _variant(
        "mr2-uniform",
        "ℓ_γ, uniform γ",
        "Only a margin on the logits, the same for every class.",
        margin_source="uniform",
        representation_weight=0.0,
    ),
    _variant(
        "mr2-zero-spread",
        "CE + ℓ_s̄, s̄ = 0",
        "Cross-entropy and a representation margin without slack.",
        margin_source="uniform",
        mean_margin=1.0,
        spread_slack=0.0,
    ),
    _variant("mr2-la", "LA + MR²", "MR² with the logit shift of the class prior.", tau=1.0),
)
class MR2(Method):
    """Margin regularisation: ``mean(ℓ_γ + λ ℓ_s̄)`` (Eq. 4).

    Idea: classes whose features spread more get a larger margin on the logits, and features of one class are
    pulled together beyond a slack.
    Use: balanced or unbalanced data where some classes lag behind.
    Hyper-parameters: ``mean_margin`` c̄, ``representation_weight`` λ, ``norm_order`` p, ``ema_decay``, and the
    choices of :class:`classmargin.mr2.MR2Loss`; ``tau`` adds ``tau ln π`` to the divided logits (0 = off).
    Cost: one forward and backward pass and a ``[B, B]`` distance matrix.
    Caveats: λ of the released code and λ of the paper are not comparable; see the presets.
    Source: Zhu et al., ICLR 2026.
    """

    requirements = Requirements(features=True, class_counts=True)

    def __init__(
        self,
        task: TaskInfo,
        *,
        mean_margin: float = 2.0,
        representation_weight: float = 0.5,
        norm_order: float = 2.0,
        ema_decay: float = 0.9,
        estimator: str = "moments",
        positives: str = "batch",
        temperature: float = 1.0,
        margin_source: str = "sqnorm",
        margin_power: float = 1 / 3,
        spread_slack: float = 1.0,
        warmup_steps: int = 0,
        label_smoothing: float = 0.0,
        tau: float = 0.0,
    ) -> None:
        from classmargin.mr2 import MR2Loss

        super().__init__(task)
        check_number("tau", tau, minimum=0.0)
        self.criterion = MR2Loss(
            task.num_classes,
            feature_dim=task.feature_dim,
            mean_margin=mean_margin,
            representation_weight=representation_weight,
            norm_order=norm_order,
            ema_decay=ema_decay,
            estimator=estimator,
            positives=positives,
            temperature=temperature,
            margin_source=margin_source,
            margin_power=margin_power,
            spread_slack=spread_slack,
            warmup_steps=warmup_steps,
            label_smoothing=label_smoothing,
            log_prior=(tau * log_prior(task.class_counts)).float() if tau else None,
        )

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return both margins over the samples of all processes; the statistics are updated before use."""
        terms = self.criterion.terms(step.logits, step.labels, step.features, update_statistics=update_state)
        return with_parts(
            terms.total, logit_margin=terms.logit_margin, representation_margin=terms.representation_margin
        )

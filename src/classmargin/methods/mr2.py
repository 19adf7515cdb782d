"""MR² as a plug-in of the loop, with the ablations that differ only in fixed hyper-parameters."""

from __future__ import annotations

import inspect
from typing import Any

from classmargin._checks import check_number
from classmargin.methods.base import Method, MethodLoss, Requirements, Step, TaskInfo
from classmargin.methods.loss_parts import log_prior, with_parts
from classmargin.methods.method_registry import MethodInfo, register
from classmargin.mr2 import PRESETS, MR2Loss

_PAPER = "Zhu et al., Reducing Class-Wise Performance Disparity via Margin Regularization, ICLR 2026"
# Around the recommended settings; the paper's grid is that of its recipes.
_SEARCH = {
    "mean_margin": (0.5, 1.0, 2.0),
    "representation_weight": (0.1, 0.3, 1.0, 3.0, 10.0),
    "label_smoothing": (0.0, 0.05, 0.1),
}
# What the task decides is not a hyper-parameter.
_OF_THE_TASK = {"feature_dim", "log_prior", "weight", "ignore_index", "accumulate"}


_LOGITS_ALONE: dict[str, Any] = {"representation_weight": 0.0, "label_smoothing": 0.0}
_CROSS_ENTROPY: dict[str, Any] = {"margin_source": "uniform", "mean_margin": 1.0, "label_smoothing": 0.0}
_SCALES = "λ of the paper, of the released code and of the defaults are on different scales."
_RARE_CLASSES = "On a long tail the default λ costs accuracy of the rarest classes: try 0.3 and less."


def _variant(
    name: str, title: str, summary: str, caveats: str = _SCALES, defaults: Any = None, **fixed: Any
) -> MethodInfo:
    return MethodInfo(
        name=name,
        title=title,
        paper=_PAPER,
        family="ours",
        summary=summary,
        search={key: values for key, values in _SEARCH.items() if key not in fixed},
        fixed=fixed,
        defaults=defaults or {},
        presets=PRESETS,
        caveats=caveats,
    )


# Rows (b) to (f) of the paper's component table, and LA + MR² of its long-tail table.
@register(
    _variant(
        "mr2",
        "MR²",
        "A representation margin on standardised features with label smoothing; class margins on the logits with margin_source.",
    ),
    _variant("mr2-logit", "ℓ_γ", "Only the class margins on the logits.", **_LOGITS_ALONE, margin_source="sqnorm"),
    _variant("mr2-representation", "CE + ℓ_s̄", "Cross-entropy and the representation margin.", **_CROSS_ENTROPY),
    _variant(
        "mr2-uniform",
        "ℓ_γ, uniform γ",
        "Only a margin on the logits, the same for every class.",
        defaults={"mean_margin": 2.0},  # 1 would be cross-entropy
        margin_source="uniform",
        **_LOGITS_ALONE,
    ),
    _variant(
        "mr2-zero-spread",
        "CE + ℓ_s̄, s̄ = 0",
        "Cross-entropy and a representation margin without slack.",
        **_CROSS_ENTROPY,
        spread_slack=0.0,
    ),
    _variant(
        "mr2-la", "LA + MR²", "MR² with the logit shift of the class prior.", f"{_SCALES} {_RARE_CLASSES}", tau=1.0
    ),
)
class MR2(Method):
    """Margin regularisation: ``mean(ℓ_γ + λ ℓ_s̄)`` (Eq. 4).

    Idea: features of one class are pulled together beyond a slack, and classes whose features spread more can get a
        larger margin on the logits.
    Use: balanced or unbalanced data where some classes lag behind.
    Hyper-parameters: all of :class:`classmargin.mr2.MR2Loss`, above all ``representation_weight`` λ,
        ``label_smoothing`` and ``margin_source``; ``tau`` adds ``tau ln π`` to the logits after their division by γ (0
        = off). Presets ``recommended`` (the defaults), ``paper`` and ``release``.
    Cost: one forward and backward pass; on frozen features statistics are those of the whole training set, computed
        once.
    Caveats: ``mr2-uniform`` is the control of ``mr2-logit``: a preset gives both the same mean margin c̄, and a c̄ set
        by hand must be set for both. At c̄ = 1 (preset ``release``) it is cross-entropy; without a preset its c̄ is 2.
    Source: Zhu et al., ICLR 2026.
    """

    requirements = Requirements(features=True, class_counts=True, soft_labels=True)

    def __init__(self, task: TaskInfo, *, tau: float = 0.0, **options: Any) -> None:
        super().__init__(task)
        check_number("tau", tau, minimum=0.0)
        prior = (tau * log_prior(task.class_counts)).float() if tau else None
        self.criterion = MR2Loss.build(task.num_classes, feature_dim=task.feature_dim, log_prior=prior, **options)
        self._frozen = task.frozen_features is not None
        if task.frozen_features is not None:  # exact once instead of a moving average at every step
            self.criterion.fit_statistics(task.frozen_features())

    @classmethod
    def default_hyperparameters(cls) -> dict[str, Any]:
        """Return the defaults of the loss, which are the recommended settings, and ``tau``."""
        parameters = inspect.signature(MR2Loss).parameters.values()
        of_loss = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        chosen = {name: value for name, value in of_loss.items() if name not in _OF_THE_TASK}
        return {**chosen, **super().default_hyperparameters()}

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return both margins over the samples of all processes; the statistics are updated before use."""
        update = update_state and not self._frozen
        terms = self.criterion.terms(step.logits, step.labels, step.features, update_statistics=update)
        return with_parts(
            terms.total, logit_margin=terms.logit_margin, representation_margin=terms.representation_margin
        )

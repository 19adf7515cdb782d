"""LDAM: margins from class frequency on a cosine classifier, with deferred re-weighting."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from classmargin._distributed import global_mean
from classmargin.methods import loss_parts
from classmargin.methods.base import Method, MethodLoss, Requirements, Step, TaskInfo, number
from classmargin.methods.method_registry import MethodInfo, register

_PLAIN = MethodInfo(
    name="ldam",
    title="LDAM",
    paper="Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, NeurIPS 2019",
    family="margin",
    summary="Larger margins on the cosine of rarer classes.",
    # On balanced data every class has the largest margin, and 0.1 is better than 0.5.
    search={"max_margin": (0.1, 0.3, 0.5, 0.8), "scale": (10.0, 20.0, 30.0)},
    caveats="Not cross-entropy on balanced data: cosine head, scale and a uniform margin remain.",
)


def frequency_margins(class_counts: Tensor, max_margin: float) -> Tensor:
    """Return margins ``∝ n^(-1/4)`` whose largest is ``max_margin``, in float64."""
    margins = class_counts.double().clamp(min=1) ** -0.25
    return margins * (max_margin / margins.max())


@register(
    _PLAIN,
    replace(
        _PLAIN,
        name="ldam-drw",
        title="LDAM-DRW",
        summary="LDAM with class weights in the last fifth of the training.",
        search={**_PLAIN.search, "beta": (0.99, 0.999, 0.9999)},
        fixed={"reweight_from": 0.8},
    ),
)
class LDAM(Method):
    """Label-distribution-aware margins: ``CE(s (z - m_y e_y), y)`` on cosines ``z``, ``m ∝ n^(-1/4)``.

    Idea: rare classes get a larger margin; class weights come only once the features have settled (DRW).
    Use: unequal class counts.
    Hyper-parameters: ``max_margin`` of the rarest class (0.1 is better on balanced data), ``scale`` s,
        ``reweight_from`` (share of the epochs after which effective-number weights with ``beta`` act; None = never).
    Cost: one forward and backward pass.
    Caveats: needs a cosine head, and test scores are its plain cosines. Weighted losses are divided by the sum of the
        weights in the batch, as in the original code, which switches at epoch 160 of 200; here the switch is a share.
    Source: Cao et al., NeurIPS 2019.
    """

    requirements = Requirements(class_counts=True, head="cosine", head_options={"scale": 1.0, "learnable_scale": False})
    max_margin: float = number(0.5, above=0.0)
    scale: float = number(30.0, above=0.0)
    reweight_from: float | None = number(None, minimum=0.0, maximum=1.0)
    beta: float = number(0.9999, minimum=0.0, below=1.0)
    margins: Tensor
    late_weights: Tensor

    def _build(self, task: TaskInfo) -> None:
        margins = frequency_margins(task.class_counts, self.max_margin)
        self.register_buffer("margins", margins.float(), persistent=False)
        weights = loss_parts.effective_number_weights(task.class_counts, self.beta)
        self.register_buffer("late_weights", weights.float(), persistent=False)

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the (weighted) mean margin loss over the samples of all processes."""
        cosines = loss_parts.at_least_float32(step.logits)
        # 1.01 leaves room for rounding, of half precision too.
        loss_parts.refuse_above(1.01, cosines.abs(), "cosines (head 'cosine' with scale 1) for method ldam")
        own_class = torch.nn.functional.one_hot(step.labels, self.task.num_classes)
        shifted = cosines - own_class * self.margins[step.labels].unsqueeze(1)
        losses = loss_parts.cross_entropy(self.scale * shifted, step.labels)
        total = global_mean(losses, self.late_weights[step.labels] if self._reweights(step.epoch) else None)
        return loss_parts.with_parts(total, ldam=global_mean(losses))

    def _reweights(self, epoch: int) -> bool:
        return self.reweight_from is not None and epoch >= self.reweight_from * self.task.epochs

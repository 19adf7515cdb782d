"""Group DRO with classes as groups: the weight follows the worst class."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from classmargin._checks import check_choice
from classmargin._distributed import global_mean
from classmargin.methods.base import Method, MethodLoss, Requirements, Step, TaskInfo, choice, number
from classmargin.methods.loss_parts import class_means, cross_entropy, with_parts
from classmargin.methods.method_registry import register


@register(
    name="group-dro",
    title="DRO",
    paper="Sagawa et al., Distributionally Robust Neural Networks for Group Shifts, ICLR 2020",
    family="robust",
    summary="Keeps a weight per class that grows exponentially with the loss of the class.",
    search={"step_size": (1e-3, 1e-1, "log"), "adjustment": (0.0, 1.0, 2.0)},
    presets={"renormalised": {"absent": "renormalise"}, "unbiased": {"absent": "unbiased"}},
    caveats="Absent classes count as loss 0 by default, as in the original code.",
)
class GroupDRO(Method):
    """Group DRO: ``Σ_k q_k ℓ̄_k``, ``q_k ← q_k exp(η ℓ̄_k)`` normalised, with class means ``ℓ̄`` of the batch.

    Idea: an adversary moves weight to the classes with the largest loss, the network answers.
    Use: the worst class matters most.
    Hyper-parameters: ``step_size`` η, ``adjustment`` C (adds ``C/√n_k`` inside the exponent), ``absent``: ``"zero"``
        lets absent classes take part with loss 0, ``"renormalise"`` updates and weights only the present ones,
        ``"unbiased"`` weights each sample by ``K q_y``; ``sampler`` (``"class-balanced"`` draws classes equally often,
        as published).
    Cost: one forward and backward pass.
    Caveats: q is updated before use and only in training. η = 0.01 moves q slowly when K is large.
    Source: Sagawa et al., ICLR 2020.
    """

    step_size: float = number(0.01, minimum=0.0)
    adjustment: float = number(0.0, minimum=0.0)
    absent: str = choice("zero", "renormalise", "unbiased")
    sampler: str = choice("plain", "class-balanced")
    log_weights: Tensor
    adjustments: Tensor

    def __init__(self, task: TaskInfo, **hyperparameters: Any) -> None:
        super().__init__(task, **hyperparameters)
        self.requirements = self.needs(sampler=self.sampler)
        adjustments = self.adjustment / task.class_counts.clamp(min=1).double().sqrt()
        self.register_buffer("adjustments", adjustments.float(), persistent=False)
        # Logarithms: a weight may become tiny but never exactly 0, from where it could not return.
        start = torch.full((task.num_classes,), -math.log(task.num_classes))
        self.register_buffer("log_weights", start)

    @classmethod
    def needs(cls, *, sampler: str = "plain", **hyperparameters: Any) -> Requirements:
        """Return the needs, which depend on the sampler."""
        if check_choice("sampler", sampler, ("plain", "class-balanced")) == "plain":
            return Requirements(class_counts=True)
        return Requirements(class_counts=True, sampler="class-balanced")

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the weighted sum of class means over the samples of all processes."""
        losses = cross_entropy(step.logits, step.labels)
        means, present = class_means(losses, step.labels, self.task.num_classes)
        if update_state:
            self._update(means.detach(), present)
        weights = self.log_weights.exp().to(means)
        if self.absent == "unbiased":
            total = global_mean(self.task.num_classes * weights[step.labels] * losses)
        else:
            share = (weights * present).sum() if self.absent == "renormalise" else 1.0
            total = (weights * means).sum() / share
        return with_parts(total, cross_entropy=global_mean(losses), largest_weight=weights.max())

    def _update(self, means: Tensor, present: Tensor) -> None:
        growth = self.step_size * (means + self.adjustments)
        if self.absent != "zero":
            growth = growth * present
            kept = self.log_weights[present].logsumexp(0)
            grown = (self.log_weights + growth)[present]
            # The present classes share what they had before; the absent ones keep theirs.
            self.log_weights[present] = grown - grown.logsumexp(0) + kept
        else:
            self.log_weights.copy_((self.log_weights + growth).log_softmax(0))

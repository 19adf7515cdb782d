"""Group DRO and FairDRO with classes as groups: weights that follow the worst class, in every step or once an epoch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from classmargin._checks import check_choice
from classmargin._distributed import global_mean
from classmargin.methods import base
from classmargin.methods.base import LoopContext, Method, MethodLoss, Requirements, Step, TaskInfo
from classmargin.methods.loss_parts import class_means, cross_entropy, training_class_means, with_parts
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

    step_size: float = base.number(0.01, minimum=0.0)
    adjustment: float = base.number(0.0, minimum=0.0)
    absent: str = base.choice("zero", "renormalise", "unbiased")
    sampler: str = base.choice("plain", "class-balanced")
    log_weights: Tensor
    adjustments: Tensor

    def _build(self, task: TaskInfo) -> None:
        self.requirements = self.needs(sampler=self.sampler)
        adjustments = self.adjustment / task.class_counts.clamp(min=1).double().sqrt()
        self.register_buffer("adjustments", adjustments.float(), persistent=False)
        # Logarithms: a weight may become tiny but never exactly 0, from where it could not return.
        start = torch.full((task.num_classes,), -math.log(task.num_classes))
        self.register_buffer("log_weights", start)

    @classmethod
    def needs(cls, *, sampler: str = "plain", **hyperparameters: Any) -> Requirements:
        """Return the needs, which depend on the sampler."""
        kind: Any = check_choice("sampler", sampler, ("plain", "class-balanced"))
        return Requirements(class_counts=True, sampler=kind)

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


def chi_square_weights(losses: Tensor, radius: float) -> Tensor:
    """Return ``q_k = (1 + √(2ρ) (ℓ_k - ℓ̄)/std) / K``, which maximises ``Σ_k q_k ℓ_k`` on a χ² ball."""
    spread = losses.std(unbiased=False)
    if spread <= 1e-12 * losses.abs().max().clamp(min=1e-12):  # all classes alike: nothing to lean towards
        return torch.full_like(losses, 1.0 / len(losses))
    return (1 + math.sqrt(2 * radius) * (losses - losses.mean()) / spread) / len(losses)


@register(
    name="fair-dro",
    title="FairDRO",
    paper="Jung et al., Re-weighting Based Group Fairness Regularization via Classwise Robust Optimization, ICLR 2023",
    family="robust",
    summary="Re-weights classes once per epoch towards those with above-average training loss.",
    search={"radius": (0.1, 0.3, 0.5, 1.5)},
    cost=4 / 3,
    presets={"closed-form": {"nonnegative": False}},
    caveats="Single-pool form (groups = labels leaves cells empty); weights are kept at 0 or above.",
)
class FairDRO(Method):
    """FairDRO, classes as groups: ``Σ_k q_k ℓ̄_k``, ``q`` from the class losses of a full pass each epoch.

    Idea: the loss under the worst weights on a χ² ball is the mean plus a multiple of the spread over classes.
    Use: a smaller gap between classes.
    Hyper-parameters: ``radius`` ρ, ``smoothing`` (``"linear"`` or ``"cosine"`` decay of the step s_t in
        ``q ← q + s_t (q* - q)``), ``loss_kind`` (``"cross-entropy"`` or ``"zero-one"`` class losses of the pass),
        ``nonnegative`` (clamp the weights at 0).
    Cost: one forward and backward pass and one forward pass over the training set per epoch.
    Caveats: the closed form (``nonnegative=False``, as in the original) gives a class more than 1/√(2ρ) standard
        deviations below the mean a negative weight: with many classes training *raises* the loss of the easiest ones
        without bound. The pass of the original moves batch-norm statistics.
    Source: Jung et al., ICLR 2023.
    """

    requirements = Requirements(training_pass=True)
    radius: float = base.number(0.5, minimum=0.0)
    smoothing: str = base.choice("linear", "cosine")
    loss_kind: str = base.choice("cross-entropy", "zero-one")
    nonnegative: bool = base.switch(True)
    weights: Tensor

    def _build(self, task: TaskInfo) -> None:
        self.register_buffer("weights", torch.full((task.num_classes,), 1.0 / task.num_classes))

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the weighted sum of class means over the samples of all processes."""
        means, present = class_means(cross_entropy(step.logits, step.labels), step.labels, self.task.num_classes)
        total = (self.weights * means).sum()
        plain = means.sum() / present.sum().clamp(min=1)
        return with_parts(total, class_mean=plain, largest_weight=self.weights.max())

    def on_epoch_end(self, context: LoopContext) -> None:
        """Move the weights towards the worst ones for the class losses of the whole training set."""
        means, present = training_class_means(context, self._sample_losses, self.task.num_classes)
        losses = torch.where(present, means, means[present].mean())
        self.move_weights(losses, self.step_size_at(context.epoch, context.epochs))

    def step_size_at(self, epoch: int, epochs: int) -> float:
        """Return s_t, which falls from 1 to 0 over the training."""
        done = epoch / max(1, epochs)
        return 1 - done if self.smoothing == "linear" else 0.5 * (1 + math.cos(math.pi * done))

    @torch.no_grad()
    def move_weights(self, class_losses: Tensor, step_size: float) -> None:
        """Take one smoothed step towards the worst weights for ``class_losses``."""
        worst = chi_square_weights(class_losses.to(self.weights), self.radius)
        if self.nonnegative:
            worst = worst.clamp(min=0)
            worst = worst / worst.sum()
        self.weights += step_size * (worst - self.weights)

    def _sample_losses(self, step: Step) -> Tensor:
        if self.loss_kind == "zero-one":
            return (step.logits.argmax(dim=1) != step.labels).to(step.logits)
        return cross_entropy(step.logits, step.labels)

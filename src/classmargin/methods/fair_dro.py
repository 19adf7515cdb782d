"""FairDRO with classes as groups: robust to a class-wise gap, with weights from a full pass."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from classmargin.methods.base import (
    LoopContext,
    Method,
    MethodLoss,
    Requirements,
    Step,
    TaskInfo,
    choice,
    number,
    switch,
)
from classmargin.methods.loss_parts import class_means, cross_entropy, training_class_means, with_parts
from classmargin.methods.method_registry import register


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
    Caveats: the closed form gives a class more than 1/√(2ρ) standard deviations below the mean a negative weight, so
        that with many classes training *raises* the loss of the easiest ones without bound; hence the clamp. The
        original (two groups, ``nonnegative=False``) needs every (group, label) cell filled and its pass moves
        batch-norm statistics.
    Source: Jung et al., ICLR 2023.
    """

    requirements = Requirements(training_pass=True)
    radius: float = number(0.5, minimum=0.0)
    smoothing: str = choice("linear", "cosine")
    loss_kind: str = choice("cross-entropy", "zero-one")
    nonnegative: bool = switch(True)
    weights: Tensor

    def __init__(self, task: TaskInfo, **hyperparameters: Any) -> None:
        super().__init__(task, **hyperparameters)
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

"""DRO-LT ("DRL"): features pulled to class centroids that may be off by a learned radius."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from classmargin._distributed import gather_rows, global_mean
from classmargin.methods.base import LoopContext, Method, MethodLoss, Requirements, Stage, Step, TaskInfo, number
from classmargin.methods.loss_parts import (
    at_least_float32,
    class_means,
    cross_entropy,
    training_class_means,
    with_parts,
)
from classmargin.methods.method_registry import register


def robust_centroid_losses(
    features: Tensor, labels: Tensor, centroids: Tensor, radii: Tensor, temperature: float = 1.0
) -> Tensor:
    """Return ``-ln [e^{-(d(μ_c, z_i) + ε_c)/T} / Σ_j e^{-(d(μ_c, z_j) + ε_c 1[y_j = c])/T}]`` ``[B]``, ``c = y_i``.

    ``d`` is Euclidean, ``j`` over the batch; ``features`` z ``[B, d]``, ``centroids`` μ ``[K, d]``, ``radii`` ε
    ``[K]``.
    """
    classes = torch.arange(len(centroids), device=labels.device).unsqueeze(1)
    # Exact differences: the faster Gram form loses the small distances that matter here.
    distance = torch.cdist(centroids, features, compute_mode="donot_use_mm_for_euclid_dist")
    scores = -(distance + radii.unsqueeze(1) * (labels == classes)) / temperature
    return -scores.log_softmax(dim=1).gather(0, labels.unsqueeze(0)).squeeze(0)


@register(
    name="drl",
    title="DRL",
    paper="Samuel and Chechik, Distributional Robustness Loss for Long-Tail Learning, ICCV 2021",
    family="representation",
    summary="Cross-entropy, then features pulled to robust class centroids, then the classifier alone.",
    search={"temperature": (0.07, 0.5, 1.0), "robust_weight": (0.5, 1.0)},
    cost=1.1,
    presets={"release": {"temperature": 0.07}, "paper-bound": {"radius_factor": 2.0}},
    caveats="The original code mixes up the radii of classes on unsorted batches.",
)
class DROLT(Method):
    """Distributional robustness loss for the long tail, with its three phases.

    Idea: centroids of rare classes are estimated badly, so features are pulled to the worst centroid within a learned
        radius ε.
    Use: unequal class counts; compact features in general.
    Hyper-parameters: ``temperature`` T, ``robust_weight``, ``initial_radius`` ε, ``radius_factor`` (1 as in the code, 2
        as in the bound of the paper), ``pretrain_share`` and ``classifier_share`` of the epochs, ``feature_lr_scale``
        and ``classifier_lr_scale``.
    Cost: in the second phase one extra forward pass over the training set per epoch for the centroids.
    Caveats: cross-entropy for all parameters; then features alone, from the robust loss and a cross-entropy weighted
        with ``n_c / n_max`` (left out on frozen features); then the classifier alone. ε is clamped at 0, as nothing
        bounds it from below. The original picks ε by position in the batch, which mixes up classes unless the batch is
        sorted.
    Source: Samuel and Chechik, ICCV 2021.
    """

    requirements = Requirements(features=True, class_counts=True, training_pass=True)
    temperature: float = number(1.0, above=0.0)
    robust_weight: float = number(1.0, minimum=0.0)
    initial_radius: float = number(1.0, minimum=0.0)
    radius_factor: float = number(1.0, minimum=0.0)
    pretrain_share: float = number(2 / 3, minimum=0.0, below=1.0)
    classifier_share: float = number(1 / 15, minimum=0.0, below=1.0)
    feature_lr_scale: float = number(0.05, above=0.0)
    classifier_lr_scale: float = number(0.1, above=0.0)
    centroids: Tensor
    class_weights: Tensor

    def _build(self, task: TaskInfo) -> None:
        if self.pretrain_share + self.classifier_share >= 1:
            raise ValueError(
                f"pretrain_share + classifier_share must be < 1, got {self.pretrain_share} + {self.classifier_share}"
            )
        self.radii = nn.Parameter(torch.full((task.num_classes,), self.initial_radius))
        self.register_buffer("centroids", torch.zeros(task.num_classes, task.feature_dim))
        counts = task.class_counts.float()
        self.register_buffer("class_weights", counts / counts.max(), persistent=False)
        # The loss and the hooks tell phases by their position.
        self.feature_stage = None if task.frozen_features is not None else 1

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the radii; weight decay would only speed their drift to 0."""
        return [{"params": [self.radii], "weight_decay": 0.0}]

    def stages(self, epochs: int) -> list[Stage]:
        """Return the three phases, each of at least one epoch; without three epochs the last are left out."""
        last = min(max(1, round(self.classifier_share * epochs)), epochs - 2) if epochs >= 3 else 0
        middle = max(1, round((1 - self.pretrain_share) * epochs) - last) if epochs >= 2 else 0
        middle = min(middle, epochs - last - 1)
        balanced: dict[str, Any] = {"sampler": "class-balanced"}
        if self.feature_stage is None:
            middle = 0
        phases = [
            Stage("cross-entropy", epochs - middle - last),
            Stage("features", middle, train="encoder", learning_rate_scale=self.feature_lr_scale, **balanced),
            Stage("classifier", last, train="head", learning_rate_scale=self.classifier_lr_scale, **balanced),
        ]
        return [phase for phase in phases if phase.epochs > 0]

    def on_epoch_start(self, context: LoopContext) -> None:
        """Recompute the centroids from a pass over the training set (second phase only)."""
        if context.stage == self.feature_stage:
            means, present = training_class_means(context, lambda step: step.features, self.task.num_classes)
            self.centroids.copy_(torch.where(present.unsqueeze(1), means, self.centroids))

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the loss of the running phase over the samples of all processes."""
        losses = cross_entropy(step.logits, step.labels)
        if step.stage != self.feature_stage:
            total = global_mean(losses)
            return with_parts(total, cross_entropy=total)
        weighted = global_mean(losses, self.class_weights[step.labels].to(losses))
        robust = self._robust(step)
        return with_parts(weighted + self.robust_weight * robust, cross_entropy=weighted, robust=robust)

    def _robust(self, step: Step) -> Tensor:
        """Return the mean over the classes in the global batch of their mean robust loss."""
        features, start = gather_rows(at_least_float32(step.features))
        labels, _ = gather_rows(step.labels)
        radii = self.radius_factor * self.radii.clamp(min=0)
        with torch.autocast(features.device.type, enabled=False):
            losses = robust_centroid_losses(features, labels, self.centroids, radii, self.temperature)
        own = slice(start, start + len(step.labels))
        means, present = class_means(losses[own], step.labels, self.task.num_classes)
        return means.sum() / present.sum().clamp(min=1)

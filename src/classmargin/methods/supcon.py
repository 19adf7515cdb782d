"""Supervised contrastive learning: views of one class attract, all others repel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from classmargin._checks import check_choice
from classmargin._distributed import gather_rows, global_mean
from classmargin.methods import base
from classmargin.methods.base import Method, MethodLoss, Requirements, Stage, Step, TaskInfo
from classmargin.methods.loss_parts import at_least_float32, cross_entropy, with_parts
from classmargin.methods.method_registry import register

# Epochs from which on the two-stage form has time to learn: the authors' schedules begin at 200.
_LONG_TRAINING = 200


def contrastive_losses(projections: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the supervised contrastive loss of each anchor ("out" form) and whether it has a positive.

    ``ℓ_i = -(1/|P(i)|) Σ_{p∈P(i)} [h_i·h_p/τ - ln Σ_{a≠i} exp(h_i·h_a/τ)]``; anchors without a positive have
    0. Anchors are this process's rows of ``projections`` (unit vectors ``[M, e]``, all views stacked), contrasts those of
    all processes.
    """
    contrasts, start = gather_rows(projections)
    contrast_labels, _ = gather_rows(labels)
    itself = torch.arange(len(contrasts), device=labels.device) == (
        start + torch.arange(len(labels), device=labels.device).unsqueeze(1)
    )
    similarity = (projections @ contrasts.T / temperature).masked_fill(itself, -math.inf)
    positive = (labels.unsqueeze(1) == contrast_labels) & ~itself
    counts = positive.sum(dim=1)
    # A lone sample has nothing to compare with: its row is all -inf and would turn the gradient into NaN.
    alone = itself.all(dim=1, keepdim=True)
    log_share = similarity.masked_fill(alone, 0.0).log_softmax(dim=1).masked_fill(~positive, 0.0)
    return -log_share.sum(dim=1) / counts.clamp(min=1), counts > 0


@register(
    name="supcon",
    title="SupCon",
    paper="Khosla et al., Supervised Contrastive Learning, NeurIPS 2020",
    family="representation",
    summary="Learns features by contrasting two views of every sample, then a linear classifier on them.",
    search={"temperature": (0.05, 0.07, 0.1, 0.5), "contrastive_weight": (0.1, 0.5, 1.0)},
    cost=2.0,
    presets={"joint": {"mode": "joint"}, "two-stage": {"mode": "two-stage"}},
    caveats="Published as two stages of 1000 + 100 epochs; below 200 the default is the joint form.",
)
class SupCon(Method):
    """Supervised contrastive learning with a projection head and two views.

    Idea: on the unit sphere of a projection, views of the same class attract and all others repel.
    Use: features that separate classes; the classifier follows (``mode="two-stage"``) or learns along (``"joint"``:
        cross-entropy plus ``contrastive_weight`` times the contrastive loss). ``"auto"``: two stages from 200 epochs on
        where views differ.
    Hyper-parameters: ``temperature`` τ, ``base_temperature`` τ_b (the loss is scaled by τ/τ_b; None = no scaling),
        ``projection_dim``, ``classifier_share`` of the epochs for the second stage, ``anchors`` (``"all"`` counts those
        without a positive as 0 in the mean, ``"valid"`` leaves them out), ``views``.
    Cost: every sample is seen twice, so about 2 forward and backward passes.
    Caveats: both stages share the budget of the other methods. Where both views are the same (no augmentation,
        features) two stages are refused. Strong augmentation is part of the recipe and lies with the data.
    Source: Khosla et al., NeurIPS 2020.
    """

    mode: str = base.choice("auto", "two-stage", "joint")
    temperature: float = base.number(0.07, above=0.0)
    base_temperature: float | None = base.number(None, above=0.0)
    contrastive_weight: float = base.number(1.0, minimum=0.0)
    projection_dim: int = base.whole_number(128, minimum=1)
    classifier_share: float = base.number(1 / 11, above=0.0, below=1.0)
    anchors: str = base.choice("all", "valid")
    views: int = base.whole_number(2, minimum=1)

    def _build(self, task: TaskInfo) -> None:
        form = self.settle({"mode": self.mode}, epochs=task.epochs, distinct_views=task.distinct_views)
        self.mode = form["mode"]
        self.requirements = self.needs(views=self.views)
        hidden = nn.Linear(task.feature_dim, task.feature_dim)
        self.projection = nn.Sequential(hidden, nn.ReLU(), nn.Linear(task.feature_dim, self.projection_dim))

    @classmethod
    def needs(cls, *, views: int = 2, **hyperparameters: Any) -> Requirements:
        """Return the needs, which depend on the number of views."""
        return Requirements(features=True, views=views)

    @staticmethod
    def settle(options: Mapping[str, Any], *, epochs: int, distinct_views: bool) -> dict[str, Any]:
        """Return the hyper-parameters with the form that is trained in place of ``auto``."""
        mode = check_choice("mode", options["mode"], ("auto", "two-stage", "joint"))
        if mode == "two-stage" and not distinct_views:
            raise ValueError(
                "mode of supcon must be 'joint' or 'auto' where views are the same (data.augmentation='none', features)"
            )
        if mode == "auto":
            mode = "two-stage" if distinct_views and epochs >= _LONG_TRAINING else "joint"
        return {**options, "mode": mode}

    def stages(self, epochs: int) -> list[Stage]:
        """Return one joint stage, or features first and a linear classifier after."""
        if self._is_joint:
            return [Stage("joint", epochs, views=None if self.task.distinct_views else 1)]
        last = min(max(1, round(self.classifier_share * epochs)), epochs - 1)
        return [Stage("features", epochs - last, train="encoder"), Stage("classifier", last, train="head", views=1)]

    @property
    def _is_joint(self) -> bool:
        """Two stages need two epochs; a single one trains both parts at once."""
        return self.mode == "joint" or self.task.epochs < 2

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the loss of the running stage, a mean over the rows (views) of all processes."""
        if step.stage == 1:
            total = global_mean(cross_entropy(step.logits, step.labels))
            return with_parts(total, cross_entropy=total)
        contrastive = self._contrastive(step)
        if not self._is_joint:
            return with_parts(contrastive, contrastive=contrastive)
        plain = global_mean(cross_entropy(step.logits, step.labels))
        total = plain + self.contrastive_weight * contrastive
        return with_parts(total, cross_entropy=plain, contrastive=contrastive)

    def _contrastive(self, step: Step) -> Tensor:
        features = at_least_float32(step.features)
        # In the type of the weights, which are half where the whole network is (bf16-true).
        weights_like = next(self.projection.parameters(), features)
        projections = self.projection(features.to(weights_like.dtype))
        projections = F.normalize(at_least_float32(projections), dim=1)
        with torch.autocast(projections.device.type, enabled=False):
            losses, has_positive = contrastive_losses(projections, step.labels, self.temperature)
        weights = has_positive.to(losses) if self.anchors == "valid" else None
        scale = self.temperature / (self.base_temperature or self.temperature)
        return scale * global_mean(losses, weights)

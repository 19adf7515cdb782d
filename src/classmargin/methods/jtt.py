"""JTT: a second training in which the errors of the first count more."""

from __future__ import annotations

import torch
from torch import Tensor

from classmargin._distributed import all_reduce_sum, global_mean
from classmargin.methods import base
from classmargin.methods.base import LoopContext, Method, MethodLoss, Requirements, Stage, Step, TaskInfo
from classmargin.methods.loss_parts import cross_entropy, with_parts
from classmargin.methods.method_registry import register


@register(
    name="jtt",
    title="JTT",
    paper=("Liu et al., Just Train Twice: Improving Group Robustness without Training Group Information, ICML 2021"),
    family="re-weighting",
    summary="Trains once to find the errors, then afresh with the errors repeated.",
    search={"up_weight": (2, 4, 6, 10, 20, 50), "identification_share": (0.1, 0.25, 0.5, 1.0)},
    cost=2.0,
    presets={"subpopulation": {"up_weight": 10, "identification_share": 0.5}},
    caveats="Costs identification_share + 1 + (up_weight - 1)·(share of errors) trainings.",
)
class JTT(Method):
    """Just train twice: cross-entropy, then a fresh network for which each error counts ``up_weight`` times.

    Idea: what a short training gets wrong belongs to the groups that lag behind.
    Use: unknown or many hard groups; no annotation is needed.
    Hyper-parameters: ``identification_share`` of the epochs for the first training (the second has all of them),
        ``up_weight`` λ_up, ``mode`` (``"up-sample"`` repeats the errors, so epochs get longer; ``"weight"`` puts λ_up
        on their loss).
    Cost: ``identification_share + 1 + (up_weight - 1) · |E|/N`` trainings when up-sampling.
    Caveats: the released code's λ is ``up_weight - 1`` here, and it records errors during the training epoch, not in a
        pass at its end. An early stop on many classes gives very many errors.
    Source: Liu et al., ICML 2021.
    """

    requirements = Requirements(sample_index=True, training_pass=True)
    identification_share: float = base.number(0.5, above=0.0, maximum=1.0)
    up_weight: int = base.whole_number(4, minimum=1)
    mode: str = base.choice("up-sample", "weight")
    errors: Tensor
    in_training: Tensor

    def _build(self, task: TaskInfo) -> None:
        self.register_buffer("errors", torch.zeros(len(task.labels), dtype=torch.bool))
        self.register_buffer("in_training", task.labels >= 0, persistent=False)

    def stages(self, epochs: int) -> list[Stage]:
        """Return the short first training and the full second one."""
        first = max(1, round(self.identification_share * epochs))
        return [Stage("identify", first), Stage("train", epochs, fresh_model=True)]

    @torch.no_grad()
    def on_stage_end(self, context: LoopContext) -> None:
        """Mark what the first network gets wrong."""
        if context.stage != 0:
            return
        wrong = torch.zeros(len(self.errors), device=self.errors.device)
        for step in context.training_pass():
            wrong[step.index] = (step.logits.argmax(dim=1) != step.labels).to(wrong)
        self.errors.copy_(all_reduce_sum(wrong) > 0)

    def sample_multiplicity(self, stage: int) -> Tensor | None:
        """Return ``up_weight`` for the errors and 1 for all others in the second training."""
        if stage == 0 or self.mode == "weight":
            return None
        return self.in_training.long() * (1 + (self.up_weight - 1) * self.errors.long())

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the mean cross-entropy over the samples of all processes, weighted in mode ``"weight"``."""
        losses = cross_entropy(step.logits, step.labels)
        weights = None
        if step.stage == 1 and self.mode == "weight":
            weights = 1 + (self.up_weight - 1) * self.errors[step.index].to(losses)
        total = global_mean(losses, weights)
        return with_parts(total, cross_entropy=total)

"""LfF and JTT: the failures of a biased twin, or of a short first training, count more."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from classmargin._distributed import all_reduce_sum, gather_rows, global_mean
from classmargin.methods import base
from classmargin.methods.base import LoopContext, Method, MethodLoss, Requirements, Stage, Step, TaskInfo
from classmargin.methods.loss_parts import cross_entropy, frozen_running_statistics, with_parts
from classmargin.methods.method_registry import register

_TINY = 1e-8


def generalised_cross_entropy(losses: Tensor, q: float) -> Tensor:
    """Return ``(1 - p_y^q) / q`` of each sample from its cross-entropy; its gradient is ``p_y^q ∇CE``."""
    return -torch.expm1(-q * losses) / q


@register(
    name="lff",
    title="LfF",
    paper="Nam et al., Learning from Failure: De-biasing Classifier from Biased Classifier, NeurIPS 2020",
    family="re-weighting",
    summary="Weights samples by how much a deliberately biased twin network fails on them.",
    search={"q": (0.5, 0.7, 0.9), "average_decay": (0.0, 0.7, 0.9)},
    cost=2.0,
    presets={"formula": {"average_decay": 0.0, "normalise_by_class": False}, "release": {"biased_loss": "release"}},
    caveats="The released biased loss has an extra factor q; the default is the formula.",
)
class LfF(Method):
    """Learning from failure: the mean of ``W · CE`` with ``W = e_B / (e_B + e_D)``, beside a biased twin.

    Idea: a twin trained with generalised cross-entropy clings to easy samples; where it fails (large ``e_B``) and the
        main network (``e_D``) does better, the sample gets weight.
    Use: classes that fail because their samples contradict an easy shortcut.
    Hyper-parameters: ``q`` of the generalised cross-entropy, ``average_decay`` α of the losses kept per sample,
        ``normalise_by_class`` (each average is divided by the largest of its class), ``biased_loss`` (``"gce"`` or
        ``"release"``).
    Cost: two networks, so 2 forward and backward passes.
    Caveats: averages and class normalisation are in the original code, not in the formula (``preset="formula"``). On
        clean balanced data W is about ½ and so is the effective learning rate. Only the main network is evaluated.
    Source: Nam et al., NeurIPS 2020.
    """

    requirements = Requirements(sample_index=True, second_model=True)
    q: float = base.number(0.7, above=0.0, maximum=1.0)
    average_decay: float = base.number(0.7, minimum=0.0, below=1.0)
    normalise_by_class: bool = base.switch(True)
    biased_loss: str = base.choice("gce", "release")
    averages: Tensor
    seen: Tensor
    train_labels: Tensor

    def _build(self, task: TaskInfo) -> None:
        if task.new_model is None:
            raise ValueError("task.new_model must make a network for the twin of method lff, got None")
        self.twin = task.new_model()
        # One row per sample: averages of the biased and of the main loss.
        self.register_buffer("averages", torch.zeros(len(task.labels), 2))
        self.register_buffer("seen", torch.zeros(len(task.labels), dtype=torch.bool))
        self.register_buffer("train_labels", task.labels.clamp(min=0), persistent=False)

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return biased plus weighted loss, means over the samples of all processes."""
        biased = cross_entropy(self._twin_logits(step, update_state), step.labels)
        main = cross_entropy(step.logits, step.labels)
        weights = self.sample_weights(step, biased.detach(), main.detach(), update_state)
        twin_part, main_part = global_mean(self._biased_losses(biased)), global_mean(weights * main)
        return with_parts(twin_part + main_part, biased=twin_part, weighted=main_part, weight=weights.mean())

    def _twin_logits(self, step: Step, update_state: bool) -> Tensor:
        if step.inputs is None:
            raise ValueError("step.inputs must hold the batch for the twin of method lff, got None")
        with nullcontext() if update_state else frozen_running_statistics(self.twin):
            logits: Tensor = self.twin(step.inputs).logits
        return logits

    def _biased_losses(self, losses: Tensor) -> Tensor:
        if self.biased_loss == "release":
            return self.q * (-self.q * losses.detach()).exp() * losses
        return generalised_cross_entropy(losses, self.q)

    @torch.no_grad()
    def sample_weights(self, step: Step, biased: Tensor, main: Tensor, update_state: bool) -> Tensor:
        """Return ``W [B]`` from the losses kept per sample, which are updated first if ``update_state``."""
        present = torch.stack([biased, main], dim=1).to(self.averages)
        if update_state:
            self._mix_in(step.index, present)
        # Without an update a sample that was never seen stands for itself.
        kept = torch.where(self.seen[step.index].unsqueeze(1), self.averages[step.index], present)
        if self.normalise_by_class:
            kept = kept / self._class_peaks(kept, step.labels)[step.labels]
        return (kept[:, 0] / (kept.sum(dim=1) + _TINY)).to(main)

    def _mix_in(self, index: Tensor, losses: Tensor) -> None:
        index, losses = gather_rows(index)[0], gather_rows(losses)[0]
        mixed = self.average_decay * self.averages[index] + (1 - self.average_decay) * losses
        self.averages[index] = torch.where(self.seen[index].unsqueeze(1), mixed, losses)
        self.seen[index] = True

    def _class_peaks(self, kept: Tensor, labels: Tensor) -> Tensor:
        """Return the largest average of each class ``[K, 2]``; samples not seen yet hold 0."""
        peaks = kept.new_full((self.task.num_classes, 2), _TINY)
        every = self.train_labels.unsqueeze(1).expand(-1, 2)
        peaks = peaks.scatter_reduce(0, every, self.averages, "amax")
        return peaks.scatter_reduce(0, labels.unsqueeze(1).expand(-1, 2), kept, "amax")


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

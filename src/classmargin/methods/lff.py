"""LfF: learns against a twin that is made to trust the easy samples."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from classmargin._distributed import gather_rows, global_mean
from classmargin.methods.base import Method, MethodLoss, Requirements, Step, TaskInfo, choice, number, switch
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
    q: float = number(0.7, above=0.0, maximum=1.0)
    average_decay: float = number(0.7, minimum=0.0, below=1.0)
    normalise_by_class: bool = switch(True)
    biased_loss: str = choice("gce", "release")
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

"""CSR (clean): weights from the leading singular vectors of the confusion matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from classmargin._distributed import all_reduce_sum, global_mean
from classmargin.methods.base import LoopContext, Method, MethodLoss, Requirements, Step, TaskInfo, number
from classmargin.methods.loss_parts import at_least_float32, cross_entropy, with_parts
from classmargin.methods.method_registry import register


def confusion_counts(logits: Tensor, labels: Tensor, margin: float = 0.0) -> Tensor:
    """Count ``z_y <= margin + max_{k≠y} z_k``: class ``j`` (column) taken for ``i`` (row), int64 ``[K, K]``."""
    num_classes = logits.shape[1]
    own = logits.gather(1, labels.unsqueeze(1))
    strongest, rival = logits.scatter(1, labels.unsqueeze(1), -torch.inf).max(dim=1)
    confused = own.squeeze(1) <= margin + strongest
    cells = (rival * num_classes + labels)[confused]
    return torch.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def spectral_weights(confusion: Tensor) -> Tensor:
    """Return ``G = 2 (u₁v₁ᵀ - min)/(max - min) + 0.01`` of a confusion matrix; ones if there is no confusion."""
    if not bool((confusion > 0).any()):
        return torch.ones_like(confusion, dtype=torch.float64)
    # float64 on the CPU: single precision can swap nearly equal singular values.
    left, _, right = torch.linalg.svd(confusion.detach().double().cpu())
    slope = torch.outer(left[:, 0], right[0])
    low, high = slope.min(), slope.max()
    return 2 * (slope - low) / (high - low).clamp(min=1e-12) + 0.01


@register(
    name="csr",
    title="CSR",
    paper="after Jin et al., Enhancing Robust Fairness via Confusional Spectral Regularization, ICLR 2025",
    family="robust",
    summary="Weights each sample by how much its confusion adds to the norm of the confusion matrix.",
    search={"spectral_weight": (0.1, 0.3, 0.5), "margin": (0.0, 0.1)},
    cost=4 / 3,
    presets={"fine-tune": {"start_share": 0.9}},
    caveats="After the paper, without perturbed inputs; the original fine-tunes a robust network for 2 epochs.",
)
class CSR(Method):
    """Confusional spectral regularisation without attacks: ``(1-α) CE + α mean(w ln w + w CE)``.

    Idea: the spectral norm of the confusion matrix bounds the worst class; its derivative G tells which confusion hurts
        most, and samples are weighted by it: ``w_i = G[argmax z_i, y_i]``.
    Use: confusions that concentrate in a few pairs of classes.
    Hyper-parameters: ``spectral_weight`` α, ``margin`` for what counts as confused, ``start_share`` of the epochs with
        plain cross-entropy before.
    Cost: one forward and backward pass and one forward pass over the training set per epoch.
    Caveats: correct samples are weighted too (the diagonal of G is not 0); no errors at all give w = 1. The original
        shrinks the own logit by 10 %; here the margin is additive. Its third term vanishes on clean inputs.
    Source: Jin et al., ICLR 2025.
    """

    requirements = Requirements(training_pass=True)
    spectral_weight: float = number(0.3, minimum=0.0, maximum=1.0)
    margin: float = number(0.0, minimum=0.0)
    start_share: float = number(0.0, minimum=0.0, below=1.0)
    confusion_weights: Tensor

    def _build(self, task: TaskInfo) -> None:
        self.register_buffer("confusion_weights", torch.ones(task.num_classes, task.num_classes))

    @torch.no_grad()
    def on_epoch_start(self, context: LoopContext) -> None:
        """Count confusions over the training set and derive the weights."""
        if not self._acts(context.epoch):
            return
        num_classes = self.task.num_classes
        counts = torch.zeros(num_classes, num_classes + 1, device=self.confusion_weights.device)
        for step in context.training_pass():
            counts[:, :-1] += confusion_counts(at_least_float32(step.logits), step.labels, self.margin)
            counts[:, -1] += torch.bincount(step.labels, minlength=num_classes)
        counts = all_reduce_sum(counts)
        self.set_confusion(counts[:, :-1] / counts[:, -1].clamp(min=1))

    def set_confusion(self, confusion: Tensor) -> None:
        """Derive the weights from a matrix ``[K, K]``: the share of class ``j`` (column) taken for ``i``."""
        self.confusion_weights.copy_(spectral_weights(confusion))

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the mix of both parts, means over the samples of all processes."""
        losses = cross_entropy(step.logits, step.labels)
        plain = global_mean(losses)
        if not self._acts(step.epoch):
            return with_parts(plain, cross_entropy=plain)
        weights = self.confusion_weights[step.logits.argmax(dim=1), step.labels]
        spectral = global_mean(weights * weights.log() + weights * losses)
        total = (1 - self.spectral_weight) * plain + self.spectral_weight * spectral
        return with_parts(total, cross_entropy=plain, spectral=spectral)

    def _acts(self, epoch: int) -> bool:
        return epoch >= self.start_share * self.task.epochs

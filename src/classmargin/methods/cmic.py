"""CMIC-DL: predictions of a class are concentrated, those of different classes kept apart."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from classmargin._distributed import all_reduce_sum, gather_rows, global_mean
from classmargin.methods.base import Method, MethodLoss, Step, TaskInfo, choice, number, switch
from classmargin.methods.loss_parts import at_least_float32, class_sums, cross_entropy, with_parts
from classmargin.methods.method_registry import register

_LOG_FLOOR = math.log(1e-25)


def separation(log_probabilities: Tensor, labels: Tensor, *, pairs: str, detach_log: bool) -> Tensor:
    """Return ``Γ``: the mean cross-entropy ``H(p_i, p_j)`` of pairs with different labels, from ``ln p`` ``[B, K]``.

    ``pairs="all"`` divides by ``B²``, ``"different"`` by their number; ``detach_log`` stops the gradient of ``ln p_j``.
    """
    log_side = log_probabilities.clamp(min=_LOG_FLOOR)
    if detach_log:
        log_side = log_side.detach()
    different = (labels.unsqueeze(1) != labels).to(log_probabilities)
    total = -(different * (log_probabilities.exp() @ log_side.T)).sum()
    count = different.sum() if pairs == "different" else different.new_tensor(float(different.numel()))
    return total / count.clamp(min=1)


@register(
    name="cmic",
    title="CMIC-DL",
    paper=("after Yang et al., Conditional Mutual Information Constrained Deep Learning for Classification, 2023"),
    family="representation",
    summary="Pulls predictions to the mean of their class and pushes those of other classes apart.",
    search={"concentration_weight": (0.1, 0.3, 0.7, 1.0), "separation_weight": (0.05, 0.1, 0.4, 0.5)},
    presets={"follow-up": {"decay": 0.9999, "pairs": "different"}},
    caveats="After the paper; no official code was found. Defaults follow formula and later code of the same group.",
)
class CMIC(Method):
    """Conditional mutual information constrained learning: ``CE + λ KL(p ‖ Q_y) - β Γ``.

    Idea: outputs of a class concentrate around their mean ``Q_y`` and outputs of different classes separate.
    Use: tighter and more distinct predictions per class.
    Hyper-parameters: ``concentration_weight`` λ, ``separation_weight`` β, ``decay`` of the moving average ``Q`` (0.9
        averages about as many images per class as the 8 the authors draw), ``pairs`` (``"all"``: divided by B², as in
        the formula; ``"different"``: mean over pairs of different classes), ``detach_log`` (no gradient through the
        logarithm of Γ).
    Cost: one forward and backward pass and a ``[B, B]`` product.
    Caveats: -βΓ has no lower bound, so its logarithm is floored at 1e-25; the total may be negative. ``Q`` starts
        uniform.
    Source: Yang et al., 2023.
    """

    concentration_weight: float = number(0.7, minimum=0.0)
    separation_weight: float = number(0.4, minimum=0.0)
    decay: float = number(0.9, minimum=0.0, below=1.0)
    pairs: str = choice("all", "different")
    detach_log: bool = switch(True)
    class_predictions: Tensor

    def _build(self, task: TaskInfo) -> None:
        uniform = torch.full((task.num_classes, task.num_classes), 1.0 / task.num_classes)
        self.register_buffer("class_predictions", uniform)

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the three parts over the samples (and pairs) of all processes."""
        log_p = at_least_float32(step.logits).log_softmax(dim=1)
        log_q = self.class_predictions.log().clamp(min=_LOG_FLOOR)[step.labels]
        plain = global_mean(cross_entropy(step.logits, step.labels))
        concentration = global_mean((log_p.exp() * (log_p - log_q)).sum(dim=1))
        all_log_p, all_labels = gather_rows(log_p)[0], gather_rows(step.labels)[0]
        with torch.autocast(log_p.device.type, enabled=False):
            apart = separation(all_log_p, all_labels, pairs=self.pairs, detach_log=self.detach_log)
        total = plain + self.concentration_weight * concentration - self.separation_weight * apart
        return with_parts(total, cross_entropy=plain, concentration=concentration, separation=apart)

    @torch.no_grad()
    def on_step_end(self, step: Step) -> None:
        """Mix the mean prediction of each class in the batch into ``Q``."""
        probabilities = at_least_float32(step.logits).softmax(dim=1).to(self.class_predictions)
        sums, counts = class_sums(probabilities, step.labels, self.task.num_classes)
        sums, counts = all_reduce_sum(sums), all_reduce_sum(counts).unsqueeze(1)
        mixed = self.decay * self.class_predictions + (1 - self.decay) * sums / counts.clamp(min=1)
        self.class_predictions.copy_(torch.where(counts > 0, mixed, self.class_predictions))

"""Class-balanced loss: weights from the effective number of samples."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from classmargin._distributed import global_mean
from classmargin.methods.base import Method, MethodLoss, Requirements, Step, TaskInfo, number
from classmargin.methods.loss_parts import cross_entropy, effective_number_weights, focal_factor, with_parts
from classmargin.methods.method_registry import register


@register(
    name="class-balanced",
    title="Class-balanced",
    paper="Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019",
    family="re-weighting",
    summary="Weights each class by the inverse of its effective number of samples.",
    search={"beta": (0.9, 0.99, 0.999, 0.9999), "focusing": (0.0, 0.5, 1.0, 2.0)},
    equals_erm_when_balanced=True,
)
class ClassBalanced(Method):
    """Class-balanced loss: the mean over samples of ``w_y (1 - p_y)^focusing · CE``, ``w ∝ (1-β)/(1-β^n)``.

    Idea: samples of a large class overlap, so its effective number grows slower than its count.
    Use: unequal class counts.
    Hyper-parameters: ``beta`` (0 = equal weights, towards 1 = inverse frequency), ``focusing`` (above 0 = focal form).
    Cost: one forward and backward pass.
    Caveats: weights sum to K and the mean is over samples, as published (``ldam-drw`` divides by the sum of the weights
        in the batch). A class without samples counts as one sample.
    Source: Cui et al., CVPR 2019.
    """

    requirements = Requirements(class_counts=True)
    beta: float = number(0.9999, minimum=0.0, below=1.0)
    focusing: float = number(0.0, minimum=0.0)
    class_weights: Tensor

    def __init__(self, task: TaskInfo, **hyperparameters: Any) -> None:
        super().__init__(task, **hyperparameters)
        weights = effective_number_weights(task.class_counts, self.beta)
        self.register_buffer("class_weights", weights.float(), persistent=False)

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the mean weighted loss over the samples of all processes."""
        losses = cross_entropy(step.logits, step.labels)
        focal = focal_factor(losses, self.focusing) * losses
        total = global_mean(self.class_weights[step.labels] * focal)
        return with_parts(total, cross_entropy=global_mean(losses))

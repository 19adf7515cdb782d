"""Center loss ("DFL"): features are pulled to the centre of their class."""

from __future__ import annotations

import torch
from torch import Tensor

from classmargin._distributed import all_reduce_sum, global_mean
from classmargin.methods.base import Method, MethodLoss, Requirements, Step, TaskInfo, number
from classmargin.methods.loss_parts import at_least_float32, class_sums, cross_entropy, with_parts
from classmargin.methods.method_registry import register


@register(
    name="center",
    title="DFL",
    paper="Wen et al., A Discriminative Feature Learning Approach for Deep Face Recognition, ECCV 2016",
    family="representation",
    summary="Adds the squared distance of each feature to a moving centre of its class.",
    search={"center_weight": (5e-4, 3e-3, 8e-3, 3e-2)},
    presets={"caffe": {"center_weight": 0.008}},
    caveats="Mean cross-entropy goes with the mean distance; sums beside means multiply the weight by B.",
)
class CenterLoss(Method):
    """Center loss: ``mean CE + center_weight · mean ½‖φ - c_y‖²`` with centres moved by their own rule.

    Idea: compact classes leave room between them.
    Use: when features of a class scatter.
    Hyper-parameters: ``center_weight`` λ, ``center_rate`` α of ``c_j ← c_j - α Σ_{y_i=j}(c_j - φ_i) / (1 + n_j)``.
    Cost: one forward and backward pass.
    Caveats: centres start at 0 and follow the published rule, not the gradient. A common port drops the ½ and moves
        centres by ``2/B`` of the sum, which ties their speed to the batch.
    Source: Wen et al., ECCV 2016.
    """

    requirements = Requirements(features=True)
    center_weight: float = number(0.003, minimum=0.0)
    center_rate: float = number(0.5, above=0.0, maximum=1.0)
    centers: Tensor

    def _build(self, task: TaskInfo) -> None:
        self.register_buffer("centers", torch.zeros(task.num_classes, task.feature_dim))

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the sum of both means over the samples of all processes."""
        features = at_least_float32(step.features)
        distance = 0.5 * (features - self.centers[step.labels]).square().sum(dim=1)
        plain, center = global_mean(cross_entropy(step.logits, step.labels)), global_mean(distance)
        return with_parts(plain + self.center_weight * center, cross_entropy=plain, center=center)

    @torch.no_grad()
    def on_step_end(self, step: Step) -> None:
        """Move the centres of the classes in the batch."""
        features = at_least_float32(step.features).to(self.centers)
        sums, counts = class_sums(features, step.labels, self.task.num_classes)
        sums, counts = all_reduce_sum(sums), all_reduce_sum(counts).unsqueeze(1)
        self.centers -= self.center_rate * (counts * self.centers - sums) / (1 + counts)

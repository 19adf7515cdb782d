"""Center loss ("DFL") and the Gaussian mixture (LGM): features are pulled to the centre of their class."""

from __future__ import annotations

import logging

import torch
from torch import Tensor
from torch.nn import functional as F

from classmargin._distributed import all_reduce_sum, global_mean
from classmargin.methods.base import LoopContext, Method, MethodLoss, Requirements, Step, TaskInfo, number
from classmargin.methods.loss_parts import at_least_float32, class_sums, cross_entropy, refuse_above, with_parts
from classmargin.methods.method_registry import register

logger = logging.getLogger(__name__)


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


@register(
    name="lgm",
    title="LGM",
    paper=("Wan et al., Rethinking Feature Distribution for Loss Functions in Image Classification, CVPR 2018"),
    family="margin",
    summary="Scores classes by distance to learned means, with a margin on the own class.",
    search={"margin": (0.0, 0.1, 0.3, 1.0), "likelihood_weight": (0.01, 0.1, 1.0)},
    presets={"tensorflow": {"margin": 0.1, "start_margin": 0.1, "likelihood_weight": 0.01}},
    caveats="Unit covariances and equal priors, as in the original CIFAR settings.",
)
class LGM(Method):
    """Large-margin Gaussian mixture loss: ``CE(-d_k (1 + α 1[k=y]), y) + λ d_y``, ``d_k = ½‖φ - μ_k‖²``.

    Idea: features of a class are Gaussian around a learned mean; the own distance is enlarged by a margin.
    Use: when a distance to a class mean is wanted as the score (outliers show).
    Hyper-parameters: ``margin`` α, reached from ``start_margin`` by doubling every ``doubling_share`` of the training,
        ``likelihood_weight`` λ.
    Cost: one forward and backward pass.
    Caveats: needs the ``gaussian`` head, whose logits ``-d_k`` are the test scores; its means learn twice as fast as
        the rest. Features that no layer normalises can collapse to a point within a few steps: a warning says so.
    Source: Wan et al., CVPR 2018.
    """

    requirements = Requirements(features=True, head="gaussian")
    margin: float = number(0.3, minimum=0.0)
    start_margin: float = number(0.1, minimum=0.0)
    doubling_share: float = number(1 / 24, above=0.0)
    likelihood_weight: float = number(0.1, minimum=0.0)

    def on_stage_start(self, context: LoopContext) -> None:
        """Warn about an encoder whose features may collapse."""
        encoder = getattr(context.model, "encoder", context.model)
        moves = any(parameter.requires_grad for parameter in encoder.parameters())
        if moves and not any("norm" in type(module).__name__.lower() for module in encoder.modules()):
            logger.warning(
                "lgm on a network without normalisation: its features can collapse to a point in a few steps; use a "
                "network with batch or layer norm (backbone.options.batch_norm=true for mlp)"
            )

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return classification and likelihood parts, means over the samples of all processes."""
        scores = at_least_float32(step.logits)
        refuse_above(0.0, scores, "negative half squared distances (head 'gaussian') for method lgm")
        own_class = F.one_hot(step.labels, self.task.num_classes)
        widened = scores * (1 + self.margin_at(step.global_step) * own_class)
        classification = global_mean(cross_entropy(widened, step.labels))
        likelihood = global_mean(-scores.gather(1, step.labels.unsqueeze(1)).squeeze(1))
        total = classification + self.likelihood_weight * likelihood
        return with_parts(total, classification=classification, likelihood=likelihood)

    def margin_at(self, global_step: int) -> float:
        """Return α after so many optimiser steps."""
        done = global_step / max(1, self.task.epochs * self.task.steps_per_epoch)
        doublings = min(int(done / self.doubling_share), 64)
        return float(min(self.margin, self.start_margin * 2.0**doublings))

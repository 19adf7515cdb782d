"""Focal loss: samples that are already easy count less."""

from __future__ import annotations

from classmargin._distributed import global_mean
from classmargin.methods.base import Method, MethodLoss, Step, number
from classmargin.methods.loss_parts import cross_entropy, focal_factor, with_parts
from classmargin.methods.method_registry import register


@register(
    name="focal",
    title="Focal",
    paper="Lin et al., Focal Loss for Dense Object Detection, ICCV 2017",
    family="re-weighting",
    summary="Weights each sample by (1 - p_y)^focusing, so that easy ones fade.",
    search={"focusing": (0.5, 1.0, 2.0, 5.0)},
)
class Focal(Method):
    """Focal loss: the mean over samples of ``(1 - p_y)^focusing · CE``.

    Idea: a sample that is classified with confidence adds almost nothing, hard ones dominate the gradient.
    Use: many easy samples beside few hard ones, whatever their class.
    Hyper-parameters: ``focusing`` (γ of the paper; 0 = cross-entropy).
    Cost: one forward and backward pass.
    Caveats: the weight carries gradient, as published. This is the softmax form; weights per class are in
        ``class-balanced``.
    Source: Lin et al., ICCV 2017.
    """

    focusing: float = number(2.0, minimum=0.0)

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the mean focal loss over the samples of all processes."""
        losses = cross_entropy(step.logits, step.labels)
        total = global_mean(focal_factor(losses, self.focusing) * losses)
        return with_parts(total, focal=total)

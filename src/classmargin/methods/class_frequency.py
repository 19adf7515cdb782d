"""Losses whose class shifts or weights are known before the training: priors in the softmax, and focal and class weights."""

from __future__ import annotations

from torch import Tensor

from classmargin._distributed import global_mean
from classmargin._types import ModelOutput
from classmargin.methods.base import Method, MethodLoss, Requirements, Step, TaskInfo, choice, number
from classmargin.methods.loss_parts import cross_entropy, effective_number_weights, focal_factor, log_prior, with_parts
from classmargin.methods.method_registry import register


@register(
    name="balanced-softmax",
    title="Balanced Softmax",
    paper="Ren et al., Balanced Meta-Softmax for Long-Tailed Visual Recognition, NeurIPS 2020",
    family="prior",
    summary="Adds the log count of each class to its logit during training.",
    equals_erm_when_balanced=True,
)
class BalancedSoftmax(Method):
    """Balanced Softmax: the mean over samples of ``CE(z + ln n, y)``.

    Idea: the softmax absorbs the class frequencies of training, so that raw logits are right for balanced tests.
    Use: unequal class counts with a test set where classes matter equally.
    Hyper-parameters: none.
    Cost: one forward and backward pass.
    Caveats: the meta sampler of the paper is not part of it. A class without samples counts as one sample.
    Source: Ren et al., NeurIPS 2020.
    """

    requirements = Requirements(class_counts=True, soft_labels=True)
    log_prior: Tensor

    def _build(self, task: TaskInfo) -> None:
        self.register_buffer("log_prior", log_prior(task.class_counts).float(), persistent=False)

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the mean cross-entropy of the shifted logits over the samples of all processes."""
        # Priors instead of counts: the constant ln N cancels and smaller numbers round better.
        total = global_mean(cross_entropy(step.logits + self.log_prior, step.labels))
        return with_parts(total, balanced_softmax=total)


@register(
    name="logit-adjustment",
    title="LA",
    paper="Menon et al., Long-Tail Learning via Logit Adjustment, ICLR 2021",
    family="prior",
    summary="Adds tau times the log prior to the logits in training, or subtracts it at test time.",
    search={"tau": (0.5, 1.0, 1.5, 2.0)},
    equals_erm_when_balanced=True,
    presets={"post-hoc": {"mode": "post-hoc"}},
    caveats="The original code's default is the post-hoc form.",
)
class LogitAdjustment(Method):
    """Logit adjustment: ``CE(z + τ ln π, y)`` in training, or ``z - τ ln π`` as test scores.

    Idea: the classifier that minimises the *balanced* error is the usual one with the prior taken off.
    Use: unequal class counts with a test set where classes matter equally.
    Hyper-parameters: ``tau``; ``mode="loss"`` or ``"post-hoc"``.
    Cost: one forward and backward pass.
    Caveats: ``tau=1`` in mode ``"loss"`` is Balanced Softmax. A class without samples counts as one sample.
    Source: Menon et al., ICLR 2021.
    """

    requirements = Requirements(class_counts=True, soft_labels=True)
    tau: float = number(1.0, minimum=0.0)
    mode: str = choice("loss", "post-hoc")
    shift: Tensor

    def _build(self, task: TaskInfo) -> None:
        self.register_buffer("shift", (self.tau * log_prior(task.class_counts)).float(), persistent=False)

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the mean cross-entropy, of the shifted logits in mode ``"loss"``."""
        logits = step.logits + self.shift if self.mode == "loss" else step.logits
        total = global_mean(cross_entropy(logits, step.labels))
        return with_parts(total, cross_entropy=total)

    def predict(self, output: ModelOutput) -> Tensor:
        """Return the logits, without the prior in mode ``"post-hoc"``."""
        return output.logits - self.shift if self.mode == "post-hoc" else output.logits


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
    Caveats: the weight carries gradient, as published; the softmax form.
    Source: Lin et al., ICCV 2017.
    """

    focusing: float = number(2.0, minimum=0.0)

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the mean focal loss over the samples of all processes."""
        losses = cross_entropy(step.logits, step.labels)
        total = global_mean(focal_factor(losses, self.focusing) * losses)
        return with_parts(total, focal=total)


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
    Caveats: weights sum to K and the mean is over samples, as published. A class without samples counts as one.
    Source: Cui et al., CVPR 2019.
    """

    requirements = Requirements(class_counts=True)
    beta: float = number(0.9999, minimum=0.0, below=1.0)
    focusing: float = number(0.0, minimum=0.0)
    class_weights: Tensor

    def _build(self, task: TaskInfo) -> None:
        weights = effective_number_weights(task.class_counts, self.beta)
        self.register_buffer("class_weights", weights.float(), persistent=False)

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the mean weighted loss over the samples of all processes."""
        losses = cross_entropy(step.logits, step.labels)
        focal = focal_factor(losses, self.focusing) * losses
        total = global_mean(self.class_weights[step.labels] * focal)
        return with_parts(total, cross_entropy=global_mean(losses))

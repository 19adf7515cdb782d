"""Balanced Softmax: the training prior inside the softmax."""

from __future__ import annotations

from torch import Tensor

from classmargin._distributed import global_mean
from classmargin.methods.base import Method, MethodLoss, Requirements, Step, TaskInfo
from classmargin.methods.loss_parts import cross_entropy, log_prior, with_parts
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

    def __init__(self, task: TaskInfo) -> None:
        super().__init__(task)
        self.register_buffer("log_prior", log_prior(task.class_counts).float(), persistent=False)

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the mean cross-entropy of the shifted logits over the samples of all processes."""
        # Priors instead of counts: the constant ln N cancels and smaller numbers round better.
        total = global_mean(cross_entropy(step.logits + self.log_prior, step.labels))
        return with_parts(total, balanced_softmax=total)

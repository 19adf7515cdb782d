"""Logit adjustment: the class prior in the loss, or taken off the scores afterwards."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from classmargin._distributed import global_mean
from classmargin._types import ModelOutput
from classmargin.methods.base import Method, MethodLoss, Requirements, Step, TaskInfo, choice, number
from classmargin.methods.loss_parts import cross_entropy, log_prior, with_parts
from classmargin.methods.method_registry import register


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

    def __init__(self, task: TaskInfo, **hyperparameters: Any) -> None:
        super().__init__(task, **hyperparameters)
        self.register_buffer("shift", (self.tau * log_prior(task.class_counts)).float(), persistent=False)

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the mean cross-entropy, of the shifted logits in mode ``"loss"``."""
        logits = step.logits + self.shift if self.mode == "loss" else step.logits
        total = global_mean(cross_entropy(logits, step.labels))
        return with_parts(total, cross_entropy=total)

    def predict(self, output: ModelOutput) -> Tensor:
        """Return the logits, without the prior in mode ``"post-hoc"``."""
        return output.logits - self.shift if self.mode == "post-hoc" else output.logits

"""Equalization loss: rare classes are spared the pressure of being a negative."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from classmargin._distributed import global_mean
from classmargin.methods.base import Method, MethodLoss, Requirements, Step, TaskInfo, choice, number, whole_number
from classmargin.methods.loss_parts import at_least_float32, cross_entropy, with_parts
from classmargin.methods.method_registry import register


def counter_uniform(index: Tensor, num_classes: int, *, step: int, seed: int) -> Tensor:
    """Return numbers in [0, 1) ``[B, K]``, a pure function of the arguments: no order or process matters."""
    start = _mix(_mix(index.new_tensor(seed)) + step)
    classes = torch.arange(num_classes, device=index.device)
    bits = _mix(_mix(index + start).unsqueeze(1) + classes)
    return ((bits >> 11) & (2**53 - 1)).double() / 2**53


def _mix(x: Tensor) -> Tensor:
    """Return the splitmix64 hash of int64 numbers; products wrap around, shifts are made logical."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _signed(0x94D049BB133111EB)
    return x ^ ((x >> 31) & (2**33 - 1))


def _signed(constant: int) -> int:
    return constant - 2**64 if constant >= 2**63 else constant


@register(
    name="eql",
    title="EQL",
    paper="Tan et al., Equalization Loss for Long-Tailed Object Recognition, CVPR 2020",
    family="prior",
    summary="Randomly leaves rare classes out of the softmax of samples of other classes.",
    search={"tail_ratio": (0.25, 0.5, 1.0), "drop_probability": (0.5, 0.9, 0.95)},
    equals_erm_when_balanced=True,
    presets={
        # Published as frequencies: 5e-3 of 100 classes, 5e-2 of 10, 4.3e-4 of 1000, 1.77e-3 of 1230 (LVIS).
        "cifar100-lt": {"tail_ratio": 0.5, "drop_probability": 0.9},
        "cifar10-lt": {"tail_ratio": 0.5, "drop_probability": 0.9},
        "imagenet-lt": {"tail_ratio": 0.43, "drop_probability": 0.9},
        "detection": {"tail_ratio": 2.18, "mode": "sigmoid"},
    },
    caveats="The threshold is relative to 1/K: cross-entropy on balanced data up to 1, degenerate above.",
)
class EQL(Method):
    """Equalization loss: ``-ln(e^{z_y} / Σ_k w_k e^{z_k})``, ``w_k = 1 - β T(f_k) 1[k≠y]``.

    Idea: a rare class is mostly seen as a negative; dropping it from other samples' denominators spares it.
    Use: unequal class counts.
    Hyper-parameters: ``tail_ratio`` λK (classes rarer than ``tail_ratio / K`` of the samples are rare),
        ``drop_probability`` γ of the Bernoulli β, drawn per sample and class; ``mode="sigmoid"`` sums binary
        cross-entropies over classes with all rare negatives dropped and logits shifted to the initial probability
        ``prior_probability``; ``seed``.
    Cost: one forward and backward pass.
    Caveats: no official softmax code exists; the defaults are those of a third party on CIFAR-100-LT.
    Source: Tan et al., CVPR 2020.
    """

    requirements = Requirements(class_counts=True, sample_index=True)
    tail_ratio: float = number(0.5, minimum=0.0)
    drop_probability: float = number(0.9, minimum=0.0, maximum=1.0)
    mode: str = choice("softmax", "sigmoid")
    prior_probability: float = number(1e-3, above=0.0, below=1.0)
    seed: int = whole_number(0, minimum=0)
    is_tail: Tensor

    def _build(self, task: TaskInfo) -> None:
        frequency = task.class_counts.double() / task.class_counts.sum()
        self.register_buffer("is_tail", frequency < self.tail_ratio / task.num_classes, persistent=False)

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the mean over the samples of all processes."""
        logits = at_least_float32(step.logits)
        own_class = F.one_hot(step.labels, self.task.num_classes).bool()
        if self.mode == "sigmoid":
            losses = self._sigmoid_losses(logits, own_class)
        else:
            draws = counter_uniform(step.index, self.task.num_classes, step=step.global_step, seed=self.seed)
            dropped = (draws < self.drop_probability) & self.is_tail & ~own_class
            losses = cross_entropy(logits.masked_fill(dropped, -math.inf), step.labels)
        total = global_mean(losses)
        return with_parts(total, equalization=total)

    def _sigmoid_losses(self, logits: Tensor, own_class: Tensor) -> Tensor:
        # The same shift for all classes: it acts like a bias at its usual start and changes no prediction.
        shift = math.log((1 - self.prior_probability) / self.prior_probability)
        each = F.binary_cross_entropy_with_logits(logits - shift, own_class.to(logits), reduction="none")
        return each.masked_fill(self.is_tail & ~own_class, 0.0).sum(dim=1)

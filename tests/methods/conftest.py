"""The toy batch of the hand-computed values, and short ways to build tasks and methods in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from classmargin._types import ModelOutput
from classmargin.methods import Method, Step, TaskInfo, create


class FixedNetwork(nn.Module):
    """Returns given logits whatever goes in; one parameter, so that gradients have somewhere to go."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.clone())

    def forward(self, inputs: Tensor) -> ModelOutput:
        return ModelOutput(self.logits[: len(inputs)], self.logits[: len(inputs)])


@pytest.fixture
def toy() -> Step:
    """Toy batch T: K=3, B=4, d=2; cross-entropies 0.407606, 0.407606, 0.169846, 1.098612."""
    logits = torch.tensor([[2, 1, 0], [0, 1, -1], [1, 0, 3], [0.5, 0.5, 0.5]], dtype=torch.float64)
    features = torch.tensor([[1, 0], [0, 2], [3, 1], [1, 2]], dtype=torch.float64)
    return Step(logits, features, torch.tensor([0, 1, 2, 0]), torch.arange(4), torch.zeros(4, 1))


@pytest.fixture
def make_task() -> Callable[..., TaskInfo]:
    def build(counts: tuple[int, ...] = (2, 1, 1), **more: Any) -> TaskInfo:
        labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        values = {"feature_dim": 2, "labels": labels, "epochs": 10, "steps_per_epoch": 4, **more}
        return TaskInfo(len(counts), class_counts=torch.tensor(counts), **values)

    return build


@pytest.fixture
def make(make_task: Callable[..., TaskInfo]) -> Callable[..., Method]:
    """Build a method in float64: ``make(name, counts, **hyperparameters)``."""

    def build(name: str, counts: tuple[int, ...] = (2, 1, 1), **hyperparameters: Any) -> Method:
        return create(name, make_task(counts), **hyperparameters).double()

    return build


@pytest.fixture
def fixed_network() -> type[FixedNetwork]:
    return FixedNetwork


@pytest.fixture
def naive_gradient() -> Callable[..., Tensor]:
    """Central differences of a scalar function of one tensor, in float64."""

    def differentiate(function: Callable[[Tensor], Tensor], at: Tensor, width: float = 1e-6) -> Tensor:
        slopes = torch.zeros_like(at)
        for position in range(at.numel()):
            step = torch.zeros_like(at)
            step.view(-1)[position] = width
            slopes.view(-1)[position] = (function(at + step) - function(at - step)) / (2 * width)
        return slopes

    return differentiate

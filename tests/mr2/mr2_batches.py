"""The toy batch of the hand values, random batches with known shape, and ways to look at a module's state."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class MR2Batch(NamedTuple):
    """Arguments of ``MR2Loss`` in order: ``loss(*batch)``."""

    logits: Tensor
    labels: Tensor
    features: Tensor


def toy_batch(dtype: torch.dtype = torch.float64) -> MR2Batch:
    """Batch T: K = 3, B = 4, d = 2; class 0 has two samples, the others one."""
    logits = torch.tensor([[2, 1, 0], [0, 1, -1], [1, 0, 3], [0.5, 0.5, 0.5]], dtype=dtype)
    features = torch.tensor([[1, 0], [0, 2], [3, 1], [1, 2]], dtype=dtype)
    return MR2Batch(logits, torch.tensor([0, 1, 2, 0]), features)


def random_batch(
    size: int,
    num_classes: int,
    feature_dim: int,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float64,
    gradients: bool = True,
) -> MR2Batch:
    """Features of different class means and spreads, positive like those after a ReLU."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(num_classes, (size,), generator=generator)
    logits = 2 * torch.randn(size, num_classes, generator=generator, dtype=torch.float64)
    centre = torch.rand(num_classes, feature_dim, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    scale = 0.2 + 0.8 * torch.arange(num_classes, dtype=torch.float64) / num_classes
    noise = torch.randn(size, feature_dim, generator=generator, dtype=torch.float64).abs()
    features = centre[labels] + scale[labels, None] * noise
    return MR2Batch(logits.to(dtype).requires_grad_(gradients), labels, features.to(dtype).requires_grad_(gradients))


def random_batches(count: int, size: int, num_classes: int, feature_dim: int, **options) -> list[MR2Batch]:
    return [random_batch(size, num_classes, feature_dim, seed, **options) for seed in range(count)]


def history(batches: list[MR2Batch]) -> list[tuple[Tensor, Tensor]]:
    """Return what the naive reference wants: pairs of features and labels."""
    return [(batch.features.detach(), batch.labels) for batch in batches]


def gradients(loss: Tensor, batch: MR2Batch) -> tuple[Tensor, Tensor]:
    return torch.autograd.grad(loss, (batch.logits, batch.features))


def state(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of everything the module saves."""
    return {name: value.clone() for name, value in module.state_dict().items()}


def same_state(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Return whether two states agree bit for bit."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )

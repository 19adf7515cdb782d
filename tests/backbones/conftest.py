"""Tensors that every machine fills with the same numbers, and checkpoint files in published formats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Return numbers in [-0.5, 0.5) that look random and do not depend on a generator."""
    count = math.prod(shape)
    phase = torch.arange(1, count + 1, dtype=torch.float64) * 12.9898 + seed * 78.233
    scrambled = torch.sin(phase) * 43758.5453
    return (scrambled - scrambled.floor() - 0.5).float().reshape(shape)


def fill(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return a state dict with the given shapes: weights of a sensible size, positive variances."""
    filled = {}
    for seed, (name, shape) in enumerate(sorted(shapes.items())):
        values = noise(*shape, seed=seed)
        if name.endswith("running_var") or (name.endswith("weight") and len(shape) == 1):
            values = values + 1.0
        elif name.endswith("num_batches_tracked"):
            values = torch.zeros(shape, dtype=torch.int64)
        elif len(shape) > 1:
            values = values * (4.0 / math.sqrt(math.prod(shape[1:])))
        filled[name] = values
    return filled


@pytest.fixture(scope="session")
def make_noise() -> Callable[..., Tensor]:
    return noise


@pytest.fixture(scope="session")
def make_state() -> Callable[[Mapping[str, tuple[int, ...]]], dict[str, Tensor]]:
    return fill


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes anything with ``torch.save`` and gives back the path."""

    def save(content: object, name: str = "checkpoint.pth") -> Path:
        torch.save(content, tmp_path / name)
        return tmp_path / name

    return save

"""Comparing states bit for bit, for several folders of tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from classmargin.training.checkpoint import pack


def same(left: Any, right: Any) -> bool:
    """Return whether two trees are equal bit for bit (tensors: shape, type and every element)."""
    tensors_left, structure_left = pack(left)
    tensors_right, structure_right = pack(right)
    return structure_left == structure_right and all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))
        for a, b in zip(tensors_left.values(), tensors_right.values(), strict=True)
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor

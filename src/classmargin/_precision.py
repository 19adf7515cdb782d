"""Keep full precision where half precision loses digits: in sums of squares, moving averages and small distances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Self = TypeVar("Self", bound="FullPrecisionModule")
HALF_TYPES = (torch.float16, torch.bfloat16)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return half-precision tensors as float32, others as they are."""
    return tensor.float() if tensor.dtype in HALF_TYPES else tensor


@contextmanager
def full_float32(tensor: Tensor) -> Iterator[None]:
    """Switch TF32 off for products of features: its ten bits lose small distances. (Compiled code keeps the caller's setting.)"""
    if tensor.device.type != "cuda" or torch.compiler.is_compiling():
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


class FullPrecisionModule(nn.Module):
    """A module whose buffers follow ``.to(device)`` and ``.double()`` but not ``.half()`` or ``.bfloat16()``.

    Sums of squares overflow in half precision and moving averages stop moving in it; a model cast to half for speed
    must not take its statistics along.
    """

    def _apply(self: Self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            loses = moved.dtype in HALF_TYPES and tensor.dtype not in HALF_TYPES
            return tensor.to(moved.device) if loses else moved

        super()._apply(keep_precision, *args, **kwargs)  # type: ignore[no-untyped-call]
        return self

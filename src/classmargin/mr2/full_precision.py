"""Buffers that stay in full precision when a whole model is cast to half."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Self = TypeVar("Self", bound="FullPrecisionModule")
HALF_TYPES = (torch.float16, torch.bfloat16)


def new_buffer(like: Tensor, *shape: int) -> Tensor:
    """Return zeros of another shape for a buffer; usable in training even if made during evaluation.

    A tensor made under ``torch.inference_mode()`` can never be changed outside of it. The compiler cannot ask for that
    mode; what it compiles under it makes no buffers that training would meet.
    """
    if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return like.new_zeros(shape)
    return like.new_zeros(shape)


class FullPrecisionModule(nn.Module):
    """A module whose buffers follow ``.to(device)`` and ``.double()`` but not ``.half()`` or ``.bfloat16()``.

    Sums of squares overflow in half precision and moving averages stop moving in it; a model cast to half for speed
    must not take its statistics along.

    Example:
        >>> module = FullPrecisionModule()
        >>> module.register_buffer("average", torch.zeros(2))
        >>> module.half().average.dtype
        torch.float32
    """

    def _buffer(self, name: str) -> Tensor:
        """Return a buffer; as an attribute it is found only after a failed look-up has written its error message."""
        return self._buffers[name]  # type: ignore[return-value]

    def _apply(self: Self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return (
                tensor.to(moved.device)
                if moved.dtype in HALF_TYPES and tensor.dtype not in HALF_TYPES
                else moved
            )

        super()._apply(keep_precision, *args, **kwargs)  # type: ignore[no-untyped-call]
        return self

"""The features of a batch by loops that Numba compiles at their first call and keeps on disk from then on.

The same answers as :mod:`classmargin.mr2.class_table`; ``make bench BENCH=loss_speed`` times a step with either.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classmargin.mr2 import class_loops
from classmargin.mr2.class_groups import CompactGroups

NO_POWER_SUMS = np.empty(0)
# Rows with larger squares go the general way, as those whose squares are not finite.
_LARGEST_SQUARE = {torch.float32: 1.8e19, torch.float64: 1.3e154}
# Sums may be taken in the lanes of a vector register; NaN and inf keep their meaning.
REORDER = {"reassoc", "contract", "nsz"}

Function = TypeVar("Function", bound=Callable[..., Any])


def _compiled(function: Function) -> Function:
    try:
        compiled: Function = _compile(function, cache=True)
    except RuntimeError:  # no folder that may be written: compile again in every process
        compiled = _compile(function, cache=False)
    return compiled


def _compile(function: Any, cache: bool) -> Any:
    return numba.njit(function, cache=cache, fastmath=REORDER, error_model="numpy", nogil=True)


_measure, _move, _pull = (
    _compiled(class_loops.measure),
    _compiled(class_loops.move),
    _compiled(class_loops.pull),
)


class CompiledTable:
    """A :class:`~classmargin.mr2.batch_table.BatchTable`.

    Args:
        rows: Features without gradient, float32 or float64 ``[B, d]``.
        groups: Rows by class.
    """

    def __init__(self, rows: Tensor, groups: CompactGroups) -> None:
        self.groups = groups
        self._rows = rows.numpy() if rows.is_contiguous() else rows.contiguous().numpy()
        self._distances, self._sums, largest = _measure(
            self._rows, groups.order, groups.edges, groups.num_pairs
        )
        self.finite = largest < _LARGEST_SQUARE[rows.dtype] and math.isfinite(self._sums.sum())

    def move(
        self, class_mean: NDArray[Any], scalars: NDArray[Any], decay: float, power_sums: NDArray[Any] | None
    ) -> None:
        """Mix the batch into the moving averages, in place."""
        rows = self._rows if self._rows.dtype == class_mean.dtype else self._rows.astype(class_mean.dtype)
        groups = self.groups
        power = NO_POWER_SUMS if power_sums is None else power_sums
        _move(rows, groups.order, groups.ordered, groups.edges, self._sums, power, decay, class_mean, scalars)

    def pull(
        self, slack: float, temperature: float, weight: float, wants_gradient: bool
    ) -> tuple[float, Tensor | None]:
        """Return the mean of Eq. 2 and the gradient of ``weight`` times it."""
        rows, groups = self._rows, self.groups
        gradient = torch.empty(
            rows.shape if wants_gradient else (0, 0), dtype=torch.from_numpy(rows[:0]).dtype
        )
        scale = 2.0 * weight / (temperature * len(rows))
        loss = _pull(
            rows, groups.order, groups.edges, self._distances, slack, temperature, scale, gradient.numpy()
        )
        return loss / len(rows), gradient if wants_gradient else None

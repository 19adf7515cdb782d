"""What the common step asks of the features of a batch, and who answers: compiled loops or NumPy and torch.

With Numba (the extra ``fast``) the features are read where they are, once for distances and once for averages
(:mod:`classmargin.mr2.compiled_table`); without it every line is a pass over memory
(:mod:`classmargin.mr2.class_table`). Both compute the same, up to rounding. Which one is taken is settled at the first step of a process
and stays: a run that is stopped and continued in the same environment goes on bit by bit.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import Tensor

from classmargin.mr2.class_groups import CompactGroups
from classmargin.mr2.class_table import tabulate


class BatchTable(Protocol):
    """Distances within classes, made once; then the averages are moved, then the rows are pulled together."""

    @property
    def groups(self) -> CompactGroups:
        """Rows of the batch by class."""

    @property
    def finite(self) -> bool:
        """Whether features are finite and far from where sums of their squares would not be."""

    def move(
        self,
        class_mean: NDArray[Any],
        scalars: NDArray[Any],
        decay: float,
        power_sums: NDArray[Any] | None,
    ) -> None:
        """Mix the batch into the count-weighted moving averages of its classes, in place.

        Args:
            class_mean: ``μ̂`` ``[K, d]``.
            scalars: Weight, spread, mean squared L2 norm and mean squared Lp norm ``[4, K]``.
            decay: Weight of the past.
            power_sums: Squared Lp norms summed over the rows of each class ``[K]``; None for p = 2.
        """

    def pull(
        self, slack: float, temperature: float, weight: float, wants_gradient: bool
    ) -> tuple[float, Tensor | None]:
        """Return the mean of Eq. 2 and the gradient of ``weight`` times it ``[B, d]``.

        Args:
            slack: ``2 s̄``.
            temperature: ``τ``.
            weight: ``λ``.
            wants_gradient: False returns None instead.
        """


def batch_table(rows: Tensor, groups: CompactGroups) -> BatchTable:
    """Return the table of detached ``rows`` ``[B, d]``.

    Example:
        >>> import torch
        >>> from classmargin.mr2.class_groups import group_compact
        >>> table = batch_table(torch.tensor([[1.0], [5.0], [1.0]]), group_compact(torch.tensor([0, 1, 0])))
        >>> round(3 * table.pull(0.0, 1.0, 1.0, False)[0], 4)  # two rows with one classmate at distance 0: 2 ln 2
        1.3863
    """
    return table_maker()(rows, groups)


@lru_cache(maxsize=1)
def table_maker() -> Callable[[Tensor, CompactGroups], BatchTable]:
    """Return the quickest way at hand; ``CLASSMARGIN_FAST=0`` in the environment leaves Numba alone."""
    if os.environ.get("CLASSMARGIN_FAST") == "0" or importlib.util.find_spec("numba") is None:
        return tabulate
    try:
        from classmargin.mr2.compiled_table import CompiledTable
    except ImportError as error:  # Numba is there and does not fit this Python or NumPy
        warnings.warn(f"Numba cannot be used, the loss goes on without it: {error}", RuntimeWarning)
        return tabulate
    return CompiledTable

"""What the loop expects of the data package, which it never imports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from classmargin._types import Batch
from classmargin.methods.base import SamplerKind


class BatchLoader(Protocol):
    """Batches of a split; the same seed, epoch and step give the same batch, wherever one starts."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        ...

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from ``start_step`` on."""
        ...


class Loaders(Protocol):
    """Where the loop gets its batches from (this process's share of them)."""

    def training(
        self, *, sampler: SamplerKind | None, views: int | None, multiplicity: Tensor | None
    ) -> BatchLoader:
        """Return shuffled, augmented training batches; None takes what the method asked for."""
        ...

    def evaluation(self, split: str) -> BatchLoader | None:
        """Return a split in index order without augmentation, or None if it has no samples."""
        ...

"""Makes batches step by step, here or in worker processes; the result does not depend on where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from classmargin.data.augment import Address, Augmenter
from classmargin.data.errors import CorruptImageError
from classmargin.data.images import corrupt_message, find_corrupt
from classmargin.data.raw import IntArray

Piece = tuple[IntArray, Tensor]
# How long the rest of a set is searched after one corrupt file has stopped the run, to name the others too.
_SEARCH_SECONDS = 30.0


@dataclass(frozen=True, eq=False)
class StepMaker(Dataset[Any]):
    """One epoch as a list: item ``step`` is this process's share of that step's global batch.

    Being a list is what makes worker processes harmless: whichever makes an item, it is the same.
    """

    augmenter: Augmenter
    plan: list[IntArray]
    views: int
    seed: int
    epoch: int
    rank: int
    world_size: int

    def __len__(self) -> int:
        return len(self.plan)

    def make(self, step: int) -> Piece:
        """Return the rows of this process's shard and its augmented inputs, view after view."""
        batch = self.plan[step]
        shard = shard_of(len(batch), self.rank, self.world_size)
        address = Address(self.seed, self.epoch, step, shard, len(batch))
        rows = batch[shard]
        views = [self.augmenter.make(rows, address, view) for view in range(self.views)]
        return rows, torch.from_numpy(views[0] if len(views) == 1 else np.concatenate(views))

    def __getitem__(self, step: int) -> Piece | CorruptImageError:
        # Returned, not raised: a worker's exception would arrive wrapped in the text of its traceback.
        try:
            return self.make(step)
        except CorruptImageError as error:
            return error


def shard_of(count: int, rank: int, world_size: int) -> slice:
    """Return the contiguous rows of a batch that belong to ``rank``; the first ranks get the remainder.

    Example:
        >>> shard_of(5, 0, 2), shard_of(5, 1, 2)
        (slice(0, 3, None), slice(3, 5, None))
    """
    each, rest = divmod(count, world_size)
    start = rank * each + min(rank, rest)
    return slice(start, start + each + (1 if rank < rest else 0))


def stream_steps(maker: StepMaker, start_step: int, workers: int) -> Iterator[Piece]:
    """Yield the items of ``maker`` from ``start_step`` on, made by ``workers`` processes ahead of time."""
    items: Any = DataLoader(
        maker,
        batch_size=None,
        sampler=range(start_step, len(maker)),
        num_workers=workers,
        collate_fn=_unchanged,
        # Its own generator: the loader draws a seed for its workers and must not advance the global one.
        generator=torch.Generator(),
    )
    for item in items:
        if isinstance(item, CorruptImageError):
            raise _with_count(maker.augmenter, item)
        yield item


def _unchanged(item: Any) -> Any:
    return item


def _with_count(augmenter: Augmenter, first: CorruptImageError) -> CorruptImageError:
    """Return an error that names and counts the corrupt files which a short search of the split finds."""
    images = augmenter.split.images
    assert images is not None
    corrupt, looked_at = find_corrupt(images, time_limit=_SEARCH_SECONDS)
    reasons = list(dict.fromkeys([*str(first).split("; "), *corrupt.values()]))
    return CorruptImageError(corrupt_message(reasons, looked_at, len(images)))

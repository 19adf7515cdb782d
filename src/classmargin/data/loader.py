"""Batches for training and evaluation, ready for the network.

Every batch is a pure function of (seed, epoch, step): a run resumed at a step or another number of workers or processes change
neither samples nor order nor augmentation. Processes take contiguous shards of the global batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from classmargin._checks import check_choice, check_int
from classmargin._types import Batch
from classmargin.data.bundle import DataBundle
from classmargin.data.images import CORRUPT_HINT
from classmargin.data.pixels import AUGMENTATIONS, Augmenter, bring_to_size, normalise
from classmargin.data.raw import CorruptImageError, IntArray
from classmargin.data.sampling import ClassBalanced, InOrder, Sampler, Shuffled, repeated_rows, stream

SAMPLERS = ("plain", "class-balanced")
SAMPLES_PER_CLASS = 4


@dataclass(frozen=True, eq=False)
class BatchLoader:
    """Hands out the batches of one split, epoch by epoch; made by :func:`make_loader`.

    Attributes:
        batch_size: Size of a full global batch.
    """

    batch_size: int
    _sampler: Sampler
    _maker: StepMaker
    _workers: int

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        return self._sampler.steps

    def epoch(
        self,
        epoch: int,
        start_step: int = 0,
        *,
        device: torch.device | str = "cpu",
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> Iterator[Batch]:
        """Yield the batches of ``epoch`` from ``start_step`` on; a streamed file that is corrupt is a CorruptImageError.

        Images travel to ``device`` as bytes, from pinned memory to a CUDA device, and become numbers there, in ``memory_format``.
        """
        check_int("epoch", epoch, minimum=0)
        check_int("start_step", start_step, minimum=0)
        place = torch.device(device)
        maker = replace(self._maker, epoch=epoch, plan=self._sampler.plan(epoch))
        bundle, split, views = maker.augmenter.bundle, maker.augmenter.split, maker.views
        items: Any = DataLoader(
            maker,
            batch_size=None,
            sampler=range(start_step, len(maker)),
            num_workers=self._workers if bundle.streamed else 0,
            # Its own generator: the loader draws a seed for its workers and must not advance the global one.
            generator=torch.Generator(),
        )
        for item in items:
            if isinstance(item, CorruptImageError):
                raise CorruptImageError(f"images cannot be read: {item}. {CORRUPT_HINT}")
            rows, pixels = item
            labels, index = (column[rows].repeat(views) for column in (split.labels, split.index))
            parts: tuple[Tensor, ...] = (pixels, labels, index)
            if place.type == "cuda":  # only from pinned memory the host continues while it is copied
                parts = tuple(part.pin_memory() for part in parts)
            pixels, labels, index = (part.to(place, non_blocking=True) for part in parts)
            yield Batch(_network_inputs(bundle, pixels, memory_format), labels, index, views)


def _network_inputs(bundle: DataBundle, pixels: Tensor, layout: torch.memory_format) -> Tensor:
    if bundle.kind != "images":
        return pixels if bundle.kind == "text" else pixels.to(torch.float32)
    height, width = bundle.input_shape[1:]
    numbers = normalise(pixels, bundle.mean, bundle.std, memory_format=layout)
    sized = bring_to_size(numbers, (height, width), bundle.framing.interpolation)
    return sized.contiguous(memory_format=layout)


def make_loader(
    bundle: DataBundle,
    split_name: str,
    *,
    batch_size: int,
    training: bool,
    augmentation: str = "none",
    spared: tuple[int, ...] = (),
    views: int = 1,
    sampler: str = "plain",
    multiplicity: Tensor | None = None,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
) -> BatchLoader:
    """Return a loader of one split.

    In training the samples are shuffled (or drawn P x M) and augmented, and the incomplete batch at the end of an epoch is
    left out (unless it is the only one). In evaluation every sample comes once, in order, without augmentation.

    Args:
        bundle: A loaded data set.
        split_name: ``"train"``, ``"validation"`` or ``"test"``.
        batch_size: Size of the *global* batch, over all processes; a multiple of ``world_size``.
        training: Whether to shuffle and augment.
        augmentation: ``"none"``; ``"standard"`` (pad-and-crop with mirroring for images in memory, random
            resized crop with mirroring for streamed images of more than 64 pixels); ``"randaugment"`` or
            ``"autoaugment"``, applied after the standard one.
        spared: Classes that do without the last step of the augmentation: the policy, or the standard one where there is none.
        views: Augmented versions of every sample.
        sampler: ``"plain"`` or ``"class-balanced"`` (four samples of each of ``batch_size / 4`` classes).
        multiplicity: How often each training sample counts in an epoch: integers, one for each sample of the
            split or one for each position of the full set (see ``Split.index``).
        seed: Seed of order and augmentation.
        rank: Number of this process.
        world_size: Number of processes. Shards are contiguous. An incomplete batch is cut as evenly as
            possible, so that a process may get one sample less, or none.
        workers: Processes that decode streamed images ahead of time; never changes what comes out.

    Example:
        >>> from classmargin.data import load_data
        >>> loader = make_loader(load_data("fashion-mnist-mini"), "train", batch_size=100, training=True,
        ...                      augmentation="standard")
        >>> batch = next(loader.epoch(0))
        >>> len(loader), tuple(batch.inputs.shape)
        (45, (100, 1, 28, 28))
    """
    split = bundle.split(split_name)
    check_int("batch_size", batch_size, minimum=1)
    check_int("views", views, minimum=1)
    check_int("world_size", world_size, minimum=1)
    check_int("rank", rank, minimum=0, maximum=world_size - 1)
    check_int("workers", workers, minimum=0)
    if batch_size % world_size:
        raise ValueError(f"batch_size must be a multiple of world_size={world_size}, got {batch_size}")
    check_int("seed", seed, minimum=0)
    check_choice("augmentation", augmentation, AUGMENTATIONS)
    inputs = bundle.train.inputs
    if augmentation != "none" and (not training or bundle.kind != "images"):
        where = bundle.kind if training else "evaluation"
        raise ValueError(f"augmentation must be 'none' for {where}, got {augmentation!r}")
    if augmentation not in ("none", "standard") and inputs is not None and inputs.dtype != torch.uint8:
        raise ValueError(f"augmentation {augmentation!r} needs images of bytes, but {bundle.name} holds {inputs.dtype}")
    check_choice("sampler", sampler, SAMPLERS)
    maker = StepMaker(Augmenter(bundle, split, augmentation, spared), views, seed, rank, world_size)
    if not training:
        if multiplicity is not None or sampler != "plain":
            raise ValueError("sampler and multiplicity are for training; evaluation visits every sample once, in order")
        return BatchLoader(batch_size, InOrder(len(split), batch_size), maker, workers)
    rows = repeated_rows(len(split), multiplicity, split.index, split.full_size)
    if len(rows) == 0:
        raise ValueError("the split to train on is empty")
    if sampler == "plain":
        return BatchLoader(batch_size, Shuffled(rows, batch_size, seed=seed), maker, workers)
    labels = split.labels.numpy()[rows]
    balanced = ClassBalanced(rows, labels, batch_size=batch_size, samples_per_class=SAMPLES_PER_CLASS, seed=seed)
    return BatchLoader(batch_size, balanced, maker, workers)


@dataclass(frozen=True, eq=False)
class StepMaker(Dataset[Any]):
    """One epoch as a list, the same whichever worker makes an item: this process's share of that step's global batch."""

    augmenter: Augmenter
    views: int
    seed: int
    rank: int
    world_size: int
    epoch: int = 0
    plan: list[IntArray] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor] | CorruptImageError:
        """Return the rows of this process's shard and its augmented inputs, view after view."""
        batch = self.plan[step]
        mine = shard_of(len(batch), self.rank, self.world_size)
        random = partial(stream, seed=self.seed, epoch=self.epoch, step=step)
        try:
            views = [self.augmenter.make(batch, mine, partial(random, view=view)) for view in range(self.views)]
        except CorruptImageError as error:
            return error  # not raised: a worker's exception would arrive wrapped in the text of its traceback
        return torch.from_numpy(batch[mine]), torch.from_numpy(views[0] if len(views) == 1 else np.concatenate(views))


def shard_of(count: int, rank: int, world_size: int) -> slice:
    """Return the contiguous rows of a batch that belong to ``rank``; the first ranks get the remainder."""
    each, rest = divmod(count, world_size)
    start = rank * each + min(rank, rest)
    return slice(start, start + each + (1 if rank < rest else 0))

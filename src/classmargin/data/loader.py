"""Batches for training and evaluation, ready for the network.

Every batch is a pure function of (seed, epoch, step): a run resumed at a step, a different number of workers
or of processes change neither the samples nor their order nor their augmentation. The global batch comes
first; processes then take contiguous shards of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from classmargin._checks import check_choice, check_int
from classmargin._types import Batch
from classmargin.data.bundle import DataBundle, Split
from classmargin.data.images import corrupt_message, find_corrupt
from classmargin.data.pixels import AUGMENTATIONS, Address, Augmenter, bring_to_size, normalise
from classmargin.data.raw import CorruptImageError, IntArray
from classmargin.data.sampling import ClassBalanced, InOrder, Sampler, Shuffled, repeated_rows

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
        """Yield the batches of ``epoch`` from ``start_step`` on.

        Streamed images are decoded ``workers`` processes ahead; data in memory need no workers. Images travel to
        ``device`` as bytes, from pinned memory to a CUDA device, and become numbers there, in ``memory_format``.

        Raises:
            CorruptImageError: a streamed file cannot be decoded.
        """
        check_int("epoch", epoch, minimum=0)
        check_int("start_step", start_step, minimum=0)
        maker = replace(self._maker, epoch=epoch, plan=self._sampler.plan(epoch))
        place = torch.device(device)
        if maker.augmenter.bundle.streamed:
            pieces = stream_steps(maker, start_step, self._workers)
        else:
            pieces = (maker.make(step) for step in range(start_step, len(self)))
        for rows, pixels in pieces:
            yield self._batch(rows, pixels, place, memory_format)

    def _batch(
        self, rows: IntArray, pixels: Tensor, device: torch.device, layout: torch.memory_format
    ) -> Batch:
        split, views, chosen = self._maker.augmenter.split, self._maker.views, torch.from_numpy(rows)
        parts = (pixels, split.labels[chosen].repeat(views), split.index[chosen].repeat(views))
        pixels, labels, index = (_moved(part, device) for part in parts)
        inputs = _network_inputs(self._maker.augmenter.bundle, pixels, layout)
        return Batch(inputs=inputs, labels=labels, index=index, views=views)


def _network_inputs(bundle: DataBundle, pixels: Tensor, layout: torch.memory_format) -> Tensor:
    if bundle.kind != "images":
        return pixels if bundle.kind == "text" else pixels.to(torch.float32)
    height, width = bundle.input_shape[1:]
    numbers = normalise(pixels, bundle.mean, bundle.std, memory_format=layout)
    sized = bring_to_size(numbers, (height, width), bundle.framing.interpolation)
    return sized.contiguous(memory_format=layout)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return tensor
    # The host continues while the copy is under way, which is possible from pinned memory only.
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


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
    left out; a set smaller than one batch is one smaller batch. In evaluation every sample comes once, in order, without
    augmentation. ``Batch.inputs`` is float32, normalised, ``[V * b, C, H, W]`` view
    after view, features ``[b, d]`` or token numbers ``[b, T]`` (int64); ``b`` is this process's share of the global batch.

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
    _check_sizes(batch_size, views, rank, world_size, workers)
    check_int("seed", seed, minimum=0)
    _check_augmentation(bundle, augmentation, views, training=training)
    check_choice("sampler", sampler, SAMPLERS)
    if not training and (multiplicity is not None or sampler != "plain"):
        raise ValueError(
            "sampler and multiplicity are for training; evaluation visits every sample once, in order"
        )
    chosen: Sampler
    if not training:
        chosen = InOrder(len(split), batch_size)
    else:
        rows = repeated_rows(len(split), multiplicity, split.index, split.full_size)
        chosen = _training_sampler(split, rows, sampler, batch_size, seed)
    maker = StepMaker(Augmenter(bundle, split, augmentation, spared), views, seed, rank, world_size)
    return BatchLoader(batch_size, chosen, maker, workers)


def _check_sizes(batch_size: int, views: int, rank: int, world_size: int, workers: int) -> None:
    check_int("batch_size", batch_size, minimum=1)
    check_int("views", views, minimum=1)
    check_int("world_size", world_size, minimum=1)
    check_int("rank", rank, minimum=0)
    check_int("workers", workers, minimum=0)
    if rank >= world_size:
        raise ValueError(f"rank must be below world_size={world_size}, got {rank}")
    if batch_size % world_size:
        raise ValueError(f"batch_size must be a multiple of world_size={world_size}, got {batch_size}")


def _check_augmentation(bundle: DataBundle, augmentation: str, views: int, *, training: bool) -> None:
    check_choice("augmentation", augmentation, AUGMENTATIONS)
    if augmentation == "none":
        return
    if not training:
        raise ValueError(f"augmentation must be 'none' for evaluation, got {augmentation!r}")
    if bundle.kind != "images":
        raise ValueError(
            f"augmentation must be 'none' for {bundle.kind}, got {augmentation!r}; only images are augmented"
        )
    inputs = bundle.train.inputs
    if augmentation != "standard" and inputs is not None and inputs.dtype != torch.uint8:
        raise ValueError(
            f"augmentation {augmentation!r} needs images of bytes, but {bundle.name} holds {inputs.dtype}"
        )


def _training_sampler(split: Split, rows: IntArray, sampler: str, batch_size: int, seed: int) -> Sampler:
    if len(rows) == 0:
        raise ValueError("the split to train on is empty")
    if sampler == "class-balanced":
        labels: Any = split.labels.numpy()
        return ClassBalanced(
            rows,
            labels[rows],
            num_classes=split.num_classes,
            batch_size=batch_size,
            samples_per_class=SAMPLES_PER_CLASS,
            seed=seed,
        )
    return Shuffled(rows, batch_size, seed=seed)


Piece = tuple[IntArray, Tensor]
# How long the rest of a set is searched after one corrupt file has stopped the run, to name the others too.
_SEARCH_SECONDS = 30.0


@dataclass(frozen=True, eq=False)
class StepMaker(Dataset[Any]):
    """One epoch as a list: item ``step`` is this process's share of that step's global batch.

    Being a list is what makes worker processes harmless: whichever makes an item, it is the same.
    """

    augmenter: Augmenter
    views: int
    seed: int
    rank: int
    world_size: int
    epoch: int = 0
    plan: list[IntArray] = field(default_factory=list)

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

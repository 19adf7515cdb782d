"""The data package behind the two questions the loop asks of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from classmargin.data import BatchLoader, DataBundle, Framing, make_loader
from classmargin.methods.base import Requirements, SamplerKind
from classmargin.training.config import DataConfig

EVALUATION_BATCH = 256


def framing_of(data: DataConfig) -> Framing:
    """Return how the configured run cuts photographs."""
    return Framing(data.crop_scale, data.centre_share, data.interpolation, data.flip)


@dataclass(frozen=True)
class BundleLoaders:
    """Batches of a loaded data set, this process's share of them.

    Attributes:
        bundle: The data.
        needs: What the method asked for (views, sampler).
        batch_size: Samples of one optimiser step over all processes.
        augmentation: Training transform by name.
        seed: Of order and augmentation.
        rank: Number of this process.
        world_size: Number of processes.
        workers: Worker processes for streamed data.
    """

    bundle: DataBundle
    needs: Requirements
    batch_size: int
    augmentation: str
    seed: int
    rank: int = 0
    world_size: int = 1
    workers: int = 0

    def training(
        self, *, sampler: SamplerKind | None, views: int | None, multiplicity: Tensor | None
    ) -> BatchLoader:
        """Return shuffled, augmented training batches; None takes what the method asked for."""
        images = self.bundle.kind == "images"
        return make_loader(
            self.bundle,
            "train",
            batch_size=self.batch_size,
            training=True,
            augmentation=self.augmentation if images else "none",
            views=views if views is not None else self.needs.views,
            sampler=sampler if sampler is not None else self.needs.sampler,
            multiplicity=multiplicity,
            seed=self.seed,
            rank=self.rank,
            world_size=self.world_size,
            workers=self.workers,
        )

    def evaluation(self, split: str) -> BatchLoader | None:
        """Return a split in index order without augmentation, or None if it has no samples."""
        if len(self.bundle.split(split)) == 0:
            return None
        return make_loader(
            self.bundle,
            split,
            batch_size=EVALUATION_BATCH * self.world_size,
            training=False,
            rank=self.rank,
            world_size=self.world_size,
            workers=self.workers,
        )

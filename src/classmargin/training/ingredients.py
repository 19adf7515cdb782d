"""What the loop works on: data, network and method, which arrive as arguments, and what hooks see of the training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from classmargin._types import Batch
from classmargin.methods.base import Method, SamplerKind, Step
from classmargin.training.evaluate import Place, evaluation_mode, forward_batches
from classmargin.training.process_state import average_running_statistics


class BatchLoader(Protocol):
    """Batches of a split; the same seed, epoch and step give the same batch, wherever one starts."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        ...

    def epoch(
        self,
        epoch: int,
        start_step: int = 0,
        *,
        device: torch.device | str = "cpu",
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> Iterator[Batch]:
        """Yield the batches of an epoch from ``start_step`` on, on a device and (of images) in a memory format."""
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


@dataclass(frozen=True)
class Ingredients:
    """What arrives as arguments.

    Attributes:
        network: Freshly built.
        method: Built for this task.
        new_network: Builds another network like it (for stages that start afresh).
        loaders: Batches.
        class_names: In label order.
        teacher: Class probabilities of each training sample by its index, ``[N, K]``, in place of the classes.
    """

    network: nn.Module
    method: Method
    new_network: Callable[[], nn.Module]
    loaders: Loaders
    class_names: tuple[str, ...]
    teacher: Tensor | None = None


class Position(NamedTuple):
    """Where the training is, counted in finished things."""

    stage: int = 0
    stage_epoch: int = 0
    step: int = 0
    epoch: int = 0
    global_step: int = 0


@dataclass
class HookContext:
    """The :class:`classmargin.methods.base.LoopContext` of the loop.

    Attributes:
        model: The network that is trained.
        epoch: Epochs finished, over all stages.
        epochs: Epochs of the whole training.
        stage: Position of the running stage.
        global_step: Optimiser steps finished.
        batches: Starts a pass over the training set in index order.
        place: Where the network is.
    """

    model: nn.Module
    epoch: int
    epochs: int
    stage: int
    global_step: int
    batches: Callable[[], Iterator[Batch]]
    place: Place

    def training_pass(self) -> Iterator[Step]:
        """Forward this process's share of the training set: evaluation mode, no gradient, in index order."""
        average_running_statistics(self.model)
        with evaluation_mode(self.model):
            for batch, output in forward_batches(self.model, self.batches(), self.place):
                yield Step(
                    output.logits, output.features, batch.labels, batch.index, batch.inputs, model=self.model,
                    epoch=self.epoch, global_step=self.global_step, stage=self.stage,
                )  # fmt: skip

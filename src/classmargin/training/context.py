"""What the hooks of a method see of the loop: where it is, and a pass over the training set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from classmargin.methods.base import Step
from classmargin.training.evaluate import evaluation_mode, forward_batches
from classmargin.training.loaders import BatchLoader
from classmargin.training.module import Position
from classmargin.training.running_statistics import average_running_statistics


@dataclass
class HookContext:
    """The :class:`classmargin.methods.base.LoopContext` of the loop.

    Attributes:
        model: The network that is trained.
        epoch: Epochs finished, over all stages.
        epochs: Epochs of the whole training.
        stage: Position of the running stage.
        global_step: Optimiser steps finished.
        make_pass: Starts a pass over the training set.
    """

    model: nn.Module
    epoch: int
    epochs: int
    stage: int
    global_step: int
    make_pass: Callable[[], Iterator[Step]]

    def training_pass(self) -> Iterator[Step]:
        """Forward every training sample once: evaluation mode and transform, no gradient, in index order."""
        return self.make_pass()


def training_pass(network: nn.Module, loader: BatchLoader, position: Position, fabric: Any) -> Iterator[Step]:
    """Yield this process's share of the training set after the forward pass, batch by batch."""
    average_running_statistics(network)
    with evaluation_mode(network):
        for batch, output in forward_batches(network, loader.epoch(0), fabric):
            yield Step(
                logits=output.logits,
                features=output.features,
                labels=batch.labels,
                index=batch.index,
                inputs=batch.inputs,
                model=network,
                epoch=position.epoch,
                global_step=position.global_step,
                stage=position.stage,
            )

"""Network and method as one module, and a batch as micro-batches.

One module, because data-parallel wrappers synchronise the gradients of what they wrap: the method's own
parameters (centres, twin network, projection head) must be inside as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from classmargin._distributed import all_reduce_sum, is_distributed
from classmargin._types import Batch
from classmargin.methods.base import Method, MethodLoss, Step


class Position(NamedTuple):
    """Where the training is, counted in finished things."""

    stage: int = 0
    stage_epoch: int = 0
    step: int = 0
    epoch: int = 0
    global_step: int = 0


class TrainedModule(nn.Module):
    """Forward pass and loss in one call.

    Args:
        network: Maps inputs to ``ModelOutput``.
        method: Maps the step to a loss.
        staged: Whether the method trains different parts in different stages.

    Attributes:
        may_skip_parameters: Whether a step may leave trainable parameters without gradient; data-parallel
            wrappers then have to look for them, which costs a little at each step.
    """

    def __init__(self, network: nn.Module, method: Method, *, staged: bool = False) -> None:
        super().__init__()
        self.network = network
        self.method = method
        self.may_skip_parameters = staged or any(p.requires_grad for p in method.parameters())
        self._keep_step = type(method).on_step_end is not Method.on_step_end

    def forward(
        self,
        inputs: Tensor,
        labels: Tensor,
        index: Tensor,
        views: int,
        position: Position,
        update_state: bool,
        plain: bool,
    ) -> tuple[MethodLoss, tuple[Tensor, Tensor] | None]:
        """Return the loss and, for methods that look at a step after it, detached features and logits.

        Args:
            inputs: ``[V*B, ...]``.
            labels: ``[V*B]``.
            index: ``[V*B]``.
            views: ``V``.
            position: Where the training is.
            update_state: Whether the method may change its state.
            plain: Leave a compiled network out of it (a batch of unusual size would be compiled anew).
        """
        output = self.network.forward(inputs) if plain else self.network(inputs)
        step = Step(
            output.logits, output.features, labels, index, inputs, views, self.network,
            position.epoch, position.global_step, position.stage,
        )  # fmt: skip
        loss = self._loss_of(step, update_state)
        return loss, (output.features.detach(), output.logits.detach()) if self._keep_step else None

    def _loss_of(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the method's loss; a loss that is not a number if the method refused features that are none.

        An exception on one process would leave the others waiting; a number that is none is something that
        all of them agree on, and the state is saved.
        """
        try:
            return self.method.loss(step, update_state)
        except ValueError:
            if bool(torch.isfinite(step.features).all() and torch.isfinite(step.logits).all()):
                raise
            return MethodLoss(step.logits.sum() * float("nan"), {})


@contextlib.contextmanager
def state_kept_precise(method: Method) -> Iterator[None]:
    """Let the state of a method keep its precision while the block brings modules to half precision.

    Sums, averages and logarithms that grow by small steps stand still in eight bits. Running statistics of
    normalisation layers (of a twin network) are not state of the method: they have to be of the type of its weights.
    """
    own = [module for module in method.modules() if not hasattr(module, "running_mean")]
    before = [
        (module, name, buffer) for module in own for name, buffer in module.named_buffers(recurse=False)
    ]
    yield
    for module, name, buffer in before:
        if buffer.is_floating_point() and getattr(module, name).element_size() < buffer.element_size():
            setattr(module, name, buffer.to(getattr(module, name).device))


@dataclass(frozen=True)
class MicroBatch:
    """A part of one rank's share of a batch, and its weight in the loss of the whole batch."""

    batch: Batch
    weight: float


def split_batch(batch: Batch, parts: int) -> list[MicroBatch]:
    """Cut a batch into ``parts`` micro-batches whose weighted mean losses add up to the loss of the whole.

    All views of a sample stay together. Under several processes the number of parts is what the smallest
    share allows, and weights are those of the global batch, so that every process makes the same calls.

    Example:
        >>> batch = Batch(torch.arange(5.0)[:, None], torch.zeros(5, dtype=torch.long), torch.arange(5))
        >>> [(len(micro.batch.labels), micro.weight) for micro in split_batch(batch, 2)]
        [(3, 0.6), (2, 0.4)]
    """
    if parts == 1:
        return [MicroBatch(batch, 1.0)]
    samples = batch.labels.shape[0] // batch.views
    # Two samples at least: batch normalisation cannot train on one.
    parts = max(1, min(parts, _smallest(samples, batch.labels.device) // 2))
    device = batch.labels.device  # collective operations of accelerators need their own tensors
    rows = torch.arange(samples, device=device).tensor_split(parts)
    lengths = torch.tensor([len(part) for part in rows], dtype=torch.float64, device=device)
    sizes = all_reduce_sum(lengths)
    weights = (sizes / sizes.sum()).tolist()
    return [
        MicroBatch(_rows(batch, part, samples), weight) for part, weight in zip(rows, weights, strict=True)
    ]


def _smallest(samples: int, device: torch.device) -> int:
    if not is_distributed():
        return samples
    smallest = torch.tensor(samples, device=device)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    return int(smallest)


def _rows(batch: Batch, rows: Tensor, samples: int) -> Batch:
    every_view = torch.cat([rows + view * samples for view in range(batch.views)])
    return Batch(batch.inputs[every_view], batch.labels[every_view], batch.index[every_view], batch.views)

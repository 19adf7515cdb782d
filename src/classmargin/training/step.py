"""One optimiser step: network and method as one module, a batch as micro-batches, and the method's way of stepping.

One module, because data-parallel wrappers synchronise the gradients of what they wrap: the method's own parameters
(centres, twin network, projection head) must be inside as well.

The processes must agree on whether the loss is still a number, whether someone asked to stop, and whether it is time to
save: one small all-reduce. Reading a number from an accelerator makes the host wait, so there it is done every
``CHECK_EVERY`` steps; a broken loss is then found some steps late, and reported with the step and the samples it came
from.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from classmargin._distributed import all_reduce_sum, is_distributed
from classmargin._types import Batch
from classmargin.methods.base import Method, MethodLoss, Step
from classmargin.training.config import RunConfig


class Position(NamedTuple):
    """Where the training is, counted in finished things."""

    stage: int = 0
    stage_epoch: int = 0
    step: int = 0
    epoch: int = 0
    global_step: int = 0


class TrainedModule(nn.Module):
    """Forward pass and loss in one call; ``staged`` methods train different parts in different stages."""

    def __init__(self, network: nn.Module, method: Method, *, staged: bool = False) -> None:
        super().__init__()
        self.network = network
        self.method = method
        # Data-parallel wrappers then look for parameters without gradient, which costs a little at each step.
        self.may_skip_parameters = staged or any(p.requires_grad for p in method.parameters())
        self._keep_step = getattr(method.on_step_end, "__func__", None) is not Method.on_step_end

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
        """Return the loss and, for methods that look at a step after it, detached features and logits."""
        output = self.network.forward(inputs) if plain else self.network(inputs)
        step = Step(
            output.logits,
            output.features,
            labels,
            index,
            inputs,
            views,
            self.network,
            position.epoch,
            position.global_step,
            position.stage,
        )
        try:
            loss = self.method.loss(step, update_state)
        except ValueError:
            if bool(torch.isfinite(step.features).all() and torch.isfinite(step.logits).all()):
                raise
            # An exception on one process would leave the others waiting; NaN is something that all of them can agree on,
            # and the state is saved.
            loss = MethodLoss(step.logits.sum() * float("nan"), {})
        return loss, (output.features.detach(), output.logits.detach()) if self._keep_step else None


@contextlib.contextmanager
def state_kept_precise(method: Method) -> Iterator[None]:
    """Let the state of a method keep its precision in the block: small steps stand still in eight bits.

    Running statistics of normalisation layers (of a twin network) have to be of the type of its weights.
    """
    own = [module for module in method.modules() if not hasattr(module, "running_mean")]
    before = [(module, name, buffer) for module in own for name, buffer in module.named_buffers(recurse=False)]
    yield
    for module, name, buffer in before:
        if buffer.is_floating_point() and getattr(module, name).element_size() < buffer.element_size():
            setattr(module, name, buffer.to(getattr(module, name).device))


class MicroBatch(NamedTuple):
    """A part of one rank's share of a batch, and its weight in the loss of the whole batch."""

    batch: Batch
    weight: float


def split_batch(batch: Batch, parts: int, *, even: bool = False) -> list[MicroBatch]:
    """Cut a batch into micro-batches whose weighted mean losses add up to that of the whole.

    The smallest share of all processes decides how many, so that they make the same calls; ``even`` shares need not
    ask.
    """
    if parts == 1:
        return [MicroBatch(batch, 1.0)]
    samples = batch.labels.shape[0] // batch.views
    device = batch.labels.device  # collective operations of accelerators need their own tensors
    alone = even or not is_distributed()
    smallest = samples
    if not alone:
        shared = torch.tensor(samples, device=device)
        dist.all_reduce(shared, op=dist.ReduceOp.MIN)
        smallest = int(shared)
    # Two samples at least: batch normalisation cannot train on one.
    parts = max(1, min(parts, smallest // 2))
    rows = torch.arange(samples, device=device).tensor_split(parts)
    lengths = [float(len(part)) for part in rows]
    if not alone:
        lengths = all_reduce_sum(torch.tensor(lengths, dtype=torch.float64, device=device)).tolist()
    return [
        MicroBatch(_rows(batch, part, samples), length / sum(lengths))
        for part, length in zip(rows, lengths, strict=True)
    ]


def _rows(batch: Batch, rows: Tensor, samples: int) -> Batch:
    every_view = torch.cat([rows + view * samples for view in range(batch.views)])
    return Batch(batch.inputs[every_view], batch.labels[every_view], batch.index[every_view], batch.views)


# Steps between two readings of the loss on an accelerator; on the CPU nothing is gained by waiting.
CHECK_EVERY = 16


class NotFiniteError(ArithmeticError):
    """The loss of a step is not a finite number; ``index`` are its samples."""

    def __init__(self, value: float, position: Position, index: Tensor) -> None:
        super().__init__(f"the loss is {value}")
        self.position, self.index = position, index


def steps_between_checks(device: torch.device) -> int:
    """Return every how many steps the host reads what the device has computed."""
    return 1 if device.type == "cpu" else CHECK_EVERY


class Stepper:
    """Steps network and method over one batch; ``wishes`` says whether this process wants to stop and wants to save."""

    def __init__(
        self,
        fabric: Any,
        module: TrainedModule,
        optimizer: torch.optim.Optimizer,
        config: RunConfig,
        wishes: Callable[[], tuple[bool, bool]],
    ) -> None:
        self._method, self._network, self._wishes = module.method, module.network, wishes
        self._accumulate, self._clip_norm = config.loop.accumulate, config.optimizer.clip_norm
        with state_kept_precise(module.method):
            self._wrapped, self._optimizer = fabric.setup(module, optimizer)
        self._fabric = fabric
        # In one process in full precision Fabric's wrapper only hands the call on, for a tenth of the time of a small step.
        adds_nothing = fabric.world_size == 1 and fabric.strategy.precision.precision == "32-true"
        self._forward = self._wrapped.module if adds_nothing else self._wrapped
        self._parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        self._agreement = False, False
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._unread: list[tuple[Tensor, Position, list[Tensor]]] = []

    def step(
        self, batch: Batch, position: Position, *, full: bool, check: bool
    ) -> tuple[MethodLoss, tuple[bool, bool]]:
        """Do one step on this share of a batch (``full`` on all processes or none); return loss, stop and save.

        Losses and wishes are read only at a ``check``, the same for every process; a ``NotFiniteError`` is about any
        step since.
        """
        micro_batches = split_batch(batch, self._accumulate, even=full)
        self._seen, self._agreement = [], (False, False)
        closure = partial(self._closure, micro_batches, position, not full, check)
        loss = self._method.optimizer_step(closure, self._apply, self._network)
        if self._seen:
            with torch.no_grad():
                self._method.on_step_end(self._finished_step(micro_batches, position))
        return loss, self._agreement

    def _closure(
        self, micro_batches: list[MicroBatch], position: Position, plain: bool, check: bool, update_state: bool
    ) -> MethodLoss:
        # As zero_grad does, without its hooks: they take a twentieth of the time of a small step.
        for parameter in self._parameters:
            parameter.grad = None
        losses: list[tuple[float, MethodLoss]] = []
        for number, micro in enumerate(micro_batches):
            last = number == len(micro_batches) - 1
            batch = micro.batch
            with self._fabric.no_backward_sync(self._wrapped, enabled=not last):
                # State changes once per step, with the first micro-batch: all see the same statistics.
                loss, seen = self._forward(
                    batch.inputs, batch.labels, batch.index, batch.views, position, update_state and number == 0, plain
                )
                self._fabric.backward(loss.total if micro.weight == 1.0 else loss.total * micro.weight)
            losses.append((micro.weight, loss))
            # A pass that may not change state is at weights that the method only tries (SAM).
            if seen is not None and update_state:
                self._seen.append(seen)
        mean = _weighted(losses)
        # Only the index: the samples of many steps would fill the device.
        self._unread.append((mean.total.detach(), position, [micro.batch.index for micro in micro_batches]))
        if check:
            self._agreement = self._agree()
        return mean

    def _agree(self) -> tuple[bool, bool]:
        """Read the losses since the last time, and let the processes agree on whether to stop and to save."""
        unread, self._unread = self._unread, []
        stop, save = self._wishes()
        alone = len(unread) == 1  # as at each step on the CPU, where stacking would cost more than reading
        totals = [unread[0][0].item()] if alone else torch.stack([total for total, _, _ in unread]).tolist()
        broken = [number for number, total in enumerate(totals) if not math.isfinite(total)]
        first = broken[0] if broken else len(unread)
        if is_distributed():
            # The first broken step of all processes, counted from the end so that one maximum serves all three.
            flags = torch.tensor([len(unread) - first, stop, save], dtype=torch.int32, device=unread[0][0].device)
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
            from_end, stop, save = flags.tolist()
            first = len(unread) - from_end
        if first < len(unread):
            _, position, index = unread[first]
            raise NotFiniteError(totals[first], position, torch.cat(index))
        return bool(stop), bool(save)

    def _apply(self) -> None:
        if self._clip_norm is not None:
            self._fabric.clip_gradients(
                self._wrapped, self._optimizer, max_norm=self._clip_norm, error_if_nonfinite=False
            )
        self._optimizer.step()

    def _finished_step(self, micro_batches: list[MicroBatch], position: Position) -> Step:
        batches = [micro.batch for micro in micro_batches]
        features, logits = (torch.cat(parts) for parts in zip(*self._seen, strict=True))
        columns = ([batch.labels, batch.index, batch.inputs] for batch in batches)
        labels, index, inputs = (torch.cat(parts) for parts in zip(*columns, strict=True))
        return Step(
            logits,
            features,
            labels,
            index,
            inputs,
            batches[0].views,
            self._network,
            position.epoch,
            position.global_step,
            position.stage,
        )


def _weighted(losses: list[tuple[float, MethodLoss]]) -> MethodLoss:
    if len(losses) == 1:
        return losses[0][1]
    total = torch.stack([weight * loss.total.detach() for weight, loss in losses]).sum()
    # A micro-batch whose features were not finite has no parts.
    names = [name for name in losses[0][1].parts if all(name in loss.parts for _, loss in losses)]
    parts = {name: torch.stack([weight * loss.parts[name] for weight, loss in losses]).sum() for name in names}
    return MethodLoss(total, parts)

"""One optimiser step: forward and backward over the micro-batches, and the method's way of stepping.

The processes of a run must agree on three things at each step: whether the loss is still a number, whether
someone asked to stop, and whether it is time to save. One small all-reduce carries all three.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from classmargin._distributed import is_distributed
from classmargin._types import Batch
from classmargin.methods.base import Method, MethodLoss, Step
from classmargin.training.module import MicroBatch, Position, split_batch


class NotFiniteError(ArithmeticError):
    """The loss of a batch is not a finite number."""


@dataclass(frozen=True)
class Agreement:
    """What the processes agreed on at a step."""

    stop: bool = False
    save: bool = False


class Stepper:
    """Steps network and method over one batch.

    Args:
        fabric: Backward, clipping and gradient synchronisation.
        wrapped: The :class:`TrainedModule` as Fabric wrapped it.
        optimizer: The optimiser as Fabric wrapped it.
        method: Whose ``optimizer_step`` is called.
        network: The bare network, for methods that move its weights.
        accumulate: Micro-batches of a step.
        clip_norm: Largest gradient norm, or None.
        wishes: Says whether this process wants to stop and wants to save.
    """

    def __init__(
        self, fabric: Any, wrapped: Any, optimizer: Any, method: Method, network: nn.Module, *,
        accumulate: int, clip_norm: float | None, wishes: Callable[[], tuple[bool, bool]],
    ) -> None:  # fmt: skip
        self._fabric, self._wrapped, self._optimizer = fabric, wrapped, optimizer
        self._method, self._network = method, network
        self._accumulate, self._clip_norm, self._wishes = accumulate, clip_norm, wishes
        self._forward = wrapped.module if _wrapper_adds_nothing(fabric) else wrapped
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._agreement = Agreement()
        self._seen: list[tuple[Tensor, Tensor]] = []

    def step(self, batch: Batch, position: Position, *, plain: bool) -> tuple[MethodLoss, Agreement]:
        """Do one optimiser step on this process's share of a batch.

        Raises:
            NotFiniteError: The loss is not a number; no weight has moved.
        """
        micro_batches = split_batch(batch, self._accumulate)
        self._seen = []
        loss = self._method.optimizer_step(
            lambda update_state: self._closure(micro_batches, position, update_state, plain),
            self._apply,
            self._network,
        )
        if self._seen:
            with torch.no_grad():
                self._method.on_step_end(self._finished_step(micro_batches, position))
        return loss, self._agreement

    def _closure(
        self, micro_batches: list[MicroBatch], position: Position, update_state: bool, plain: bool
    ) -> MethodLoss:
        # As zero_grad does, without its hooks: they are a twentieth of a small step.
        for parameter in self._parameters:
            parameter.grad = None
        losses: list[tuple[float, MethodLoss]] = []
        for number, micro in enumerate(micro_batches):
            last = number == len(micro_batches) - 1
            batch = micro.batch
            with self._fabric.no_backward_sync(self._wrapped, enabled=not last):
                # State changes once a step, with the first micro-batch: all see the same statistics.
                loss, seen = self._forward(
                    batch.inputs,
                    batch.labels,
                    batch.index,
                    batch.views,
                    position,
                    update_state and number == 0,
                    plain,
                )
                self._fabric.backward(loss.total if micro.weight == 1.0 else loss.total * micro.weight)
            losses.append((micro.weight, loss))
            # A pass that may not change state is at weights that the method only tries (SAM).
            if seen is not None and update_state:
                self._seen.append(seen)
        mean = _weighted(losses)
        self._agreement = self._agree(mean.total)
        return mean

    def _agree(self, total: Tensor) -> Agreement:
        stop, save = self._wishes()
        finite = math.isfinite(total.item())
        if is_distributed():
            flags = torch.tensor([not finite, stop, save], dtype=torch.int32, device=total.device)
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
            not_finite, stop, save = (bool(flag) for flag in flags.tolist())
            finite = not not_finite
        if not finite:
            raise NotFiniteError(f"the loss is {total.item()}")
        return Agreement(stop, save)

    def _apply(self) -> None:
        if self._clip_norm is not None:
            self._fabric.clip_gradients(
                self._wrapped, self._optimizer, max_norm=self._clip_norm, error_if_nonfinite=False
            )
        self._optimizer.step()

    def _finished_step(self, micro_batches: list[MicroBatch], position: Position) -> Step:
        batches = [micro.batch for micro in micro_batches]
        features, logits = (torch.cat(parts) for parts in zip(*self._seen, strict=True))
        labels, index, inputs = (
            torch.cat([getattr(b, name) for b in batches]) for name in ("labels", "index", "inputs")
        )
        return Step(
            logits, features, labels, index, inputs, batches[0].views, self._network,
            position.epoch, position.global_step, position.stage,
        )  # fmt: skip


def _wrapper_adds_nothing(fabric: Any) -> bool:
    """Return whether Fabric's wrapper would only hand the call on: it costs a tenth of a small step."""
    return bool(fabric.world_size == 1 and fabric.strategy.precision.precision == "32-true")


def _weighted(losses: list[tuple[float, MethodLoss]]) -> MethodLoss:
    if len(losses) == 1:
        return losses[0][1]
    total = torch.stack([weight * loss.total.detach() for weight, loss in losses]).sum()
    # A micro-batch whose features were no numbers has no parts.
    names = [name for name in losses[0][1].parts if all(name in loss.parts for _, loss in losses)]
    parts = {
        name: torch.stack([weight * loss.parts[name] for weight, loss in losses]).sum() for name in names
    }
    return MethodLoss(total, parts)

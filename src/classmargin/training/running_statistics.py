"""Running means and variances of normalisation layers, which differ between processes within an epoch.

Each process sees its own share of every batch. At the end of an epoch they are averaged for good. A checkpoint
in between holds the averages (whoever reads it needs one network) *and* every process's own values: a run
that goes on from it must be where the uninterrupted one was, bit for bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from classmargin._distributed import is_distributed, rank, world_size
from classmargin.training.recorder import gather_objects


def running_statistics(module: nn.Module) -> dict[str, Tensor]:
    """Return the running means and variances of the layers of ``module``, by name.

    Example:
        >>> list(running_statistics(nn.Sequential(nn.BatchNorm1d(2))))
        ['0.running_mean', '0.running_var']
    """
    found = {
        f"{name}.{kind}": getattr(layer, kind, None)
        for name, layer in module.named_modules()
        for kind in ("running_mean", "running_var")
    }
    return {name: statistic for name, statistic in found.items() if isinstance(statistic, Tensor)}


def average_running_statistics(module: nn.Module) -> None:
    """Average them over the processes; without this, evaluation would depend on the rank."""
    if not is_distributed():
        return
    world = dist.get_world_size()
    for statistic in running_statistics(module).values():
        dist.all_reduce(statistic)
        statistic.div_(world)


@contextlib.contextmanager
def averaged(modules: Mapping[str, nn.Module]) -> Iterator[list[dict[str, Any]]]:
    """Let the modules hold averages while the block runs; yield each process's own values in rank order.

    In one process there is nothing to average and the list is empty.
    """
    if not is_distributed():
        yield []
        return
    own = {
        part: {name: value.clone() for name, value in running_statistics(module).items()}
        for part, module in modules.items()
    }
    on_cpu = {part: {name: value.cpu() for name, value in table.items()} for part, table in own.items()}
    everyone = gather_objects(on_cpu)
    for module in modules.values():
        average_running_statistics(module)
    try:
        yield everyone
    finally:
        _put_back(modules, own)


def restore_own(modules: Mapping[str, nn.Module], everyone: Sequence[Mapping[str, Any]]) -> None:
    """Give this process its own values of a checkpoint back; with another number of processes, keep averages."""
    if is_distributed() and len(everyone) == world_size():
        _put_back(modules, everyone[rank()])


def _put_back(modules: Mapping[str, nn.Module], values: Mapping[str, Mapping[str, Tensor]]) -> None:
    with torch.no_grad():
        for part, module in modules.items():
            for name, statistic in running_statistics(module).items():
                statistic.copy_(values[part][name])

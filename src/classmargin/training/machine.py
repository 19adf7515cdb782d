"""Devices, processes, precision and threads, all through Lightning Fabric, and what is chosen by measurement.

``start`` gives the one object that moves modules, averages gradients and casts; on one CPU it does almost
nothing. Threads and memory format left to ``auto`` are measured on the network at hand, because neither is
best everywhere: a second thread collapses beside a busy process, and channels-last helps convolutions only.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import inspect
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from classmargin._checks import require_extra
from classmargin.training.config import RunConfig

Choice = TypeVar("Choice")


def start(config: RunConfig) -> Any:
    """Return a launched Fabric for the machine part of ``config``.

    With several devices and no launcher around (``torchrun``, SLURM), Fabric starts the other processes by
    running this program again; each of them gets here and goes on as one rank.
    """
    fabric_module = require_extra("lightning.fabric", "train", "training")
    machine = config.machine
    devices, nodes = _torchrun_layout() or (machine.devices, machine.nodes)
    # Which process is which number is of no interest beside a progress bar.
    for name in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        # Fabric advises a launcher's command line here; several devices in one command is what was asked for.
        warnings.simplefilter("ignore")
        fabric = fabric_module.Fabric(
            accelerator=machine.accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy=_strategy(devices * nodes, machine.accelerator),
            precision=choose_precision(config.loop.precision, machine.accelerator),
        )
        fabric.launch()
    return fabric


@contextlib.contextmanager
def started(config: RunConfig) -> Iterator[Any]:
    """Yield what :func:`start` returns, and leave the group of processes that it formed.

    Threads of a group that is still there when the interpreter ends can abort the process (SIGABRT): a run that saved its
    state and wants to say 143 or 130 would say 134.
    """
    formed_before = dist.is_available() and dist.is_initialized()
    _forget_former_group()
    fabric = start(config)
    try:
        yield fabric
    finally:
        if not formed_before and dist.is_available() and dist.is_initialized():
            _former_group.append(dist.group.WORLD)
            dist.destroy_process_group()


# After an error or a stop the traceback keeps the data-parallel network, which would then be the last to know its group. Let go
# by it, a group waits for its thread without letting other threads run Python, and if its thread has a tensor of
# Python's to let go, both wait for ever. So the group is kept until the traceback is gone.
_former_group: list[Any] = []


@atexit.register
def _forget_former_group() -> None:
    _former_group.clear()


def _torchrun_layout() -> tuple[int, int] | None:
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    return local, int(os.environ["WORLD_SIZE"]) // local


def _strategy(processes: int, accelerator: str) -> Any:
    if processes == 1:
        return "auto"
    from lightning.fabric.strategies.ddp import DDPStrategy

    class OneModuleDDP(DDPStrategy):
        """Data parallel, asking each module whether single steps leave parameters out."""

        def setup_module(self, module: nn.Module) -> Any:
            self._ddp_kwargs["find_unused_parameters"] = getattr(module, "may_skip_parameters", True)
            return super().setup_module(module)

    options: dict[str, Any] = {_buffer_argument(): False}
    if accelerator == "cpu" or not torch.cuda.is_available():
        options["process_group_backend"] = "gloo"
    return OneModuleDDP(**options)


def _buffer_argument() -> str:
    """Return the name of the argument that stops copies of rank 0's buffers at each step.

    Buffers are kept equal by the statistics' own sums and by ``average_running_statistics``.
    """
    known = inspect.signature(nn.parallel.DistributedDataParallel.__init__).parameters
    return "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"


def choose_precision(precision: str, accelerator: str) -> str:
    """Return ``precision``, with ``auto`` decided for this machine.

    A processor without bfloat16 instructions emulates them and is ten times slower than in float32, so there
    it is never the choice.

    Example:
        >>> choose_precision("64-true", "cpu")
        '64-true'
    """
    if precision != "auto":
        return precision
    if accelerator != "cpu" and torch.cuda.is_available():
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        native = any(getattr(torch.cpu, name, lambda: False)() for name in checks)
    return "bf16-mixed" if native else "32-true"


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_threads(network: nn.Module, inputs: Tensor) -> int:
    """Return the fastest of one thread and all cores for a training step of ``network`` on ``inputs``."""
    before = torch.get_num_threads()
    candidates = sorted({1, usable_cores()})
    try:
        return _fastest(candidates, lambda threads: _threaded_step(copy.deepcopy(network), inputs, threads))
    finally:
        torch.set_num_threads(before)


def _threaded_step(network: nn.Module, inputs: Tensor, threads: int) -> Callable[[], None]:
    def step() -> None:
        torch.set_num_threads(threads)
        _training_step(network, inputs)

    return step


def choose_memory_format(network: nn.Module, inputs: Tensor) -> str:
    """Return ``channels_last`` or ``contiguous``, whichever makes a training step on ``inputs`` faster."""
    if inputs.dim() != 4:
        return "contiguous"
    copies = {
        name: apply_memory_format(copy.deepcopy(network), name) for name in ("contiguous", "channels_last")
    }
    shaped = {name: inputs.contiguous(memory_format=memory_format(name)) for name in copies}
    return _fastest(list(copies), lambda name: lambda: _training_step(copies[name], shaped[name]))


def memory_format(name: str) -> torch.memory_format:
    """Return PyTorch's constant of a memory format's name."""
    return torch.channels_last if name == "channels_last" else torch.contiguous_format


def apply_memory_format(network: nn.Module, name: str) -> nn.Module:
    """Bring the weights of ``network`` into a memory format (in place for channels-last)."""
    return network.to(memory_format=torch.channels_last) if name == "channels_last" else network  # type: ignore[call-overload]


def _training_step(network: nn.Module, inputs: Tensor) -> None:
    network.zero_grad()
    network(inputs).logits.sum().backward()


def _fastest(
    candidates: list[Choice], step_of: Callable[[Choice], Callable[[], None]], rounds: int = 3
) -> Choice:
    """Return the candidate with the shortest best time; they take turns, so that noise hits all alike."""
    steps = {candidate: step_of(candidate) for candidate in candidates}
    if len(steps) == 1:
        return candidates[0]
    times: dict[Choice, float] = dict.fromkeys(candidates, float("inf"))
    for round_number in range(rounds + 1):
        for candidate, step in steps.items():
            begin = time.perf_counter()
            step()
            if round_number:  # the first round warms up
                times[candidate] = min(times[candidate], time.perf_counter() - begin)
    return min(candidates, key=lambda candidate: times[candidate])

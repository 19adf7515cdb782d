"""Devices, processes, precision and threads through Lightning Fabric; what is left open follows from the machine."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import gc
import importlib
import inspect
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from classmargin._checks import require_extra
from classmargin._distributed import world_size
from classmargin.training.config import Precision, RunConfig


def start(config: RunConfig) -> Any:
    """Return a launched Fabric for the machine part of ``config``; without a launcher it starts other processes."""
    fabric_module = require_extra("lightning.fabric", "train", "training")
    machine = config.machine
    precision = choose_precision(config.loop.precision, machine.accelerator)
    devices, nodes = launched_layout() or (machine.devices, machine.nodes)
    # Which process has which rank is of no interest beside a progress bar.
    for name in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if devices * nodes > 1:
        prepare_group()
    with warnings.catch_warnings():
        # Fabric advises a launcher's command line here; several devices in one command is what was asked for.
        warnings.simplefilter("ignore")
        fabric = fabric_module.Fabric(
            accelerator=machine.accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy=_strategy(devices * nodes, machine.accelerator),
            precision="32-true" if precision == "tf32" else precision,
        )
        fabric.launch()
    return fabric


@contextlib.contextmanager
def started(config: RunConfig) -> Iterator[Any]:
    """Yield what :func:`start` returns, and leave the group that it formed: its threads may abort Python's exit."""
    formed_before = dist.is_available() and dist.is_initialized()
    _forget_former_group()
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    tf32_before = [switch.allow_tf32 for switch in switches]
    fabric = start(config)
    try:
        # Both: PyTorch's own default is TF32 in convolutions and not in products.
        for switch in switches:
            switch.allow_tf32 = choose_precision(config.loop.precision, config.machine.accelerator) == "tf32"
        yield fabric
    finally:
        for switch, before in zip(switches, tf32_before, strict=True):
            switch.allow_tf32 = before
        if not formed_before and dist.is_available() and dist.is_initialized():
            leave_group()


def prepare_group() -> None:
    """Import, before a group is formed, what would otherwise keep it to the very end in its default arguments."""
    importlib.import_module("torch.distributed.nn.functional")


def leave_group() -> None:
    """Leave the group of processes; its threads end when the last reference to it is gone, at the latest when Python exits."""
    _former_group.append(dist.group.WORLD)
    dist.destroy_process_group()


# After an error or a stop the traceback keeps the data-parallel network alive, and with it the last reference to its group. A
# group that is destroyed from there waits for its thread without releasing the GIL; if that thread holds a tensor that Python
# owns, both wait for ever. So the group is kept until the traceback is gone.
_former_group: list[Any] = []


@atexit.register
def _forget_former_group() -> None:
    if _former_group:
        gc.collect()  # data-parallel networks are parts of cycles
    _former_group.clear()


def launched_layout() -> tuple[int, int] | None:
    """Return processes per machine and machines, where ``torchrun`` or ``srun`` has started this program; else None."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        return local, int(os.environ["WORLD_SIZE"]) // local
    tasks = int(os.environ.get("SLURM_NTASKS", "1"))
    # Lightning takes a job of these names for an interactive shell.
    is_interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    if "SLURM_PROCID" in os.environ and tasks > 1 and not is_interactive:
        nodes = int(os.environ.get("SLURM_NNODES", "1"))
        return tasks // nodes, nodes
    return None


def launched_rank() -> tuple[int, int]:
    """Return the number of this process and how many there are, with the address of the first in the environment."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    module = require_extra("lightning.fabric.plugins.environments.slurm", "train", "training")
    try:
        slurm = module.SLURMEnvironment()
    except RuntimeError as error:  # a job script that Lightning cannot work with; it says what to write instead
        raise ValueError(str(error)) from error
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = slurm.main_address, str(slurm.main_port)
    return slurm.global_rank(), slurm.world_size()


def _strategy(processes: int, accelerator: str) -> Any:
    if processes == 1:
        return "auto"
    from lightning.fabric.strategies.ddp import DDPStrategy

    class OneModuleDDP(DDPStrategy):
        """Data parallel, asking each module whether single steps leave parameters out."""

        def setup_module(self, module: nn.Module) -> Any:
            self._ddp_kwargs["find_unused_parameters"] = getattr(module, "may_skip_parameters", True)
            return super().setup_module(module)

    # No copies of rank 0's buffers at each step: the statistics' own sums and average_running_statistics keep them equal.
    known = inspect.signature(nn.parallel.DistributedDataParallel.__init__).parameters
    switch = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {switch: False}
    if accelerator == "cpu" or not torch.cuda.is_available():
        options["process_group_backend"] = "gloo"
    return OneModuleDDP(**options)


def choose_precision(precision: Precision, accelerator: str) -> Precision:
    """Return ``precision`` with ``auto`` and ``default`` decided for this machine; bfloat16 is never emulated."""
    on_cuda = accelerator != "cpu" and torch.cuda.is_available()
    if precision == "default":
        return "tf32" if on_cuda and torch.cuda.get_device_capability() >= (8, 0) else "32-true"
    if precision != "auto":
        return precision
    if on_cuda:
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        native = any(getattr(torch.cpu, name, lambda: False)() for name in checks)
    return "bf16-mixed" if native else "32-true"


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_kind(accelerator: str) -> str:
    """Return what a run computes on: ``cpu``, ``cuda`` or ``mps``."""
    if accelerator == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if accelerator == "auto" and torch.backends.mps.is_available() else "cpu"


def settled(config: RunConfig, *, images: bool) -> RunConfig:
    """Return the configuration with threads, memory format and precision decided where they were left open.

    One thread on the CPU, because its bits are the same on machines with more cores, and because a second one is many
    times slower than none as soon as something else runs. Channels-last is what convolutions compute in fastest.
    """
    machine = config.machine
    threads, layout = machine.threads, machine.memory_format
    if layout == "auto":
        layout = "channels_last" if images else "contiguous"
    if not threads:
        processes, _ = launched_layout() or (machine.devices, 1)
        on_cpu = device_kind(machine.accelerator) == "cpu"
        threads = 1 if on_cpu else max(1, usable_cores() // processes)
    precision = choose_precision(config.loop.precision, machine.accelerator)
    return dataclasses.replace(
        config,
        machine=dataclasses.replace(machine, threads=threads, memory_format=layout),
        loop=dataclasses.replace(config.loop, precision=precision),
    )


def numerics(config: RunConfig) -> dict[str, Any]:
    """Return what decides the last bits of this process's results, apart from the versions of packages."""
    return {
        "device": device_kind(config.machine.accelerator),
        "processes": world_size(),
        "threads": config.machine.threads,
        "memory_format": config.machine.memory_format,
        "precision": config.loop.precision,
        "compile": config.loop.compile,
    }


@contextlib.contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """Compute with this many threads in the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def memory_format(name: str) -> torch.memory_format:
    """Return PyTorch's constant of a memory format's name."""
    return torch.channels_last if name == "channels_last" else torch.contiguous_format


def apply_memory_format(network: nn.Module, name: str) -> nn.Module:
    """Bring the weights of ``network`` into a memory format (in place for channels-last)."""
    return network.to(memory_format=torch.channels_last) if name == "channels_last" else network  # type: ignore[call-overload]

"""What differs between the processes of a run: random numbers, and running statistics of normalisation layers.

Each process sees its own share of a batch. At an epoch's end the statistics are averaged for good; a checkpoint in
between holds the averages *and* every process's own values, so that a resumed run goes on bit for bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from classmargin._distributed import all_reduce_sum, gather_objects, is_distributed, rank, world_size
from classmargin._types import Batch
from classmargin.training.run_progress import say


def seed_for(seed: int, *purpose: object) -> int:
    """Return a seed that depends on ``seed`` and on what it is for."""
    text = "/".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def seed_process(seed: int, *purpose: object) -> None:
    """Seed the generators of Python, NumPy and PyTorch (all devices)."""
    value = seed_for(seed, *purpose)
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002 - libraries that methods call may draw from the global generator
    torch.manual_seed(value)


def capture() -> dict[str, Any]:
    """Return the state of all generators as numbers and tensors."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    numbers = {"position": int(position), "has_gauss": int(has_gauss), "cached": float(cached)}
    return {
        "python": {"version": version, "words": list(words), "gauss": gauss},
        "numpy": {"keys": torch.from_numpy(np.asarray(keys).astype(np.int64)), **numbers},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore(state: dict[str, Any]) -> None:
    """Put the generators back to a captured state."""
    python, legacy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    keys = legacy["keys"].numpy().astype(np.uint32)
    # NumPy does not look, and would read beyond the end of its keys.
    if keys.shape != (624,) or not 0 <= legacy["position"] <= 624:
        raise ValueError("the state of NumPy's random numbers in the checkpoint is damaged")
    np.random.set_state(("MT19937", keys, legacy["position"], legacy["has_gauss"], legacy["cached"]))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def restore_random_state(states: list[dict[str, Any]], seed: int, step: int) -> None:
    """Put this process's random numbers back, or draw new ones if the number of processes changed."""
    if len(states) == world_size():
        restore(states[rank()])
    else:
        saved = f"the run was saved by {len(states)} processes and resumes with {world_size()}"
        say(f"{saved}: random numbers are drawn anew")
        seed_process(seed, "resumed", step, rank())


def running_statistics(module: nn.Module) -> dict[str, Tensor]:
    """Return the running means and variances of the layers of ``module``, by name."""
    found = {
        f"{name}.{kind}": getattr(layer, kind, None)
        for name, layer in module.named_modules()
        for kind in ("running_mean", "running_var")
    }
    return {name: statistic for name, statistic in found.items() if isinstance(statistic, Tensor)}


def average_running_statistics(module: nn.Module) -> None:
    """Average them over the processes; without this, evaluation would depend on the rank."""
    if is_distributed():
        for statistic in running_statistics(module).values():
            statistic.copy_(all_reduce_sum(statistic) / world_size())


def refresh_running_statistics(network: nn.Module, batches: Iterable[Batch], place: Any) -> None:
    """Make the running statistics those of a pass over ``batches``: averaged weights have seen none of their own."""
    layers = [m for m in network.modules() if isinstance(getattr(m, "running_mean", None), Tensor)]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    network.eval()  # dropout must not draw
    for layer in layers:
        layer.reset_running_stats()  # type: ignore[operator]
        layer.train()
        layer.momentum = None  # type: ignore[assignment]  # equal shares of all batches
    dtype = next(network.parameters()).dtype
    with torch.no_grad(), place.autocast():
        for batch in batches:
            network.forward(batch.inputs.to(dtype))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    average_running_statistics(network)


@contextlib.contextmanager
def averaged(modules: Mapping[str, nn.Module]) -> Iterator[list[dict[str, Any]]]:
    """Let the modules hold averages in the block; yield each process's own values in rank order, if several."""
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

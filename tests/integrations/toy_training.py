"""A toy training and a toy evaluation, alone or as one of two processes (``python toy_training.py WORK RANK FOLDER``)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import classmargin

# As a program of its own it has not been through tests/conftest.py.
sys.path.insert(0, str(Path(__file__).parents[1]))
from two_ranks import one_of_two

NUM_CLASSES, INPUTS, WIDTH = 4, 5, 6
SIZES = ((8, 8), (8, 5), (3, 8))  # rows of rank 0 and rank 1 in each step


class Network(nn.Module):
    """A small network that returns logits alone, as networks of scripts do."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, WIDTH))
        self.head = nn.Linear(WIDTH, NUM_CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(3.0 * self.encoder(inputs))
        return logits


def new_network() -> Network:
    torch.manual_seed(0)
    return Network()


def batch(size: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(NUM_CLASSES, (size,), generator=generator)
    return torch.randn(size, INPUTS, generator=generator) + labels[:, None], labels


def share(step: int, rank: int | None) -> tuple[Tensor, Tensor]:
    """Return this rank's rows of the batch of one step (all of them if alone)."""
    first, second = SIZES[step]
    inputs, labels = batch(first + second, step)
    rows = slice(None) if rank is None else slice(first) if rank == 0 else slice(first, None)
    return inputs[rows], labels[rows]


def captured_training(rank: int | None, compiled: str = "") -> dict[str, Tensor]:
    """Train a few steps with the two-line change; the script itself knows logits and labels only.

    Args:
        rank: Of this process; None if alone.
        compiled: What torch.compile gets: nothing, the model ``"inside"`` DDP, or DDP with the model (``"outside"``).
    """
    model: nn.Module
    model = network = new_network().double()
    if rank is not None:
        model = torch.compile(model, backend="eager") if compiled == "inside" else model
        model = DistributedDataParallel(model)
        model = torch.compile(model, backend="eager") if compiled == "outside" else model
    captured = classmargin.capture_features(model)
    criterion = captured.criterion()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(len(SIZES)):
        inputs, labels = share(step, rank)
        optimizer.zero_grad()
        loss = criterion(model(inputs.double()), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    parameters = {f"parameter {name}": value.detach() for name, value in network.named_parameters()}
    state = {f"state {name}": value for name, value in criterion.state_dict().items()}
    return {"losses": torch.stack(losses), **parameters, **state}


def accumulated(rank: int | None, counts_all_devices: bool) -> dict[str, Tensor]:
    """Return the gradients of one optimiser step of three micro-batches, as the Hugging Face Trainer makes it."""
    from classmargin.integrations.huggingface import TrainerMargin

    network = new_network().double()
    model = network if rank is None else DistributedDataParallel(network)
    margin = TrainerMargin(model)
    settings = SimpleNamespace(average_tokens_across_devices=counts_all_devices)
    margin.on_train_begin(settings, SimpleNamespace(global_step=0), None)
    margin.on_step_begin(settings, None, None)
    column = sum if rank is None or counts_all_devices else itemgetter(rank)
    num_items = sum(column(sizes) for sizes in SIZES)
    for step in range(len(SIZES)):
        inputs, labels = share(step, rank)
        loss = margin({"logits": model(inputs.double())}, labels, num_items)
        if rank is not None and counts_all_devices:
            loss = loss * dist.get_world_size()  # the Trainer does this after calling the loss function
        loss.backward()
    return {name: parameter.grad for name, parameter in network.named_parameters()}


def trained(rank: int | None) -> dict[str, Tensor]:
    """Return the outcome of all trainings under one roof."""
    out = {f"captured: {name}": value for name, value in captured_training(rank).items()}
    for counts_all in (True, False) if find_spec("transformers") else ():
        found = accumulated(rank, counts_all)
        out |= {f"accumulated {counts_all}: {name}": value for name, value in found.items()}
    return out


def compiled(rank: int | None) -> dict[str, Tensor]:
    """Return the outcome of trainings under DDP and ``torch.compile`` together."""
    return {
        f"{place}: {name}": value
        for place in ("inside", "outside")
        for name, value in captured_training(rank, place).items()
    }


def measured(rank: int | None) -> dict[str, Tensor]:
    """Feed the metrics with each rank's rows; no class 3 at all, rows of label -1 do not count."""
    from torchmetrics import MetricCollection

    from classmargin.integrations.torchmetrics import ClassAccuracyGini, ClassTiers, WorstClassAccuracy

    options: dict[str, Any] = {"num_classes": NUM_CLASSES, "ignore_index": -1}
    metrics = MetricCollection([ClassTiers(**options), WorstClassAccuracy(**options), ClassAccuracyGini(**options)])
    for step in range(len(SIZES)):
        inputs, labels = share(step, rank)
        labels = torch.where(labels == 3, -1, labels)
        metrics.update(inputs[:, :NUM_CLASSES], labels)
    return dict(metrics.compute())


def run_rank(work: Callable[[int], dict[str, Tensor]], rank: int, folder: str) -> None:
    """Be one of two processes and leave the outcome in a file."""
    with one_of_two(rank, folder):
        torch.save(work(rank), Path(folder) / f"rank{rank}.pt")


if __name__ == "__main__":
    run_rank({"trained": trained, "compiled": compiled}[sys.argv[1]], int(sys.argv[2]), sys.argv[3])

"""One training run, alone or as one of two processes: the same code, so that results can be compared.

``outcomes(rank=None)`` is the single process with the global batch; ``work(rank, folder)`` is one of two processes.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mr2_batches import random_batch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from classmargin.mr2 import ClassStatistics, MR2Loss

NUM_CLASSES, INPUTS = 4, 5
UNEVEN = ((8, 8), (8, 5), (3, 8), (8, 0), (1, 2))  # rows of rank 0 and rank 1 in each step


@dataclass(frozen=True)
class Case:
    """What a run looks like."""

    options: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64
    sizes: tuple[tuple[int, int], ...] = UNEVEN
    ignored: bool = False
    soft: bool = False
    inside: bool = False  # the loss is part of the module that DDP wraps


CASES = {
    "default float32": Case(dtype=torch.float32),
    "default": Case(),
    "memory float32": Case({"positives": "memory"}, dtype=torch.float32),
    "memory": Case({"positives": "memory", "memory_size": 2}),
    "moments": Case({"positives": "moments"}),
    "class weights": Case({"weight": torch.linspace(0.2, 3.0, NUM_CLASSES, dtype=torch.float64)}),
    "ignored rows": Case(ignored=True),
    "ignored rows, class weights, memory": Case(
        {"positives": "memory", "weight": torch.linspace(0.2, 3.0, NUM_CLASSES, dtype=torch.float64)},
        ignored=True,
    ),
    "soft labels": Case(soft=True),
    "smoothing and prior": Case(
        {"label_smoothing": 0.1, "log_prior": torch.linspace(-2, -1, NUM_CLASSES, dtype=torch.float64)}
    ),
    "order three, spread, warm-up": Case({"norm_order": 3.0, "margin_source": "spread", "warmup_steps": 2}),
    "relative spread": Case({"margin_source": "relative-spread", "margin_power": 0.5}),
    "no representation term": Case({"representation_weight": 0.0}),
    "preset recommended": Case({"preset": "recommended", "warmup_steps": 2}),
    "preset paper": Case({"preset": "paper"}),
    "preset release": Case({"preset": "release"}),
    "preset release float32": Case({"preset": "release"}, dtype=torch.float32),
    "loss inside the wrapped module": Case({"feature_dim": 3}, dtype=torch.float32, inside=True),
}


class Network(nn.Module):
    """A small network; with ``labels`` it returns the loss it holds, else features and logits."""

    def __init__(self, loss: MR2Loss | None) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(INPUTS, 6), nn.Tanh(), nn.Linear(6, 3))
        self.head = nn.Linear(3, NUM_CLASSES)
        self.loss = loss

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Any:
        features = 3.0 * self.encoder(inputs)
        logits = self.head(features)
        if labels is None or self.loss is None:
            return logits, features
        return self.loss.terms(logits, labels, features)


def build_loss(case: Case) -> MR2Loss:
    options = dict(case.options)
    preset = options.pop("preset", None)
    return (
        MR2Loss(NUM_CLASSES, **options) if preset is None else MR2Loss.preset(preset, NUM_CLASSES, **options)
    )


def global_batch(case: Case, step: int) -> tuple[Tensor, Tensor]:
    size = sum(case.sizes[step])
    batch = random_batch(size, NUM_CLASSES, INPUTS, step, dtype=case.dtype, gradients=False)
    labels = batch.labels
    if case.ignored:
        labels = labels.masked_fill(torch.arange(size) % 4 == 1, -100)
        if step == 1:
            labels[case.sizes[step][0] :] = -100  # nothing counts on rank 1
    if case.soft:
        labels = 0.7 * F.one_hot(labels, NUM_CLASSES) + 0.3 * F.one_hot(labels.flip(0), NUM_CLASSES)
        labels = labels.to(case.dtype)
    return batch.features, labels


def own_part(case: Case, step: int, rank: int | None, rows: Tensor) -> Tensor:
    first = case.sizes[step][0]
    return rows if rank is None else (rows[:first] if rank == 0 else rows[first:])


def run(case: Case, rank: int | None) -> dict[str, Tensor]:
    """Train a few steps; return terms and gradients of every step, the state, and the parameters at the end."""
    torch.manual_seed(0)
    loss = build_loss(case)
    network = Network(loss if case.inside else None).to(case.dtype)
    module = network if rank is None else DistributedDataParallel(network)
    parameters = dict(network.named_parameters())
    optimizer = torch.optim.SGD(parameters.values(), lr=0.05)
    out: dict[str, Tensor] = {}
    for step in range(len(case.sizes)):
        inputs, labels = (own_part(case, step, rank, rows) for rows in global_batch(case, step))
        optimizer.zero_grad()
        if case.inside:
            terms = module(inputs, labels)
        else:
            logits, features = module(inputs)
            terms = loss.terms(logits, labels, features)
        terms.total.backward()
        optimizer.step()
        for name, value in terms._asdict().items():
            out[f"step {step}: {name}"] = value.detach()
        for name, parameter in parameters.items():
            out[f"step {step}: gradient of {name}"] = parameter.grad.detach().clone()
    out |= {f"state {name}": value.clone() for name, value in loss.state_dict().items()}
    out["margins"] = loss.class_margins
    return out


def statistics_alone(rank: int | None) -> dict[str, Tensor]:
    """Feed only the statistics, as an audit of a training set would."""
    case, statistics = CASES["default"], ClassStatistics(NUM_CLASSES, norm_order=3.0)
    for step in range(len(case.sizes)):
        statistics.update(*(own_part(case, step, rank, rows) for rows in global_batch(case, step)))
    return {name: value.clone() for name, value in statistics.state_dict().items()}


def evaluation(rank: int | None) -> dict[str, Tensor]:
    """Evaluate on rank 0 only: no process may wait for the other."""
    loss = MR2Loss(NUM_CLASSES).eval()
    batch = random_batch(9, NUM_CLASSES, 3, 1)
    return {} if rank == 1 else {"loss": loss(*batch).detach()}


def outcomes(rank: int | None = None) -> dict[str, dict[str, Tensor]]:
    """Run everything."""
    torch.set_num_threads(1)
    everything = {name: run(case, rank) for name, case in CASES.items()}
    return everything | {"statistics alone": statistics_alone(rank), "evaluation": evaluation(rank)}


def broken_row(rank: int) -> dict[str, Tensor]:
    """One NaN row on rank 1 only, checks off, then a clean step."""
    loss = MR2Loss(NUM_CLASSES, positives="memory", checks=False)
    for step in range(3):
        batch = random_batch(9, NUM_CLASSES, 3, 10 * step + rank, dtype=torch.float32, gradients=False)
        if step == 1 and rank == 1:
            batch.features[4] = torch.nan
        total = loss(batch.logits.requires_grad_(), batch.labels, batch.features)
    return {"loss": total.detach(), **loss.state_dict()}


def work(rank: int, folder: str) -> None:
    """Be one of two processes; what could block or abort comes last, after everything else is saved."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=100),
    )
    torch.save(outcomes(rank), Path(folder) / f"rank{rank}.pt")
    torch.save(broken_row(rank), Path(folder) / f"broken{rank}.pt")
    gc.collect()  # modules wrapped by DDP hold the group, and its threads, until they are gone
    dist.barrier()  # who leaves first closes connections that the other may still read from
    dist.destroy_process_group()

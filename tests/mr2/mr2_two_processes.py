"""One training run, alone or as one of two processes: the same code, so that results can be compared.

``outcomes(rank=None)`` is the single process with the global batch; ``work(rank, folder)`` is one of two processes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from mr2_batches import random_batch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from classmargin.mr2 import ClassStatistics, MR2Loss
from two_ranks import one_of_two

NUM_CLASSES, INPUTS = 4, 5
UNEVEN = ((8, 8), (8, 5), (3, 8), (8, 0), (1, 2))  # rows of rank 0 and rank 1 in each step
WEIGHT = torch.linspace(0.2, 3.0, NUM_CLASSES, dtype=torch.float64)
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "broadcast",
    "reduce",
    "barrier",
    "gather",
)
GOLDEN = json.loads((Path(__file__).parent / "golden_presets.json").read_text())["rows"]


@dataclass(frozen=True)
class Case:
    """What a run looks like."""

    preset: str = "recommended"
    options: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64
    ignored: bool = False
    soft: bool = False
    sample_weight: bool = False
    inside: bool = False  # the loss is part of the module that DDP wraps


CASES = {
    "recommended float32": Case(dtype=torch.float32),
    "recommended": Case(),
    "class weights": Case(options={"weight": WEIGHT}),
    "ignored rows": Case(ignored=True),
    "ignored rows, class weights, spread": Case(options={"weight": WEIGHT, "margin_source": "spread"}, ignored=True),
    "soft labels": Case(soft=True, options={"margin_source": "spread"}),
    "sample weights": Case(sample_weight=True, options={"margin_source": "spread"}),
    "prior, order three, r²": Case(
        options={"log_prior": WEIGHT.log(), "norm_order": 3.0, "margin_source": "sqnorm", "mean_margin": 2.0}
    ),
    "accumulation": Case(options={"accumulate": 2, "margin_source": "spread"}),
    "no representation term": Case(options={"representation_weight": 0.0, "margin_source": "spread"}),
    "paper": Case("paper"),
    "paper float32": Case("paper", dtype=torch.float32),
    "paper, ignored rows, class weights": Case("paper", options={"weight": WEIGHT}, ignored=True),
    "paper, soft labels": Case("paper", soft=True),
    "release": Case("release"),
    "release, ignored rows": Case("release", ignored=True),
    "loss inside the wrapped module": Case(options={"feature_dim": 3}, dtype=torch.float32, inside=True),
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


def global_batch(case: Case, step: int) -> tuple[Tensor, Tensor]:
    size = sum(UNEVEN[step])
    batch = random_batch(size, NUM_CLASSES, INPUTS, step, dtype=case.dtype, gradients=False)
    labels = batch.labels
    if case.ignored:
        labels = labels.masked_fill(torch.arange(size) % 4 == 1, -100)
        if step == 1:
            labels[UNEVEN[step][0] :] = -100  # nothing counts on rank 1
    if case.soft:
        labels = 0.7 * F.one_hot(labels, NUM_CLASSES) + 0.3 * F.one_hot(labels.flip(0), NUM_CLASSES)
        labels = labels.to(case.dtype)
    return batch.features, labels


def own_part(step: int, rank: int | None, rows: Tensor) -> Tensor:
    first = UNEVEN[step][0]
    return rows if rank is None else (rows[:first] if rank == 0 else rows[first:])


def run(case: Case, rank: int | None) -> dict[str, Tensor]:
    """Train a few steps; return terms and gradients of every step, the state, and the margins at the end."""
    torch.manual_seed(0)
    loss = MR2Loss.preset(case.preset, NUM_CLASSES, **case.options)
    network = Network(loss if case.inside else None).to(case.dtype)
    module = network if rank is None else DistributedDataParallel(network)
    parameters = dict(network.named_parameters())
    optimizer = torch.optim.SGD(parameters.values(), lr=0.05)
    out: dict[str, Tensor] = {}
    for step in range(len(UNEVEN)):
        inputs, labels = (own_part(step, rank, rows) for rows in global_batch(case, step))
        options = {}
        if case.sample_weight:
            options["sample_weight"] = own_part(step, rank, 0.5 + torch.arange(sum(UNEVEN[step])) % 3)
        optimizer.zero_grad()
        if case.inside:
            terms = module(inputs, labels)
        else:
            logits, features = module(inputs)
            terms = loss.terms(logits, labels, features, **options)
        terms.total.backward()
        optimizer.step()
        for name, value in terms._asdict().items():
            out[f"step {step}: {name}"] = value.detach()
        for name, parameter in parameters.items():
            out[f"step {step}: gradient of {name}"] = parameter.grad.detach().clone()
    out |= {f"state {name}": value.clone() for name, value in loss.state_dict().items()}
    out["margins"] = loss.class_margins
    return out


def statistics_alone(rank: int | None, estimator: str) -> dict[str, Tensor]:
    """Feed only the statistics, as an audit of a training set would."""
    case, statistics = CASES["recommended"], ClassStatistics(NUM_CLASSES, norm_order=3.0, estimator=estimator)
    for step in range(len(UNEVEN)):
        statistics.update(*(own_part(step, rank, rows) for rows in global_batch(case, step)))
    return {name: value.clone() for name, value in statistics.state_dict().items()}


def evaluation(rank: int | None) -> dict[str, Tensor]:
    """Evaluate on rank 0 only: no process may wait for the other."""
    if rank == 1:
        return {}
    loss, batch = MR2Loss(NUM_CLASSES).eval(), random_batch(9, NUM_CLASSES, 3, 1)
    return {"loss": loss(*batch).detach(), "total": loss.terms(*batch).total.detach()}


def outcomes(rank: int | None = None) -> dict[str, dict[str, Tensor]]:
    """Run everything."""
    torch.set_num_threads(1)
    everything = {name: run(case, rank) for name, case in CASES.items()}
    for estimator in ("moments", "batch"):
        everything[f"statistics {estimator}"] = statistics_alone(rank, estimator)
    return everything | {"evaluation": evaluation(rank)}


def collectives(name: str, **options: Any) -> dict[str, Tensor]:
    """Count the messages of one forward pass in training and of one in evaluation."""
    loss, counts, kept = MR2Loss.preset(name, NUM_CLASSES, 3, **options), [0, 0], {}

    def counted(function: Any, mode: int) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[mode] += 1
            return function(*args, **kwargs)

        return call

    for mode in (0, 1):
        loss.train(mode == 0)
        kept = {each: getattr(dist, each) for each in COLLECTIVES}
        try:
            for each, function in kept.items():
                setattr(dist, each, counted(function, mode))
            loss(*random_batch(9, NUM_CLASSES, 3, dtype=torch.float32))
        finally:
            for each, function in kept.items():
                setattr(dist, each, function)
    return {"training": torch.tensor(counts[0]), "evaluation": torch.tensor(counts[1])}


def golden_batches(seed, B, K, d, scale, offset, steps, ignored):
    """Yield the batches of test_golden_presets.py."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(K, d))
    for _ in range(steps):
        labels = generator.integers(0, K, B)
        features = (centres[labels] + 0.7 * generator.normal(size=(B, d))) * scale + offset
        logits = 2 * generator.normal(size=(B, K))
        if ignored:
            labels[::5] = -100
        yield logits, labels, features


def golden(rank: int, row: dict[str, Any]) -> dict[str, Tensor]:
    """Give this rank's part of a stored run: terms, and gradients of its rows in the mean over both ranks."""
    case, out = row["case"], {}
    loss, first = MR2Loss.preset(row["preset"], case["K"], case["d"]), case["B"] // 3
    for step, parts in enumerate(golden_batches(**case)):
        mine = [torch.tensor(part)[:first] if rank == 0 else torch.tensor(part)[first:] for part in parts]
        logits, labels, features = mine[0].requires_grad_(), mine[1], mine[2].requires_grad_()
        terms = loss.terms(logits, labels, features)
        terms.total.backward()
        out |= {f"{step} {name}": value.detach() for name, value in terms._asdict().items()}
        out[f"{step} feature_gradient"] = features.grad / dist.get_world_size()
        out[f"{step} logit_gradient"] = logits.grad / dist.get_world_size()
    return out | {"class_margins": loss.class_margins, "mean_spread": loss.mean_spread}


def broken_row(rank: int, preset: str) -> dict[str, Tensor]:
    """One NaN row on rank 1 only, then a clean step: both ranks must tell, and both go on."""
    loss, told = MR2Loss.preset(preset, NUM_CLASSES), False
    for step in range(3):
        batch = random_batch(9, NUM_CLASSES, 3, 10 * step + rank, dtype=torch.float32, gradients=False)
        if step == 1 and rank == 1:
            batch.features[4] = torch.nan
        try:
            loss(batch.logits.requires_grad_(), batch.labels, batch.features.requires_grad_())
        except ValueError as error:
            told = step == 1 and "features must be finite" in str(error)
    return {"told": torch.tensor(told), **loss.state_dict()}


def work(rank: int, folder: str) -> None:
    """Be one of two processes and leave the outcomes in a file."""
    with one_of_two(rank, folder):
        everything: dict[str, Any] = outcomes(rank)
        everything["golden"] = [golden(rank, row) for row in GOLDEN if row["dtype"] == "float64"]
        weights = {"weight": WEIGHT.float(), "margin_source": "spread"}
        everything["collectives"] = {
            "recommended": collectives("recommended"),
            "recommended, class weights": collectives("recommended", **weights),
            "paper": collectives("paper"),
            "release": collectives("release"),
        }
        everything["broken"] = {name: broken_row(rank, name) for name in ("recommended", "paper", "release")}
        torch.save(everything, Path(folder) / f"rank{rank}.pt")

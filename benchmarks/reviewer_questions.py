"""What reviewers asked about class margins, answered by small trainings on the embedded data.

::

    variants x seeds ──> held-out accuracy (overall, hardest third), and over epochs: γ from r², ‖μ_k‖, spread / variance ──> table

A small network on the embedded Fashion-MNIST at 14 pixels; each seed holds out a fifth of every training class, as
``benchmarks.choose_settings`` does. Finished runs are kept in ``benchmarks/out/reviewer_questions`` and not repeated.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.choose_settings import (
    SETTINGS,
    Setting,
    cropped_and_flipped,
    held_out,
    table,
    training_samples,
)
from classmargin import MR2Loss
from classmargin._progress import progress
from classmargin.backbones import create_backbone
from classmargin.functional import class_margins

RUNS = Path(__file__).parent / "out" / "reviewer_questions"
SEEDS = 5
CLASSES = 10


class FixedMargins(nn.Module):
    """Cross-entropy of ``z / γ_y`` with margins that are given, shuffled between classes, or learned."""

    def __init__(self, margins: Tensor, learned: bool = False) -> None:
        super().__init__()
        self.raw = nn.Parameter(margins.log(), requires_grad=learned)

    def forward(self, logits: Tensor, labels: Tensor, features: Tensor) -> Tensor:
        margins = torch.softmax(self.raw, 0) * CLASSES  # mean 1, whatever is learned
        return F.cross_entropy(logits / margins[labels].unsqueeze(1), labels)


class Plain(nn.Module):
    """Cross-entropy that takes features and leaves them alone."""

    def forward(self, logits: Tensor, labels: Tensor, features: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels)


def losses() -> dict[str, Any]:
    """Return a maker of each objective; ``seed`` only decides how margins are shuffled."""
    measured = {"margin_source": "sqnorm", "representation_weight": 0.0, "label_smoothing": 0.0}

    def shuffled(seed: int) -> nn.Module:
        # The range that margins from r² have on these data, in an order that has nothing to do with the classes.
        margins = torch.linspace(0.9, 1.1, CLASSES)
        return FixedMargins(margins[torch.randperm(CLASSES, generator=torch.Generator().manual_seed(seed))])

    return {
        "cross-entropy": lambda seed: Plain(),
        "one temperature for all (γ = 2)": lambda seed: MR2Loss(
            CLASSES, **{**measured, "margin_source": "uniform", "mean_margin": 2.0}
        ),
        "margins from r² (Eq. 1)": lambda seed: MR2Loss(CLASSES, **measured),
        "the same range, shuffled between classes": shuffled,
        "trainable γ": lambda seed: FixedMargins(torch.ones(CLASSES), learned=True),
        "recommended": lambda seed: MR2Loss(CLASSES),
        "paper (Eq. 4, c̄ = 2, λ = 0.5)": lambda seed: MR2Loss.preset("paper", CLASSES),
        "cross-entropy, strong augmentation": lambda seed: Plain(),
        "recommended, strong augmentation": lambda seed: MR2Loss(CLASSES),
    }


def strongly_augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift, mirror and blank a square of a quarter of the side."""
    images = cropped_and_flipped(images, generator).clone()
    size = images.shape[-1]
    side = size // 4
    corner = torch.randint(0, size - side + 1, (2, len(images)), generator=generator)
    line = torch.arange(size)
    rows, columns = ((line >= c.unsqueeze(1)) & (line < c.unsqueeze(1) + side) for c in corner)
    return images.masked_fill((rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1), 0.0)


def geometry(features: Tensor, labels: Tensor) -> dict[str, float]:
    """Return what the questions are about, of the training features."""
    means = torch.stack([features[labels == k].mean(0) for k in range(CLASSES)])
    spread = torch.stack([(features[labels == k] - means[k]).square().sum(1).mean() for k in range(CLASSES)])
    sqnorm = means.square().sum(1) + spread
    margins = class_margins(sqnorm, 1.0)
    variance = (features - features.mean(0)).square().sum(1).mean()
    norms = means.norm(dim=1)
    return {
        "margin_low": float(margins.min()),
        "margin_high": float(margins.max()),
        "mean_norm_variation": float(norms.std() / norms.mean()),
        "spread_share": float(spread.mean() / variance),
        "variance": float(variance),
    }


def train(setting: Setting, name: str, seed: int) -> dict[str, Any]:
    """Train once; return the predictions held out and the geometry after every fifth epoch."""
    data = training_samples(setting)
    assert data is not None
    inputs, labels = data
    apart = held_out(labels, seed)
    inputs, labels, held = inputs[~apart], labels[~apart], inputs[apart]
    torch.manual_seed(seed)
    whole = create_backbone("small-cnn", num_classes=CLASSES, in_channels=inputs.shape[1])
    loss = losses()[name](seed)
    trained = [p for p in (*whole.parameters(), *loss.parameters()) if p.requires_grad]
    optimizer = torch.optim.SGD(trained, setting.rate, momentum=0.9, weight_decay=setting.decay)
    steps = setting.epochs * -(-len(labels) // setting.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator, history = torch.Generator().manual_seed(seed), []
    for epoch in range(1, setting.epochs + 1):
        for rows in torch.randperm(len(labels), generator=generator).split(setting.batch):
            batch = inputs[rows]
            if "strong" in name:
                batch = strongly_augmented(batch, generator)
            output = whole(batch)
            optimizer.zero_grad(set_to_none=True)
            loss(output.logits, labels[rows], output.features).backward()
            optimizer.step(), schedule.step()
        if epoch % 5 == 0 or epoch == 1:
            with torch.no_grad():
                features = torch.cat([whole.encode(part) for part in inputs.split(500)])
            history.append({"epoch": epoch, **geometry(features, labels)})
    whole.eval()
    with torch.no_grad():
        predictions = torch.cat([whole(part).logits.argmax(1) for part in held.split(500)])
    learned = torch.softmax(loss.raw.detach(), 0) * CLASSES if isinstance(loss, FixedMargins) else None
    return {
        "predictions": predictions.tolist(),
        "history": history,
        "margins": None if learned is None else learned.tolist(),
    }


def run() -> dict[str, Any]:
    """Train what has not been trained and print the two tables."""
    torch.set_num_threads(1)
    RUNS.mkdir(parents=True, exist_ok=True)
    (setting,) = (s for s in SETTINGS if s.name == "embedded")
    names = list(losses())
    results: dict[tuple[str, int], dict[str, Any]] = {}
    for seed, index in progress([(s, i) for s in range(SEEDS) for i in range(len(names))], "reviewers"):
        file = RUNS / f"{index}_{seed}.json"
        if not file.exists():
            file.write_text(json.dumps(train(setting, names[index], seed)))
        results[names[index], seed] = json.loads(file.read_text())
    data = training_samples(setting)
    assert data is not None
    labels = [data[1][held_out(data[1], seed)].numpy() for seed in range(SEEDS)]
    rows = table(setting, {n: [np.asarray(results[n, s]["predictions"]) for s in range(SEEDS)] for n in names}, labels)
    for row in rows:
        of_seeds = [results[row["candidate"], seed] for seed in range(SEEDS)]
        last = [of_seed["history"][-1] for of_seed in of_seeds]
        row["geometry"] = {key: float(np.mean([entry[key] for entry in last])) for key in last[0]}
        row["margins_over_epochs"] = [
            [entry["epoch"], entry["margin_low"], entry["margin_high"]] for entry in of_seeds[0]["history"]
        ]
        row["least_variance"] = min(entry["variance"] for entry in last)
        row["learned"] = of_seeds[0]["margins"]
        right = [100 * float((np.asarray(o["predictions"]) == y).mean()) for o, y in zip(of_seeds, labels, strict=True)]
        row["deviation_over_seeds"] = float(np.std(right, ddof=1))
        shown = row["geometry"]
        print(
            f"{row['candidate']:42} {row['overall']:5.1f} {row['hard']:5.1f} {row['overall_change']:+5.1f} ({row['overall_error']:.1f}) "
            f"{row['hard_change']:+5.1f} ({row['hard_error']:.1f})  γ {shown['margin_low']:.2f}-{shown['margin_high']:.2f}  "
            f"‖μ‖ ±{100 * shown['mean_norm_variation']:.0f} %  spread/variance {shown['spread_share']:.2f}  "
            f"variance {shown['variance']:.3g}"
        )
    return {"rows": rows}

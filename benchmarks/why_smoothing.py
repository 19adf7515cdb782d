"""Why do label smoothing and the recommended objective gain on Banking77 features, and is it one cause?

::

    objectives x seeds ──> held-out accuracy (overall, hardest third) · size and shape of the features · calibration ──> table

Three explanations are put to the test beside the objectives themselves: features that are smaller (a penalty on their squared
norm), logits that are smaller (a penalty on theirs), and a temperature. Each seed holds out a fifth of every training class, as
``benchmarks.choose_settings`` does; calibration is measured there before and after one temperature, fitted on one half of the
samples held out and measured on the other. Nothing is chosen here; finished runs are kept in ``benchmarks/out/why_smoothing``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.choose_settings import SETTINGS, Setting, held_out, network, table, training_samples
from classmargin import MR2Loss
from classmargin._progress import progress
from classmargin.evaluation.class_metrics import calibration_error

RUNS = Path(__file__).parent / "out" / "why_smoothing"
SEEDS = 3
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def losses(classes: int, dim: int) -> dict[str, Loss]:
    """Return the objectives by name."""

    def penalised(features_too: bool, weight: float) -> Loss:
        def loss(logits: Tensor, labels: Tensor, features: Tensor) -> Tensor:
            size = (features if features_too else logits).square().sum(1).mean()
            return F.cross_entropy(logits, labels) + weight * size

        return loss

    return {
        "cross-entropy": lambda logits, labels, features: F.cross_entropy(logits, labels),
        "label smoothing 0.1": lambda logits, labels, features: F.cross_entropy(logits, labels, label_smoothing=0.1),
        "recommended": MR2Loss(classes, feature_dim=dim),
        "recommended without smoothing": MR2Loss(classes, feature_dim=dim, label_smoothing=0.0),
        "small features (penalty 0.001)": penalised(True, 1e-3),
        "small features (penalty 0.01)": penalised(True, 1e-2),
        "small logits (penalty 0.0001)": penalised(False, 1e-4),
        "small logits (penalty 0.001)": penalised(False, 1e-3),
        "temperature (γ = 2)": lambda logits, labels, features: F.cross_entropy(logits / 2, labels),
    }


def train(setting: Setting, name: str, seed: int) -> dict[str, Any]:
    """Train once; return logits of the samples held out and the geometry of their features."""
    data = training_samples(setting)
    assert data is not None
    inputs, labels = data
    apart = held_out(labels, seed)
    held, truth, inputs, labels = inputs[apart], labels[apart], inputs[~apart], labels[~apart]
    torch.manual_seed(seed)
    classes = int(labels.max()) + 1
    body, dim = network(setting, inputs)
    head, loss = nn.Linear(dim, classes), losses(classes, dim)[name]
    optimizer = torch.optim.SGD(
        [*body.parameters(), *head.parameters()], setting.rate, momentum=0.9, weight_decay=setting.decay
    )
    steps = setting.epochs * -(-len(labels) // setting.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(setting.epochs):
        for rows in torch.randperm(len(labels), generator=generator).split(setting.batch):
            features = body(inputs[rows])
            optimizer.zero_grad(set_to_none=True)
            loss(head(features), labels[rows], features).backward()
            optimizer.step(), schedule.step()
    with torch.no_grad():
        features = body(held)
        logits = head(features)
    means = torch.stack([features[truth == k].mean(0) for k in range(classes)])
    variance = float((features - features.mean(0)).square().sum(1).mean())
    spread = float((features - means[truth]).square().sum(1).mean())
    return {
        "predictions": logits.argmax(1).tolist(),
        "variance": variance,
        "spread_share": spread / variance,
        "confidence": float(logits.softmax(1).amax(1).mean()),
        **calibration(logits, truth),
    }


def calibration(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the calibration error as it is, and error and negative log-likelihood after a temperature."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    fit, check = order[: len(order) // 2], order[len(order) // 2 :]
    temperatures = torch.logspace(-1.5, 1.0, 101)
    likelihood = torch.stack([F.cross_entropy(logits[fit] / t, labels[fit]) for t in temperatures])
    best = temperatures[likelihood.argmin()]
    return {
        "error": _calibration_error(logits[check], labels[check]),
        "temperature": float(best),
        "error_after": _calibration_error(logits[check] / best, labels[check]),
        "likelihood_after": float(F.cross_entropy(logits[check] / best, labels[check])),
    }


def _calibration_error(logits: Tensor, labels: Tensor) -> float:
    confidence, predicted = logits.softmax(1).max(1)
    return float(calibration_error(confidence.numpy(), (predicted == labels).numpy()))


def run() -> dict[str, Any]:
    """Train what has not been trained and print the table."""
    torch.set_num_threads(1)
    RUNS.mkdir(parents=True, exist_ok=True)
    (setting,) = (s for s in SETTINGS if s.name == "banking77")
    data = training_samples(setting)
    if data is None:
        print(f"skipped: no {setting.file} in $CLASSMARGIN_DATA")
        return {"rows": []}
    names = list(losses(2, 2))
    results: dict[tuple[str, int], dict[str, Any]] = {}
    for seed, index in progress([(s, i) for s in range(SEEDS) for i in range(len(names))], "why"):
        file = RUNS / f"{index}_{seed}.json"
        if not file.exists():
            file.write_text(json.dumps(train(setting, names[index], seed)))
        results[names[index], seed] = json.loads(file.read_text())
    labels = [data[1][held_out(data[1], seed)].numpy() for seed in range(SEEDS)]
    predictions = {n: [np.asarray(results[n, s]["predictions"]) for s in range(SEEDS)] for n in names}
    rows = table(setting, predictions, labels)
    for row in rows:
        of_seeds = [results[row["candidate"], seed] for seed in range(SEEDS)]
        for key in of_seeds[0].keys() - {"predictions"}:
            row[key] = float(np.mean([one[key] for one in of_seeds]))
        print(
            f"{row['candidate']:32} {row['overall']:5.1f} {row['overall_change']:+5.1f} ({row['overall_error']:.1f}) "
            f"hard {row['hard_change']:+5.1f} ({row['hard_error']:.1f})  variance {row['variance']:8.3g}  "
            f"spread/variance {row['spread_share']:.2f}  confidence {row['confidence']:.2f}  ECE {row['error']:.3f} -> "
            f"{row['error_after']:.3f} at T = {row['temperature']:.2f}, NLL {row['likelihood_after']:.3f}"
        )
    return {"rows": rows}

"""Does the recommended loss ever ruin a training that cross-entropy gets right?

::

    combinations (network x inputs x optimiser x batch x data) x 3 seeds x losses ──> accuracy per class, collapse ──> table

Networks with and without normalisation, narrow, deep and residual; raw and normalised inputs; SGD at two rates, Adam,
AdamW; batches of 8 to 512; 2 to 150 classes; real data. The embedded set and scikit-learn's digits are always there;
the others are read from the folder ``$CLASSMARGIN_DATA`` (``cifar10_10pct.npz``, ``banking77_minilm.npz``,
``clinc150_minilm.npz``, ``oxford_pets_efflite0.npz``) and left out, by name, where they are not.

A loss harms where its accuracy, overall or on the hardest third of the classes, is more than ``TOLERATED`` points below that of
cross-entropy *and* the 95 % interval of the difference over seeds and test samples excludes zero. The hardest third is that of the
accuracies of cross-entropy and the other loss together, so that the choice of classes favours neither. It collapses
where the total variance of the features ends below a thousandth of its peak. Finished runs are kept in
``benchmarks/out/no_harm`` and not repeated.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classmargin import FeatureCollapseWarning, MR2Loss
from classmargin._progress import progress

RUNS = Path(__file__).parent / "out" / "no_harm"
SEEDS = (0, 1, 2)
TOLERATED = 1.5
LOSSES: dict[str, Callable[[int, int], MR2Loss | None]] = {
    "cross-entropy": lambda classes, dim: None,
    "smoothing": lambda classes, dim: MR2Loss(classes, feature_dim=dim, representation_weight=0.0),
    "recommended": lambda classes, dim: MR2Loss(classes, feature_dim=dim),
    "paper": lambda classes, dim: MR2Loss.preset("paper", classes, dim),
}


@dataclass(frozen=True)
class Combination:
    """One way of training: ``data`` and ``network`` name functions of this file."""

    data: str
    network: str
    optimizer: str
    rate: float
    batch: int
    epochs: int

    @property
    def name(self) -> str:
        return f"{self.data}, {self.network}, {self.optimizer} {self.rate:g}, batch {self.batch}"


COMBINATIONS = (
    Combination("fashion raw", "cnn", "sgd", 0.05, 64, 6),
    Combination("fashion raw", "cnn-bn", "sgd", 0.05, 64, 6),
    Combination("fashion", "cnn", "adam", 1e-3, 128, 6),
    Combination("fashion", "residual", "adamw", 2e-3, 128, 4),
    Combination("fashion", "narrow", "sgd", 0.01, 32, 6),
    Combination("fashion pair", "cnn", "sgd", 0.05, 32, 10),
    Combination("digits", "mlp", "sgd", 0.01, 32, 30),
    Combination("digits", "mlp", "adam", 1e-3, 8, 15),
    Combination("digits raw", "deep-mlp", "adamw", 1e-3, 64, 40),
    Combination("digits raw", "narrow-mlp", "sgd", 0.05, 512, 150),
    Combination("cifar10 raw", "cnn", "sgd", 0.05, 64, 10),
    Combination("cifar10", "cnn-bn", "sgd", 0.1, 128, 8),
    Combination("cifar10", "residual", "adam", 1e-3, 64, 6),
    Combination("banking77", "mlp", "sgd", 0.5, 128, 20),
    Combination("banking77", "deep-mlp", "adamw", 1e-3, 512, 20),
    Combination("pets", "mlp", "sgd", 0.05, 128, 20),
    Combination("pets", "mlp-ln", "adam", 1e-3, 16, 8),
    Combination("clinc150", "mlp", "adamw", 2e-3, 256, 15),
)


# --- data ------------------------------------------------------------------------------------------------------------


def load(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Return training and test inputs and labels, or None where the file is not on this machine."""
    base, *how = name.split()
    if base == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        inputs, labels = digits.data[order].astype(np.float32), digits.target[order]
        parts = inputs[:1000], labels[:1000], inputs[1000:], labels[1000:]
    elif base == "fashion":
        from classmargin.data import load_data

        bundle = load_data("fashion-mnist-mini")
        parts = tuple(
            np.asarray(value)
            for split in ("train", "test")
            for value in (bundle.split(split).inputs, bundle.split(split).labels)
        )
    else:
        files = {
            "cifar10": "cifar10_10pct.npz",
            "banking77": "banking77_minilm.npz",
            "pets": "oxford_pets_efflite0.npz",
            "clinc150": "clinc150_minilm.npz",
        }
        file = Path(os.environ.get("CLASSMARGIN_DATA", ".")) / files[base]
        if not file.exists():
            return None
        with np.load(file, allow_pickle=False) as arrays:
            parts = tuple(arrays[key] for key in ("x_train", "y_train", "x_test", "y_test"))
    train, train_labels, test, test_labels = (torch.from_numpy(np.ascontiguousarray(part)) for part in parts)
    if train.dim() == 4:
        train, test = (_images(part) for part in (train, test))
    train, test = train.float(), test.float()
    if "raw" not in how and base not in ("banking77", "clinc150", "pets"):
        mean, deviation = train.mean(), train.std()
        train, test = (train - mean) / deviation, (test - mean) / deviation
    if "pair" in how:  # two classes: pullover and coat
        keep, keep_test = (torch.isin(part, torch.tensor([2, 4])) for part in (train_labels, test_labels))
        train, train_labels = train[keep], (train_labels[keep] == 4).long()
        test, test_labels = test[keep_test], (test_labels[keep_test] == 4).long()
    return train, train_labels.long(), test, test_labels.long()


def _images(part: Tensor) -> Tensor:
    part = part.float() / 255.0 if part.dtype == torch.uint8 else part.float()
    part = part.permute(0, 3, 1, 2) if part.shape[-1] in (1, 3) else part
    return F.adaptive_avg_pool2d(part, 14)


# --- networks --------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """Two convolutions around which the input goes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return F.relu(inputs + self.body(inputs))


def build(name: str, inputs: Tensor) -> tuple[nn.Module, int]:
    """Return the part of a network below its head, and the size of its features."""
    size = inputs[0].numel()
    if name.endswith("mlp") or name == "mlp-ln":
        widths = {"mlp": (256,), "mlp-ln": (256,), "deep-mlp": (128, 128, 128, 128), "narrow-mlp": (8,)}[name]
        layers: list[nn.Module] = [nn.Flatten()]
        for width in widths:
            layers += [
                nn.Linear(size, width),
                *([nn.LayerNorm(width)] if name == "mlp-ln" else []),
                nn.ReLU(),
            ]
            size = width
        return nn.Sequential(*layers), size
    width = 8 if name == "narrow" else 16
    norm = (lambda n: [nn.BatchNorm2d(n)]) if name in ("cnn-bn", "residual") else (lambda n: [])
    layers = [nn.Conv2d(inputs.shape[1], width, 3, padding=1), *norm(width), nn.ReLU()]
    layers += [Residual(width)] if name == "residual" else []
    layers += [nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), *norm(2 * width), nn.ReLU()]
    layers += [Residual(2 * width)] if name == "residual" else []
    if name == "narrow":
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), 2 * width
    features = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2 * width * 9, 64), nn.ReLU())
    return nn.Sequential(*layers, *features), 64


# --- one run ---------------------------------------------------------------------------------------------------------


def train(combination: Combination, loss_name: str, seed: int) -> dict[str, Any]:
    """Train once and return predictions on the test set, the collapse ratio and when a warning came."""
    data = load(combination.data)
    assert data is not None
    inputs, labels, test, _ = data
    torch.manual_seed(seed)
    classes = int(labels.max()) + 1
    body, dim = build(combination.network, inputs)
    head, loss = nn.Linear(dim, classes), LOSSES[loss_name](classes, dim)
    parameters = [*body.parameters(), *head.parameters()]
    if combination.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            parameters, combination.rate, momentum=0.9, weight_decay=1e-4
        )
    else:
        kind = torch.optim.Adam if combination.optimizer == "adam" else torch.optim.AdamW
        optimizer = kind(parameters, combination.rate)
    generator = torch.Generator().manual_seed(seed)
    steps = combination.epochs * math.ceil(len(labels) / combination.batch)
    step, warned_at, peak, variance = 0, None, 0.0, 0.0
    for _ in range(combination.epochs):
        for rows in torch.randperm(len(labels), generator=generator).split(combination.batch):
            features = body(inputs[rows])
            logits = head(features)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", FeatureCollapseWarning)
                value = F.cross_entropy(logits, labels[rows]) if loss is None else loss(logits, labels[rows], features)
            if caught and warned_at is None:
                warned_at = step / steps
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            optimizer.step()
            with torch.no_grad():
                now = float((features - features.mean(0)).square().sum(1).mean())
            variance = now if step == 0 else 0.9 * variance + 0.1 * now
            peak, step = max(peak, variance), step + 1
    body.eval()
    with torch.no_grad():
        predictions = torch.cat([head(body(part)).argmax(1) for part in test.split(1000)])
    return {
        "predictions": predictions.tolist(),
        "variance_left": variance / max(peak, 1e-30),
        "warned_at": warned_at,
    }


def stored(combination: Combination, loss_name: str, seed: int) -> dict[str, Any]:
    """Return the run, from the disk where it is there already."""
    key = hashlib.sha256(repr((combination, loss_name, seed)).encode()).hexdigest()[:16]
    file = RUNS / f"{key}.json"
    if not file.exists():
        RUNS.mkdir(parents=True, exist_ok=True)
        text = json.dumps(
            {"run": f"{combination.name}, {loss_name}, seed {seed}", **train(combination, loss_name, seed)}
        )
        file.write_text(text)
    result: dict[str, Any] = json.loads(file.read_text())
    return result


# --- the table -------------------------------------------------------------------------------------------------------


def hardest(right: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return which samples are of the third of the classes that are least often right: ``[runs, n] -> [n]``."""
    per_class = np.array([right[:, labels == k].mean() for k in range(labels.max() + 1)])
    return np.isin(labels, np.argsort(per_class)[: max(1, len(per_class) // 3)])


def compared(combination: Combination, labels: np.ndarray, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return accuracy of cross-entropy, and the differences of the other losses with their intervals, in points."""
    right = {
        name: np.stack([np.asarray(run["predictions"]) == labels for run in these]).astype(float)
        for name, these in runs.items()
    }
    base = right["cross-entropy"]
    row: dict[str, Any] = {
        "combination": combination.name,
        "cross-entropy": {"overall": 100 * base.mean(), "hard": 100 * base[:, hardest(base, labels)].mean()},
    }
    for name, values in right.items():
        if name == "cross-entropy":
            continue
        entry: dict[str, Any] = {}
        hard = hardest(np.concatenate((base, values)), labels)
        for part, which in (("overall", np.ones_like(hard)), ("hard", hard)):
            difference = 100 * (values - base)[:, which]
            by_seed, by_sample = difference.mean(1), difference.mean(0)
            error = math.hypot(
                by_seed.std(ddof=1) / math.sqrt(len(by_seed)),
                by_sample.std(ddof=1) / math.sqrt(len(by_sample)),
            )
            entry[part] = float(difference.mean())
            entry[f"{part}_interval"] = [entry[part] - 1.96 * error, entry[part] + 1.96 * error]
        entry["collapsed"] = any(run["variance_left"] < 1e-3 for run in runs[name])
        entry["least_variance_left"] = min(run["variance_left"] for run in runs[name])
        entry["warned_at"] = [run["warned_at"] for run in runs[name]]
        entry["harms"] = any(
            entry[part] < -TOLERATED and entry[f"{part}_interval"][1] < 0 for part in ("overall", "hard")
        )
        row[name] = entry
    return row


def run() -> dict[str, Any]:
    """Train everything that has not been trained and print the table."""
    torch.set_num_threads(1)
    here = [combination for combination in COMBINATIONS if load(combination.data) is not None]
    left_out = [combination.name for combination in COMBINATIONS if combination not in here]
    for name in left_out:
        print(f"left out, its file is not in $CLASSMARGIN_DATA: {name}")
    rows, todo = [], [(c, name, seed) for c in here for name in LOSSES for seed in SEEDS]
    done = {key: stored(*key) for key in progress(todo, "no harm")}
    print(f"{'':58} {'cross-entropy':>15} " + " ".join(f"{name:>28}" for name in LOSSES if name != "cross-entropy"))
    for combination in here:
        data = load(combination.data)
        assert data is not None
        runs = {name: [done[combination, name, seed] for seed in SEEDS] for name in LOSSES}
        row = compared(combination, data[3].numpy(), runs)
        rows.append(row)
        cells = [
            f"{row[name]['overall']:+6.1f} {row[name]['hard']:+6.1f}"
            + (" HARM" if row[name]["harms"] else "")
            + (" COLLAPSE" if row[name]["collapsed"] else "")
            + (" warned" if any(at is not None for at in row[name]["warned_at"]) else "")
            for name in LOSSES
            if name != "cross-entropy"
        ]
        base = row["cross-entropy"]
        print(
            f"{combination.name:58} {base['overall']:7.1f} {base['hard']:7.1f} " + " ".join(f"{c:>28}" for c in cells)
        )
    bad = [row["combination"] for row in rows if row["recommended"]["harms"] or row["recommended"]["collapsed"]]
    print(
        f"recommended: harms or collapses in {len(bad)} of {len(rows)} combinations{': ' + '; '.join(bad) if bad else ''}"
    )
    return {
        "rows": rows,
        "left_out": left_out,
        "seeds": len(SEEDS),
        "tolerated_points": TOLERATED,
        "harmed": bad,
    }

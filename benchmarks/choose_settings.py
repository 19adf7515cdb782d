"""Which settings of the objective are the recommended ones? Chosen on samples held out of the training set, never on a test set.

::

    settings (data, network) x candidates x seeds ──> held-out accuracy: overall and hardest third ──> change against cross-entropy

Each seed holds out a fifth of every class of the *training* samples, and gives the weights their first values and the batches their
order; all candidates of a seed share them. The hardest third is that of the median accuracy over all candidates, so that no
candidate is favoured by the choice of classes. Learning rate and weight decay are those tuned for cross-entropy. Files are read from
``$CLASSMARGIN_DATA``; ``cifar100_efflite0.npz`` is made by ``scripts/extract_features.py``; the embedded images are halved to 14 pixels.
Finished runs are kept in ``benchmarks/out/choose_settings`` and not repeated.

    python -m benchmarks choose_settings            # everything
    CHOOSE=resnet20,pets python -m benchmarks choose_settings
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.no_harm import load as load_small
from classmargin import MR2Loss
from classmargin._progress import progress
from classmargin.backbones import create_backbone

RUNS = Path(__file__).parent / "out" / "choose_settings"
PAIRS = {"representation": "pairs", "margin_source": "sqnorm", "label_smoothing": 0.0}


@dataclass(frozen=True)
class Setting:
    """Data and network; ``rate`` and ``decay`` are those tuned for cross-entropy."""

    name: str
    file: str
    epochs: int
    rate: float
    decay: float
    batch: int = 128
    width: int = 512
    seeds: int = 3


SETTINGS = (
    Setting("pets", "oxford_pets_efflite0.npz", 30, 0.054, 1.2e-4),
    Setting("banking77", "banking77_minilm.npz", 30, 0.679, 3.55e-5),
    Setting("clinc150", "clinc150_minilm.npz", 30, 0.679, 3.55e-5),
    Setting("cifar100-features", "cifar100_efflite0.npz", 25, 0.06, 5e-3),
    Setting("embedded", "fashion", 15, 0.05, 5e-4, batch=64),
    Setting("resnet20", "cifar10_10pct.npz", 25, 0.1, 5e-4),
)


class Objective(nn.Module):
    """A loss of logits, labels and features; ``scale`` says in which coordinates the features enter it."""

    def __init__(self, loss: MR2Loss | None, scale: str = "own") -> None:
        super().__init__()
        self.loss, self.scale, self.average, self.peak = loss, scale, 0.0, 0.0

    def forward(self, logits: Tensor, labels: Tensor, features: Tensor) -> Tensor:
        if self.loss is None:
            return F.cross_entropy(logits, labels)
        if self.scale != "own":
            features = features - features.mean(0)
            variance = features.square().sum(1).mean()
            if self.scale == "peak":  # the temperature of 0.4.0: the largest variance so far, a constant
                now = float(variance)
                self.average = 0.9 * self.average + 0.1 * now if self.average else now
                self.peak = max(self.peak, self.average)
                variance = torch.tensor(self.peak)
            features = features * (variance + 1e-12).rsqrt()
        value: Tensor = self.loss(logits, labels, features)
        return value


def mr2(**options: Any) -> Callable[[int, int], Objective]:
    """Return a maker of the objective in its own coordinates."""
    return lambda classes, dim: Objective(MR2Loss(classes, feature_dim=dim, **options))


def pairs(scale: str, **options: Any) -> Callable[[int, int], Objective]:
    """Return a maker of the pair form in standardised coordinates."""
    return lambda classes, dim: Objective(MR2Loss(classes, feature_dim=dim, **{**PAIRS, **options}), scale)


CANDIDATES: dict[str, Callable[[int, int], Objective]] = {
    "cross-entropy": lambda classes, dim: Objective(None),
    "smoothing 0.1": mr2(representation_weight=0.0),
    "moments 1": mr2(representation_weight=1.0, label_smoothing=0.0),
    "moments 1 + smoothing": mr2(representation_weight=1.0),
    "moments 3 + smoothing": mr2(representation_weight=3.0),
    "moments 1 + smoothing + margins r2": mr2(margin_source="sqnorm"),
    "moments 1 + smoothing + margins spread": mr2(margin_source="spread"),
    "plain of 0.4.0": pairs("peak", representation_weight=0.1),
    "pairs 0.1": pairs("gradient", representation_weight=0.1),
    "pairs 0.3": pairs("gradient", representation_weight=0.3),
    "pairs 0.3 + smoothing": pairs("gradient", representation_weight=0.3, label_smoothing=0.1),
    "pairs 1 + smoothing": pairs("gradient", representation_weight=1.0, label_smoothing=0.1),
}


# --- data ------------------------------------------------------------------------------------------------------------


def training_samples(setting: Setting) -> tuple[Tensor, Tensor] | None:
    """Return inputs and labels of the training part, or None where the file is not there."""
    if setting.file == "fashion":
        data = load_small("fashion")
        assert data is not None
        return data[0], data[1]
    file = Path(os.environ.get("CLASSMARGIN_DATA", ".")) / setting.file
    file = file if file.exists() else RUNS / setting.file
    if not file.exists():
        return None
    with np.load(file, allow_pickle=False) as arrays:
        inputs, labels = torch.from_numpy(arrays["x_train"]), torch.from_numpy(arrays["y_train"]).long()
    if inputs.dim() == 4:
        inputs = inputs.permute(0, 3, 1, 2).float() / 255.0
        inputs = (inputs - inputs.mean((0, 2, 3), keepdim=True)) / inputs.std((0, 2, 3), keepdim=True)
    return inputs.float(), labels


def held_out(labels: Tensor, seed: int) -> Tensor:
    """Return which samples are held out: a fifth of every class."""
    generator, chosen = torch.Generator().manual_seed(seed), torch.zeros(len(labels), dtype=torch.bool)
    for k in range(int(labels.max()) + 1):
        rows = (labels == k).nonzero().squeeze(1)
        chosen[rows[torch.randperm(len(rows), generator=generator)[: max(1, len(rows) // 5)]]] = True
    return chosen


def cropped_and_flipped(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to an eighth of its side and mirror half of them."""
    size = images.shape[-1]
    most = size // 8
    padded = F.pad(images, (most, most, most, most))
    shift = torch.randint(0, 2 * most + 1, (2, len(images)), generator=generator)
    rows = (shift[0].unsqueeze(1) + torch.arange(size)).view(-1, 1, size, 1)
    columns = shift[1].unsqueeze(1) + torch.arange(size)
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    columns = torch.where(mirrored.unsqueeze(1), columns.flip(1), columns).view(-1, 1, 1, size)
    channels = torch.arange(images.shape[1]).view(1, -1, 1, 1)
    return padded[torch.arange(len(images)).view(-1, 1, 1, 1), channels, rows, columns]


# --- one run ---------------------------------------------------------------------------------------------------------


def network(setting: Setting, inputs: Tensor) -> tuple[nn.Module, int]:
    """Return the part below the head, and the size of its features."""
    if inputs.dim() == 4:
        name = "small-cnn" if setting.name == "embedded" else "resnet20"
        whole = create_backbone(name, num_classes=10, in_channels=inputs.shape[1])
        return whole.encoder, whole.feature_dim
    size = inputs.shape[1]
    return nn.Sequential(nn.Linear(size, setting.width), nn.ReLU()), setting.width


def train(setting: Setting, candidate: str, seed: int) -> dict[str, Any]:
    """Train once; return the predictions of the samples held out, in their order."""
    data = training_samples(setting)
    assert data is not None
    inputs, labels = data
    apart = held_out(labels, seed)
    inputs, labels, held = inputs[~apart], labels[~apart], inputs[apart]
    torch.manual_seed(seed)
    classes = int(labels.max()) + 1
    body, dim = network(setting, inputs)
    head = nn.Linear(dim, classes)
    loss = CANDIDATES[candidate](classes, dim)
    images = setting.name == "resnet20"
    if images:
        body, inputs = body.to(memory_format=torch.channels_last), inputs
    model = nn.ModuleList((body, head))
    optimizer = torch.optim.SGD(
        model.parameters(), setting.rate, momentum=0.9, weight_decay=setting.decay, nesterov=False
    )
    per_epoch = math.ceil(len(labels) / setting.batch)
    steps = setting.epochs * per_epoch
    warm_up = per_epoch
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / warm_up) * 0.5 * (1.0 + math.cos(math.pi * step / steps)),
    )
    generator = torch.Generator().manual_seed(seed)
    reduced = torch.autocast("cpu", torch.bfloat16, enabled=images)
    for _ in range(setting.epochs):
        for rows in torch.randperm(len(labels), generator=generator).split(setting.batch):
            batch = inputs[rows]
            if images:
                batch = cropped_and_flipped(batch, generator).contiguous(memory_format=torch.channels_last)
            with reduced:
                features = body(batch)
                logits = head(features)
            optimizer.zero_grad(set_to_none=True)
            loss(logits.float(), labels[rows], features.float()).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        predictions = torch.cat([head(body(part)).argmax(1) for part in held.split(500)])
    return {"predictions": predictions.tolist()}


def stored(setting: Setting, candidate: str, seed: int) -> dict[str, Any]:
    """Return the run, from the disk where it is there already."""
    key = hashlib.sha256(repr((setting, candidate, seed)).encode()).hexdigest()[:16]
    file = RUNS / f"{key}.json"
    if not file.exists():
        RUNS.mkdir(parents=True, exist_ok=True)
        name = f"{setting.name}, {candidate}, seed {seed}"
        file.write_text(json.dumps({"run": name, **train(setting, candidate, seed)}))
    result: dict[str, Any] = json.loads(file.read_text())
    return result


# --- the table -------------------------------------------------------------------------------------------------------


def table(setting: Setting, runs: dict[str, list[np.ndarray]], labels: list[np.ndarray]) -> list[dict[str, Any]]:
    """Return accuracy and change against cross-entropy of each candidate, in points, with standard errors."""
    right = {name: [p == y for p, y in zip(these, labels, strict=True)] for name, these in runs.items()}
    all_labels = np.concatenate(labels)
    by_candidate = [np.concatenate(these) for these in right.values()]
    # The median over candidates: one that fails altogether must not decide which classes are hard.
    per_class = np.median(
        [[r[all_labels == k].mean() for k in range(all_labels.max() + 1)] for r in by_candidate], axis=0
    )
    hard = np.argsort(per_class)[: max(1, len(per_class) // 3)]
    rows = []
    for name, these in right.items():
        row: dict[str, Any] = {"setting": setting.name, "candidate": name, "seeds": len(these)}
        for part in ("overall", "hard"):
            which = [np.isin(y, hard) if part == "hard" else np.ones_like(y, dtype=bool) for y in labels]
            row[part] = 100 * float(np.mean([r[w].mean() for r, w in zip(these, which, strict=True)]))
            change = [
                100 * (r.astype(float) - b)[w] for r, b, w in zip(these, right["cross-entropy"], which, strict=True)
            ]
            each = np.array([part_.mean() for part_ in change])
            sampling = np.concatenate(change).std() / math.sqrt(sum(map(len, change)))
            between = each.std(ddof=1) / math.sqrt(len(each)) if len(each) > 1 else 0.0
            row[f"{part}_change"], row[f"{part}_error"] = (
                float(each.mean()),
                max(float(sampling), float(between)),
            )
        rows.append(row)
    return rows


def run() -> dict[str, Any]:
    """Train what has not been trained and print the table."""
    torch.set_num_threads(1)
    wanted = os.environ.get("CHOOSE", ",".join(s.name for s in SETTINGS)).split(",")
    names = [n for n in os.environ.get("CANDIDATES", "").split(";") if n] or list(CANDIDATES)
    settings = [s for s in SETTINGS if s.name in wanted and training_samples(s) is not None]
    todo = [(s, name, seed) for s in settings for seed in range(s.seeds) for name in names]
    done = {key: stored(*key) for key in progress(todo, "choosing")}
    rows = []
    for setting in settings:
        data = training_samples(setting)
        assert data is not None
        labels = [data[1][held_out(data[1], seed)].numpy() for seed in range(setting.seeds)]
        runs = {
            name: [np.asarray(done[setting, name, seed]["predictions"]) for seed in range(setting.seeds)]
            for name in names
        }
        rows += table(setting, runs, labels)
    for row in rows:
        print(
            f"{row['setting']:18} {row['candidate']:42} {row['overall']:6.1f} {row['hard']:6.1f}  "
            f"{row['overall_change']:+5.1f} ({row['overall_error']:.1f})  {row['hard_change']:+5.1f} ({row['hard_error']:.1f})"
        )
    return {"rows": rows}

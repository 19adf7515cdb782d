"""Soft labels of a batch: samples mixed with one another, and class probabilities of a teacher in place of classes.

Both happen on the device, for a whole batch at once, and what is drawn is a function of (seed, step, process): nothing to
save, and a resumed run mixes as the uninterrupted one. With ``λ ~ Beta(α, α)`` drawn per batch and ``π`` a permutation of it::

    mixup    x = λ x + (1 − λ) x_π                                       y = λ y + (1 − λ) y_π
    cutmix   x = x with a box of x_π whose area is 1 − λ (cut at the border)   λ = share of x that is left
    both     either, with equal chances, per batch
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from classmargin._types import Batch
from classmargin.evaluation.prediction_files import read_predictions
from classmargin.training.process_state import seed_for


@dataclass(frozen=True)
class SoftLabels:
    """Gives a batch the classes of a ``teacher`` ``[N, K]`` by sample index, and mixes samples, each rank its own."""

    num_classes: int
    mix: str = "none"
    alpha: float = 1.0
    seed: int = 0
    rank: int = 0
    teacher: Tensor | None = None

    def __call__(self, batch: Batch, step: int) -> Batch:
        """Return the batch with class probabilities ``[B, K]`` as labels; unchanged where nothing asks for them."""
        labels = batch.labels
        if self.teacher is not None:
            labels = self.teacher.to(labels.device)[batch.index]
        if self.mix == "none":
            return batch if self.teacher is None else dataclasses.replace(batch, labels=labels)
        if not labels.is_floating_point():
            labels = functional.one_hot(labels, self.num_classes).float()
        random = np.random.default_rng(seed_for(self.seed, "mix", step, self.rank))
        order = torch.from_numpy(random.permutation(len(labels))).to(labels.device, non_blocking=True)
        kept = float(random.beta(self.alpha, self.alpha))
        cut = self.mix == "cutmix" or (self.mix == "both" and random.random() < 0.5)
        if cut and batch.inputs.dim() != 4:
            raise ValueError(
                f"data.mix={self.mix} pastes boxes of images, and these data are feature vectors; use mixup"
            )
        if cut:
            inputs, kept = cutmix(batch.inputs, order, kept, random)
        else:
            inputs = torch.lerp(batch.inputs[order], batch.inputs, kept)
        return dataclasses.replace(batch, inputs=inputs, labels=torch.lerp(labels[order], labels, kept))


def read_teacher(path: str, *, labels: Tensor, index: Tensor, full_size: int, class_names: Sequence[str]) -> Tensor:
    """Return class probabilities ``[full_size, K]`` of a prediction file for these training samples, 0 elsewhere."""
    found = read_predictions(path)
    scores = found.probabilities if found.probabilities is not None else found.logits
    if scores is None or found.sample_id is None:
        raise ValueError(f"data.soft_labels={path!r} must hold sample_id and probabilities or logits")
    if scores.shape[1] != len(class_names) or (found.class_names or tuple(class_names)) != tuple(class_names):
        raise ValueError(
            f"data.soft_labels={path!r} has other classes ({scores.shape[1]}) than the data ({len(class_names)})"
        )
    values = torch.from_numpy(np.asarray(scores)).double()
    values = values if found.probabilities is not None else values.softmax(dim=1)
    ids = torch.from_numpy(np.asarray(found.sample_id, dtype=np.int64))
    inside = (ids >= 0) & (ids < full_size)
    table = torch.zeros(full_size, len(class_names), dtype=torch.float64)
    known = torch.full((full_size,), -1, dtype=torch.long)
    table[ids[inside]] = values[inside]
    known[ids[inside]] = torch.from_numpy(np.asarray(found.labels, dtype=np.int64))[inside]
    wrong = int((known[index] != labels).sum())
    if wrong:
        raise ValueError(
            f"data.soft_labels={path!r} does not fit the training samples: {wrong} of {len(index)} are missing or have "
            "another label there; write it with classmargin predict RUN DATA --split train"
        )
    return (table / table.sum(dim=1, keepdim=True).clamp(min=1e-30)).float()


def cutmix(images: Tensor, order: Tensor, kept: float, random: np.random.Generator) -> tuple[Tensor, float]:
    """Paste one box of ``images[order]`` into ``images`` ``[B, C, H, W]``; return them and the share left."""
    height, width = images.shape[2:]
    side = (1.0 - kept) ** 0.5
    tall, wide = round(height * side), round(width * side)
    top = int(random.integers(0, height)) - tall // 2
    left = int(random.integers(0, width)) - wide // 2
    rows = slice(max(top, 0), min(top + tall, height))
    columns = slice(max(left, 0), min(left + wide, width))
    mixed = images.clone()
    mixed[:, :, rows, columns] = images[order][:, :, rows, columns]
    pasted = (rows.stop - rows.start) * (columns.stop - columns.start)
    return mixed, 1.0 - pasted / (height * width)

"""Right and all samples per class, which add up over batches and processes, and the audit's numbers from them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from classmargin._checks import check_hard_labels
from classmargin.evaluation.class_metrics import TIERS, gini, ranked_tier_means, share
from classmargin.evaluation.input_checks import FloatArray


def count_classes(scores: Tensor, labels: Tensor, num_classes: int, ignore_index: int | None = None) -> Tensor:
    """Count right and all samples of each class ``[2, K]``; ``scores`` are ``[B, K]`` or predicted classes ``[B]``."""
    if scores.dim() not in (1, 2) or (scores.dim() == 2 and scores.shape[1] != num_classes):
        raise ValueError(f"scores must have shape (B, {num_classes}) or (B,), got {tuple(scores.shape)}")
    check_hard_labels("labels", labels, batch=scores.shape[0], num_classes=num_classes, ignore_index=ignore_index)
    predictions = scores.argmax(1) if scores.dim() == 2 else scores
    if ignore_index is not None:
        counted = labels != ignore_index
        predictions, labels = predictions[counted], labels[counted]
    right = labels[predictions == labels]
    return torch.stack([torch.bincount(rows, minlength=num_classes) for rows in (right, labels)])


def accuracy_gini(counts: Tensor) -> float:
    """Return the Gini index of the accuracies of classes with samples; NaN without any."""
    present = _present(counts)
    return gini(present) if len(present) else float("nan")


def headlines(counts: Tensor) -> dict[str, float]:
    """Return the six headline numbers of the audit: overall, easy, medium, hard, worst, gap; NaN without samples."""
    present = _present(counts)
    overall = float(share(*counts.sum(1).cpu().numpy()))
    tiers = dict(zip(TIERS, ranked_tier_means(present, present).tolist(), strict=True))
    worst = float(present.min(initial=1.0)) if len(present) else float("nan")
    return {"overall": overall, **tiers, "worst": worst, "gap": tiers["easy"] - tiers["hard"]}


def _present(counts: Tensor) -> FloatArray:
    """Return the accuracies of the classes that have samples."""
    accuracy = share(*counts.cpu().numpy())
    return np.asarray(accuracy[~np.isnan(accuracy)])

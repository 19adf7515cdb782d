"""Counts of right samples and of all samples per class, which add up over batches and processes, and the audit's numbers from them.

The numbers come from the audit's own functions (:mod:`classmargin.evaluation`), so a metric in a training loop and an audit
of the same predictions cannot disagree.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from classmargin._checks import check_hard_labels
from classmargin.evaluation.class_metrics import TIERS, gini, ranked_tier_means, share
from classmargin.evaluation.input_checks import FloatArray


def count_classes(scores: Tensor, labels: Tensor, num_classes: int, ignore_index: int | None = None) -> Tensor:
    """Count the samples of each class that are classified correctly, and all of them: two rows ``[2, K]``, int64.

    ``scores`` are logits or probabilities ``[B, K]``, or predicted classes ``[B]``.
    """
    if scores.dim() not in (1, 2) or (scores.dim() == 2 and scores.shape[1] != num_classes):
        raise ValueError(f"scores must have shape (B, {num_classes}) or (B,), got {tuple(scores.shape)}")
    check_hard_labels("labels", labels, batch=scores.shape[0], num_classes=num_classes, ignore_index=ignore_index)
    predictions = scores.argmax(1) if scores.dim() == 2 else scores
    if ignore_index is not None:
        counted = labels != ignore_index
        predictions, labels = predictions[counted], labels[counted]
    right = labels[predictions == labels]
    return torch.stack([torch.bincount(rows, minlength=num_classes) for rows in (right, labels)])


def thirds(counts: Tensor) -> dict[str, float]:
    """Return the mean accuracy of the easy, medium and hard third of the classes, ranked by these accuracies."""
    present = _present(counts)
    return dict(zip(TIERS, ranked_tier_means(present, present).tolist(), strict=True))


def worst_class(counts: Tensor) -> float:
    """Return the lowest accuracy of a class with samples; NaN without any."""
    present = _present(counts)
    return float(present.min()) if len(present) else float("nan")


def accuracy_gini(counts: Tensor) -> float:
    """Return the Gini index of the accuracies of classes with samples; NaN without any."""
    present = _present(counts)
    return gini(present) if len(present) else float("nan")


def headlines(counts: Tensor) -> dict[str, float]:
    """Return the six headline numbers of the audit: overall, easy, medium, hard, worst, gap."""
    right, every = counts.sum(1).tolist()
    tiers = thirds(counts)
    overall = right / every if every else float("nan")
    return {"overall": overall, **tiers, "worst": worst_class(counts), "gap": tiers["easy"] - tiers["hard"]}


def _present(counts: Tensor) -> FloatArray:
    """Return the accuracies of the classes that have samples."""
    accuracy = share(*counts.cpu().numpy())
    return np.asarray(accuracy[~np.isnan(accuracy)])

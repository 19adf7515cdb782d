"""The class table: one row a class, everything that tells how it does and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from classmargin.evaluation.class_metrics import (
    class_accuracy,
    class_calibration_error,
    class_means,
    class_precision,
    share,
)
from classmargin.evaluation.feature_geometry import class_geometry
from classmargin.evaluation.inputs import AnyArray, FloatArray, IntArray
from classmargin.evaluation.intervals import wilson_interval
from classmargin.evaluation.label_quality import label_issues
from classmargin.evaluation.margins import weight_angles
from classmargin.evaluation.tiers import TIERS
from classmargin.evaluation.verdicts import ClassFacts, verdicts

if TYPE_CHECKING:
    import pandas as pd

    from classmargin.evaluation.streaming import Evidence

LOW_CONFIDENCE = 0.5
HIGH_CONFIDENCE = 0.8


def class_table(
    evidence: Evidence,
    class_names: tuple[str, ...],
    confusion: IntArray,
    codes: IntArray,
    *,
    classifier_weight: AnyArray | None,
    mean_margin: float,
    confidence: float,
) -> pd.DataFrame:
    """Return the frame that :class:`~classmargin.evaluation.audit.Audit` describes under ``by_class``."""
    import pandas as pd

    n = confusion.sum(axis=1)
    accuracy = class_accuracy(confusion)
    low, high = wilson_interval(np.diagonal(confusion), n, confidence)
    tier = ["absent" if code < 0 else TIERS[code] for code in codes.tolist()]
    columns: dict[str, AnyArray | list[str]] = {
        "class_name": list(class_names),
        "n": n,
        "accuracy": accuracy,
        "low": low,
        "high": high,
        "precision": class_precision(confusion),
        "recall": accuracy.copy(),
        "tier": tier,
        **score_columns(evidence, len(class_names)),
        **feature_columns(evidence, len(class_names), mean_margin),
        **weight_columns(classifier_weight, class_names),
        **confusion_columns(confusion, class_names),
    }
    frame = pd.DataFrame(columns)
    frame["verdict"] = verdicts(
        ClassFacts(
            n=n.astype(np.float64),
            accuracy=accuracy,
            low=low,
            high=high,
            tier=tier,
            spread=frame["spread"].to_numpy(),
            label_issues=frame["label_issues"].to_numpy(),
            confidently_wrong=frame["confidently_wrong"].to_numpy(),
            confused_with=frame["nearest_by_confusion"].tolist(),
            confusion_share=frame["confusion_share"].to_numpy(),
        )
    )
    return frame


def score_columns(evidence: Evidence, num_classes: int) -> dict[str, FloatArray]:
    """Return calibration, confidence and label-issue columns; NaN without logits or probabilities."""
    names = ("ece", "output_margin", "low_confidence", "confidently_wrong", "label_issues")
    scores, labels = evidence.scores, evidence.labels
    if scores is None:
        return {name: np.full(num_classes, np.nan) for name in names}
    correct = labels == evidence.predictions
    doubtful = label_issues(
        labels, scores.true_probability, scores.candidates, scores.candidate_probabilities, num_classes
    )
    present = np.bincount(labels, minlength=num_classes) > 0
    values = (
        class_calibration_error(scores.confidence, correct, labels, num_classes),
        class_means(scores.output_margin, labels, num_classes),
        class_means(scores.confidence < LOW_CONFIDENCE, labels, num_classes),
        class_means(~correct & (scores.confidence >= HIGH_CONFIDENCE), labels, num_classes),
        np.where(present, np.bincount(labels, weights=doubtful, minlength=num_classes), np.nan),
    )
    return dict(zip(names, values, strict=True))


def feature_columns(evidence: Evidence, num_classes: int, mean_margin: float) -> dict[str, FloatArray]:
    """Return spread, mean norm, r² and the margin γ; NaN without features."""
    sums = evidence.feature_sums
    if sums is None:
        return {name: np.full(num_classes, np.nan) for name in ("spread", "mean_norm", "sqnorm", "margin")}
    geometry = class_geometry(sums)
    return {
        "spread": geometry.spread,
        "mean_norm": geometry.mean_norm,
        "sqnorm": geometry.sqnorm,
        "margin": margins_of(geometry.sqnorm, mean_margin),
    }


def margins_of(sqnorm: FloatArray, mean_margin: float) -> FloatArray:
    """Return the margin γ that MR² would give each class (Eq. 1, 17); a class without samples gets the mean."""
    import torch

    from classmargin.mr2.class_margins import class_margins

    seen = ~np.isnan(sqnorm)
    values = class_margins(
        torch.from_numpy(np.where(seen, sqnorm, 0.0)), mean_margin, seen=torch.from_numpy(seen)
    )
    return np.asarray(values.numpy())


def weight_columns(
    classifier_weight: AnyArray | None, class_names: tuple[str, ...]
) -> dict[str, FloatArray | list[str]]:
    """Return weight norm and the nearest class by angle; NaN and "" without a head."""
    count = len(class_names)
    if classifier_weight is None:
        empty = np.full(count, np.nan)
        return {"weight_norm": empty, "nearest_by_angle": [""] * count, "nearest_angle": empty.copy()}
    angles = weight_angles(classifier_weight)
    return {
        "weight_norm": angles.norms,
        "nearest_by_angle": ["" if k < 0 else class_names[k] for k in angles.nearest.tolist()],
        "nearest_angle": angles.nearest_degrees,
    }


def confusion_columns(confusion: IntArray, class_names: tuple[str, ...]) -> dict[str, FloatArray | list[str]]:
    """Return the class each class is most often taken for, and how often."""
    errors = confusion.copy()
    np.fill_diagonal(errors, 0)
    rows = np.arange(len(class_names))
    top = errors.argmax(axis=1)
    count = errors[rows, top]
    names = [class_names[k] if c > 0 else "" for k, c in zip(top.tolist(), count.tolist(), strict=True)]
    return {"nearest_by_confusion": names, "confusion_share": share(count, confusion.sum(axis=1))}

"""From :class:`Evidence` to an :class:`Audit`: the one place where all parts of an audit meet."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin.evaluation.audit_result import Audit, FeatureSample
from classmargin.evaluation.bounds import risk_bounds
from classmargin.evaluation.class_diagnosis import accuracy_correlations, class_table
from classmargin.evaluation.class_metrics import (
    TIERS,
    calibration_error,
    class_accuracy,
    confusion_counts,
    disparity_measures,
)
from classmargin.evaluation.class_reasons import pair_separability
from classmargin.evaluation.corrected import lagging
from classmargin.evaluation.evidence import Evidence
from classmargin.evaluation.feature_geometry import collapse_diagnostics, weight_angles, weight_diagnostics
from classmargin.evaluation.headline_intervals import AuditSettings, HeadlineEstimates, estimate_headlines
from classmargin.evaluation.headlines import outcome_table
from classmargin.evaluation.input_checks import AnyArray, AuditInputs, shared_names

if TYPE_CHECKING:
    import pandas as pd


def audit_from_evidence(
    evidence: Evidence,
    class_names: tuple[str, ...],
    settings: AuditSettings,
    *,
    classifier_weight: AnyArray | None = None,
    inputs: AuditInputs | None = None,
    train: Audit | None = None,
) -> Audit:
    """Turn evidence into an audit."""
    import pandas as pd

    labels, predictions = evidence.labels, evidence.predictions
    confusion = confusion_counts(labels, predictions, len(class_names))
    correct = labels == predictions
    estimates = estimate_headlines(outcome_table(labels, correct[:, None], len(class_names)), settings)
    trained = None
    if train is not None:
        shared_names([class_names, train.class_names])
        trained = train.by_class["accuracy"].to_numpy(dtype=np.float64, copy=True)
    kept = evidence.kept.rows()
    features, rows = (None, slice(None)) if kept is None else kept
    if inputs is not None and inputs.features is not None:  # all of them, rather than a subsample
        features, rows = inputs.features, slice(None)
    separability = None if features is None else partial(pair_separability, features, labels[rows])
    by_class = class_table(
        evidence,
        class_names,
        confusion,
        estimates,
        settings,
        classifier_weight=classifier_weight,
        train_accuracy=trained,
        separability=separability,
    )
    accuracy = class_accuracy(confusion)
    tiers = pd.DataFrame([_tier_row(tier, by_class, estimates) for tier in TIERS])
    bounds, bound_notes = None, list[str]()
    if inputs is not None:
        margins = by_class["margin"].to_numpy(copy=True)
        bounds, bound_notes = risk_bounds(inputs, evidence.feature_sums, margins, accuracy)
    disparity = disparity_measures(accuracy, class_names)
    if settings.ranking == "corrected":  # so are these, then
        true = estimates.true
        disparity["worst_class"] = class_names[int(np.nanargmin(true.estimate))]
        for name in ("std", "gini"):
            disparity[name] = true.values[name]
            if settings.bootstrap:
                disparity[f"{name}_interval"] = true.intervals[name]
    sample = None
    if kept is not None:
        known = labels[kept[1]]
        sample = FeatureSample(kept[0], known, known == predictions[kept[1]], kept[1])
    return Audit(
        class_names=class_names,
        num_samples=len(labels),
        **estimates.values,
        intervals=estimates.intervals,
        confidence=settings.confidence,
        ranking=settings.ranking,
        by_class=by_class,
        tiers=tiers,
        disparity=disparity,
        equal_classes=estimates.true.equal_p_value,
        lag_by_chance=lagging(np.diagonal(confusion), confusion.sum(axis=1), settings.confidence)[1],
        geometry=_geometry(evidence, by_class, tiers, classifier_weight),
        bounds=bounds,
        correlations=accuracy_correlations(by_class, settings.confidence),
        notes=(
            *(inputs.notes if inputs is not None else ()),
            *estimates.notes,
            *_more_notes(evidence, by_class),
            *bound_notes,
        ),
        ece=calibration_error(evidence.scores.confidence, correct) if evidence.scores else float("nan"),
        feature_sample=sample,
        labels=labels,
        predictions=predictions,
        sample_id=evidence.sample_id,
        scores=evidence.scores,
    )


def _tier_row(tier: str, by_class: pd.DataFrame, estimates: HeadlineEstimates) -> dict[str, Any]:
    inside = by_class[by_class["tier"] == tier]
    low, high = estimates.intervals[tier]
    return {
        "tier": tier,
        "classes": len(inside),
        "n": int(inside["n"].sum()),
        "accuracy": estimates.values[tier],
        "low": low,
        "high": high,
        "output_margin": float(inside["output_margin"].mean()),
        "spread": float(inside["spread"].mean()),
        "names": tuple(inside["class_name"]),
    }


def _geometry(
    evidence: Evidence, by_class: pd.DataFrame, tiers: pd.DataFrame, classifier_weight: AnyArray | None
) -> dict[str, float | None]:
    """Return margins, weight norms and collapse diagnostics; ``None`` where the arrays do not tell."""
    margins = {"output_margin": float(by_class["output_margin"].mean())}
    margins |= {
        f"output_margin_{tier}": value for tier, value in zip(TIERS, tiers["output_margin"].tolist(), strict=True)
    }
    angles = None if classifier_weight is None else weight_angles(classifier_weight)
    margins["classifier_margin_degrees"] = float("nan") if angles is None else angles.minimum_degrees
    return {
        **{name: None if np.isnan(value) else value for name, value in margins.items()},
        **weight_diagnostics(classifier_weight),
        **collapse_diagnostics(evidence.feature_sums, classifier_weight),
    }


def _more_notes(evidence: Evidence, by_class: pd.DataFrame) -> list[str]:
    notes = []
    predictions, scores = evidence.predictions, evidence.scores
    if scores is not None:
        # Of several classes with the largest score each is right.
        equals = (scores.candidates == predictions[:, None]) & (
            scores.candidate_probabilities == scores.confidence[:, None]
        )
        other = int(((predictions != scores.predictions) & ~equals.any(axis=1)).sum())
        if other:
            notes.append(
                f"{other} of {len(predictions)} predictions are not the class with the largest score: accuracies follow the "
                "predictions; calibration, margins and label issues the scores. If nothing but the largest score decides, one of "
                "the two arrays is wrong."
            )
        notes.append(
            f"Label issues ({int(np.nansum(by_class['label_issues']))} samples) are estimated by confident learning: samples that the "
            "model places in another class with the confidence it has there, or whose label it believes as little; a weak model "
            "doubts good labels too."
        )
    if evidence.feature_sums is not None and evidence.feature_sums.gram is None:
        notes.append("Features are too wide for the covariance matrix behind nc1, which is left out.")
    return notes

"""From :class:`Evidence` to an :class:`Audit`: the one place where all parts of an audit meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin.evaluation.audit_result import Audit, FeatureSample
from classmargin.evaluation.bounds import has_masked_logits, risk_bounds
from classmargin.evaluation.class_diagnosis import accuracy_correlations, class_table
from classmargin.evaluation.class_metrics import (
    calibration_error,
    class_accuracy,
    confusion_counts,
    disparity_measures,
)
from classmargin.evaluation.class_pairs import pair_separability
from classmargin.evaluation.corrected import lagging
from classmargin.evaluation.evidence import Evidence, SampleScores
from classmargin.evaluation.feature_geometry import collapse_diagnostics, weight_angles, weight_diagnostics
from classmargin.evaluation.headline_intervals import AuditSettings, HeadlineEstimates, estimate_headlines
from classmargin.evaluation.headlines import outcome_table
from classmargin.evaluation.input_checks import AnyArray, AuditInputs, FloatArray, IntArray, shared_names
from classmargin.evaluation.tiers import TIERS

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
    """Turn evidence into an audit.

    Args:
        evidence: What was collected.
        class_names: One name per class.
        settings: Choices of the caller.
        classifier_weight: Weights of the head ``[K, d]``, or ``None``.
        inputs: The arrays themselves, where they are at hand: the bounds need a second pass over the logits.
        train: Audit of the training samples, for the reasons of failing classes.
    """
    labels, predictions = evidence.labels, evidence.predictions
    confusion = confusion_counts(labels, predictions, len(class_names))
    correct = labels == predictions
    estimates = estimate_headlines(outcome_table(labels, correct[:, None], len(class_names)), settings)
    by_class = class_table(
        evidence,
        class_names,
        confusion,
        estimates,
        classifier_weight=classifier_weight,
        mean_margin=settings.mean_margin,
        confidence=settings.confidence,
        costs=settings.costs,
        train_accuracy=_train_accuracy(train, class_names),
        separability=_separability(evidence, inputs),
    )
    accuracy = class_accuracy(confusion)
    tiers = tier_table(by_class, estimates)
    bounds = None
    if inputs is not None:
        bounds = risk_bounds(inputs, evidence.feature_sums, by_class["margin"].to_numpy(copy=True), accuracy)
    return Audit(
        class_names=class_names,
        num_samples=len(labels),
        **estimates.values,
        intervals=estimates.intervals,
        confidence=settings.confidence,
        ranking=settings.ranking,
        by_class=by_class,
        tiers=tiers,
        disparity=_disparity(accuracy, class_names, estimates, settings),
        equal_classes=estimates.true.equal_p_value,
        lag_by_chance=lagging(np.diagonal(confusion), confusion.sum(axis=1), settings.confidence)[1],
        geometry=geometry_values(evidence, by_class, tiers, classifier_weight),
        bounds=bounds,
        correlations=accuracy_correlations(by_class, settings.confidence),
        notes=(
            *(inputs.notes if inputs is not None else ()),
            *estimates.notes,
            *_more_notes(evidence, by_class),
            *_masked_note(inputs),
        ),
        ece=calibration_error(evidence.scores.confidence, correct) if evidence.scores else float("nan"),
        feature_sample=_feature_sample(evidence),
        labels=labels,
        predictions=predictions,
        sample_id=evidence.sample_id,
        scores=evidence.scores,
    )


def _disparity(
    accuracy: FloatArray, class_names: tuple[str, ...], estimates: HeadlineEstimates, settings: AuditSettings
) -> dict[str, Any]:
    """Return the measures of disparity; corrected ones where the headlines are."""
    measures = disparity_measures(accuracy, class_names)
    if settings.ranking == "corrected":
        true = estimates.true
        measures["worst_class"] = class_names[int(np.nanargmin(true.estimate))]
        for name in ("std", "gini"):
            measures[name] = true.values[name]
            if settings.bootstrap:
                measures[f"{name}_interval"] = true.intervals[name]
    return measures


def _train_accuracy(train: Audit | None, class_names: tuple[str, ...]) -> FloatArray | None:
    if train is None:
        return None
    shared_names([class_names, train.class_names])
    return train.by_class["accuracy"].to_numpy(dtype=np.float64, copy=True)


def _separability(
    evidence: Evidence, inputs: AuditInputs | None
) -> Callable[[AnyArray, IntArray], FloatArray] | None:
    """Return what tells pairs of classes apart on the features, all of them where they are at hand, else the kept ones."""
    if inputs is not None and inputs.features is not None:
        features, labels = inputs.features, evidence.labels
    else:
        kept = evidence.kept.rows()
        if kept is None:
            return None
        features, labels = kept[0], evidence.labels[kept[1]]
    return lambda wanted, partner: pair_separability(features, labels, wanted, partner)


def tier_table(by_class: pd.DataFrame, estimates: HeadlineEstimates) -> pd.DataFrame:
    """Return three rows (easy, medium, hard) with number of classes, samples, accuracy, interval, margin, spread, names."""
    import pandas as pd

    rows = []
    for tier in TIERS:
        inside = by_class[by_class["tier"] == tier]
        low, high = estimates.intervals[tier]
        rows.append(
            {
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
        )
    return pd.DataFrame(rows)


def geometry_values(
    evidence: Evidence, by_class: pd.DataFrame, tiers: pd.DataFrame, classifier_weight: AnyArray | None
) -> dict[str, float | None]:
    """Return margins, weight norms and collapse diagnostics; ``None`` where the arrays do not tell."""
    margins = {"output_margin": float(by_class["output_margin"].mean())}
    margins |= {
        f"output_margin_{tier}": float(tiers["output_margin"].iloc[code]) for code, tier in enumerate(TIERS)
    }
    values: dict[str, float | None] = {
        name: None if np.isnan(value) else value for name, value in margins.items()
    }
    angle = float("nan") if classifier_weight is None else weight_angles(classifier_weight).minimum_degrees
    values["classifier_margin_degrees"] = None if np.isnan(angle) else angle
    values |= weight_diagnostics(classifier_weight)
    values |= collapse_diagnostics(evidence.feature_sums, classifier_weight)
    return values


def _feature_sample(evidence: Evidence) -> FeatureSample | None:
    kept = evidence.kept.rows()
    if kept is None:
        return None
    features, index = kept
    labels = evidence.labels[index]
    return FeatureSample(features, labels, labels == evidence.predictions[index], index)


def _not_the_largest_score(predictions: IntArray, scores: SampleScores) -> AnyArray:
    """Return which predictions are none of the classes with the largest score ``[N]``; of equals each is right."""
    equals = (scores.candidates == predictions[:, None]) & (
        scores.candidate_probabilities == scores.confidence[:, None]
    )
    return np.asarray((predictions != scores.predictions) & ~equals.any(axis=1))


def _masked_note(inputs: AuditInputs | None) -> list[str]:
    if (
        inputs is None
        or inputs.features is None
        or inputs.classifier_weight is None
        or not has_masked_logits(inputs)
    ):
        return []
    return ["Bounds are left out: they are about linear heads, and some logits are minus infinity."]


def _more_notes(evidence: Evidence, by_class: pd.DataFrame) -> list[str]:
    notes = []
    if evidence.scores is not None:
        other = int(_not_the_largest_score(evidence.predictions, evidence.scores).sum())
        if other:
            notes.append(
                f"{other} of {len(evidence.labels)} predictions are not the class with the largest score: accuracies follow the "
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

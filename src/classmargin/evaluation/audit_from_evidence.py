"""From :class:`Evidence` to an :class:`Audit`: the one place where all parts of an audit meet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._progress import progress_if_long
from classmargin.evaluation.audit_result import Audit, FeatureSample
from classmargin.evaluation.class_diagnosis import accuracy_correlations, class_table, spearman
from classmargin.evaluation.class_metrics import (
    TIERS,
    calibration_error,
    class_accuracy,
    confusion_counts,
    disparity_measures,
)
from classmargin.evaluation.corrected import lagging
from classmargin.evaluation.evidence import Evidence
from classmargin.evaluation.feature_geometry import FeatureSums, collapse_diagnostics, weight_angles, weight_diagnostics
from classmargin.evaluation.headline_intervals import AuditSettings, HeadlineEstimates, estimate_headlines
from classmargin.evaluation.headlines import outcome_table
from classmargin.evaluation.input_checks import (
    CHUNK_ROWS,
    AnyArray,
    AuditInputs,
    FloatArray,
    IntArray,
    row_chunks,
    shared_names,
)

if TYPE_CHECKING:
    import pandas as pd

DELTA = 0.05  # probability that the bounds fail


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
    known = None if features is None else (features, labels[rows])
    by_class = class_table(
        evidence,
        class_names,
        confusion,
        estimates,
        settings,
        classifier_weight=classifier_weight,
        train_accuracy=trained,
        features=known,
    )
    accuracy = class_accuracy(confusion)
    tiers = pd.DataFrame([_tier_row(tier, by_class, estimates) for tier in TIERS])
    bounds, bound_notes, given_notes = None, list[str](), () if inputs is None else inputs.notes
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
    sample = None if kept is None else FeatureSample(kept[0], labels[kept[1]], correct[kept[1]], kept[1])
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
        notes=(*given_notes, *estimates.notes, *_more_notes(evidence, by_class), *bound_notes),
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
    row = {"tier": tier, "classes": len(inside), "n": int(inside["n"].sum())}
    row |= {"accuracy": estimates.values[tier], "low": low, "high": high}
    means = {name: float(inside[name].mean()) for name in ("output_margin", "spread")}
    return {**row, **means, "names": tuple(inside["class_name"])}


def _geometry(
    evidence: Evidence, by_class: pd.DataFrame, tiers: pd.DataFrame, classifier_weight: AnyArray | None
) -> dict[str, float | None]:
    """Return margins, weight norms and collapse diagnostics; ``None`` where the arrays do not tell."""
    margins = {"output_margin": float(by_class["output_margin"].mean())}
    margins |= {f"output_margin_{tier}": value for tier, value in zip(TIERS, tiers["output_margin"], strict=True)}
    angles = None if classifier_weight is None else weight_angles(classifier_weight)
    margins["classifier_margin_degrees"] = float("nan") if angles is None else angles.minimum_degrees
    return {
        **{name: None if np.isnan(value) else float(value) for name, value in margins.items()},
        **weight_diagnostics(classifier_weight),
        **collapse_diagnostics(evidence.feature_sums, classifier_weight),
    }


def _more_notes(evidence: Evidence, by_class: pd.DataFrame) -> list[str]:
    notes = []
    predictions, scores = evidence.predictions, evidence.scores
    if scores is not None:
        # Of several classes with the largest score each is right.
        largest = scores.candidate_probabilities == scores.confidence[:, None]
        among = ((scores.candidates == predictions[:, None]) & largest).any(axis=1)
        other = int(((predictions != scores.predictions) & ~among).sum())
        if other:
            notes.append(
                f"{other} of {len(predictions)} predictions are not the class with the largest score: accuracies follow the "
                "predictions; calibration, margins and label issues the scores."
            )
        issues = f"Label issues ({int(np.nansum(by_class['label_issues']))} samples)"
        notes.append(f"{issues} are estimated by confident learning; a weak model doubts good labels too.")
    if evidence.feature_sums is not None and evidence.feature_sums.gram is None:
        notes.append("Features are too wide for the covariance matrix behind nc1, which is left out.")
    return notes


def risk_bounds(
    inputs: AuditInputs, sums: FeatureSums | None, class_margins: FloatArray, class_accuracy: FloatArray
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the bounds of Proposition 1 and Eq. 15 as in ``Audit.bounds``, ``None`` if an array is missing, and notes."""
    scores, weight = inputs.scores, inputs.classifier_weight
    if sums is None or weight is None or scores is None or not inputs.scores_are_logits:
        return None, []
    if not all(bool(np.isfinite(scores[rows]).all()) for rows in row_chunks(len(scores))):
        # A class that is masked out is no output of a linear head.
        return None, ["Bounds are left out: they are about linear heads, and some logits are minus infinity."]
    conjugate = 1.0 if math.isinf(sums.norm_order) else math.inf
    if 1.0 < sums.norm_order < math.inf:
        conjugate = sums.norm_order / (sums.norm_order - 1.0)
    # Λ: the largest weight in the norm conjugate to that of the features.
    reach = float(np.linalg.norm(np.asarray(weight, dtype=np.float64), ord=conjugate, axis=1).max())
    if inputs.num_classes < 2 or not reach > 0:
        return None, []
    terms, by_class = _evaluate(inputs, sums, class_margins, reach)
    by_class["error"] = 1 - class_accuracy
    return {"terms": terms, "by_class": by_class, "statement": _statement(terms, by_class)}, []


def _evaluate(
    inputs: AuditInputs, sums: FeatureSums, class_margins: FloatArray, reach: float
) -> tuple[dict[str, float], pd.DataFrame]:
    """Evaluate the bounds in bounded memory: that of a class needs its samples alone, the total is put together from its terms."""
    import pandas as pd

    from classmargin.theory import class_risk_bounds, rademacher_bound_from_statistics, risk_bound

    assert inputs.features is not None
    assert inputs.scores is not None
    options: dict[str, Any] = {"weight_bound": reach, "norm_order": sums.norm_order, "delta": DELTA}
    counts = sums.counts
    complexity = rademacher_bound_from_statistics(
        sums.norm_sums / np.maximum(counts, 1),
        counts,
        class_margins,
        feature_dim=inputs.features.shape[1],
        weight_bound=reach,
        norm_order=sums.norm_order,
    )
    columns = np.full((4, inputs.num_classes), np.nan)
    for rows in progress_if_long(list(class_groups(inputs.labels)), "bounds"):
        # Types and byte orders that NumPy knows and torch does not end here.
        scores, features = (np.asarray(array[rows], dtype=np.float64) for array in (inputs.scores, inputs.features))
        part = (scores, inputs.labels[rows], features, class_margins)
        bounds = np.stack([np.asarray(term) for term in class_risk_bounds(*part, **options)])
        columns = np.where(np.isnan(bounds), columns, bounds)
    # Complexity is given and the confidence term goes with one over the root of N: any part tells both.
    total = risk_bound(*part, **options, complexity=complexity)
    empirical = float(np.nansum(columns[1] * counts) / counts.sum())
    confidence = total.confidence * math.sqrt(len(rows) / counts.sum())
    terms = {"empirical": empirical, "complexity": total.complexity, "confidence": confidence}
    terms |= {"total": sum(terms.values()), "delta": DELTA, "weight_bound": reach}
    names = ("bound", "empirical", "complexity", "confidence")
    frame = pd.DataFrame({"class_name": list(inputs.class_names), **dict(zip(names, columns, strict=True))})
    return terms, frame


def class_groups(labels: IntArray, rows: int = CHUNK_ROWS) -> Iterator[IntArray]:
    """Yield row numbers of whole classes, class after class, at least ``rows`` at a time (the last group may be smaller)."""
    order = np.argsort(labels, kind="stable")
    ends = np.flatnonzero(np.diff(labels[order])) + 1
    start = 0
    for end in [*ends.tolist(), len(order)]:
        if end - start >= rows or end == len(order):
            yield order[start:end]
            start = end


def _statement(terms: dict[str, float], by_class: pd.DataFrame) -> str:
    useful = int((by_class["bound"] < 1).sum())
    known = by_class["bound"].notna()
    text = (
        f"The bound on the error is {terms['total']:.3g}"
        + (" and says nothing (an error is never above 1)" if terms["total"] >= 1 else "")
        + f"; {useful} of {int(known.sum())} class bounds are below 1. Such bounds are usually vacuous: what they tell is an order, "
        "namely which classes the theory expects to be harder for these features, head and margins."
    )
    order = spearman(by_class["bound"][known].to_numpy(), by_class["error"][known].to_numpy())
    if not math.isnan(order):
        text += f" Here the rank correlation of class bound and class error is {order:.2f}."
    return text + (
        " They assume features and margins fixed before the samples were drawn and a head without a bias; on other terms read "
        "them as a description."
    )

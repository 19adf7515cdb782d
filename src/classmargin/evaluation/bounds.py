"""The paper's bounds for the given features and head, evaluated class by class in bounded memory.

:mod:`classmargin.theory` has the formulas. The bound of one class needs the samples of that class alone, so classes are handed over
in groups of a few thousand samples; the total bound is put together from its terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from classmargin._progress import progress_if_long
from classmargin.evaluation.feature_geometry import FeatureSums
from classmargin.evaluation.input_checks import CHUNK_ROWS, AuditInputs, FloatArray, IntArray, row_chunks

DELTA = 0.05


def risk_bounds(
    inputs: AuditInputs, sums: FeatureSums | None, class_margins: FloatArray, class_accuracy: FloatArray
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the terms of Proposition 1 and the class bounds of Eq. 15, or ``None`` if something is missing, and notes.

    They need logits, features, classifier_weight and at least two classes. ``terms`` has ``empirical``, ``complexity``, ``confidence``,
    ``total``, ``delta``, ``weight_bound``; ``by_class`` is a frame of ``class_name``, ``bound``, ``empirical``, ``complexity``,
    ``confidence`` and the measured ``error``; ``statement`` says how to read them.
    """
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
) -> tuple[dict[str, float], Any]:
    import pandas as pd

    from classmargin.theory import class_risk_bounds, rademacher_bound_from_statistics, risk_bound

    assert inputs.features is not None
    assert inputs.scores is not None
    options: dict[str, Any] = {"weight_bound": reach, "norm_order": sums.norm_order, "delta": DELTA}
    counts = sums.counts
    complexity = rademacher_bound_from_statistics(
        sums.norm_sums / np.maximum(counts, 1), counts, class_margins,
        feature_dim=inputs.features.shape[1], weight_bound=reach, norm_order=sums.norm_order,
    )  # fmt: skip
    columns = np.full((4, inputs.num_classes), np.nan)
    total = None
    for rows in progress_if_long(list(class_groups(inputs.labels)), "bounds"):
        # Types and byte orders that NumPy knows and torch does not end here.
        scores, features = (np.asarray(array[rows], dtype=np.float64) for array in (inputs.scores, inputs.features))
        part = (scores, inputs.labels[rows], features, class_margins)
        bounds = np.stack([np.asarray(term) for term in class_risk_bounds(*part, **options)])
        columns = np.where(np.isnan(bounds), columns, bounds)
        if total is None:
            # Complexity is given and the confidence term goes with one over the root of N: any part tells both.
            total = risk_bound(*part, **options, complexity=complexity)
            confidence = total.confidence * math.sqrt(len(rows) / counts.sum())
    assert total is not None
    empirical = float(np.nansum(columns[1] * counts) / counts.sum())
    terms = {
        "empirical": empirical,
        "complexity": total.complexity,
        "confidence": confidence,
        "total": empirical + total.complexity + confidence,
        "delta": DELTA,
        "weight_bound": reach,
    }
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


def _statement(terms: dict[str, float], by_class: Any) -> str:
    from classmargin.evaluation.class_diagnosis import spearman

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

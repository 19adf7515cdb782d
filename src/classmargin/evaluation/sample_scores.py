"""What one row of logits or probabilities tells about its sample, kept in a few numbers.

The full ``[N, K]`` scores are read once, chunk by chunk; everything later works on these records (about 100 bytes
a sample), which is why the functional and the accumulating audit cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from classmargin.evaluation.inputs import PROBABILITY_TOLERANCE, AnyArray, FloatArray, IntArray

# Confident learning looks for the most likely class above its own threshold. The ninth class of a row can have
# at most probability 1/9, far below any useful threshold, so eight candidates are enough.
CANDIDATES = 8


@dataclass(frozen=True)
class SampleScores:
    """Per-sample numbers; every attribute has one row a sample.

    Attributes:
        predictions: Class with the largest score (the first of equals) ``[N]``.
        confidence: Largest probability ``[N]``.
        true_probability: Probability of the true class ``[N]``.
        output_margin: Probability of the true class minus the largest other one ``[N]`` (0 if K = 1).
        logit_margin: The same difference of logits ``[N]``, NaN for probabilities.
        candidates: The most likely classes, most likely first ``[N, min(8, K)]``.
        candidate_probabilities: Their probabilities ``[N, min(8, K)]``.
    """

    predictions: IntArray
    confidence: FloatArray
    true_probability: FloatArray
    output_margin: FloatArray
    logit_margin: FloatArray
    candidates: IntArray
    candidate_probabilities: FloatArray


def score_samples(
    scores: AnyArray, labels: IntArray, *, are_logits: bool, first_row: int = 0
) -> SampleScores:
    """Read one chunk of scores.

    Args:
        scores: Logits or probabilities ``[B, K]``.
        labels: True classes ``[B]``.
        are_logits: Which of the two ``scores`` are.
        first_row: Number of the first row, for messages.

    Raises:
        ValueError: Not-a-number or infinite logits, probabilities outside [0, 1] or not summing to one.
    """
    values = scores.astype(np.float64)
    probabilities = _softmax(values, first_row) if are_logits else _checked(values, first_row)
    rows = np.arange(labels.shape[0])
    candidates = _top_classes(probabilities, min(CANDIDATES, probabilities.shape[1]))
    own = probabilities[rows, labels]
    margin = _margin(values, labels) if are_logits else np.full(labels.shape[0], np.nan)
    return SampleScores(
        predictions=np.argmax(values, axis=1),
        confidence=probabilities.max(axis=1),
        true_probability=own,
        output_margin=_margin(probabilities, labels),
        logit_margin=margin,
        candidates=candidates,
        candidate_probabilities=np.take_along_axis(probabilities, candidates, axis=1),
    )


def join_scores(parts: list[SampleScores]) -> SampleScores:
    """Return the records of several chunks as one."""
    return SampleScores(
        **{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(SampleScores)}
    )


def no_scores(num_classes: int) -> SampleScores:
    """Return the records of no samples."""
    none, width = np.zeros(0), min(CANDIDATES, num_classes)
    classes = np.zeros(0, dtype=np.int64)
    return SampleScores(
        classes, none, none, none, none, np.zeros((0, width), dtype=np.int64), np.zeros((0, width))
    )


def _softmax(logits: FloatArray, first_row: int) -> FloatArray:
    top = logits.max(axis=1, keepdims=True)
    bad = ~np.isfinite(top[:, 0]) | np.isnan(logits).any(axis=1)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        column = int(np.argmax(~np.isfinite(logits[row])))
        raise ValueError(
            "logits must be finite (-inf is allowed beside a finite value), "
            f"got {logits[row, column]} in row {first_row + row}, column {column}"
        )
    powers = np.exp(logits - top)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _checked(probabilities: FloatArray, first_row: int) -> FloatArray:
    sums = probabilities.sum(axis=1)
    outside = ~((probabilities >= 0).all(axis=1) & (probabilities <= 1 + PROBABILITY_TOLERANCE).all(axis=1))
    bad = outside | ~(np.abs(sums - 1) <= PROBABILITY_TOLERANCE)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"probabilities must lie in [0, 1] and sum to 1 in every row, got a row sum of {sums[row]:.6g} "
            f"with values from {probabilities[row].min():.6g} to {probabilities[row].max():.6g} in row {first_row + row}"
        )
    return np.asarray(probabilities / sums[:, None])


def _margin(values: FloatArray, labels: IntArray) -> FloatArray:
    if values.shape[1] == 1:
        return np.zeros(labels.shape[0])
    rows = np.arange(labels.shape[0])
    own = values[rows, labels].copy()
    values[rows, labels] = -np.inf
    other = values.max(axis=1)
    values[rows, labels] = own  # put back: cheaper than copying the whole chunk
    return np.asarray(own - other)


def _top_classes(probabilities: FloatArray, count: int) -> IntArray:
    if count < probabilities.shape[1]:
        part = np.argpartition(probabilities, -count, axis=1)[:, -count:]
    else:
        part = np.broadcast_to(np.arange(count), probabilities.shape).copy()
    part.sort(axis=1)  # class order first, so that the stable sort below breaks ties by class index
    order = np.argsort(-np.take_along_axis(probabilities, part, axis=1), axis=1, kind="stable")
    return np.asarray(np.take_along_axis(part, order, axis=1))

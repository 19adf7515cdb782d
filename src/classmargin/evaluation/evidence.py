"""What an audit keeps of the samples it has read: a few numbers per sample, sums over features, a small subsample of features.

The full ``[N, K]`` scores are read once, chunk by chunk; everything later works on these records (about 100 bytes per sample).
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from classmargin.evaluation.feature_geometry import FeatureSums
from classmargin.evaluation.input_checks import PROBABILITY_TOLERANCE, AnyArray, FloatArray, IntArray

# Confident learning looks for the most likely class above its own threshold. The ninth class of a row can have
# at most probability 1/9, far below any useful threshold, so eight candidates are enough.
CANDIDATES = 8


class SampleScores(NamedTuple):
    """Per-sample numbers; every attribute has one row per sample."""

    predictions: IntArray  # class with the largest score (the first of equals) [N]
    confidence: FloatArray  # largest probability [N]
    true_probability: FloatArray  # probability of the true class [N]
    output_margin: FloatArray  # probability of the true class minus the largest other one [N] (0 if K = 1)
    candidates: IntArray  # the most likely classes, most likely first [N, min(8, K)]
    candidate_probabilities: FloatArray  # their probabilities [N, min(8, K)]


def score_samples(
    scores: AnyArray,
    labels: IntArray,
    *,
    are_logits: bool,
    first_row: int = 0,
    tolerance: float = PROBABILITY_TOLERANCE,
) -> SampleScores:
    """Read one chunk of scores."""
    values = scores.astype(np.float64)
    probabilities = _softmax(values, first_row) if are_logits else _checked(values, first_row, tolerance)
    candidates = _top_classes(probabilities, min(CANDIDATES, probabilities.shape[1]))
    return SampleScores(
        predictions=np.argmax(values, axis=1),
        confidence=probabilities.max(axis=1),
        true_probability=probabilities[np.arange(len(labels)), labels],
        output_margin=_margin(probabilities, labels),
        candidates=candidates,
        candidate_probabilities=np.take_along_axis(probabilities, candidates, axis=1),
    )


def _softmax(logits: FloatArray, first_row: int) -> FloatArray:
    top = logits.max(axis=1, keepdims=True)
    bad = ~np.isfinite(top[:, 0]) | np.isnan(logits).any(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        column = int(np.argmax(~np.isfinite(logits[row])))
        found = f"got {logits[row, column]} in row {first_row + row}, column {column}"
        raise ValueError(f"logits must be finite (-inf is allowed beside a finite value), {found}")
    powers = np.exp(logits - top)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _checked(probabilities: FloatArray, first_row: int, tolerance: float) -> FloatArray:
    sums = probabilities.sum(axis=1)
    outside = ~((probabilities >= 0).all(axis=1) & (probabilities <= 1 + PROBABILITY_TOLERANCE).all(axis=1))
    bad = outside | ~(np.abs(sums - 1) <= tolerance)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"probabilities must lie in [0, 1] and sum to 1 in every row, got a row sum of {sums[row]:.6g} "
            f"with values from {probabilities[row].min():.6g} to {probabilities[row].max():.6g} in row {first_row + row}"
        )
    return np.asarray(probabilities / sums[:, None])


def _margin(values: FloatArray, labels: IntArray) -> FloatArray:
    if values.shape[1] == 1:
        return np.zeros(len(labels))
    rows = np.arange(len(labels))
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


class KeptFeatures:
    """At most ``limit`` feature rows with the smallest priorities so far: neither order nor batches of the samples matter."""

    def __init__(self, limit: int, seed: int) -> None:
        self.limit = limit
        self.seed = seed
        self.features: AnyArray | None = None
        self.positions: IntArray = np.zeros(0, dtype=np.int64)
        self.priorities: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)

    def add(self, features: AnyArray, sample_id: AnyArray | None, *, first: int) -> None:
        """Look at rows ``[B, d]`` whose positions start at ``first``."""
        positions = first + np.arange(len(features))
        self.keep(features, positions, priorities_of(positions if sample_id is None else sample_id, self.seed))

    def keep(self, features: AnyArray, positions: IntArray, priorities: NDArray[np.uint64]) -> None:
        """Keep those of the given rows whose priorities are among the smallest."""
        if self.features is None:
            self.features = np.zeros((0, features.shape[1]), dtype=np.float32)
        together = np.concatenate([self.priorities, priorities])
        kept = np.sort(np.argsort(together, kind="stable")[: self.limit])
        before = len(self.priorities)
        old, new = kept[kept < before], kept[kept >= before] - before
        self.features = np.concatenate([self.features[old], features[new].astype(np.float32)])
        self.positions = np.concatenate([self.positions[old], positions[new]])
        self.priorities = together[kept]

    def rows(self) -> tuple[AnyArray, IntArray] | None:
        """Return the kept features ``[M, d]`` and their positions, in order of position."""
        if self.features is None or not len(self.positions):
            return None
        order = np.argsort(self.positions, kind="stable")
        return self.features[order], self.positions[order]


def priorities_of(identities: AnyArray, seed: int) -> NDArray[np.uint64]:
    """Return a well-mixed 64-bit number for every identity (splitmix64 of the number, or of the text's checksum)."""
    if identities.dtype.kind in "US":
        numbers = np.array([zlib.crc32(str(text).encode()) for text in identities.tolist()], dtype=np.uint64)
    else:
        numbers = identities.astype(np.uint64)
    mixed = numbers + np.uint64((0x9E3779B97F4A7C15 * (seed + 1)) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


class Evidence(NamedTuple):
    """Everything an audit is computed from."""

    labels: IntArray  # true classes [N]
    predictions: IntArray  # predicted classes [N]
    scores: SampleScores | None  # per-sample numbers, or None without logits or probabilities
    sample_id: AnyArray | None  # identity of each sample, or None
    feature_sums: FeatureSums | None  # sums over features, or None
    kept: KeptFeatures  # subsample of features with their positions

    def in_order_of_identity(self, sample_id: AnyArray) -> Evidence:
        """Return this with its samples sorted by their identities ``[N]``."""
        order = np.argsort(sample_id, kind="stable")
        self.kept.positions = np.argsort(order)[self.kept.positions]
        scores = None if self.scores is None else SampleScores._make(column[order] for column in self.scores)
        labels, predictions = self.labels[order], self.predictions[order]
        return Evidence(labels, predictions, scores, sample_id[order], self.feature_sums, self.kept)

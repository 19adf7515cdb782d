"""What an audit keeps of the samples it has read: a few numbers per sample, sums over features, a small subsample of features.

The full ``[N, K]`` scores are read once, chunk by chunk; everything later works on these records (about 100 bytes per sample), which is why
``audit()`` and the accumulator cannot disagree. The subsample of features depends neither on the order of the samples nor on how they
are divided among processes: every sample gets a priority from a hash of its identity, and the smallest priorities are kept.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
        row = int(np.flatnonzero(bad)[0])
        column = int(np.argmax(~np.isfinite(logits[row])))
        raise ValueError(
            "logits must be finite (-inf is allowed beside a finite value), "
            f"got {logits[row, column]} in row {first_row + row}, column {column}"
        )
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


class KeptFeatures:
    """At most ``limit`` feature rows with the smallest priorities so far."""

    def __init__(self, limit: int, seed: int) -> None:
        self.limit = limit
        self.seed = seed
        self.features: AnyArray | None = None
        self.positions: IntArray = np.zeros(0, dtype=np.int64)
        self.priorities: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)

    def add(self, features: AnyArray, sample_id: AnyArray | None, *, first: int) -> None:
        """Look at rows ``[B, d]`` whose positions start at ``first``."""
        positions = first + np.arange(len(features))
        identities = positions if sample_id is None else sample_id
        self.keep(features, positions, priorities_of(identities, self.seed))

    def merge(self, other: KeptFeatures, *, shift: int) -> None:
        """Take rows of another subsample whose positions come ``shift`` later."""
        if other.features is not None:
            self.keep(other.features, other.positions + shift, other.priorities)

    def rows(self) -> tuple[AnyArray, IntArray] | None:
        """Return the kept features ``[M, d]`` and their positions, in order of position."""
        if self.features is None or not len(self.positions):
            return None
        order = np.argsort(self.positions, kind="stable")
        return self.features[order], self.positions[order]

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


@dataclass(frozen=True)
class Evidence:
    """Everything an audit is computed from, or a part of it: some samples."""

    labels: IntArray  # true classes [N]
    predictions: IntArray  # predicted classes [N]
    scores: SampleScores | None  # per-sample numbers, or None without logits or probabilities
    sample_id: AnyArray | None  # identity of each sample, or None
    feature_sums: FeatureSums | None  # sums over features, or None
    kept: KeptFeatures  # subsample of features with their positions

    def kind(self) -> tuple[bool, bool, bool]:
        """Return whether scores, features and sample_id are there."""
        return self.scores is not None, self.feature_sums is not None, self.sample_id is not None

    def of_each(self, function: Callable[..., AnyArray], *others: Evidence) -> Evidence:
        """Return this with every array per sample made by ``function`` from that of this and those of the others."""
        parts = (self, *others)
        scores = [part.scores for part in parts if part.scores is not None]
        ids = [part.sample_id for part in parts if part.sample_id is not None]
        return replace(
            self,
            labels=function(*(part.labels for part in parts)),
            predictions=function(*(part.predictions for part in parts)),
            scores=SampleScores(*map(function, *scores)) if scores else None,
            sample_id=function(*ids) if ids else None,
        )

    def joined(self, *others: Evidence) -> Evidence:
        """Return this with the samples of the others after its own."""
        return self.of_each(lambda *arrays: np.concatenate(arrays), *others)


def gather_evidence(own: Evidence, num_classes: int, norm_order: float) -> Evidence:
    """Return the evidence of all processes of ``torch.distributed``, which must all call this; that of one process is returned as it is.

    Counts and sums are added and per-sample records are gathered, so the result is that of one process that saw all samples. With
    ``sample_id`` the records are sorted by identity, which makes every number but the feature sums (whose additions happen in another
    order) equal to the last bit.
    """
    from classmargin._distributed import gather_objects, is_distributed

    if not is_distributed():
        if not len(own.labels):
            raise ValueError("compute needs at least one sample, got none (call update first)")
        if own.sample_id is not None:
            _refuse_repeated(own.sample_id)
        return own
    width = 0 if own.feature_sums is None else own.feature_sums.sums.shape[1]
    every = gather_objects((replace(own, feature_sums=None), (*own.kind(), width)))
    parts, kinds = zip(*every, strict=True)
    with_samples = [k for k, part in enumerate(parts) if len(part.labels)]
    if not with_samples:
        raise ValueError("compute needs at least one sample, got none in any process (call update first)")
    if len({kinds[k] for k in with_samples}) > 1:
        raise ValueError("all processes must update with the same kinds of arrays (scores, features, sample_id)")
    kept, shift = KeptFeatures(own.kept.limit, own.kept.seed), 0
    for part in parts:
        kept.merge(part.kept, shift=shift)
        shift += len(part.labels)
    first, *others = (parts[k] for k in with_samples)
    _, has_features, _, width = kinds[with_samples[0]]
    sums = None
    if has_features:  # a process without samples takes part with zeros
        sums = _added(own.feature_sums or FeatureSums.empty(num_classes, width, norm_order))
    return _in_order_of_identity(replace(first.joined(*others), feature_sums=sums, kept=kept))


def _added(own: FeatureSums) -> FeatureSums:
    """Return the sums over all processes."""
    import torch
    import torch.distributed as dist

    from classmargin._distributed import all_reduce_sum

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    added: dict[str, Any] = {
        name: all_reduce_sum(torch.from_numpy(array).to(device)).cpu().numpy()
        for name, array in vars(own).items()
        if isinstance(array, np.ndarray)
    }
    return replace(own, **added)


def _in_order_of_identity(evidence: Evidence) -> Evidence:
    if evidence.sample_id is None:
        return evidence
    if evidence.sample_id.dtype.kind not in "iu":
        raise TypeError(
            f"sample_id must hold integers when several processes take part, got dtype {evidence.sample_id.dtype}"
        )
    _refuse_repeated(evidence.sample_id)
    order = np.argsort(evidence.sample_id, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    evidence.kept.positions = place[evidence.kept.positions]
    return evidence.of_each(lambda array: array[order])


def _refuse_repeated(sample_id: AnyArray) -> None:
    if len(np.unique(sample_id)) < len(sample_id):
        raise ValueError("sample_id must name every sample once, got repeated values (a sampler that repeats samples?)")

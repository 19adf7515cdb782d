"""What an audit keeps of the samples it has read: a few numbers per sample, sums over features, a small subsample of features.

The full ``[N, K]`` scores are read once, chunk by chunk; everything later works on these records (about 100 bytes per sample), which is why
``audit()`` and the accumulator cannot disagree. The subsample of features depends neither on the order of the samples nor on how they
are divided among processes: every sample gets a priority from a hash of its identity, and the smallest priorities are kept.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from classmargin.evaluation.feature_geometry import FeatureSums
from classmargin.evaluation.input_checks import (
    PROBABILITY_TOLERANCE,
    AnyArray,
    FloatArray,
    IntArray,
)

# Confident learning looks for the most likely class above its own threshold. The ninth class of a row can have
# at most probability 1/9, far below any useful threshold, so eight candidates are enough.
CANDIDATES = 8


@dataclass(frozen=True)
class SampleScores:
    """Per-sample numbers; every attribute has one row per sample.

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
    scores: AnyArray,
    labels: IntArray,
    *,
    are_logits: bool,
    first_row: int = 0,
    tolerance: float = PROBABILITY_TOLERANCE,
) -> SampleScores:
    """Read one chunk of scores.

    Args:
        scores: Logits or probabilities ``[B, K]``.
        labels: True classes ``[B]``.
        are_logits: Which of the two ``scores`` are.
        first_row: Number of the first row, for messages.
        tolerance: Largest distance of a row of probabilities from one.

    Raises:
        ValueError: Not-a-number or infinite logits, probabilities outside [0, 1] or not summing to one.
    """
    values = scores.astype(np.float64)
    probabilities = _softmax(values, first_row) if are_logits else _checked(values, first_row, tolerance)
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
    return _of_each(lambda *arrays: np.concatenate(arrays), *parts)


def _of_each(function: Callable[..., AnyArray], *parts: SampleScores) -> SampleScores:
    """Return the records with every array made by ``function`` from those of ``parts``."""
    return SampleScores(
        **{f.name: function(*(getattr(p, f.name) for p in parts)) for f in fields(SampleScores)}
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


Priorities = NDArray[np.uint64]


class KeptFeatures:
    """At most ``limit`` feature rows with the smallest priorities so far.

    Args:
        limit: How many rows are kept.
        seed: Seed of the priorities.
    """

    def __init__(self, limit: int, seed: int) -> None:
        self.limit = limit
        self.seed = seed
        self.features: AnyArray | None = None
        self.positions: IntArray = np.zeros(0, dtype=np.int64)
        self.priorities: Priorities = np.zeros(0, dtype=np.uint64)

    def add(self, features: AnyArray, sample_id: AnyArray | None, *, first: int) -> None:
        """Look at rows ``[B, d]`` whose positions start at ``first``."""
        positions = first + np.arange(len(features))
        self.keep(
            features, positions, priorities_of(positions if sample_id is None else sample_id, self.seed)
        )

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

    def keep(self, features: AnyArray, positions: IntArray, priorities: Priorities) -> None:
        """Keep those of the given rows whose priorities are among the smallest."""
        if self.features is None:
            self.features = np.zeros((0, features.shape[1]), dtype=np.float32)
        together = np.concatenate([self.priorities, priorities])
        kept = np.sort(np.argsort(together, kind="stable")[: self.limit])
        old, new = (
            kept[kept < len(self.priorities)],
            kept[kept >= len(self.priorities)] - len(self.priorities),
        )
        self.features = np.concatenate([self.features[old], features[new].astype(np.float32)])
        self.positions = np.concatenate([self.positions[old], positions[new]])
        self.priorities = together[kept]


def priorities_of(identities: AnyArray, seed: int) -> Priorities:
    """Return a well-mixed 64-bit number for every identity (splitmix64 of the number, or of the text's checksum).

    Example:
        >>> int(priorities_of(np.array([0]), 0)[0])
        16294208416658607535
    """
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
    """Everything an audit is computed from.

    Attributes:
        labels: True classes ``[N]``.
        predictions: Predicted classes ``[N]``.
        scores: Per-sample numbers, or ``None`` without logits or probabilities.
        feature_sums: Sums over features, or ``None``.
        sample_id: Identity of each sample, or ``None``.
        kept: Subsample of features with their positions.
    """

    labels: IntArray
    predictions: IntArray
    scores: SampleScores | None
    feature_sums: FeatureSums | None
    sample_id: AnyArray | None
    kept: KeptFeatures

    def kind(self) -> tuple[bool, bool, bool]:
        """Return whether scores, features and sample_id are there."""
        return self.scores is not None, self.feature_sums is not None, self.sample_id is not None


def gather_evidence(own: Evidence, num_classes: int, norm_order: float) -> Evidence:
    """Return the evidence of all processes of ``torch.distributed``, which must all call this; that of one process is returned as it is.

    Counts and sums are added and per-sample records are gathered, so the result is that of one process that saw all samples. With
    ``sample_id`` the records are sorted by identity, which makes every number but the feature sums (whose additions happen in another
    order) equal to the last bit.

    Args:
        own: What this process has collected, perhaps nothing.
        num_classes: Number of classes K.
        norm_order: p of the norm in the feature sums.
    """
    from classmargin._distributed import is_distributed

    if not is_distributed():
        if not len(own.labels):
            raise ValueError("compute needs at least one sample, got none (call update first)")
        if own.sample_id is not None:
            _refuse_repeated(own.sample_id)
        return own
    has_scores, has_features, has_id, width = _agree(own)
    if not len(own.labels):  # a process without samples takes part in every exchange with empty arrays
        none = np.zeros(0, dtype=np.int64)
        scores = score_samples(np.zeros((0, num_classes)), none, are_logits=False) if has_scores else None
        sums = FeatureSums.empty(num_classes, width, norm_order) if has_features else None
        own = replace(own, scores=scores, feature_sums=sums, sample_id=none if has_id else None)
    labels, offset = _gather(own.labels)
    merged = Evidence(
        labels=labels,
        predictions=_gather(own.predictions)[0],
        scores=None if own.scores is None else _of_each(lambda array: _gather(array)[0], own.scores),
        feature_sums=None if own.feature_sums is None else _add_sums(own.feature_sums),
        sample_id=None if own.sample_id is None else _gather(_whole_numbers(own.sample_id))[0],
        kept=_gather_kept(own.kept, width, offset) if has_features else own.kept,
    )
    return _in_order_of_identity(merged)


def _agree(own: Evidence) -> tuple[bool, bool, bool, int]:
    """Return which arrays the processes hold (scores, features, sample_id) and how many columns the features have."""
    width = 0 if own.feature_sums is None else own.feature_sums.sums.shape[1]
    every = _gather(np.array([[len(own.labels), *own.kind(), width]], dtype=np.int64))[0]
    with_samples = every[every[:, 0] > 0, 1:]
    if not len(with_samples):
        raise ValueError("compute needs at least one sample, got none in any process (call update first)")
    if (with_samples != with_samples[0]).any():
        raise ValueError(
            "all processes must update with the same kinds of arrays (scores, features, sample_id)"
        )
    scores, features, ids, size = with_samples[0].tolist()
    return bool(scores), bool(features), bool(ids), int(size)


def _gather(array: AnyArray) -> tuple[AnyArray, int]:
    import torch

    from classmargin._distributed import gather_rows

    rows, offset = gather_rows(torch.from_numpy(np.ascontiguousarray(array)).to(_device()))
    return rows.cpu().numpy(), offset


def _add(array: AnyArray) -> AnyArray:
    import torch

    from classmargin._distributed import all_reduce_sum

    return np.asarray(all_reduce_sum(torch.from_numpy(array).to(_device())).cpu().numpy())


def _device() -> str:
    import torch.distributed as dist

    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def _add_sums(own: FeatureSums) -> FeatureSums:
    return FeatureSums(
        own.norm_order,
        _add(own.counts),
        _add(own.sums),
        _add(own.square_sums),
        _add(own.norm_sums),
        None if own.gram is None else _add(own.gram),
    )


def _gather_kept(own: KeptFeatures, width: int, offset: int) -> KeptFeatures:
    features = own.features if own.features is not None else np.zeros((0, width), dtype=np.float32)
    together = KeptFeatures(own.limit, own.seed)
    rows, positions = _gather(features)[0], _gather(own.positions + offset)[0]
    together.keep(rows, positions, _gather(own.priorities.view(np.int64))[0].view(np.uint64))
    return together


def _whole_numbers(sample_id: AnyArray) -> AnyArray:
    if sample_id.dtype.kind not in "iu":
        raise TypeError(
            f"sample_id must hold integers when several processes take part, got dtype {sample_id.dtype}"
        )
    return sample_id.astype(np.int64)


def _in_order_of_identity(evidence: Evidence) -> Evidence:
    if evidence.sample_id is None:
        return evidence
    _refuse_repeated(evidence.sample_id)
    order = np.argsort(evidence.sample_id, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    evidence.kept.positions = place[evidence.kept.positions]
    return replace(
        evidence,
        labels=evidence.labels[order],
        predictions=evidence.predictions[order],
        scores=None if evidence.scores is None else _of_each(lambda array: array[order], evidence.scores),
        sample_id=evidence.sample_id[order],
    )


def _refuse_repeated(sample_id: AnyArray) -> None:
    if len(np.unique(sample_id)) < len(sample_id):
        raise ValueError(
            "sample_id must name every sample once, got repeated values (a sampler that repeats samples?)"
        )

"""The accumulating audit: feed batches, in one or several processes, then compute.

``audit()`` is this accumulator fed with chunks, so both forms give the same numbers. What is kept: a few numbers a sample
(:class:`SampleScores`), sums over features, and a small subsample of features for a map; never the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._checks import check_int, check_number
from classmargin.evaluation.feature_geometry import FeatureSums, check_finite
from classmargin.evaluation.feature_sample import KeptFeatures
from classmargin.evaluation.inputs import (
    AnyArray,
    AuditInputs,
    IntArray,
    check_class_names,
    check_inputs,
    row_chunks,
)
from classmargin.evaluation.long_work import watched
from classmargin.evaluation.sample_scores import SampleScores, join_scores, score_samples
from classmargin.evaluation.settings import check_settings

if TYPE_CHECKING:
    from classmargin.evaluation.audit import Audit

FEATURE_SAMPLES = 2000


@dataclass(frozen=True)
class Evidence:
    """Everything an audit is computed from.

    Attributes:
        labels: True classes ``[N]``.
        predictions: Predicted classes ``[N]``.
        scores: Per-sample numbers, or ``None`` without logits or probabilities.
        feature_sums: Sums over features, or ``None``.
        sample_id: Identity of each sample, or ``None``.
        kept: Subsample of features ``[M, d]`` with their positions ``[M]``, or ``None``.
    """

    labels: IntArray
    predictions: IntArray
    scores: SampleScores | None
    feature_sums: FeatureSums | None
    sample_id: AnyArray | None
    kept: tuple[AnyArray, IntArray] | None


@dataclass(frozen=True)
class Chunk:
    """The records of some consecutive samples."""

    labels: IntArray
    predictions: IntArray
    scores: SampleScores | None
    sample_id: AnyArray | None


class AuditAccumulator:
    """Collects an audit batch by batch.

    Under ``torch.distributed`` every process feeds its own samples and :meth:`compute`, which all of them must call, returns the
    audit of all samples to each of them. Samplers that repeat samples to fill the last batch would count those twice: give
    ``sample_id`` and the repetition is refused.

    Args:
        num_classes: Number of classes K (or give ``class_names``).
        class_names: One name a class.
        norm_order: p of the norm of ``sqnorm``.
        feature_samples: How many feature rows to keep for a map; 0 keeps none.
        seed: Seed of that choice.

    Example:
        >>> accumulator = AuditAccumulator(num_classes=2)
        >>> accumulator.update([0, 1], predictions=[0, 0])
        >>> accumulator.update([1], predictions=[1])
        >>> round(accumulator.compute(bootstrap=100).overall, 3)
        0.667
    """

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        class_names: Sequence[str] | None = None,
        norm_order: float = 2.0,
        feature_samples: int = FEATURE_SAMPLES,
        seed: int = 0,
    ) -> None:
        if num_classes is None and class_names is None:
            raise ValueError("give num_classes or class_names, got neither")
        count = num_classes if num_classes is not None else len(class_names or ())
        self.class_names = check_class_names(class_names, check_int("num_classes", count, minimum=1))
        self.has_names = class_names is not None
        self.norm_order = check_number("norm_order", norm_order, minimum=1.0, finite=False)
        self.feature_samples = feature_samples
        self.seed = seed
        self.reset()

    def reset(self) -> None:
        """Forget all samples."""
        self.chunks: list[Chunk] = []
        self.feature_sums: FeatureSums | None = None
        self.kept = KeptFeatures(self.feature_samples, self.seed)
        self.num_samples = 0

    def update(
        self,
        labels: Any,
        *,
        logits: Any = None,
        probabilities: Any = None,
        predictions: Any = None,
        features: Any = None,
        sample_id: Any = None,
    ) -> None:
        """Add one batch; arguments as in :func:`classmargin.audit`. A refused batch leaves the state as it was."""
        self.add(
            check_inputs(
                labels,
                logits=logits,
                probabilities=probabilities,
                predictions=predictions,
                features=features,
                # Names bring the columns of a frame into class order; numbers in place of names must not be held against it.
                class_names=self.class_names if self.has_names else None,
                num_classes=len(self.class_names),
                sample_id=sample_id,
            )
        )

    def add(self, inputs: AuditInputs) -> None:
        """Add checked arrays; nothing is changed before everything has been read without an error."""
        self._check_same_kind(inputs)
        chunks = [
            self._read(inputs, rows)
            for rows in watched(list(row_chunks(len(inputs.labels))), "reading scores")
        ]
        if inputs.features is not None:
            self._add_features(inputs.features, inputs.labels, inputs.sample_id)
        self.chunks += chunks
        self.num_samples += len(inputs.labels)

    def merge(self, other: AuditAccumulator) -> None:
        """Add what another accumulator of the same classes has collected."""
        if other.class_names != self.class_names or other.norm_order != self.norm_order:
            raise ValueError("accumulators to merge must have the same class_names and norm_order")
        if other.num_samples == 0:
            return
        if self.num_samples and self.kind() != other.kind():
            raise ValueError("accumulators to merge must hold the same kinds of arrays")
        self.kept.merge(other.kept, shift=self.num_samples)
        self.chunks += other.chunks
        self.num_samples += other.num_samples
        if other.feature_sums is not None:
            if self.feature_sums is None:
                self.feature_sums = other.feature_sums.zeros_like()
            self.feature_sums.merge(other.feature_sums)

    def compute(self, *, classifier_weight: Any = None, **options: Any) -> Audit:
        """Return the audit of all samples so far, over all processes.

        Args:
            classifier_weight: Weights of the head ``[K, d]``, for angles.
            options: ``ranking``, ``reference``, ``confidence``, ``bootstrap``, ``seed``, ``mean_margin`` of
                :func:`classmargin.audit`. Bounds are left out: they need a second pass over the logits.
        """
        from classmargin.evaluation.assembly import assemble_audit
        from classmargin.evaluation.gathering import gather_evidence
        from classmargin.evaluation.inputs import check_weight

        settings = check_settings(len(self.class_names), class_names=self.class_names, **options)
        evidence = gather_evidence(self)
        dim = None if evidence.feature_sums is None else evidence.feature_sums.sums.shape[1]
        weight = check_weight(classifier_weight, len(self.class_names), dim)
        return assemble_audit(evidence, self.class_names, settings, classifier_weight=weight)

    def evidence(self) -> Evidence:
        """Return what this process has collected."""
        if self.num_samples == 0:
            raise ValueError("compute needs at least one sample, got none (call update first)")
        scores = [chunk.scores for chunk in self.chunks if chunk.scores is not None]
        ids = [chunk.sample_id for chunk in self.chunks if chunk.sample_id is not None]
        sample_id = np.concatenate(ids) if ids else None
        if sample_id is not None and len(np.unique(sample_id)) < len(sample_id):
            raise ValueError(
                "sample_id must name every sample once, got repeated values (a sampler that repeats samples?)"
            )
        return Evidence(
            labels=np.concatenate([chunk.labels for chunk in self.chunks]),
            predictions=np.concatenate([chunk.predictions for chunk in self.chunks]),
            scores=join_scores(scores) if scores else None,
            feature_sums=self.feature_sums,
            sample_id=sample_id,
            kept=self.kept.rows(),
        )

    def kind(self) -> tuple[bool, bool, bool]:
        """Return whether scores, features and sample_id are being collected."""
        first = self.chunks[0]
        return first.scores is not None, self.feature_sums is not None, first.sample_id is not None

    def _check_same_kind(self, inputs: AuditInputs) -> None:
        if not self.chunks:
            return
        kind = (inputs.scores is not None, inputs.features is not None, inputs.sample_id is not None)
        for name, before, now in zip(("scores", "features", "sample_id"), self.kind(), kind, strict=True):
            if before != now:
                raise ValueError(f"every update must bring the same arrays, got {name} in some updates only")
        if self.feature_sums is not None and inputs.features is not None:
            size = self.feature_sums.sums.shape[1]
            if inputs.features.shape[1] != size:
                raise ValueError(
                    f"features must have {size} columns as before, got shape {inputs.features.shape}"
                )

    def _read(self, inputs: AuditInputs, rows: slice) -> Chunk:
        labels = inputs.labels[rows]
        first_row = self.num_samples + rows.start
        scores = None
        if inputs.scores is not None:
            scores = score_samples(
                inputs.scores[rows], labels, are_logits=inputs.scores_are_logits, first_row=first_row
            )
        if inputs.features is not None:
            check_finite("features", inputs.features[rows], first_row)
        given = None if inputs.predictions is None else inputs.predictions[rows]
        predictions = given if given is not None else scores.predictions if scores is not None else labels
        return Chunk(
            labels, predictions, scores, None if inputs.sample_id is None else inputs.sample_id[rows]
        )

    def _add_features(self, features: AnyArray, labels: IntArray, sample_id: AnyArray | None) -> None:
        if self.feature_sums is None:
            self.feature_sums = FeatureSums.empty(len(self.class_names), features.shape[1], self.norm_order)
        for rows in watched(list(row_chunks(len(labels))), "reading features"):
            self.feature_sums.add(features[rows], labels[rows])
        self.kept.add(features, sample_id, first=self.num_samples)

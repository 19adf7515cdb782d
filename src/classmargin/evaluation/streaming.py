"""The accumulating audit: feed batches, in one or several processes, then compute.

``audit()`` is this accumulator fed with chunks, so both forms give the same numbers. What is kept: a few numbers a sample
(:class:`SampleScores`) and sums over features; never the logits or the features themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin.evaluation.feature_geometry import FeatureSums
from classmargin.evaluation.inputs import (
    AnyArray,
    AuditInputs,
    FloatArray,
    IntArray,
    check_class_names,
    check_inputs,
    row_chunks,
)
from classmargin.evaluation.sample_scores import SampleScores, join_scores, score_samples

if TYPE_CHECKING:
    from classmargin.evaluation.audit import Audit

FEATURE_SAMPLE = 2000


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


@dataclass
class _Parts:
    labels: list[IntArray] = field(default_factory=list)
    predictions: list[IntArray] = field(default_factory=list)
    scores: list[SampleScores] = field(default_factory=list)
    sample_id: list[AnyArray] = field(default_factory=list)
    features: list[AnyArray] = field(default_factory=list)
    positions: list[IntArray] = field(default_factory=list)
    priorities: list[FloatArray] = field(default_factory=list)


class AuditAccumulator:
    """Collects an audit batch by batch.

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
        feature_samples: int = FEATURE_SAMPLE,
        seed: int = 0,
    ) -> None:
        if num_classes is None and class_names is None:
            raise ValueError("give num_classes or class_names, got neither")
        count = len(class_names) if class_names is not None else num_classes
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"num_classes must be a positive int, got {num_classes!r}")
        if num_classes is not None and num_classes != count:
            raise ValueError(f"class_names must have {num_classes} names, got {count}")
        self.class_names = check_class_names(class_names, count)
        self.norm_order = norm_order
        self.feature_samples = feature_samples
        self.seed = seed
        self.reset()

    def reset(self) -> None:
        """Forget all samples."""
        self._parts = _Parts()
        self._feature_sums: FeatureSums | None = None
        self._total = 0
        self._kinds: tuple[bool, bool, bool] | None = None

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
        self._add(
            check_inputs(
                labels,
                logits=logits,
                probabilities=probabilities,
                predictions=predictions,
                features=features,
                num_classes=len(self.class_names),
                sample_id=sample_id,
            )
        )

    def compute(self, **options: Any) -> Audit:
        """Return the audit of all samples so far; ``options`` as in :func:`classmargin.audit`."""
        from classmargin.evaluation.audit import build_audit

        return build_audit(self.evidence(), self.class_names, **options)

    def evidence(self) -> Evidence:
        """Return what has been collected."""
        if self._total == 0:
            raise ValueError("compute needs at least one sample, got none (call update first)")
        parts = self._parts
        return Evidence(
            labels=np.concatenate(parts.labels),
            predictions=np.concatenate(parts.predictions),
            scores=join_scores(parts.scores) if parts.scores else None,
            feature_sums=self._feature_sums,
            sample_id=np.concatenate(parts.sample_id) if parts.sample_id else None,
            kept=None,
        )

    def _add(self, inputs: AuditInputs) -> None:
        for rows in row_chunks(len(inputs.labels)):
            labels = inputs.labels[rows]
            if inputs.scores is not None:
                scores = score_samples(
                    inputs.scores[rows], labels, are_logits=inputs.scores_are_logits, first_row=self._total
                )
                self._parts.scores.append(scores)
            predictions = inputs.predictions[rows] if inputs.predictions is not None else scores.predictions
            if inputs.features is not None:
                if self._feature_sums is None:
                    self._feature_sums = FeatureSums.empty(
                        len(self.class_names), inputs.features.shape[1], self.norm_order
                    )
                self._feature_sums.add(inputs.features[rows], labels, first_row=self._total)
            self._parts.labels.append(labels)
            self._parts.predictions.append(predictions)
            if inputs.sample_id is not None:
                self._parts.sample_id.append(inputs.sample_id[rows])
            self._total += len(labels)

"""One call from arrays to an :class:`Audit`: which classes fail, how sure that is, and why.

Data flow: ``inputs`` checks the arrays -> ``streaming.AuditAccumulator`` reads them in chunks (counts, per-sample
scores, feature sums) -> ``class_frame`` makes the class table, ``tiers`` the thirds, ``disparity``,
``feature_geometry`` and ``margins`` the rest -> the frozen :class:`Audit`, which ``comparison``, ``gate`` and
the report read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin.evaluation.headlines import HEADLINES
from classmargin.evaluation.inputs import AnyArray, IntArray, check_inputs
from classmargin.evaluation.plain import fields_to_plain, to_plain
from classmargin.evaluation.settings import check_settings

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class FeatureSample:
    """A subsample of features for a two-dimensional map.

    Attributes:
        features: Shape ``[M, d]``, float32.
        labels: True classes ``[M]``.
        correct: Whether each of them was classified right ``[M]``.
        index: Position of each in the audited test set ``[M]``.
    """

    features: AnyArray
    labels: IntArray
    correct: AnyArray
    index: IntArray


@dataclass(frozen=True)
class Audit:
    """What is known about one classifier on one test set.

    Attributes:
        class_names: One name a class, in class order, length ``K``.
        num_samples: Number of audited samples ``N``.
        overall: Share of all samples classified right, in [0, 1].
        easy: Mean accuracy of the best third of classes (``tiers`` says which; ``notes`` by what rule).
        medium: Mean accuracy of the middle third.
        hard: Mean accuracy of the worst third.
        worst: Lowest class accuracy.
        gap: ``easy - hard``.
        intervals: ``{"overall": (low, high), ...}`` for the six values above; read it with :meth:`interval`.
        confidence: Level of all intervals, e.g. 0.95.
        ranking: ``"own"``, ``"reference"`` or ``"crossfit"``.
        by_class: One row a class, in class order. Columns are always all there; what the given arrays do not tell
            is NaN (numbers) or an empty string (text):

            ``class_name`` · ``n`` samples · ``accuracy`` (NaN if n = 0) · ``low``, ``high`` Wilson interval ·
            ``precision``, ``recall`` · ``tier`` easy/medium/hard, "absent" if n = 0 · ``ece`` calibration
            error · ``output_margin`` mean of p_y - max other p · ``low_confidence`` share of samples whose top
            probability is below 0.5 · ``confidently_wrong`` share of samples that are wrong with top probability
            of at least 0.8 · ``label_issues`` number of samples of this class that confident learning takes for another
            class · ``spread`` mean squared deviation from the class mean · ``mean_norm`` length of the class mean ·
            ``sqnorm`` r², mean squared norm (any norm order) · ``margin`` γ that MR² would give ·
            ``weight_norm`` length of the head's weight · ``nearest_by_angle`` name of the class with the nearest
            weight, ``nearest_angle`` degrees · ``nearest_by_confusion`` name of the class it is most often taken
            for, ``confusion_share`` share of its samples that go there · ``verdict`` one line: why it is hard.
        tiers: Three rows (easy, medium, hard): ``tier``, ``classes`` (number), ``n``, ``accuracy``, ``low``,
            ``high``, ``output_margin``, ``spread`` (means over its classes), ``names`` (tuple of class names).
        disparity: Measures of the gap between classes: ``worst_5`` (mean of the five lowest, fewer if K < 5), ``best``,
            ``range``, ``ratio`` (worst/best), ``std``, ``gini``, ``generalized_entropy`` (α = 2), ``theil``,
            ``mean_class_accuracy``, ``worst_class`` (name).
        geometry: Flat dictionary, ``None`` where the arrays do not tell: ``output_margin``, ``output_margin_easy``,
            ``output_margin_medium``, ``output_margin_hard``, ``classifier_margin_degrees``,
            ``weight_norm_mean``, ``weight_norm_cv``, ``nc1``, ``within_between_ratio``, ``mean_equinorm_cv``,
            ``weight_equinorm_cv``, ``mean_equiangularity``, ``weight_equiangularity``, ``spread_to_mean_norm``.
        bounds: Terms of Proposition 1 and Eq. 15, or ``None`` without logits, features and classifier_weight:
            ``{"terms": {name: value}, "by_class": DataFrame(class_name, bound, ...), "statement": text}``.
        correlations: Over classes: ``x``, ``y``, ``measure`` ("pearson", "spearman"), ``value``, ``low``, ``high``, ``classes``.
        confusion: Counts ``[K, K]``, row = true class, column = predicted class.
        notes: Sentences a reader must know: ranking rule, remainder rule, absent classes, what intervals cover.
        ece: Expected calibration error over all samples, NaN without probabilities.
        feature_sample: Subsample of the features for a map, or ``None``.
        labels: True classes of all samples ``[N]`` (for paired comparison).
        predictions: Predicted classes of all samples ``[N]``.
        sample_id: Identity of each sample ``[N]``, or ``None`` (then position is identity).
    """

    class_names: tuple[str, ...]
    num_samples: int
    overall: float
    easy: float
    medium: float
    hard: float
    worst: float
    gap: float
    intervals: Mapping[str, tuple[float, float]]
    confidence: float
    ranking: str
    by_class: pd.DataFrame
    tiers: pd.DataFrame
    disparity: Mapping[str, Any]
    geometry: Mapping[str, float | None]
    bounds: Mapping[str, Any] | None
    correlations: pd.DataFrame
    confusion: AnyArray
    notes: tuple[str, ...]
    ece: float
    feature_sample: FeatureSample | None
    labels: IntArray
    predictions: IntArray
    sample_id: AnyArray | None

    @property
    def num_classes(self) -> int:
        """Number of classes ``K``."""
        return len(self.class_names)

    def interval(self, name: str) -> tuple[float, float]:
        """Return the interval of ``overall``, ``easy``, ``medium``, ``hard``, ``worst`` or ``gap``."""
        if name not in self.intervals:
            raise ValueError(f"name must be one of {', '.join(HEADLINES)}; got {name!r}")
        return self.intervals[name]

    def top_confusions(self, k: int = 20) -> pd.DataFrame:
        """Return the ``k`` most frequent mistakes: ``truth``, ``predicted``, ``count``, ``share`` of the true class."""
        import pandas as pd

        errors = self.confusion.copy()
        np.fill_diagonal(errors, 0)
        order = np.argsort(-errors, axis=None, kind="stable")[:k]
        order = order[errors.flat[order] > 0]
        truth, predicted = np.unravel_index(order, errors.shape)
        count = errors[truth, predicted]
        return pd.DataFrame(
            {
                "truth": [self.class_names[i] for i in truth],
                "predicted": [self.class_names[j] for j in predicted],
                "count": count,
                "share": count / self.confusion.sum(axis=1)[truth],
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the per-sample arrays as plain Python values that ``json.dumps`` takes (no NaN)."""
        left_out = ("labels", "predictions", "sample_id", "feature_sample", "confusion")
        return {
            **fields_to_plain(self, leave_out=left_out),
            "num_classes": self.num_classes,
            "top_confusions": to_plain(self.top_confusions()),
        }

    def to_markdown(self, top: int = 10) -> str:
        """Return a short report in Markdown with the ``top`` worst classes."""
        from classmargin.evaluation.markdown import audit_markdown

        return audit_markdown(self, top)

    def to_metric_frame(
        self, metrics: Any = None, *, sensitive_features: Any = None, control_features: Any = None
    ) -> Any:
        """Return the predictions as a ``fairlearn.metrics.MetricFrame`` (needs the extra ``fairlearn``).

        Labels and predictions in it are class names.

        Args:
            metrics: What ``MetricFrame`` takes: a function of (labels, predictions) or a dictionary of them; accuracy and
                number of samples by default.
            sensitive_features: Groups of the samples ``[N]``; the true class by default.
            control_features: As in ``MetricFrame``.

        Example:
            >>> frame = audit([0, 0, 1], predictions=[0, 1, 1], class_names=["cat", "dog"]).to_metric_frame()
            >>> frame.by_group["accuracy"].to_dict()
            {'cat': 0.5, 'dog': 1.0}
        """
        from classmargin.evaluation.frames import metric_frame

        return metric_frame(self, metrics, sensitive_features, control_features)

    def to_polars(self, table: str = "by_class") -> Any:
        """Return a table as a ``polars.DataFrame`` (needs the extra ``polars``).

        Args:
            table: ``"by_class"``, ``"tiers"``, ``"correlations"`` or ``"top_confusions"``.

        Example:
            >>> audit([0, 0, 1], predictions=[0, 1, 1], num_classes=2).to_polars()["accuracy"].to_list()
            [0.5, 1.0]
        """
        from classmargin.evaluation.frames import polars_frame

        return polars_frame(self, table)

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained HTML file and return where it is (needs the extra ``report``)."""
        # The one import against the direction of the layers; late, so that arrays-in, numbers-out needs no figures.
        from classmargin.report.render import write_audit_html

        write_audit_html(self, path)
        return Path(path)


def audit(
    labels: Any,
    *,
    logits: Any = None,
    probabilities: Any = None,
    predictions: Any = None,
    features: Any = None,
    classifier_weight: Any = None,
    class_names: Sequence[str] | None = None,
    num_classes: int | None = None,
    sample_id: Any = None,
    ranking: str = "own",
    reference: Any = None,
    confidence: float = 0.95,
    bootstrap: int = 2000,
    seed: int = 0,
    mean_margin: float = 1.0,
    norm_order: float = 2.0,
) -> Audit:
    """Audit one classifier on one test set.

    Arrays may be NumPy arrays, torch tensors, lists, or pandas and polars columns and frames. The number of classes comes
    from the scores, the head, ``class_names`` or ``num_classes``, never from the labels seen.

    Args:
        labels: True classes ``[N]``: numbers, or names out of ``class_names``.
        logits: Scores of the head ``[N, K]``, without any margin, prior or scale of a training loss.
        probabilities: Probabilities ``[N, K]`` instead of logits; rows sum to one.
        predictions: Predicted classes ``[N]``; by default the largest score.
        features: Inputs of the head ``[N, d]``, for spread, margins and geometry.
        classifier_weight: Weights of the linear head ``[K, d]``, for angles and bounds.
        class_names: One name a class; by default the names of the columns, if the scores are a frame.
        num_classes: Number of classes, needed if only predictions are given.
        sample_id: Identity of each sample ``[N]``, by which models are paired in a comparison; position by default.
        ranking: How classes are ranked into thirds: "own" (the paper), "reference" or "crossfit".
        reference: Audit of another model, or one accuracy a class, for ``ranking="reference"``.
        confidence: Level of all intervals.
        bootstrap: Resampled copies for the headline intervals; 0 leaves those intervals out (NaN).
        seed: Seed of all random draws.
        mean_margin: Mean of the margins γ in the class table.
        norm_order: p of the norm in r² and γ; 2, or 3 for cosine classifiers.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, scores that are not finite, unknown number of classes.
        TypeError: Values of the wrong kind.

    Example:
        >>> result = audit([0, 0, 1, 1, 2, 2], predictions=[0, 0, 1, 2, 2, 0], num_classes=3, bootstrap=100)
        >>> round(result.overall, 3), result.easy, result.worst
        (0.667, 1.0, 0.5)
    """
    from classmargin.evaluation.assembly import assemble_audit
    from classmargin.evaluation.streaming import AuditAccumulator

    inputs = check_inputs(
        labels,
        logits=logits,
        probabilities=probabilities,
        predictions=predictions,
        features=features,
        classifier_weight=classifier_weight,
        class_names=class_names,
        num_classes=num_classes,
        sample_id=sample_id,
    )
    settings = check_settings(
        inputs.num_classes,
        ranking=ranking,
        reference=reference,
        confidence=confidence,
        bootstrap=bootstrap,
        seed=seed,
        mean_margin=mean_margin,
        class_names=inputs.class_names,
    )
    accumulator = AuditAccumulator(class_names=inputs.class_names, norm_order=norm_order, seed=seed)
    accumulator.add(inputs)
    return assemble_audit(
        accumulator.evidence(),
        inputs.class_names,
        settings,
        classifier_weight=inputs.classifier_weight,
        inputs=inputs,
    )

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

from classmargin.evaluation.class_metrics import calibration_error, class_accuracy, confusion_counts
from classmargin.evaluation.class_table import class_table
from classmargin.evaluation.disparity import disparity_measures
from classmargin.evaluation.feature_geometry import collapse_diagnostics, weight_diagnostics
from classmargin.evaluation.inputs import AnyArray, IntArray, check_inputs
from classmargin.evaluation.plain import fields_to_plain, to_plain
from classmargin.evaluation.streaming import AuditAccumulator, Evidence
from classmargin.evaluation.tiers import REMAINDER_RULE, TIERS, tier_codes, tier_means

if TYPE_CHECKING:
    import pandas as pd

HEADLINES = ("overall", "easy", "medium", "hard", "worst", "gap")


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
    """Audit one classifier on one test set."""
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
    accumulator = AuditAccumulator(class_names=inputs.class_names, norm_order=norm_order, seed=seed)
    accumulator._add(inputs)
    return build_audit(
        accumulator.evidence(),
        inputs.class_names,
        classifier_weight=inputs.classifier_weight,
        ranking=ranking,
        reference=reference,
        confidence=confidence,
        bootstrap=bootstrap,
        seed=seed,
        mean_margin=mean_margin,
    )


def build_audit(
    evidence: Evidence,
    class_names: tuple[str, ...],
    *,
    classifier_weight: Any = None,
    ranking: str = "own",
    reference: Any = None,
    confidence: float = 0.95,
    bootstrap: int = 2000,
    seed: int = 0,
    mean_margin: float = 1.0,
) -> Audit:
    """Turn collected evidence into an audit."""
    import pandas as pd

    count = len(class_names)
    confusion = confusion_counts(evidence.labels, evidence.predictions, count)
    n = confusion.sum(axis=1)
    accuracy = class_accuracy(confusion)
    codes = tier_codes(accuracy)
    by_class = class_table(
        evidence,
        class_names,
        confusion,
        codes,
        classifier_weight=classifier_weight,
        mean_margin=mean_margin,
        confidence=confidence,
    )
    easy, medium, hard = tier_means(accuracy, codes).tolist()
    values = {
        "overall": float(np.diagonal(confusion).sum() / n.sum()),
        "easy": easy,
        "medium": medium,
        "hard": hard,
        "worst": float(np.nanmin(accuracy)),
        "gap": easy - hard,
    }
    rng = np.random.default_rng(seed)
    present = n > 0
    draws = rng.binomial(n[present], accuracy[present], size=(bootstrap, int(present.sum())))
    rates = draws / n[present]
    tiers = tier_means(rates, tier_codes(rates))
    samples = {
        "overall": draws.sum(axis=1) / n.sum(),
        "easy": tiers[:, 0],
        "medium": tiers[:, 1],
        "hard": tiers[:, 2],
        "worst": rates.min(axis=1),
        "gap": tiers[:, 0] - tiers[:, 2],
    }
    tail = (1 - confidence) / 2
    intervals = {
        k: (float(np.quantile(v, tail)), float(np.quantile(v, 1 - tail))) for k, v in samples.items()
    }
    tier_rows = []
    for code, tier in enumerate(TIERS):
        rows = by_class[codes == code]
        tier_rows.append(
            {
                "tier": tier,
                "classes": len(rows),
                "n": int(rows["n"].sum()),
                "accuracy": values[tier],
                "low": intervals[tier][0],
                "high": intervals[tier][1],
                "output_margin": float(rows["output_margin"].mean()),
                "spread": float(rows["spread"].mean()),
                "names": tuple(rows["class_name"]),
            }
        )
    correct = evidence.labels == evidence.predictions
    keys = (
        "output_margin",
        "output_margin_easy",
        "output_margin_medium",
        "output_margin_hard",
        "classifier_margin_degrees",
    )
    geometry: dict[str, float | None] = dict.fromkeys(keys)
    geometry.update(weight_diagnostics(classifier_weight))
    if evidence.feature_sums is not None:
        geometry.update(collapse_diagnostics(evidence.feature_sums, classifier_weight))
    return Audit(
        class_names=class_names,
        num_samples=len(evidence.labels),
        **values,
        intervals=intervals,
        confidence=confidence,
        ranking=ranking,
        by_class=by_class,
        tiers=pd.DataFrame(tier_rows),
        disparity=disparity_measures(accuracy, class_names),
        geometry=geometry,
        bounds=None,
        correlations=pd.DataFrame(columns=["x", "y", "measure", "value", "low", "high", "classes"]),
        confusion=confusion,
        notes=(f"Thirds: ranking {ranking!r}; {REMAINDER_RULE}.",),
        ece=calibration_error(evidence.scores.confidence, correct) if evidence.scores else float("nan"),
        feature_sample=None,
        labels=evidence.labels,
        predictions=evidence.predictions,
        sample_id=evidence.sample_id,
    )

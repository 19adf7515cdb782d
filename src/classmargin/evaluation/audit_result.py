"""The result of an audit: one frozen object that comparisons, gates and reports read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._checks import check_choice, require_extra
from classmargin.evaluation.class_metrics import confusion_counts
from classmargin.evaluation.headlines import HEADLINES
from classmargin.evaluation.input_checks import AnyArray, IntArray, class_number
from classmargin.evaluation.json_values import fields_to_plain, to_plain

if TYPE_CHECKING:
    import pandas as pd

    from classmargin.evaluation.class_reasons import Merge
    from classmargin.evaluation.evidence import SampleScores

TABLES = ("by_class", "tiers", "correlations", "top_confusions")


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


@dataclass(frozen=True, repr=False)
class Audit:
    """What is known about one classifier on one test set.

    Attributes:
        class_names: One name per class, in class order, length ``K``.
        num_samples: Number of audited samples ``N``.
        overall: Share of all samples classified right, in [0, 1].
        easy: Mean accuracy of the best third of classes; with ``ranking="corrected"`` this and the next four are estimates of the truth.
        medium: Mean accuracy of the middle third.
        hard: Mean accuracy of the worst third.
        worst: Lowest class accuracy.
        gap: ``easy - hard``.
        intervals: ``{"overall": (low, high), ...}`` for the six values above; read it with :meth:`interval`.
        confidence: Level of all intervals, e.g. 0.95.
        ranking: ``"corrected"``, ``"own"`` (as in the paper), ``"reference"`` or ``"crossfit"``.
        by_class: One row per class, in class order. Columns are always all there; what the given arrays do not tell is NaN or "":

            ``class_name`` · ``n`` samples · ``accuracy`` (also ``recall``), ``low``, ``high`` Wilson interval · ``estimate`` of its true
            accuracy, ``estimate_low``, ``estimate_high`` · ``lags`` whether it lies below ``overall`` by more than chance explains
            (exact binomial tail) · ``precision``, ``f1``, ``top5`` (share of samples whose class is among the five most likely),
            ``cost`` (mean cost of its samples), each with ``_low`` and ``_high`` · ``tier`` easy/medium/hard, "absent" if n = 0 ·
            ``ece`` calibration error, ``ece_low`` and ``ece_high`` what it would be on endless samples · ``output_margin`` mean of
            p_y - max other p · ``low_confidence`` share of samples whose top probability is below 0.5 · ``confidently_wrong`` share
            that are wrong with one of at least 0.8 · ``label_issues`` number of samples whose label is doubted · ``spread`` mean squared
            deviation from the class mean · ``mean_norm`` length of the class mean · ``sqnorm`` r², mean squared norm (any order) ·
            ``margin`` γ that MR² would give · ``weight_norm`` length of the head's weight · ``nearest_by_angle`` class with the nearest
            weight, ``nearest_angle`` degrees · ``nearest_by_confusion`` class it is most often taken for, ``confusion_share`` share of
            its samples that go there · ``train_accuracy`` on its training samples (with ``train=``) · ``separability`` how often a
            cross-validated classifier of this class and the one it is most often taken for is right (0.5 is chance; classes that
            fail only) · ``reason`` in a word or two · ``verdict`` one line: why it fails · ``next_step`` what to do about it.
        tiers: Three rows: ``tier``, ``classes`` (number), ``n``, ``accuracy``, ``low``, ``high``, ``output_margin``, ``spread``, ``names``.
        disparity: Measures of the gap between classes: ``worst_5`` (mean of the five lowest), ``worst_10_percent``, ``best``, ``range``,
            ``ratio`` (worst/best), ``std``, ``gini``, ``generalized_entropy`` (α = 2), ``theil``, ``mean_class_accuracy``, ``worst_class``
            (name). With ``ranking="corrected"`` ``std``, ``gini`` (with ``_interval``) and ``worst_class`` are those of the estimates.
        equal_classes: P-value of the test that all classes have the same accuracy (NaN with one class).
        lag_by_chance: How many classes would be marked ``lags`` on average if all were equal.
        geometry: Margins, weight norms and neural-collapse diagnostics by name (``output_margin``, ``output_margin_easy``, …,
            ``classifier_margin_degrees``, ``weight_norm_mean``, ``nc1``, …), ``None`` where the arrays do not tell.
        bounds: Terms of Proposition 1 and Eq. 15, or ``None`` without logits, features and classifier_weight:
            ``{"terms": {name: value}, "by_class": DataFrame(class_name, bound, ...), "statement": text}``.
        correlations: Over classes: ``x``, ``y``, ``measure`` ("pearson", "spearman"), ``value``, ``low``, ``high``, ``classes``.
        notes: Sentences a reader must know: ranking rule, remainder rule, absent classes, what intervals cover.
        ece: Expected calibration error over all samples, NaN without probabilities.
        feature_sample: Subsample of the features for a map, or ``None``.
        labels: True classes of all samples ``[N]`` (for paired comparison).
        predictions: Predicted classes of all samples ``[N]``.
        sample_id: Identity of each sample ``[N]``, or ``None`` (then position is identity).
        scores: What was kept of the scores of each sample, or ``None`` without logits or probabilities.
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
    equal_classes: float
    lag_by_chance: float
    geometry: Mapping[str, float | None]
    bounds: Mapping[str, Any] | None
    correlations: pd.DataFrame
    notes: tuple[str, ...]
    ece: float
    feature_sample: FeatureSample | None
    labels: IntArray
    predictions: IntArray
    sample_id: AnyArray | None
    scores: SampleScores | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes ``K``."""
        return len(self.class_names)

    def interval(self, name: str) -> tuple[float, float]:
        """Return the interval of ``overall``, ``easy``, ``medium``, ``hard``, ``worst`` or ``gap``."""
        if name not in self.intervals:
            raise ValueError(f"name must be one of {', '.join(HEADLINES)}; got {name!r}")
        return self.intervals[name]

    @property
    def verdict(self) -> str:
        """One sentence to take home: which classes lag behind, by name, and how far.

        Example:
            >>> from classmargin.evaluation import audit
            >>> audit([0, 1, 2], predictions=[0, 1, 2], num_classes=3, bootstrap=0).verdict
            'All 3 classes are classified without an error on 3 samples.'
        """
        from classmargin.report.audit_tables import audit_verdict

        return audit_verdict(self)

    @cached_property
    def confusion(self) -> AnyArray:
        """Counts ``[K, K]``, row = true class, column = predicted class; made when first asked for (10 000 classes: 800 MB)."""
        return confusion_counts(self.labels, self.predictions, self.num_classes)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """The samples worth a look, one row per sample and kind, in class order.

        ``sample_id`` · ``class_name`` true class · ``kind`` "error" (the most confident first), "doubted label" (the least believed
        first) or "typical" (right, about as certain as usual) · ``rank`` within class and kind, from 1 · ``predicted`` class ·
        ``probability`` of that · ``true_probability`` · ``second_choice``, ``second_probability`` of the next class · ``position`` in
        the test set. Without scores there are errors only, and the probabilities are NaN.

        Example:
            >>> from classmargin.evaluation import audit
            >>> result = audit([0, 1], probabilities=[[0.9, 0.1], [0.7, 0.3]], class_names=["cat", "dog"], bootstrap=0)
            >>> result.samples[["sample_id", "class_name", "kind", "predicted", "probability"]].to_dict("records")[-1]
            {'sample_id': 1, 'class_name': 'dog', 'kind': 'error', 'predicted': 'cat', 'probability': 0.7}
        """
        from classmargin.evaluation.samples import sample_table

        return sample_table(self)

    def samples_of(
        self,
        class_name: str | None = None,
        *,
        kind: str = "error",
        predicted: str | None = None,
        top: int | None = None,
    ) -> pd.DataFrame:
        """Return the samples of one class and kind, those to look at first on top; columns as in :attr:`samples`.

        Args:
            class_name: The true class; all classes by default.
            kind: "error", "doubted label" or "typical".
            predicted: Only samples taken for this class: with ``class_name`` one cell of the confusion matrix.
            top: At most so many.

        Example:
            >>> from classmargin.evaluation import audit
            >>> result = audit([0, 1, 1], predictions=[0, 0, 1], class_names=["cat", "dog"], bootstrap=0)
            >>> result.samples_of("dog")["sample_id"].tolist()
            [1]
        """
        from classmargin.evaluation.samples import KINDS

        check_choice("kind", kind, KINDS)
        rows = self.samples["kind"] == kind
        for column, value in (("class_name", class_name), ("predicted", predicted)):
            if value is not None:
                class_number(self.class_names, value, column)
                rows &= self.samples[column] == value
        found = self.samples[rows]
        if class_name is None and kind != "typical":
            key = "probability" if kind == "error" else "true_probability"
            found = found.sort_values(key, ascending=kind != "error", kind="stable", na_position="last")
        return (found if top is None else found.head(top)).reset_index(drop=True)

    def merge(self, first: str, second: str, *, seed: int = 0) -> Merge:
        """Return what changes if two classes are made one: overall accuracy and hard third, with intervals.

        Args:
            first: Name of a class.
            second: Name of another class.
            seed: Seed of the intervals.

        Example:
            >>> from classmargin.evaluation import audit
            >>> result = audit([0, 1, 2] * 20, predictions=[0, 0, 2] * 20, class_names=["cat", "lynx", "dog"], bootstrap=0)
            >>> str(result.merge("cat", "lynx"))
            'merging cat and lynx: overall +33.3 points (+33.3 to +33.3)'
        """
        from classmargin.evaluation.class_reasons import merge_classes

        return merge_classes(self, first, second, seed=seed)

    def top_confusions(self, k: int = 20) -> pd.DataFrame:
        """Return the ``k`` most frequent mistakes: ``truth``, ``predicted``, ``count``, ``share`` of the true class."""
        import pandas as pd

        wrong = self.labels != self.predictions
        cells, counts = np.unique(self.labels[wrong] * self.num_classes + self.predictions[wrong], return_counts=True)
        order = np.argsort(-counts, kind="stable")[:k]
        truth, predicted = np.divmod(cells[order], self.num_classes)
        names, count = np.array(self.class_names, dtype=object), counts[order]
        of = np.bincount(self.labels, minlength=self.num_classes)[truth]
        return pd.DataFrame({"truth": names[truth], "predicted": names[predicted], "count": count, "share": count / of})

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the per-sample arrays as plain Python values that ``json.dumps`` takes (no NaN)."""
        left_out = ("labels", "predictions", "sample_id", "feature_sample", "scores")
        top = to_plain(self.top_confusions())
        return {**fields_to_plain(self, leave_out=left_out), "num_classes": self.num_classes, "top_confusions": top}

    def to_markdown(self, top: int = 10) -> str:
        """Return a short report in Markdown with the ``top`` worst classes."""
        from classmargin.report.audit_tables import report_tables  # against the direction of the layers, hence late
        from classmargin.report.tables import markdown_report

        return markdown_report("", report_tables(self, top), self.notes) + "\n"

    def to_metric_frame(
        self, metrics: Any = None, *, sensitive_features: Any = None, control_features: Any = None
    ) -> Any:
        """Return the predictions, as class names, in a ``fairlearn.metrics.MetricFrame`` (needs the extra ``fairlearn``).

        Args:
            metrics: What ``MetricFrame`` takes: a function of (labels, predictions) or a dictionary of them; accuracy and
                number of samples by default.
            sensitive_features: Groups of the samples ``[N]``; the true class by default.
            control_features: As in ``MetricFrame``.

        Example:
            >>> from classmargin.evaluation import audit
            >>> frame = audit([0, 0, 1], predictions=[0, 1, 1], class_names=["cat", "dog"]).to_metric_frame()
            >>> frame.by_group["accuracy"].to_dict()
            {'cat': 0.5, 'dog': 1.0}
        """
        fairlearn = require_extra("fairlearn.metrics", "fairlearn", "Audit.to_metric_frame")
        names = np.asarray(self.class_names, dtype=object)
        labels, predictions = names[self.labels], names[self.predictions]
        usual = {"accuracy": lambda truth, guess: float(np.mean(truth == guess)), "n": fairlearn.count}
        return fairlearn.MetricFrame(
            metrics=usual if metrics is None else metrics,
            y_true=labels,
            y_pred=predictions,
            sensitive_features={"class_name": labels} if sensitive_features is None else sensitive_features,
            control_features=control_features,
        )

    def to_polars(self, table: str = "by_class") -> Any:
        """Return a table as a ``polars.DataFrame`` (needs the extra ``polars``).

        Args:
            table: ``"by_class"``, ``"tiers"``, ``"correlations"`` or ``"top_confusions"``.

        Example:
            >>> from classmargin.evaluation import audit
            >>> audit([0, 0, 1], predictions=[0, 1, 1], num_classes=2).to_polars()["accuracy"].to_list()
            [0.5, 1.0]
        """
        check_choice("table", table, TABLES)
        polars = require_extra("polars", "polars", "Audit.to_polars")
        frame = self.top_confusions() if table == "top_confusions" else getattr(self, table)
        # Column by column: polars takes whole pandas frames only with pyarrow installed.
        rows = {str(name): frame[name].tolist() for name in frame.columns}
        as_lists = {name: [list(cell) if isinstance(cell, tuple) else cell for cell in rows[name]] for name in rows}
        return polars.DataFrame(as_lists)

    def to_html(self, path: str | os.PathLike[str], *, images: Any = None, texts: Any = None) -> Path:
        """Write one self-contained HTML file and return where it is (needs the extra ``report``).

        Args:
            path: The file to write.
            images: Pictures of the samples: a folder with ``sample_id`` as relative paths, one path per sample, or an array ``[N, H, W]``,
                ``[N, H, W, C]`` or ``[N, C, H, W]``.
            texts: One text per sample.
        """
        from classmargin.report.html_pages import write_audit_html

        write_audit_html(self, path, images=images, texts=texts)
        return Path(path)

    def __str__(self) -> str:
        from classmargin.report.audit_tables import audit_text

        return audit_text(self)

    def __repr__(self) -> str:
        return f"<Audit of {self.num_samples} samples, {self.num_classes} classes: overall {self.overall:.3f}, worst {self.worst:.3f}>"

    def _repr_html_(self) -> str:
        from classmargin.report.audit_tables import audit_fragment

        return audit_fragment(self)

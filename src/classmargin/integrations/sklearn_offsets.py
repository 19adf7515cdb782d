"""Class offsets fitted on held-out scores: a *trade* of accuracy between classes, with a price list."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from classmargin._checks import check_choice, check_number, require_extra

require_extra("sklearn", "sklearn", "classmargin.ClassOffsetClassifier")

from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone  # noqa: E402
from sklearn.model_selection import check_cv, cross_val_predict  # noqa: E402
from sklearn.utils import check_array, column_or_1d, get_tags, indexable  # noqa: E402
from sklearn.utils.metaestimators import available_if  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import check_is_fitted  # noqa: E402

Array = NDArray[Any]
OBJECTIVES = ("hard", "worst")
TRADES = (0.0, 0.25, 0.5, 0.75, 1.0)
MOST_SWEEPS, CANDIDATES = 20, 64
SMALLEST_PROBABILITY = 1e-12


def _has(name: str) -> Any:
    return available_if(lambda self: hasattr(self.estimator, name))


class ClassOffsetClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier with one offset per class on its scores, fitted on held-out scores.

    Chooses offsets ``b`` that maximise ``(1 - t) · overall + t · objective`` of ``argmax(score + b)`` on scores that the estimator gives in
    cross-validation, with ``t = trade``. Offsets trade classes for one another: expect the objective to rise and the overall accuracy to
    fall, and read the price from ``pareto_`` before choosing ``trade``. Accuracies there are those of the rows the offsets were chosen
    on and a little too good.

    Args:
        estimator: Any classifier with ``predict_proba`` or ``decision_function``.
        objective: ``"hard"``, mean accuracy of the worst third of the classes, or ``"worst"``, the lowest. Not used with ``costs``.
        costs: What a missed sample of each class costs, a dictionary from class to number >= 0 (1 for those left out). The
            objective is then minus the mean cost per sample.
        trade: ``t`` in [0, 1].
        cv: Folds of the held-out scores, as everywhere in scikit-learn.
        n_jobs: Processes of the cross-validation.

    Attributes:
        classes_: Class labels ``[K]``.
        estimator_: The estimator, fitted on all rows.
        offsets_: ``b`` ``[K]``, mean 0.
        pareto_: For each of the trades 0, 0.25, …, 1 and ``trade`` itself a dictionary with ``trade``, ``overall``, ``hard``,
            ``worst``, ``objective`` (on held-out scores) and ``offsets``.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = load_iris(return_X_y=True)
        >>> model = ClassOffsetClassifier(LogisticRegression(C=0.01, max_iter=500), objective="worst").fit(X, y)
        >>> model.pareto_[-1]["worst"] >= model.pareto_[0]["worst"]
        True
    """

    def __init__(
        self,
        estimator: Any,
        objective: str = "hard",
        *,
        costs: Any = None,
        trade: float = 0.5,
        cv: Any = 5,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.objective = objective
        self.costs = costs
        self.trade = trade
        self.cv = cv
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, **fit_params: Any) -> ClassOffsetClassifier:
        """Fit offsets on held-out scores and the estimator, to which ``fit_params`` go, on all rows.

        Rows ``[N, d]`` are whatever the estimator takes; each class of ``y`` must have as many rows as there are folds.
        """
        check_choice("objective", self.objective, OBJECTIVES)
        check_number("trade", self.trade, minimum=0.0, maximum=1.0)
        if y is None:
            raise ValueError("ClassOffsetClassifier requires y to be passed, but the target y is None")
        X, y = indexable(X, y)
        y = column_or_1d(check_array(y, ensure_2d=False, dtype=None, input_name="y"), warn=True)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"ClassOffsetClassifier needs at least 2 classes, got 1 class: {self.classes_.tolist()}")
        costs = self._costs()
        folds = check_cv(self.cv, y, classifier=True)
        held_out = cross_val_predict(
            self.estimator, X, y, cv=folds, method=self._method, n_jobs=self.n_jobs, params=fit_params or None
        )
        self.pareto_ = self._price_list(self._table(held_out), labels, costs)
        (chosen,) = [point for point in self.pareto_ if point["trade"] == float(self.trade)]
        self.offsets_ = chosen["offsets"]
        self.estimator_ = clone(self.estimator).fit(X, y, **fit_params)
        if hasattr(self.estimator_, "n_features_in_"):
            self.n_features_in_ = self.estimator_.n_features_in_
        return self

    def predict(self, X: Any) -> Array:
        """Return the label with the largest score plus offset ``[N]``."""
        largest = self._shifted(X).argmax(axis=1)  # asks first whether it is fitted
        return np.asarray(self.classes_[largest])

    def decision_function(self, X: Any) -> Array:
        """Return scores plus offsets ``[N, K]``; for two classes ``[N]``, the second minus the first."""
        scores = self._shifted(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    @_has("predict_proba")  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        """Return probabilities ``[N, K]`` that go with the decisions: ``p e^b``, normalised."""
        shifted = self._shifted(X)
        weights = np.exp(shifted - shifted.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that it takes the rows that the estimator takes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = get_tags(self.estimator).input_tags.sparse
        return tags

    @property
    def _method(self) -> str:
        return "predict_proba" if hasattr(self.estimator, "predict_proba") else "decision_function"

    def _shifted(self, X: Any) -> Array:
        check_is_fitted(self)
        return np.asarray(self._table(getattr(self.estimator_, self._method)(X)) + self.offsets_)

    def _table(self, scores: Any) -> Array:
        """Return additive scores ``[N, K]``: logarithms of probabilities, or what the estimator calls scores."""
        scores = np.asarray(scores, dtype=np.float64)
        if scores.ndim == 1:  # two classes
            scores = np.stack([-scores / 2.0, scores / 2.0], axis=1)
        if self._method == "predict_proba":
            scores = np.log(np.maximum(scores, SMALLEST_PROBABILITY))
        return np.asarray(scores)

    def _costs(self) -> Array | None:
        if self.costs is None:
            return None
        unknown = [label for label in self.costs if label not in set(self.classes_.tolist())]
        if unknown:
            raise ValueError(
                f"costs must be given for classes of y, {self.classes_.tolist()}, got {unknown[0]!r} besides"
            )
        values = [self.costs.get(label, 1.0) for label in self.classes_.tolist()]
        return np.array([check_number("costs", value, minimum=0.0) for value in values])

    def _price_list(self, scores: Array, labels: Array, costs: Array | None) -> list[dict[str, Any]]:
        counts = np.bincount(labels, minlength=len(self.classes_))
        points: list[dict[str, Any]] = []
        offsets = np.zeros(len(counts))
        for trade in sorted({*TRADES, float(self.trade)}):

            def value(right: Array, trade: float = trade) -> Array:
                found = self._measure(right, counts, costs)
                return np.asarray((1.0 - trade) * found["overall"] + trade * found["objective"])

            offsets = best_offsets(scores, labels, value, offsets)
            found = self._measure(right_samples(scores + offsets, labels, len(counts)), counts, costs)
            numbers = {name: float(number) for name, number in found.items()}
            points.append({"trade": trade, **numbers, "offsets": offsets})
        return points

    def _measure(self, right: Array, counts: Array, costs: Array | None) -> dict[str, Array]:
        """Return accuracies and objective ``[...]`` for right samples per class ``[..., K]``."""
        accuracy = np.sort(right / counts, axis=-1)
        found = {
            "overall": right.sum(axis=-1) / counts.sum(),
            "hard": accuracy[..., : max(len(counts) // 3, 1)].mean(axis=-1),
            "worst": accuracy[..., 0],
        }
        wanted = found[self.objective] if costs is None else -((counts - right) @ costs) / counts.sum()
        return {**found, "objective": wanted}


def right_samples(scores: Array, labels: Array, num_classes: int) -> Array:
    """Count the samples of each class whose largest score is that of their class ``[K]``."""
    return np.bincount(labels[scores.argmax(axis=1) == labels], minlength=num_classes)


def best_offsets(scores: Array, labels: Array, value: Any, start: Array) -> Array:
    """Raise ``value`` (right samples per class ``[C, K]`` to ``[C]``) class by class until no single offset raises it.

    A sample is assigned to a class above a threshold of its offset, so one sort gives the right samples for all
    offsets.
    """
    offsets, classes = start.astype(np.float64), scores.shape[1]
    best = float(value(right_samples(scores + offsets, labels, classes)[None])[0])
    for _ in range(MOST_SWEEPS):
        before = best
        for k in range(classes):
            others = scores + offsets
            others[:, k] = -np.inf
            rival = others.argmax(axis=1)
            threshold = others[np.arange(len(labels)), rival] - scores[:, k]
            values = np.unique(threshold)
            middles = np.concatenate([values[:1] - 1.0, (values[1:] + values[:-1]) / 2.0, values[-1:] + 1.0])
            few = np.linspace(0, len(middles) - 1, min(len(middles), CANDIDATES)).round().astype(int)
            candidates = middles[few]  # between neighbouring thresholds, evenly spaced by rank
            right = np.empty((len(candidates), classes))
            for j in range(classes):
                # Samples of class k are right above their threshold, others below it if their rival is their class.
                own = np.sort(threshold[(labels == j) & ((j == k) | (rival == j))])
                below = np.searchsorted(own, candidates)
                right[:, j] = below if j == k else len(own) - below
            values = value(right)
            # Of equally good offsets take the one nearest to the current one: needless offsets are noise.
            good = np.flatnonzero(values >= values.max() - 1e-12)
            chosen = good[np.argmin(np.abs(candidates[good] - offsets[k]))]
            if values[chosen] > best + 1e-12:
                offsets[k], best = candidates[chosen], float(values[chosen])
        if best <= before:
            break
    return np.asarray(offsets - offsets.mean())

"""MR² for a matrix of features: a scikit-learn classifier, linear, cosine or with one hidden layer.

Margins follow from exact class statistics of all rows. Without a hidden layer one smooth problem is left, which L-BFGS
solves (``sklearn_parts.linear_head``), without representation margin, as features never move. With one, Adam trains in
batches, with moving statistics and the representation margin (``sklearn_parts.minibatch``).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classmargin._checks import require_extra
from classmargin.integrations.sklearn_parts import rows as handed
from classmargin.integrations.sklearn_parts.linear_head import fit_head
from classmargin.integrations.sklearn_parts.minibatch import (
    SMALLEST_NORM,
    EpochData,
    FeatureNetwork,
    MinibatchTrainer,
    network_arrays,
)
from classmargin.mr2 import MR2Loss

require_extra("sklearn", "sklearn", "classmargin.MR2Classifier")

from sklearn.base import BaseEstimator, ClassifierMixin  # noqa: E402
from sklearn.exceptions import ConvergenceWarning  # noqa: E402
from sklearn.utils import check_random_state  # noqa: E402
from sklearn.utils.validation import check_is_fitted  # noqa: E402

Array = NDArray[Any]
LINEAR_ITERATIONS = 500
EQUAL_LENGTHS = 2e-3  # relative difference below which lengths of rows are equal: float16 rounds unit rows so far
# Epochs of a network with a hidden layer, and how many without progress end them; at least those of so many batches.
HIDDEN_EPOCHS, LEAST_BATCHES = 30, 1000
PATIENCE, LEAST_PATIENCE = 10, 100
# What may not change between two calls of partial_fit: the shape of the network and what makes its margins.
STRUCTURE = ("hidden", "cosine", "scale", "fit_intercept", "norm_order", "mean_margin", "representation_weight")


class MR2Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Classifier on feature matrices whose class margins follow the spread of the classes.

    Minimises ``mean ℓ_γ + α/2 · v ‖W‖²`` with ``ℓ_γ(z, y) = -ln softmax(z / γ_y)_y`` and ``γ_k ∝ r_{k,p}^{2/3}`` of mean ``c̄``
    (Eq. 1, 14 and 17). With a hidden layer it has the settings of ``MR2Loss(K)`` but for ``λ``: equal margins, label smoothing, and
    ``λ`` times the representation margin (Eq. 2) of standardised features, weighed by confidence.

    Args:
        mean_margin: ``c̄ > 0``, mean of the class margins. 1 keeps the logit scale of logistic regression.
        norm_order: ``p >= 1`` of the class statistic ``r_{k,p}``; 3 with ``cosine=True``, where p = 2 gives equal
            margins.
        hidden: None for a linear classifier, ``(h,)`` for one hidden layer of ``h`` ReLUs.
        cosine: Compare directions, as for CLIP's embeddings: logits are ``scale · cos`` plus an offset.
        scale: Factor of the cosines; None learns one. Only with ``cosine``.
        fit_intercept: Whether classes have offsets.
        alpha: ``α >= 0``, strength of the penalty ``α/2 · v ‖W‖²``, with ``v`` the total variance of the features.
            (``C`` of ``LogisticRegression`` is ``1 / (α v n)``.)
        representation_weight: ``λ >= 0`` of the representation margin, only with ``hidden``. Search 0 to 3: embeddings
            gained most with 3, classes that are several separate groups of rows (handwritten digits) lost with it.
        class_weight: None, ``"balanced"`` or a dictionary from class to weight.
        epochs: Most passes over the data. None takes 500 steps of L-BFGS, with a hidden layer 30 epochs, or as many as
            make 1000 batches.
        tol: Relative accuracy of the objective at which training stops; with a hidden layer its progress in ten epochs
            (or 100 batches).
        batch_size: Rows in a batch of Adam (hidden layer, ``partial_fit``).
        learning_rate: Of Adam.
        random_state: Seed of start and order of Adam; a linear ``fit`` makes no random choice.
        device: ``"auto"`` (CUDA if there is one), or a name that torch knows.

    Attributes:
        classes_: Class labels ``[K]``.
        coef_: Weights of the head ``[K, f]`` (even for two classes); of length ``scale_`` if cosine.
        intercept_: Offsets ``[K]``; 0 without ``fit_intercept``.
        hidden_coef_, hidden_intercept_: Hidden layer ``[f, d]`` and ``[f]``, or None.
        scale_: Factor of the cosines, or None.
        class_sqnorm_, class_margins_: ``r²_{k,p}`` and ``γ`` of each class ``[K]``.
        objective_: Last value of what was minimised; with a hidden layer without the representation margin.
        n_iter_: Passes over the data.
        n_features_in_, feature_names_in_: As everywhere in scikit-learn.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat(["owl", "cat", "dog"], 50)
        >>> X = rng.normal(size=(150, 4)) + 3 * np.eye(4)[np.repeat([0, 1, 2], 50)]
        >>> model = MR2Classifier().fit(X, y)
        >>> model.classes_.tolist(), model.score(X, y) > 0.9
        (['cat', 'dog', 'owl'], True)
    """

    def __init__(
        self,
        mean_margin: float = 1.0,
        norm_order: float = 2.0,
        *,
        hidden: tuple[int] | None = None,
        cosine: bool = False,
        scale: float | None = None,
        fit_intercept: bool = True,
        alpha: float = 1e-5,
        representation_weight: float = 0.3,
        class_weight: Any = None,
        epochs: int | None = None,
        tol: float = 1e-4,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        random_state: Any = None,
        device: str = "auto",
    ) -> None:
        self.mean_margin = mean_margin
        self.norm_order = norm_order
        self.hidden = hidden
        self.cosine = cosine
        self.scale = scale
        self.fit_intercept = fit_intercept
        self.alpha = alpha
        self.representation_weight = representation_weight
        self.class_weight = class_weight
        self.epochs = epochs
        self.tol = tol
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state
        self.device = device

    # --- training ----------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> MR2Classifier:
        """Fit on features ``[N, d]`` and labels ``[N]`` (numbers or text), from the beginning.

        Args:
            X: Features; float32 stays float32. A linear head takes sparse ones too; with fewer rows than columns they
                are never made dense.
            y: Class labels.
            sample_weight: Weight of each row ``[N]``; a row of weight 2 counts as two rows, one of weight 0 not at all,
                in class statistics and balanced class weights as well (with a hidden layer and several batches on
                average).
        """
        handed.check_parameters(self)
        X, y = handed.check_rows(self, X, y, reset=True)
        classes, labels = np.unique(y, return_inverse=True)
        self._begin(classes)
        X, labels, weight = self._rows_that_count(X, labels, sample_weight)
        if self.hidden is None:
            self._fit_head(self._unit_rows(X) if self._turns_rows else X, labels, weight)
        else:
            self._fit_network(self._on_device(X, labels, weight))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> MR2Classifier:
        """Train on some rows for one epoch of Adam, from where the last call (or ``fit``) ended.

        Class statistics of a linear head are exact over all rows seen so far. ``learning_rate``, ``alpha``,
        ``batch_size`` and ``class_weight`` may change from call to call, the shape of the network and what makes its
        margins may not.
        """
        handed.check_parameters(self)
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight={self.class_weight!r} needs all data at once; give partial_fit a dictionary of weights"
            )
        first = not hasattr(self, "coef_")
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit")
        for name in () if first else STRUCTURE:
            if getattr(self, name) != self._structure[name]:
                was, got = self._structure[name], getattr(self, name)
                raise ValueError(f"{name} must stay as it was in the first call, {was!r}, got {got!r}; fit starts anew")
        X, y = handed.check_rows(self, X, y, reset=first)
        if first:
            self._begin(np.unique(classes))
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes must be those of the first call, {self.classes_!r}; got {classes!r}")
        unknown = np.setdiff1d(y, self.classes_).tolist()
        if unknown:
            raise ValueError(f"y must hold classes that the first call named in classes, got {unknown[0]!r} besides")
        X, labels, weight = self._rows_that_count(X, np.searchsorted(self.classes_, y), sample_weight)
        X = X if isinstance(X, np.ndarray) else X.toarray()
        X = self._unit_rows(X) if self._turns_rows else X
        if self.hidden is None:
            self._add_statistics(X, labels, weight)
        data = self._on_device(X, labels, weight)
        trainer = self._resumed_trainer(data)
        dtype = trainer.network.shift.dtype  # of the first call; later ones may come in another
        data = data._replace(rows=data.rows.to(dtype), weight=data.weight.to(dtype))
        self.objective_ = self._epoch(trainer, data)
        self.n_iter_ = 1 + int(getattr(self, "n_iter_", 0))
        self._take_network(trainer)
        return self

    def _begin(self, classes: Array) -> None:
        if len(classes) < 2:
            raise ValueError(f"MR2Classifier needs at least 2 classes, got 1 class: {classes.tolist()}")
        self.classes_ = classes
        self._structure = {name: getattr(self, name) for name in STRUCTURE}
        self._trainer: MinibatchTrainer | None = None
        self._class_sums = np.zeros((2, len(classes)))

    def _rows_that_count(self, X: Any, labels: Array, sample_weight: Any) -> tuple[Any, Array, Array]:
        """Return rows of weight above 0, their classes and weights."""
        weight = handed.row_weights(X, labels, self.classes_, self.class_weight, sample_weight)
        counted = weight > 0
        return (X, labels, weight) if counted.all() else (X[counted], labels[counted], weight[counted])

    def _on_device(self, X: Array, labels: Array, weight: Array) -> EpochData:
        device = handed.pick_device(self.device)
        # torch warns of arrays that cannot be written to (memory maps); nothing here writes to its input.
        rows = torch.from_numpy(X if X.flags.writeable else X.copy())
        classes, weights = torch.from_numpy(labels.astype(np.int64)), torch.from_numpy(weight.astype(X.dtype))
        return EpochData(rows.to(device), classes.to(device), weights.to(device))

    def _fit_head(self, X: Any, labels: Array, weight: Array) -> None:
        self._add_statistics(X, labels, weight)
        rows, lift = (X, None) if isinstance(X, np.ndarray) else handed.dense_coordinates(X)
        data = self._on_device(rows, labels, weight)
        self._warn_of_equal_lengths(data.rows)
        margins = torch.from_numpy(self.class_margins_).to(data.rows)
        head = fit_head(
            data.rows,
            data.labels,
            data.weight / data.weight.sum(),
            margins,
            alpha=float(self.alpha),
            intercept=bool(self.fit_intercept),
            iterations=int(self.epochs or LINEAR_ITERATIONS),
            tol=float(self.tol),
            cosine=bool(self.cosine),
            scale=self.scale,
        )
        coef, intercept = head.coef.cpu().numpy(), head.intercept.cpu().numpy()
        self._take_layers({"coef": coef if lift is None else lift(coef), "intercept": intercept})
        self.objective_, self.n_iter_ = head.objective, head.iterations
        if not head.converged and self.tol > 0:
            warnings.warn(
                f"MR2Classifier stopped after {head.iterations} passes, before it converged to tol={self.tol:g}; "
                "raise epochs, alpha or tol",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _warn_of_equal_lengths(self, rows: Tensor) -> None:
        low, high = torch.aminmax(torch.linalg.vector_norm(rows, dim=1))
        if float(self.norm_order) == 2.0 and 0.0 < float(high) <= float(low) * (1.0 + EQUAL_LENGTHS):
            where = "cosine=True gives rows one length" if self._turns_rows else "all rows of X have one length"
            warnings.warn(
                "MR2Classifier has uniform margins here and is plain logistic regression: margins follow lengths of rows "
                f"(norm_order=2), and {where}. Give norm_order=3, or hidden=(h,), which needs no lengths",
                stacklevel=4,
            )

    def _fit_network(self, data: EpochData) -> None:
        data = data._replace(weight=data.weight / data.weight.mean())
        trainer = self._new_trainer(data)
        batches = -(-data.rows.shape[0] // int(self.batch_size))
        epochs = int(self.epochs or max(HIDDEN_EPOCHS, -(-LEAST_BATCHES // batches)))
        patience, best, waited = max(PATIENCE, -(-LEAST_PATIENCE // batches)), np.inf, 0
        # Half a cosine over all batches: large steps first, none at the end.
        rates = 0.5 * (1.0 + np.cos(np.pi * np.arange(epochs * batches) / (epochs * batches)))
        for epoch, epoch_rates in enumerate(np.split(rates, epochs)):
            loss = self._epoch(trainer, data, epoch_rates)
            self.objective_, self.n_iter_ = loss, epoch + 1
            progress = best == np.inf or loss < best - self.tol * abs(best)
            best, waited = min(best, loss), 0 if progress else waited + 1
            if waited >= patience and self.tol > 0:
                break
        self._take_network(trainer)

    def _epoch(self, trainer: MinibatchTrainer, data: EpochData, rates: Array | None = None) -> float:
        margins = None if self.hidden is not None else torch.from_numpy(self.class_margins_).to(data.rows)
        return trainer.epoch(data, self._random, batch_size=int(self.batch_size), fixed_margins=margins, rates=rates)

    # --- state ---------------------------------------------------------------------------------------------------

    def _new_trainer(self, data: EpochData) -> MinibatchTrainer:
        self._random = check_random_state(self.random_state)
        size, count = handed.hidden_size(self.hidden), len(self.classes_)
        network = FeatureNetwork(
            data.rows.shape[1],
            count,
            hidden=size,
            cosine=bool(self.cosine),
            scale=self.scale,
            intercept=bool(self.fit_intercept),
            seed=int(self._random.randint(2**31 - 1)),
            dtype=data.rows.dtype,
        )
        names = ("mean_margin", "norm_order", "representation_weight")
        settings: dict[str, Any] = {name: float(getattr(self, name)) for name in names}
        loss = None if size is None else MR2Loss(count, feature_dim=size, **settings)
        rate, alpha = float(self.learning_rate), float(self.alpha)
        trainer = MinibatchTrainer(network, loss, learning_rate=rate, alpha=alpha)
        trainer.to(data.rows.device)
        if not self._turns_rows:  # shift and width would turn the rows, or add an offset
            network.standardize(data.rows, data.weight)
        return trainer

    def _resumed_trainer(self, data: EpochData) -> MinibatchTrainer:
        if self._trainer is None:
            trainer = self._new_trainer(data)
            if hasattr(self, "coef_"):  # fit has found a linear head
                trainer.network.start_from(self.coef_, self.intercept_, self.scale_)
            return trainer
        self._trainer.to(data.rows.device)
        self._trainer.learning_rate, self._trainer.alpha = float(self.learning_rate), float(self.alpha)
        return self._trainer

    def _take_network(self, trainer: MinibatchTrainer) -> None:
        trainer.to(torch.device("cpu"))  # a pickle must load anywhere
        self._trainer = trainer
        self._take_layers(network_arrays(trainer.network))
        if trainer.loss is not None:
            self.class_sqnorm_ = trainer.loss.statistics.class_sqnorm.double().numpy()
            self.class_margins_ = trainer.loss.class_margins.double().numpy()

    def _take_layers(self, layers: dict[str, Array]) -> None:
        self.coef_, self.intercept_ = layers["coef"], layers["intercept"]
        self.hidden_coef_, self.hidden_intercept_ = layers.get("hidden_coef"), layers.get("hidden_intercept")
        self.scale_ = float(np.linalg.norm(self.coef_, axis=1).max()) if self.cosine else None

    def _add_statistics(self, X: Any, labels: Array, weight: Array) -> None:
        count, order = len(self.classes_), float(self.norm_order)
        self._class_sums = sums = self._class_sums + handed.class_sqnorm_sums(X, labels, weight, count, order)
        self.class_sqnorm_, self.class_margins_ = handed.margins_of(sums, float(self.mean_margin))

    @property
    def _turns_rows(self) -> bool:
        """Whether the rows themselves are compared by direction (with a hidden layer its output is)."""
        return bool(self.cosine) and self.hidden is None

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn which rows are taken."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = handed.takes_sparse(self)
        return tags

    # --- prediction ----------------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> Array:
        """Return logits ``[N, K]``; for two classes ``[N]``, the second minus the first."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict(self, X: Any) -> Array:
        """Return the label with the largest logit ``[N]``."""
        largest = self._logits(X).argmax(axis=1)  # asks first whether it is fitted
        return np.asarray(self.classes_[largest])

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities ``[N, K]``: the softmax of ``logits / c̄``, as the loss divides logits by margins."""
        return np.asarray(np.exp(self.predict_log_proba(X)))

    def predict_log_proba(self, X: Any) -> Array:
        """Return logarithms of the probabilities ``[N, K]``."""
        scaled = self._logits(X) / self._structure["mean_margin"]
        scaled = scaled - scaled.max(axis=1, keepdims=True)
        return np.asarray(scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True)))

    def features(self, X: Any) -> Array:
        """Return the input of the head ``[N, f]``: what an audit calls features (and ``coef_`` the classifier weight)."""
        check_is_fitted(self)
        rows: Array = handed.check_rows(self, X, reset=False)
        if self.hidden_coef_ is not None:
            rows = np.maximum(rows @ self.hidden_coef_.T + self.hidden_intercept_, 0.0)
        return self._unit_rows(rows) if self.scale_ is not None else rows  # as fitted, whatever is set by now

    def _logits(self, X: Any) -> Array:
        return np.asarray(self.features(X) @ self.coef_.T + self.intercept_)

    @staticmethod
    def _unit_rows(rows: Array) -> Array:
        length = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), SMALLEST_NORM)
        return np.asarray(rows / length.astype(rows.dtype))

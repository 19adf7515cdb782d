"""Audits of arrays (:func:`audit`), of models (:func:`audit_model`) and of batches (:class:`AuditAccumulator`).

Data flow: ``input_checks`` checks the arrays -> :class:`AuditAccumulator` reads them in chunks and keeps ``evidence`` (a few numbers per
sample, never the logits) -> ``audit_from_evidence`` computes the audit. All forms take this path, so they give the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any

import numpy as np

from classmargin._array_files import release_pages
from classmargin._checks import check_int, check_number
from classmargin._progress import progress, progress_if_long
from classmargin.evaluation.audit_from_evidence import audit_from_evidence
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.evidence import Evidence, KeptFeatures, SampleScores, score_samples
from classmargin.evaluation.feature_geometry import FeatureSums, check_finite
from classmargin.evaluation.headline_intervals import AuditSettings
from classmargin.evaluation.input_checks import (
    CHUNK_ROWS,
    CHUNK_VALUES,
    AnyArray,
    AuditInputs,
    IntArray,
    check_class_names,
    check_inputs,
    check_weight,
    row_chunks,
    to_array,
)

FEATURE_SAMPLES = 2000
_Chunk = tuple[IntArray, IntArray, SampleScores | None, AnyArray | None]  # labels, predictions, scores, identities


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
    train: Audit | None = None,
    ranking: str = "corrected",
    reference: Any = None,
    confidence: float = 0.95,
    bootstrap: int = 2000,
    seed: int = 0,
    mean_margin: float = 1.0,
    norm_order: float = 2.0,
    costs: Any = None,
) -> Audit:
    """Audit one classifier on one test set.

    Arrays may be NumPy arrays, torch tensors, lists, or pandas and polars columns and frames.

    Args:
        labels: True classes ``[N]``: numbers, or names out of ``class_names``.
        logits: Scores of the head ``[N, K]``, without any margin, prior or scale of a training loss.
        probabilities: Probabilities ``[N, K]`` instead of logits; rows sum to one.
        predictions: Predicted classes ``[N]``; by default the largest score.
        features: Inputs of the head ``[N, d]``, for spread, margins and geometry.
        classifier_weight: Weights of the linear head ``[K, d]``, for angles and bounds.
        class_names: One name per class; by default the names of the columns, if the scores are a frame.
        num_classes: Number of classes, if only predictions are given; by default the classes seen in labels and predictions.
        sample_id: Identity of each sample ``[N]``, by which models are paired in a comparison; position by default.
        train: Audit of the same model on its training samples; tells classes that are not fitted from those that do not generalise.
        ranking: What thirds, worst class and gap are: estimates of the true class accuracies ("corrected"), means of thirds ranked by
            the observed accuracies ("own", as in the paper), by those of another model ("reference"), or by one half of the samples
            and measured on the other ("crossfit").
        reference: Audit of another model, or one accuracy per class, for ``ranking="reference"``.
        confidence: Level of all intervals.
        bootstrap: Resampled copies for the headline intervals; 0 leaves those intervals out (NaN). "corrected" draws a fixed number.
        seed: Seed of all random draws.
        mean_margin: Mean of the margins γ in the class table.
        norm_order: p of the norm in r² and γ; 2, or 3 for cosine classifiers.
        costs: Cost of taking a class (row) for another (column) ``[K, K]``, for the mean cost of each class.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, scores that are not finite, unknown number of classes.
        TypeError: Values of the wrong kind.

    Example:
        >>> result = audit([0, 0, 1, 1, 2, 2], predictions=[0, 0, 1, 2, 2, 0], num_classes=3, bootstrap=100)
        >>> round(result.overall, 3), result.by_class["accuracy"].tolist()
        (0.667, [1.0, 0.5, 0.5])
    """
    inputs = check_inputs(
        labels,
        logits=logits,
        probabilities=probabilities,
        predictions=predictions,
        features=features,
        sample_id=sample_id,
        classifier_weight=classifier_weight,
        class_names=class_names,
        num_classes=num_classes,
    )
    names, weight = inputs.class_names, inputs.classifier_weight
    settings = AuditSettings(
        inputs.num_classes, names, ranking, reference, confidence, bootstrap, seed, mean_margin, costs
    )
    accumulator = AuditAccumulator(class_names=names, norm_order=norm_order, seed=seed)
    accumulator.add(inputs)
    evidence = accumulator.evidence()
    return audit_from_evidence(evidence, names, settings, classifier_weight=weight, inputs=inputs, train=train)


class AuditAccumulator:
    """Collects an audit batch by batch.

    Under ``torch.distributed`` every process feeds its own samples and :meth:`compute`, which all of them must call, returns the
    audit of all samples to each of them. Samplers that repeat samples to fill the last batch would count those twice: give
    ``sample_id`` and the repetition is refused.

    Args:
        num_classes: Number of classes K (or give ``class_names``).
        class_names: One name per class.
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
        self.chunks: list[_Chunk] = []
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
        # Names bring the columns of a frame into class order; default names must not be compared with them.
        names = self.class_names if self.has_names else None
        inputs = check_inputs(
            labels,
            logits=logits,
            probabilities=probabilities,
            predictions=predictions,
            features=features,
            class_names=names,
            num_classes=len(self.class_names),
            sample_id=sample_id,
        )
        self.add(inputs)

    def add(self, inputs: AuditInputs) -> None:
        """Add checked arrays; nothing is changed before everything has been read without an error."""
        features = inputs.features
        if self.chunks:
            has_scores, columns, has_ids = self._kind()
            had = {"scores": has_scores, "features": columns is not None, "sample_id": has_ids}
            for name, before in had.items():
                if before == (getattr(inputs, name) is None):
                    raise ValueError(f"every update must bring the same arrays, got {name} in some updates only")
            if features is not None and features.shape[1] != columns:
                raise ValueError(f"features must have {columns} columns as before, got shape {features.shape}")
        columns = 1 if inputs.scores is None else inputs.scores.shape[1]
        size = max(64, min(CHUNK_ROWS, CHUNK_VALUES // columns))
        chunks = []
        for rows in progress_if_long(list(row_chunks(len(inputs.labels), size)), "reading scores"):
            chunks.append(self._read(inputs, rows))
            release_pages(inputs.scores)
        if features is not None:
            if self.feature_sums is None:
                self.feature_sums = FeatureSums.empty(len(self.class_names), features.shape[1], self.norm_order)
            for rows in progress_if_long(list(row_chunks(len(inputs.labels))), "reading features"):
                self.feature_sums.add(features[rows], inputs.labels[rows])
            self.kept.add(features, inputs.sample_id, first=self.num_samples)
        self.chunks += chunks
        self.num_samples += len(inputs.labels)

    def merge(self, other: AuditAccumulator) -> None:
        """Add what another accumulator of the same classes has collected."""
        if other.class_names != self.class_names or other.norm_order != self.norm_order:
            raise ValueError("accumulators to merge must have the same class_names and norm_order")
        if not other.chunks:
            return
        if self.chunks and self._kind() != other._kind():
            raise ValueError("accumulators to merge must hold the same kinds of arrays (scores, features, sample_id)")
        if other.kept.features is not None:
            self.kept.keep(other.kept.features, other.kept.positions + self.num_samples, other.kept.priorities)
        if other.feature_sums is not None:
            if self.feature_sums is None:
                self.feature_sums = FeatureSums.empty(
                    len(self.class_names), other.feature_sums.sums.shape[1], self.norm_order
                )
            self.feature_sums.merge(other.feature_sums)
        self.chunks += other.chunks
        self.num_samples += other.num_samples

    def compute(self, *, classifier_weight: Any = None, **options: Any) -> Audit:
        """Return the audit of all samples so far, over all processes.

        Args:
            classifier_weight: Weights of the head ``[K, d]``, for angles.
            options: ``ranking``, ``reference``, ``confidence``, ``bootstrap``, ``seed``, ``mean_margin``, ``costs`` of
                :func:`classmargin.audit`. Bounds are left out: they need a second pass over the logits.
        """
        settings = AuditSettings(len(self.class_names), self.class_names, **options)
        together = self._of_all_processes()
        evidence = together.evidence()
        if evidence.sample_id is not None:
            if len(np.unique(evidence.sample_id)) < len(evidence.sample_id):
                raise ValueError(
                    "sample_id must name every sample once, got repeated values (a sampler that repeats samples?)"
                )
            if together is not self:  # the result does not depend on how samples were dealt to processes
                evidence = evidence.in_order_of_identity(evidence.sample_id)
        dim = None if evidence.feature_sums is None else evidence.feature_sums.sums.shape[1]
        weight = check_weight(classifier_weight, len(self.class_names), dim)
        return audit_from_evidence(evidence, self.class_names, settings, classifier_weight=weight)

    def evidence(self) -> Evidence:
        """Return what has been collected."""
        if not self.chunks:
            raise ValueError("compute needs at least one sample, got none (call update first)")
        labels, predictions, scores, ids = zip(*self.chunks, strict=True)
        kept_scores = None if scores[0] is None else SampleScores(*map(np.concatenate, zip(*scores, strict=True)))
        identity = None if ids[0] is None else np.concatenate(ids)
        return Evidence(
            np.concatenate(labels), np.concatenate(predictions), kept_scores, identity, self.feature_sums, self.kept
        )

    def _of_all_processes(self) -> AuditAccumulator:
        from classmargin._distributed import gather_objects, is_distributed

        if not is_distributed():
            return self
        together = AuditAccumulator(
            class_names=self.class_names,
            norm_order=self.norm_order,
            feature_samples=self.feature_samples,
            seed=self.seed,
        )
        # Sums over features, up to 128 MB and more, are added up: gathering makes a copy for each process.
        light = copy(self)
        light.feature_sums = None
        for part in gather_objects(light):
            together.merge(part)
        if together.kept.features is not None:
            shape = len(self.class_names), together.kept.features.shape[1]
            own = self.feature_sums or FeatureSums.empty(*shape, self.norm_order)  # zeros of a process without samples
            together.feature_sums = own.of_all_processes()
        return together

    def _kind(self) -> tuple[bool, int | None, bool]:
        """Return whether there are scores, how many columns features have, and whether there are identities."""
        _, _, scores, identities = self.chunks[0]
        columns = None if self.kept.features is None else self.kept.features.shape[1]
        return scores is not None, columns, identities is not None

    def _read(self, inputs: AuditInputs, rows: slice) -> _Chunk:
        labels = inputs.labels[rows]
        first_row = self.num_samples + rows.start
        scores = None
        if inputs.scores is not None:
            scores = score_samples(
                inputs.scores[rows],
                labels,
                are_logits=inputs.scores_are_logits,
                first_row=first_row,
                tolerance=inputs.tolerance,
            )
        if inputs.features is not None:
            check_finite("features", inputs.features[rows], first_row)
        predictions = labels if scores is None else scores.predictions
        if inputs.predictions is not None:
            predictions = inputs.predictions[rows]
        ids = None if inputs.sample_id is None else inputs.sample_id[rows]
        return labels, predictions, scores, ids


def audit_model(model: Any, X: Any, y: Any = None, **options: Any) -> Audit:
    """Audit a model on samples.

    Args:
        model: A fitted scikit-learn estimator (``predict_proba`` or ``decision_function`` where it has one, else ``predict``; its
            ``classes_`` are the class names), or a ``torch.nn.Module`` that returns logits ``[B, K]``, alone or as the attribute
            ``logits``.
        X: Samples; for a module a tensor, or a loader of batches ``(inputs, labels)`` when ``y`` is left out.
        y: True classes ``[N]``.
        options: As in :func:`classmargin.audit`.

    Raises:
        TypeError: The model is neither of the two.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), ["cat", "cat", "dog", "dog"]
        >>> audit_model(LogisticRegression().fit(X, y), X, y, bootstrap=0).overall
        1.0
    """
    if callable(getattr(model, "forward", None)) and hasattr(model, "parameters"):
        return _audit_module(model, X, y, options)
    if not callable(getattr(model, "predict", None)):
        raise TypeError(f"model must be a scikit-learn estimator or a torch module, got {type(model).__name__}")
    if y is None:
        raise ValueError("y must be given for an estimator, got None")
    return _audit_estimator(model, X, y, options)


def _audit_estimator(model: Any, X: Any, y: Any, options: dict[str, Any]) -> Audit:
    classes = getattr(model, "classes_", None)
    if classes is None:
        return audit(y, predictions=model.predict(X), **options)
    names = [str(name) for name in np.asarray(classes).tolist()]
    given = {"class_names": names, **options}
    labels = _numbers("y", y, names)
    if callable(getattr(model, "predict_proba", None)):
        return audit(labels, probabilities=model.predict_proba(X), **given)
    if hasattr(model, "decision_function"):
        scores = np.asarray(model.decision_function(X))
        if scores.ndim == 1:  # two classes have one column
            scores = np.stack([-scores / 2, scores / 2], axis=1)
        if scores.shape[1] == len(names):  # one against one has others than the classes: only the decision counts
            return audit(labels, logits=scores, **given)
    return audit(labels, predictions=_numbers("predictions", model.predict(X), names), **given)


def _numbers(name: str, values: Any, names: list[str]) -> AnyArray:
    """Return the places of the values among the classes of the estimator."""
    different, inverse = np.unique(to_array(name, values), return_inverse=True)
    place = {known: k for k, known in enumerate(names)}
    for value in different.tolist():
        if str(value) not in place:
            raise ValueError(f"{name} must hold classes that the estimator knows, got {value!r}")
    return np.array([place[str(value)] for value in different.tolist()], dtype=np.int64)[inverse.reshape(-1)]


def _audit_module(model: Any, X: Any, y: Any, options: dict[str, Any]) -> Audit:
    import torch

    names = options.pop("class_names", None)
    first = next(model.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    accumulator: AuditAccumulator | None = None
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            for inputs, labels in progress(_batches(X, y), "auditing the model"):
                output = model(inputs.to(device))
                logits = getattr(output, "logits", output)
                if accumulator is None:
                    accumulator = AuditAccumulator(logits.shape[1], class_names=names)
                accumulator.update(labels, logits=logits.float())
    finally:
        for part, training in modes:
            part.training = training
    if accumulator is None:
        raise ValueError("X must hold at least one batch, got none")
    return accumulator.compute(**options)


def _batches(X: Any, y: Any, rows: int = 256) -> Iterable[tuple[Any, Any]]:
    if y is None:
        return X  # type: ignore[no-any-return]
    import torch

    inputs = torch.as_tensor(X)
    labels = torch.as_tensor(to_array("y", y))
    if len(inputs) != len(labels):
        raise ValueError(f"y must have as many rows as X ({len(inputs)}), got {len(labels)}")
    return [(inputs[k : k + rows], labels[k : k + rows]) for k in range(0, len(labels), rows)]

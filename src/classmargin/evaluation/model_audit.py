"""From a model straight to its audit: any scikit-learn estimator, or a torch module with a loader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from classmargin._progress import progress
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.auditing import AuditAccumulator, audit
from classmargin.evaluation.naming import AnyArray, to_array


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
        raise TypeError(
            f"model must be a scikit-learn estimator or a torch module, got {type(model).__name__}"
        )
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
    scores = np.asarray(model.decision_function(X)) if hasattr(model, "decision_function") else None
    # Two classes have one column; one against one has others than the classes: then only the decision counts.
    if scores is not None and scores.ndim == 1:
        scores = np.stack([-scores / 2, scores / 2], axis=1)
    if scores is None or scores.shape[1] != len(names):
        return audit(labels, predictions=_numbers("predictions", model.predict(X), names), **given)
    return audit(labels, logits=scores, **given)


def _numbers(name: str, values: Any, names: list[str]) -> AnyArray:
    """Return the places of the values among the classes of the estimator."""
    different, inverse = np.unique(to_array(name, values), return_inverse=True)
    place = {known: k for k, known in enumerate(names)}
    unknown = next((value for value in different.tolist() if str(value) not in place), None)
    if unknown is not None:
        raise ValueError(f"{name} must hold classes that the estimator knows, got {unknown!r}")
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
    labels = torch.as_tensor(np.asarray(to_array("y", y)))
    if len(inputs) != len(labels):
        raise ValueError(f"y must have as many rows as X ({len(inputs)}), got {len(labels)}")
    return [(inputs[k : k + rows], labels[k : k + rows]) for k in range(0, len(labels), rows)]

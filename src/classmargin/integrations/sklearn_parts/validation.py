"""Checks of parameters, rows, labels and weights, as scikit-learn makes them (imported late: these run inside ``fit``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from classmargin._checks import check_int, check_number

Array = NDArray[Any]


def check_parameters(estimator: Any) -> None:
    """Check the constructor's arguments; scikit-learn expects that in ``fit``.

    Raises:
        TypeError, ValueError: Naming the argument.
    """
    for name in ("mean_margin", "learning_rate"):
        check_number(name, getattr(estimator, name), above=0.0)
    for name in ("alpha", "tol", "representation_weight"):
        check_number(name, getattr(estimator, name), minimum=0.0)
    check_number("norm_order", estimator.norm_order, minimum=1.0, finite=False)
    check_int("batch_size", estimator.batch_size, minimum=1)
    if estimator.epochs is not None:
        check_int("epochs", estimator.epochs, minimum=1)
    for name in ("cosine", "fit_intercept"):
        if not isinstance(getattr(estimator, name), (bool, np.bool_)):
            raise TypeError(f"{name} must be True or False, got {getattr(estimator, name)!r}")
    if estimator.scale is not None:
        check_number("scale", estimator.scale, above=0.0)
        if not estimator.cosine:
            raise ValueError(
                f"scale is the factor of cosines and needs cosine=True, got scale={estimator.scale!r}"
            )
    hidden_size(estimator.hidden)
    pick_device(estimator.device)


def hidden_size(hidden: Any) -> int | None:
    """Return the size of the hidden layer.

    Example:
        >>> hidden_size((512,)), hidden_size(None)
        (512, None)
    """
    if hidden is None:
        return None
    if not isinstance(hidden, (tuple, list)) or len(hidden) != 1:
        raise ValueError(f"hidden must be None or a tuple with one layer size such as (512,), got {hidden!r}")
    return check_int("hidden[0]", hidden[0], minimum=1)


def pick_device(name: Any) -> torch.device:
    """Return the device that ``name`` stands for."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)  # torch knows the names of devices that it cannot use
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"device must be 'auto' or a device that torch can use here, got {name!r}"
        ) from error
    return device


def takes_sparse(estimator: Any) -> bool:
    """Whether the estimator takes sparse rows: linear heads do, directions and hidden layers need all columns."""
    return estimator.hidden is None and not estimator.cosine


def check_rows(estimator: Any, X: Any, y: Any = "no_validation", *, reset: bool) -> Any:
    """Return checked features ``[N, d]``, an array or a CSR matrix, and with ``y`` also checked labels ``[N]``."""
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import validate_data

    # float32 and float64 stay as they are. Embeddings are often kept in float16, for which float32 is enough.
    dtype: Any = np.float32 if getattr(X, "dtype", None) == np.float16 else [np.float64, np.float32]
    formats = "csr" if takes_sparse(estimator) else False
    checked = validate_data(estimator, X, y, dtype=dtype, accept_sparse=formats, reset=reset)
    if isinstance(checked, tuple):
        check_classification_targets(checked[1])
    return checked


def row_weights(X: Array, labels: Array, classes: Array, class_weight: Any, sample_weight: Any) -> Array:
    """Return the weight of each row ``[N]``, float64: sample weight times class weight.

    Balanced class weights count rows by their sample weight, so a weight of 2 is two rows there too.

    Raises:
        ValueError: Negative weights, or none above 0.
    """
    from sklearn.utils import check_array, compute_class_weight
    from sklearn.utils.validation import check_consistent_length

    weight: Array = np.ones(X.shape[0])
    if sample_weight is not None:
        given = weight * sample_weight if isinstance(sample_weight, (int, float)) else sample_weight
        weight = check_array(given, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
        if weight.ndim != 1:
            raise ValueError(f"sample_weight must have 1 dimension, got shape {weight.shape}")
        check_consistent_length(X, weight)
        if (weight < 0).any():
            raise ValueError("sample_weight must not be negative")
    if isinstance(class_weight, str) and class_weight == "balanced":
        counts = np.bincount(labels, weights=weight, minlength=len(classes))
        factor = np.divide(counts.sum() / len(classes), counts, out=np.zeros_like(counts), where=counts > 0)
        weight = weight * factor[labels]
    elif class_weight is not None:
        factor = compute_class_weight(class_weight, classes=classes, y=classes[labels])
        weight = weight * factor[labels]
    if (weight < 0).any():
        raise ValueError(f"class_weight must not be negative, got {class_weight!r}")
    if not weight.sum() > 0:
        raise ValueError("sample_weight must be above 0 for at least one row, got only zero weights")
    return weight


def known_labels(y: Array, classes: Array) -> Array:
    """Return the place of each label in ``classes`` ``[N]``.

    Raises:
        ValueError: A label that is not among them.
    """
    unknown = np.setdiff1d(y, classes)
    if len(unknown):
        raise ValueError(
            f"y must hold classes that the first call named in classes, got {unknown.tolist()[0]!r} besides"
        )
    return np.searchsorted(classes, y)

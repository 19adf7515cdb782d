"""What the caller hands over: checks, statistics and margins of a whole training set, sparse rows.

Sums of weights and of ``weight · ‖φ‖_p²`` add up over ``partial_fit`` and give ``r²_{k,p}`` (Eq. 17) exactly. Sparse
rows are fitted in the few directions that they span: the weights of the minimum are sums of rows, so with fewer rows
than columns an orthonormal basis ``V`` ``[d, r]`` of the rows does, and ``X`` is never made dense.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from classmargin._checks import check_int, check_number
from classmargin.mr2 import class_margins
from classmargin.mr2.equations import squared_norm

Array = NDArray[Any]
CHUNK_ROWS = 8192
# Limit of a dense copy (more rows than columns) or of the table of products of rows (fewer).
MOST_BYTES = 4 * 2**30


def check_parameters(estimator: Any) -> None:
    """Check the constructor's arguments; scikit-learn expects that in ``fit``."""
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
            raise ValueError(f"scale is the factor of cosines and needs cosine=True, got scale={estimator.scale!r}")
    hidden_size(estimator.hidden)
    pick_device(estimator.device)


def hidden_size(hidden: Any) -> int | None:
    """Return the size of the hidden layer, of ``(size,)`` or None."""
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
        raise ValueError(f"device must be 'auto' or a device that torch can use here, got {name!r}") from error
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
    """Return sample weight times class weight of each row ``[N]``; balanced weights count rows by sample weight."""
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
        weight = weight * compute_class_weight(class_weight, classes=classes, y=classes[labels])[labels]
    if (weight < 0).any():
        raise ValueError(f"class_weight must not be negative, got {class_weight!r}")
    if not weight.sum() > 0:
        raise ValueError("sample_weight must be above 0 for at least one row, got only zero weights")
    return weight


def class_sqnorm_sums(X: Array, labels: Array, row_weight: Array, num_classes: int, norm_order: float) -> Array:
    """Return the sums of weights and of weighted squared norms of each class, ``[2, K]``, of an array or a CSR matrix."""
    squares = np.empty(X.shape[0])
    for start in range(0, X.shape[0], CHUNK_ROWS):  # norms of order 3 copy what they read
        part = slice(start, start + CHUNK_ROWS)
        squares[part] = _squared_norms(X[part], norm_order)
    values = (row_weight, row_weight * squares)
    return np.stack([np.bincount(labels, weights=value, minlength=num_classes) for value in values])


def _squared_norms(X: Any, norm_order: float) -> Array:
    X = X.astype(np.float64)  # squares of large float32 features overflow
    if isinstance(X, np.ndarray):
        return squared_norm(torch.from_numpy(X), norm_order).numpy()
    sizes = abs(X)
    if np.isinf(norm_order):
        norms = sizes.max(axis=1).toarray().ravel()
    else:
        norms = np.asarray(sizes.power(norm_order).sum(axis=1)).ravel() ** (1.0 / norm_order)
    return np.asarray(norms**2)


def margins_of(sums: Array, mean_margin: float) -> tuple[Array, Array]:
    """Return ``r²`` and margins ``γ`` (Eq. 14 and 17) of each class ``[K]``; 0 and ``c̄`` for a class without weight."""
    weight, total = sums
    squares = np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)
    margins = class_margins(torch.from_numpy(squares), mean_margin, seen=torch.from_numpy(weight > 0))
    return squares, margins.numpy()


def dense_coordinates(X: Any) -> tuple[Array, Callable[[Array], Array]]:
    """Return rows to fit on for CSR rows ``[N, d]``, and the function that takes weights for them ``[K, r]`` to weights ``[K, d]``."""
    count, columns = X.shape
    if min(count, columns) * count * 8 > MOST_BYTES:
        raise ValueError(
            f"X is sparse with {count} rows and {columns} columns, more than a linear fit holds ({MOST_BYTES >> 30} GiB); reduce "
            "the columns first, e.g. with sklearn.decomposition.TruncatedSVD, or give parts of the rows to partial_fit"
        )
    if columns <= count:
        return X.toarray(), lambda coef: coef
    products = (X @ X.T).toarray().astype(np.float64)
    values, vectors = np.linalg.eigh(products)
    # Products square the lengths, which leaves half of the digits: smaller directions are rounding.
    kept = values > np.finfo(np.float64).eps * count * max(float(values[-1]), np.finfo(np.float64).tiny)
    if not kept.any():
        return np.zeros((count, 1), X.dtype), lambda coef: np.zeros((len(coef), columns), coef.dtype)
    lengths, directions = np.sqrt(values[kept]), vectors[:, kept]

    def lift(coef: Array) -> Array:
        mixture = (coef.astype(np.float64) / lengths) @ directions.T  # weights as sums of rows
        return np.ascontiguousarray(np.asarray(X.T @ mixture.T).T.astype(X.dtype))

    return (directions * lengths).astype(X.dtype), lift

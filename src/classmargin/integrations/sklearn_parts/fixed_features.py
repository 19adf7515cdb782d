"""Fixed features, dense or sparse: exact class statistics of a whole training set, and the margins that follow.

Features that training does not change need no moving average. Sums of weights and of ``weight · ‖φ‖_p²`` add up over the
batches of ``partial_fit`` and give ``r²_{k,p}`` (Eq. 17) exactly; a row of weight 2 counts as two rows.

Sparse rows (TF-IDF, counts) are fitted in the few directions that they span. The weights of the minimum are sums of rows, because
the penalty is ``‖W‖²``; with fewer rows than columns the search can run in an orthonormal basis ``V`` ``[d, r]`` of the rows,
``r <= N``: ``Z = X V`` has the same lengths, angles and total variance, and the weights are ``W V^T`` of what is found there. ``X``
itself is never made dense.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from classmargin.mr2 import class_margins
from classmargin.mr2.equations import squared_norm

Array = NDArray[Any]
CHUNK_ROWS = 8192
# Limit of a dense copy (more rows than columns) or of the table of products of rows (fewer).
MOST_BYTES = 4 * 2**30


def class_sqnorm_sums(
    X: Array, labels: Array, row_weight: Array, num_classes: int, norm_order: float
) -> Array:
    """Return the sums of weights and of weighted squared norms of each class, ``[2, K]``.

    Args:
        X: Features ``[N, d]``, an array or a CSR matrix.
        labels: Classes ``[N]``.
        row_weight: Weight of each row ``[N]``.
        num_classes: ``K``.
        norm_order: ``p``.

    Example:
        >>> from scipy import sparse
        >>> phi = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 2.0]])
        >>> for X in (phi, sparse.csr_matrix(phi)):
        ...     class_sqnorm_sums(X, np.array([0, 1, 0]), np.ones(3), 2, 2.0).round(6).tolist()
        [[2.0, 1.0], [6.0, 4.0]]
        [[2.0, 1.0], [6.0, 4.0]]
    """
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


def sqnorm_of(sums: Array) -> Array:
    """Return ``r²`` of each class ``[K]``; 0 for a class without weight."""
    weight, total = sums
    result: Array = np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)
    return result


def margins_of(sums: Array, mean_margin: float) -> Array:
    """Return the margins ``γ`` (Eq. 14 and 17) of each class ``[K]``; ``c̄`` for a class without weight.

    Example:
        >>> margins_of(np.array([[1.0, 1.0, 1.0], [3.0, 4.0, 10.0]]), 1.0).round(6).tolist()
        [0.834621, 0.91862, 1.246759]
    """
    statistic, seen = torch.from_numpy(sqnorm_of(sums)), torch.from_numpy(sums[0] > 0)
    result: Array = class_margins(statistic, mean_margin, seen=seen).numpy()
    return result


def dense_coordinates(X: Any) -> tuple[Array, Callable[[Array], Array]]:
    """Return rows to fit on and the function that takes weights for them ``[K, r]`` to weights for ``X`` ``[K, d]``.

    Args:
        X: Sparse rows ``[N, d]`` in CSR format.

    Raises:
        ValueError: Too many rows and columns for either way.

    Example:
        >>> from scipy import sparse
        >>> X = sparse.csr_matrix(np.array([[3.0, 0.0, 4.0], [0.0, 1.0, 0.0]]))
        >>> rows, lift = dense_coordinates(X)
        >>> rows.shape, np.round(rows @ rows.T, 6).tolist()
        ((2, 2), [[25.0, 0.0], [0.0, 1.0]])
        >>> np.allclose(X @ lift(rows).T, rows @ rows.T)
        True
    """
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
        lifted: Array = np.asarray(X.T @ mixture.T).T.astype(X.dtype)
        return np.ascontiguousarray(lifted)

    return (directions * lengths).astype(X.dtype), lift

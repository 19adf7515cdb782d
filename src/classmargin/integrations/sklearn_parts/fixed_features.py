"""Fixed features, dense or sparse: exact class statistics of a whole training set, and the margins that follow.

Features that no training changes need no moving average. Sums of weights and of ``weight · ‖φ‖_p²`` add up over the
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
from torch import Tensor

from classmargin.mr2 import class_margins
from classmargin.mr2.equations import squared_norm

Array = NDArray[Any]
CHUNK_ROWS = 8192
# A dense copy (more rows than columns) or the table of products of rows (fewer) may take so much.
MOST_BYTES = 4 * 2**30


def class_sqnorm_sums(
    rows: Tensor, labels: Tensor, row_weight: Tensor, num_classes: int, norm_order: float
) -> Array:
    """Return the sums of weights and of weighted squared norms of each class, ``[2, K]``.

    Args:
        rows: Features ``[N, d]``.
        labels: Classes ``[N]``.
        row_weight: Weight of each row ``[N]``.
        num_classes: ``K``.
        norm_order: ``p``.

    Example:
        >>> phi = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 2.0]])
        >>> class_sqnorm_sums(phi, torch.tensor([0, 1, 0]), torch.ones(3), 2, 2.0).round(6).tolist()
        [[2.0, 1.0], [6.0, 4.0]]
    """
    sums = torch.zeros(2, num_classes, dtype=torch.float64, device=rows.device)
    for start in range(0, rows.shape[0], CHUNK_ROWS):  # norms of order 3 copy what they read
        part = slice(start, start + CHUNK_ROWS)
        weight = row_weight[part].double()
        # In float64: squares of large float32 features overflow.
        values = torch.stack((weight, weight * squared_norm(rows[part].double(), norm_order)))
        sums.index_add_(1, labels[part], values)
    result: Array = sums.cpu().numpy()
    return result


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


def is_sparse(X: Any) -> bool:
    """Whether ``X`` is a sparse matrix or array of SciPy.

    Example:
        >>> is_sparse(np.eye(2))
        False
    """
    from scipy import sparse

    return bool(sparse.issparse(X))


def sparse_sums(X: Any, labels: Array, row_weight: Array, num_classes: int, norm_order: float) -> Array:
    """Return the sums of :func:`class_sqnorm_sums` for sparse rows ``[N, d]``, ``[2, K]``.

    Example:
        >>> from scipy import sparse
        >>> X = sparse.csr_matrix(np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 2.0]]))
        >>> sparse_sums(X, np.array([0, 1, 0]), np.ones(3), 2, 2.0).round(6).tolist()
        [[2.0, 1.0], [6.0, 4.0]]
    """
    sizes = abs(X.astype(np.float64))
    if np.isinf(norm_order):
        norms = sizes.max(axis=1).toarray().ravel()
    else:
        norms = np.asarray(sizes.power(norm_order).sum(axis=1)).ravel() ** (1.0 / norm_order)
    values = (row_weight, row_weight * norms**2)
    return np.stack([np.bincount(labels, weights=value, minlength=num_classes) for value in values])


def dense_coordinates(X: Any) -> tuple[Array, Callable[[Array], Array]]:
    """Return rows to fit on and the function that takes weights for them ``[K, r]`` to weights for ``X`` ``[K, d]``.

    Args:
        X: Sparse rows ``[N, d]`` in CSR format.

    Raises:
        ValueError: Too many rows and columns to hold either of them against the other.

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
    # Products square the lengths, so digits end at the root of the precision: smaller directions are rounding.
    kept = values > np.finfo(np.float64).eps * count * max(float(values[-1]), np.finfo(np.float64).tiny)
    if not kept.any():
        return np.zeros((count, 1), X.dtype), lambda coef: np.zeros((len(coef), columns), coef.dtype)
    lengths, directions = np.sqrt(values[kept]), vectors[:, kept]

    def lift(coef: Array) -> Array:
        mixture = (coef.astype(np.float64) / lengths) @ directions.T  # weights as sums of rows
        lifted: Array = np.asarray(X.T @ mixture.T).T.astype(X.dtype)
        return np.ascontiguousarray(lifted)

    return (directions * lengths).astype(X.dtype), lift

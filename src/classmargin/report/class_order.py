"""An order of the classes in which classes that are mistaken for one another stand side by side.

counts ``[K, K]`` → share of each class's samples → symmetric similarity → average linkage with optimal leaf
ordering (scipy) → order. In that order, confusable groups are blocks around the diagonal of the matrix.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Turning the branches of the tree the best way costs K cubed: 4 s at 1000 classes, half a minute at 2000.
# Blocks are blocks without it; only their neighbourhood is less telling.
MOST_CLASSES_FOR_OPTIMAL_ORDER = 1500


def confusion_shares(confusion: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return which share of each true class went to each prediction, rows of absent classes being zero.

    Args:
        confusion: Counts ``[K, K]``, true class by predicted class.

    Example:
        >>> confusion_shares(np.array([[3, 1], [0, 0]])).tolist()
        [[0.75, 0.25], [0.0, 0.0]]
    """
    counts = np.asarray(confusion, dtype=np.float64)
    shares: NDArray[np.float64] = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return shares


def confusable_order(confusion: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the classes in an order that makes blocks of confusable groups, a permutation ``[K]``.

    Two classes are near when they send a large share of their samples to one another. The order is
    deterministic; classes without any error keep their order at the end of the tree.

    Example:
        >>> counts = np.array([[8, 0, 2], [0, 9, 0], [3, 0, 7]])
        >>> order = confusable_order(counts).tolist()
        >>> abs(order.index(0) - order.index(2))
        1
    """
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    shares = confusion_shares(confusion)
    num_classes = shares.shape[0]
    if num_classes < 3:
        return np.arange(num_classes, dtype=np.int64)
    distance = 1.0 - (shares + shares.T) / 2
    np.fill_diagonal(distance, 0.0)
    best_flips = num_classes <= MOST_CLASSES_FOR_OPTIMAL_ORDER
    tree = linkage(squareform(distance, checks=False), method="average", optimal_ordering=best_flips)
    return np.asarray(leaves_list(tree), dtype=np.int64)


def block_starts(num_classes: int, *, most_blocks: int = 40) -> NDArray[np.int64]:
    """Return where at most ``most_blocks`` blocks of nearly equal size start.

    Example:
        >>> block_starts(10, most_blocks=4).tolist()
        [0, 3, 6, 9]
    """
    size = -(-num_classes // most_blocks)
    return np.arange(0, num_classes, size, dtype=np.int64)


def block_shares(
    confusion: NDArray[np.int64], order: NDArray[np.int64], starts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the errors between blocks of classes as a share of the samples of the row's block.

    Right answers are left out, so the diagonal holds the confusions *within* a block.

    Args:
        confusion: Counts ``[K, K]``.
        order: Permutation ``[K]`` of the classes.
        starts: First position of each block, ``[blocks]``.
    """
    counts = np.asarray(confusion, dtype=np.float64)[np.ix_(order, order)]
    samples = np.add.reduceat(counts.sum(axis=1), starts)
    np.fill_diagonal(counts, 0.0)
    errors = np.add.reduceat(np.add.reduceat(counts, starts, axis=0), starts, axis=1)
    return errors / np.maximum(samples[:, None], 1)

"""Easy, medium and hard thirds of the classes, by a stated ranking and a stated remainder rule.

Ranking rules:

- ``"own"``: by the audited model's accuracies on the audited samples (the paper). The same noise ranks and
  measures, so the hard third looks harder, and the easy third easier, than they are.
- ``"reference"``: by accuracies from elsewhere (another model, another test set).
- ``"crossfit"``: ranked on one half of each class's samples, measured on the other half, both directions, averaged over
  several random splits. Ranking noise and measuring noise are independent.

Remainder rule: with ``K = 3q + r`` classes the first of the ``r`` extra classes goes to easy, the second to medium. Ties
are broken by class index (the lower index counts as easier). Classes without samples belong to no tier.
"""

from __future__ import annotations

import numpy as np

from classmargin.evaluation.inputs import AnyArray, FloatArray, IntArray

TIERS = ("easy", "medium", "hard")
RANKINGS = ("own", "reference", "crossfit")
ABSENT = -1
REMAINDER_RULE = "classes beyond a multiple of three go to easy first, then to medium; ties by class index"


def tier_sizes(num_classes: int) -> tuple[int, int, int]:
    """Return how many of ``num_classes`` classes are easy, medium and hard.

    Example:
        >>> tier_sizes(100), tier_sizes(101)
        ((34, 33, 33), (34, 34, 33))
    """
    base, rest = divmod(num_classes, 3)
    return base + (rest > 0), base + (rest > 1), base


def tier_codes(ranking_accuracy: FloatArray, present: AnyArray | None = None) -> IntArray:
    """Assign every class a tier: 0 easy, 1 medium, 2 hard, -1 absent.

    Args:
        ranking_accuracy: Accuracy by which classes are ranked ``[..., K]``; NaN marks a class without samples.
        present: Classes that take part ``[K]``; by default those that are not NaN.

    Returns:
        Codes of the same shape.

    Example:
        >>> tier_codes(np.array([0.2, 0.9, 0.5, np.nan]))
        array([ 2,  0,  1, -1])
    """
    mask = (
        ~np.isnan(ranking_accuracy) if present is None else np.broadcast_to(present, ranking_accuracy.shape)
    )
    order = np.argsort(np.where(mask, -np.nan_to_num(ranking_accuracy), np.inf), axis=-1, kind="stable")
    count = int(mask.reshape(-1, mask.shape[-1])[0].sum())
    by_rank = np.full(ranking_accuracy.shape[-1], ABSENT)
    by_rank[:count] = np.repeat([0, 1, 2], tier_sizes(count))
    codes = np.empty(ranking_accuracy.shape, dtype=np.int64)
    np.put_along_axis(codes, order, np.broadcast_to(by_rank, codes.shape), axis=-1)
    return codes


def tier_means(accuracy: FloatArray, codes: IntArray) -> FloatArray:
    """Return the mean accuracy of each tier ``[..., 3]`` (mean over classes), NaN for an empty tier.

    Example:
        >>> tier_means(np.array([0.2, 0.9, 0.5]), np.array([2, 0, 1]))
        array([0.9, 0.5, 0.2])
    """
    values = np.nan_to_num(accuracy)
    means = []
    for code in range(3):
        inside = codes == code
        count = inside.sum(axis=-1)
        total = np.where(inside, values, 0.0).sum(axis=-1)
        means.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))
    return np.stack(means, axis=-1)

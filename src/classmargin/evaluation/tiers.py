"""Easy, medium and hard thirds of the classes, by a stated ranking and a stated remainder rule.

Ranking rules:

- ``"corrected"``: estimates of the true class accuracies, from which the noise of the test set has been taken away (see
  :mod:`classmargin.evaluation.corrected`); the tiers of classes are those of their estimates.
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

from classmargin.evaluation.input_checks import FloatArray, IntArray

TIERS = ("easy", "medium", "hard")
RANKINGS = ("corrected", "own", "reference", "crossfit")
ABSENT = -1
_TIE_LEAN = 1e-13
REMAINDER_RULE = "classes beyond a multiple of three go to easy first, then to medium; ties by class index"


def tier_sizes(num_classes: int) -> tuple[int, int, int]:
    """Return how many of ``num_classes`` classes are easy, medium and hard.

    Example:
        >>> tier_sizes(100), tier_sizes(101)
        ((34, 33, 33), (34, 34, 33))
    """
    base, rest = divmod(num_classes, 3)
    return base + (rest > 0), base + (rest > 1), base


def tier_codes(ranking_accuracy: FloatArray) -> IntArray:
    """Assign every class a tier: 0 easy, 1 medium, 2 hard, -1 absent.

    Args:
        ranking_accuracy: Accuracy by which classes are ranked ``[K]``; NaN marks a class without samples.

    Example:
        >>> tier_codes(np.array([0.2, 0.9, 0.5, np.nan]))
        array([ 2,  0,  1, -1])
    """
    present = np.flatnonzero(~np.isnan(ranking_accuracy))
    order = present[np.argsort(-ranking_accuracy[present], kind="stable")]
    codes = np.full(ranking_accuracy.shape[0], ABSENT)
    codes[order] = np.repeat([0, 1, 2], tier_sizes(len(present)))
    return codes


def tier_means(accuracy: FloatArray, codes: IntArray) -> FloatArray:
    """Return the mean accuracy over the classes of each given tier ``[..., 3]``, NaN for an empty tier.

    Args:
        accuracy: Class accuracies ``[..., K]``.
        codes: Tier of each class ``[K]``.

    Example:
        >>> tier_means(np.array([0.2, 0.9, 0.5]), np.array([2, 0, 1]))
        array([0.9, 0.5, 0.2])
    """
    means = np.full((*accuracy.shape[:-1], 3), np.nan)
    for code in range(3):
        if (codes == code).any():
            means[..., code] = accuracy[..., codes == code].mean(axis=-1)
    return means


def ranked_tier_means(accuracy: FloatArray, ranked_by: FloatArray) -> FloatArray:
    """Return the mean accuracy of each tier ``[..., 3]`` when every row has its own ranking.

    Args:
        accuracy: Accuracies of the classes that take part ``[..., K]``, no NaN.
        ranked_by: What ranks them, same shape or one that is broadcast to it: equal rows are sorted once.

    Example:
        >>> ranked_tier_means(np.array([0.2, 0.9, 0.5]), np.array([3.0, 2.0, 1.0]))
        array([0.2, 0.9, 0.5])
    """
    # A stable sort breaks ties by class index but is six times slower than the default one; a lean far below
    # any difference of two accuracies does the same.
    order = np.argsort(_TIE_LEAN * np.arange(accuracy.shape[-1]) - ranked_by, axis=-1)
    sorted_accuracy = np.take_along_axis(accuracy, np.broadcast_to(order, accuracy.shape), axis=-1)
    means = np.full((*accuracy.shape[:-1], 3), np.nan)
    start = 0
    for code, size in enumerate(tier_sizes(accuracy.shape[-1])):
        if size:
            means[..., code] = sorted_accuracy[..., start : start + size].mean(axis=-1)
        start += size
    return means

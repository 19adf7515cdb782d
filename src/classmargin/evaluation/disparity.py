"""How unequal class accuracies are: worst classes, gap, dispersion and inequality indices.

Every function takes the accuracies of the classes that have samples, shape ``[K]``, and returns a float.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from classmargin.evaluation.inputs import FloatArray


def worst_k(accuracy: FloatArray, k: int) -> float:
    """Return the mean of the ``k`` lowest accuracies (of all, if there are fewer).

    Example:
        >>> worst_k(np.array([0.9, 0.5, 0.7]), 2)
        0.6
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    return float(np.sort(accuracy)[:k].mean())


def gini(accuracy: FloatArray) -> float:
    """Return the Gini index: mean absolute difference of all pairs over twice the mean; 0 = equal.

    Example:
        >>> gini(np.array([0.0, 1.0]))
        0.5
    """
    count, total = accuracy.shape[0], float(accuracy.sum())
    if total == 0:
        return 0.0
    ranks = 2 * np.arange(1, count + 1) - count - 1
    return float((ranks * np.sort(accuracy)).sum() / (count * total))


def generalized_entropy(accuracy: FloatArray, alpha: float = 2.0) -> float:
    """Return the generalized-entropy index of order α (1 = Theil, 0 = mean log deviation); 0 = equal.

    α = 2 is half the squared coefficient of variation. For α = 0 a class at zero gives infinity.

    Example:
        >>> generalized_entropy(np.array([0.5, 1.5]))
        0.125
    """
    mean = float(accuracy.mean())
    if mean == 0:
        return 0.0
    relative = accuracy / mean
    if alpha == 0:
        return float("inf") if (relative == 0).any() else float(-np.log(relative).mean())
    if alpha == 1:
        positive = relative[relative > 0]  # x ln x -> 0
        return float((positive * np.log(positive)).sum() / accuracy.shape[0])
    return float((relative**alpha - 1).mean() / (alpha * (alpha - 1)))


def disparity_measures(accuracy: FloatArray, class_names: tuple[str, ...]) -> dict[str, Any]:
    """Return all measures by name for the classes with samples (NaN marks the others).

    Keys: ``mean_class_accuracy``, ``best``, ``worst_class`` (name), ``worst_5``, ``worst_10_percent``, ``range``,
    ``ratio`` (worst over best), ``std`` (population), ``gini``, ``generalized_entropy`` (α = 2), ``theil``.
    """
    present = np.flatnonzero(~np.isnan(accuracy))
    values = accuracy[present]
    low, high = float(values.min()), float(values.max())
    return {
        "mean_class_accuracy": float(values.mean()),
        "best": high,
        "worst_class": class_names[int(present[np.argmin(values)])],
        "worst_5": worst_k(values, 5),
        "worst_10_percent": worst_k(values, max(1, round(len(values) / 10))),
        "range": high - low,
        "ratio": low / high if high > 0 else float("nan"),
        "std": float(values.std()),
        "gini": gini(values),
        "generalized_entropy": generalized_entropy(values, 2.0),
        "theil": generalized_entropy(values, 1.0),
    }

"""Two classes: can their features be told apart at all, and what would change if they were one class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from classmargin._checks import check_int
from classmargin.evaluation.input_checks import AnyArray, FloatArray, IntArray
from classmargin.evaluation.samples import class_number
from classmargin.evaluation.tiers import TIERS, tier_codes

if TYPE_CHECKING:
    from classmargin.evaluation.audit_result import Audit

# Samples of each of two classes: a pair takes some 20 ms, and more samples move the accuracy by a point or two.
MOST_SAMPLES = 150
FEWEST_SAMPLES = 8
# Ridge penalties tried, in units of the mean squared distance from the mean; leave-one-out error decides.
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
DRAWS = 500


def pair_separability(
    features: AnyArray, labels: IntArray, wanted: AnyArray, partner: IntArray, *, most: int = MOST_SAMPLES
) -> FloatArray:
    """Return how often each wanted class and its partner are told apart by their features alone ``[K]``, NaN elsewhere.

    A linear classifier (ridge) of the two classes, every sample being left out once: balanced accuracy, 0.5 is chance.

    Args:
        features: Shape ``[N, d]``.
        labels: True classes ``[N]``.
        wanted: For which classes ``[K]`` (bool).
        partner: The other class of each ``[K]``.
        most: At most so many samples of each class, the first ones.
    """
    result = np.full(len(wanted), np.nan)
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=len(wanted)))

    def rows_of(k: int) -> IntArray:
        return np.asarray(order[(ends[k - 1] if k else 0) : ends[k]][:most])

    for k in np.flatnonzero(wanted).tolist():
        first, second = rows_of(k), rows_of(int(partner[k]))
        if min(len(first), len(second)) >= FEWEST_SAMPLES:
            result[k] = _told_apart(features[first], features[second])
    return result


def _told_apart(first: AnyArray, second: AnyArray) -> float:
    both = np.concatenate([first, second]).astype(np.float64)
    both /= max(float(np.abs(both).max()), 1e-300)  # squares neither vanish nor overflow
    target = np.repeat([1.0, -1.0], [len(first), len(second)])
    weight = 1 / np.repeat([len(first), len(second)], [len(first), len(second)])
    # Not centred: the mean would hold the sample that is left out. A constant feature stands for the intercept.
    gram = both @ both.T
    scale = max(
        float(np.trace(gram) - gram.mean() * len(gram)) / len(gram), 1e-12
    )  # mean square about the mean
    values, vectors = np.linalg.eigh(gram + float(np.trace(gram)) / len(gram) + scale)
    rotated = vectors.T @ target
    errors, best = np.inf, 0.5
    for penalty in PENALTIES:
        inverse = 1 / (np.maximum(values, 0) + penalty * scale)
        # What ridge regression predicts for a sample that it has not seen, in closed form.
        left_out = target - (vectors @ (inverse * rotated)) / ((vectors**2) @ inverse)
        error = float(np.average((left_out - target) ** 2, weights=weight))
        if error < errors:
            errors, best = error, float(np.average(left_out * target > 0, weights=weight))
    return best


@dataclass(frozen=True)
class Merge:
    """What changes if two classes are made one.

    Attributes:
        classes: Names of the two.
        overall: Change of the overall accuracy with its interval, as fractions.
        hard: Change of the hard third with its interval, NaN where there are too few classes for thirds. The thirds are those of
            the classes before and after.
        accuracy: Accuracy of the merged class.
        confidence: Level of the intervals.
    """

    classes: tuple[str, str]
    overall: tuple[float, float, float]
    hard: tuple[float, float, float]
    accuracy: float
    confidence: float

    def __str__(self) -> str:
        parts = [
            f"{words} {100 * value:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"
            for words, (value, low, high) in (("overall", self.overall), ("hard third", self.hard))
            if not np.isnan(value)
        ]
        return f"merging {self.classes[0]} and {self.classes[1]}: {', '.join(parts)}"


def merge_classes(audit: Audit, first: str, second: str, *, seed: int = 0) -> Merge:
    """Simulate one class in place of two; see :meth:`Audit.merge`.

    The samples of each class are drawn again (right, taken for the other of the two, or wrong anyway), so the change and its
    interval are paired; which classes make up the hard third before and after is taken as it is found.
    """
    a, b = class_number(audit, first, argument="first"), class_number(audit, second, argument="second")
    if a == b:
        raise ValueError(f"second must be another class than first, got {first!r} twice")
    rng = np.random.default_rng(check_int("seed", seed, minimum=0))
    n, right = audit.confusion.sum(axis=1), np.diagonal(audit.confusion)
    swapped = np.zeros_like(n)
    swapped[a], swapped[b] = audit.confusion[a, b], audit.confusion[b, a]
    if not n[a] or not n[b]:
        raise ValueError(f"both classes must have samples, got none of {first if not n[a] else second!r}")
    found = _changes(right[None], swapped[None], n, (a, b), audit)
    drawn_right = rng.binomial(n, right / np.maximum(n, 1), size=(DRAWS, len(n)))
    share = swapped / np.maximum(n - right, 1)
    drawn_swapped = rng.binomial(n - drawn_right, share, size=drawn_right.shape)
    drawn = _changes(drawn_right, drawn_swapped, n, (a, b), audit)
    tail = (1 - audit.confidence) / 2
    ranges = [np.quantile(values, [tail, 1 - tail]) for values in drawn]
    overall, hard = (
        (float(value[0]), float(low), float(high)) for value, (low, high) in zip(found, ranges, strict=True)
    )
    accuracy = float((right[[a, b]] + swapped[[a, b]]).sum() / n[[a, b]].sum())
    return Merge((first, second), overall, hard, accuracy, audit.confidence)


def _changes(
    right: IntArray, swapped: IntArray, n: IntArray, pair: tuple[int, int], audit: Audit
) -> tuple[FloatArray, FloatArray]:
    """Return the change of the overall accuracy and of the hard third for each draw ``[B]``."""
    a, b = pair
    overall = swapped.sum(axis=1) / n.sum()
    merged_n = np.delete(n, b)
    place = a - (b < a)
    merged_n[place] += n[b]
    merged_right = np.delete(right, b, axis=1)
    merged_right[:, place] += right[:, b] + swapped[:, a] + swapped[:, b]
    before, after = (
        counts / np.maximum(total, 1) for counts, total in ((right, n), (merged_right, merged_n))
    )
    # Which classes are hard is found on the samples as they are, not anew in each draw.
    own = np.diagonal(audit.confusion)
    merged_own = np.delete(own, b)
    merged_own[place] += own[b] + audit.confusion[a, b] + audit.confusion[b, a]
    hard = [_hard(counts, total) for counts, total in ((own, n), (merged_own, merged_n))]
    if not all(mask.any() for mask in hard):
        return overall, np.full(len(overall), np.nan)
    return overall, after[:, hard[1]].mean(axis=1) - before[:, hard[0]].mean(axis=1)


def _hard(right: IntArray, n: IntArray) -> AnyArray:
    """Return which classes are the hard third ``[K]``."""
    accuracy = np.where(n > 0, right / np.maximum(n, 1), np.nan)
    return np.asarray(tier_codes(accuracy) == TIERS.index("hard"))

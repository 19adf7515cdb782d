"""Sentences that a person can quote from a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from classmargin.evaluation.comparison import Comparison

Delta = tuple[float, float, float]


def pair_verdict(
    names: tuple[str, str],
    deltas: Mapping[str, Delta],
    counts: Mapping[str, int],
    confidence: float,
    alpha: float,
) -> str:
    """Return one sentence: overall difference, hard third, and how many classes changed.

    Args:
        names: Baseline and candidate.
        deltas: ``{name: (difference, low, high)}``.
        counts: Number of classes that gained, lost, or are noise.
        confidence: Level of the intervals.
        alpha: False discovery rate of the counts.

    Example:
        >>> zero = (0.0, -0.01, 0.01)
        >>> deltas = {"overall": (0.02, 0.01, 0.03), "hard": zero}
        >>> pair_verdict(("A", "B"), deltas, dict(gained=1, lost=0, noise=2), 0.95, 0.05)[:72]
        'B is better than A: +2.0 points overall (95 % interval +1.0 to +3.0), no'
    """
    baseline, candidate = names
    overall, hard = deltas["overall"], deltas["hard"]
    total = sum(counts.values())
    return (
        f"{candidate} is {_judgement(overall)} {baseline}: {points(overall[0])} points overall "
        f"({100 * confidence:g} % interval {points(overall[1])} to {points(overall[2])}){_hard_part(hard)}; "
        f"{counts['gained']} of {total} classes gained, {counts['lost']} lost, {counts['noise']} are within noise "
        f"(false discovery rate {100 * alpha:g} %)."
    )


def set_verdict(comparisons: Sequence[Comparison]) -> str:
    """Return one sentence over all candidates: the best on overall accuracy and on the hard third, of those clearly better."""
    if len(comparisons) == 1:
        return comparisons[0].verdict
    baseline = comparisons[0].baseline_name
    sentences = []
    for what, label in (("overall", "overall"), ("hard", "on the hard third")):
        known = [
            (each.deltas[what], each.candidate_name)
            for each in comparisons
            if not isnan(each.deltas[what][0])
        ]
        # The largest difference may be an unsure one, and a smaller one clear.
        clear = [(delta, name) for delta, name in known if delta[1] > 0]
        if clear:
            delta, name = max(clear, key=lambda entry: entry[0][0])
            unsure = delta[0] < max(other[0] for other, _ in known)
            words = f"{name} has the largest clear gain" if unsure else f"{name} gains most"
            sentences.append(
                f"{words} {label} ({points(delta[0])} points, {points(delta[1])} to {points(delta[2])})"
            )
        elif known:
            sentences.append(f"no model is clearly better than {baseline} {label}")
    return f"Against {baseline}: " + "; ".join(sentences) + "."


def points(share: float) -> str:
    """Return a difference of shares in points with its sign, e.g. ``+2.3``.

    Example:
        >>> points(-0.0234)
        '-2.3'
    """
    return f"{100 * share:+.1f}"


def _judgement(delta: Delta) -> str:
    if delta[1] > 0:
        return "better than"
    return "worse than" if delta[2] < 0 else "not clearly different from"


def _hard_part(delta: Delta) -> str:
    if delta[0] != delta[0]:
        return ""
    limits = f"({points(delta[1])} to {points(delta[2])})"
    if delta[1] > 0 or delta[2] < 0:
        return f" and {points(delta[0])} on the hard third {limits}"
    return f", no clear difference on the hard third ({points(delta[0])}, {limits[1:]}"

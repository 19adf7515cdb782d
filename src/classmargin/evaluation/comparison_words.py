"""What is said about two or more models: a verdict in one sentence, with a band of words where noise decides."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan

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
        f"{candidate} is {judgement(overall)} {baseline}: {points(overall[0])} points overall "
        f"({100 * confidence:g} % interval {points(overall[1])} to {points(overall[2])}){_hard_part(hard)}; "
        f"{counts['gained']} of {total} classes gained, {counts['lost']} lost, {counts['noise']} are within noise "
        f"(false discovery rate {100 * alpha:g} %)."
    )


def set_verdict(baseline: str, candidates: Mapping[str, Mapping[str, Delta]]) -> str:
    """Return one sentence over all candidates: the best on overall accuracy and on the hard third, of those better beyond the noise."""
    sentences = []
    for what, label in (("overall", "overall"), ("hard", "on the hard third")):
        known = [(deltas[what], name) for name, deltas in candidates.items() if not isnan(deltas[what][0])]
        # The largest difference may be an unsure one, and a smaller one clear.
        clear = [(delta, name) for delta, name in known if _strength(delta) > _BAND[1]]
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


# A difference in units of its interval's half width. Around 1, where zero just leaves the interval, a rounding error or another seed of the
# bootstrap decides on which side it falls: there the words do not change.
_BAND = (0.8, 1.25)


def _strength(delta: Delta) -> float:
    value, low, high = delta
    reach = value - low if value > 0 else high - value
    return abs(value) / reach if reach > 0 else (float("inf") if value else 0.0)


def judgement(delta: Delta) -> str:
    """Return what to think of a difference: "better than", "worse than", either of them near the noise, or "not clearly different from".

    Example:
        >>> judgement((0.02, 0.01, 0.03)), judgement((0.005, 0.0001, 0.01))
        ('better than', 'perhaps, near the noise, better than')
    """
    strength = _strength(delta)
    if strength < _BAND[0]:
        return "not clearly different from"
    way = "better than" if delta[0] > 0 else "worse than"
    return way if strength > _BAND[1] else f"perhaps, near the noise, {way}"


def _hard_part(delta: Delta) -> str:
    if delta[0] != delta[0]:
        return ""
    limits, strength = f"({points(delta[1])} to {points(delta[2])})", _strength(delta)
    if strength > _BAND[1]:
        return f" and {points(delta[0])} on the hard third {limits}"
    if strength < _BAND[0]:
        return f", no clear difference on the hard third ({points(delta[0])}, {limits[1:]}"
    return f" and {points(delta[0])} on the hard third, near the noise {limits}"

"""One line a class: the likeliest reason why it is hard, from the numbers in its row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from classmargin.evaluation.inputs import FloatArray

# An interval wider than this says little about the class itself.
WIDE_INTERVAL = 0.25
# Share of a class's errors that must go to one class before we call the pair confused.
CONFUSION_SHARE_OF_ERRORS = 0.4
# Share of a class's samples that confident learning must doubt before labels are named as a reason.
LABEL_ISSUE_SHARE = 0.05
# A class is wide when its spread is above this quantile of all classes.
WIDE_SPREAD_QUANTILE = 0.75


@dataclass(frozen=True)
class ClassFacts:
    """What the verdict is made from; every array is ``[K]``, NaN (or -1) where unknown."""

    n: FloatArray
    accuracy: FloatArray
    low: FloatArray
    high: FloatArray
    tier: list[str]
    spread: FloatArray
    label_issues: FloatArray
    confidently_wrong: FloatArray
    confused_with: list[str]
    confusion_share: FloatArray


def verdicts(facts: ClassFacts) -> list[str]:
    """Return one line a class; classes outside the hard third get "" unless something else stands out."""
    known = facts.spread[~np.isnan(facts.spread)]
    wide = float(np.quantile(known, WIDE_SPREAD_QUANTILE)) if len(known) >= 4 else float("inf")
    return [_verdict(facts, k, wide) for k in range(len(facts.tier))]


def _verdict(facts: ClassFacts, k: int, wide_spread: float) -> str:
    if facts.n[k] == 0:
        return "absent: no samples"
    reasons = []
    if facts.tier[k] == "hard" and facts.accuracy[k] < 1:
        reasons = _reasons(facts, k, wide_spread)
    if facts.high[k] - facts.low[k] > WIDE_INTERVAL:
        width = 100 * (facts.high[k] - facts.low[k])
        reasons.append(f"few samples (n = {int(facts.n[k])}, interval {width:.0f} points wide)")
    if not reasons and facts.tier[k] == "hard" and facts.accuracy[k] < 1:
        reasons.append("errors go to many classes")
    return "; ".join(reasons)


def _reasons(facts: ClassFacts, k: int, wide_spread: float) -> list[str]:
    reasons = []
    errors = 1 - facts.accuracy[k]
    if facts.confusion_share[k] >= CONFUSION_SHARE_OF_ERRORS * errors:
        reasons.append(
            f"confused with {facts.confused_with[k]} ({100 * facts.confusion_share[k]:.0f} % of its samples)"
        )
    if (
        facts.label_issues[k] >= LABEL_ISSUE_SHARE * facts.n[k]
        and facts.confidently_wrong[k] >= LABEL_ISSUE_SHARE
    ):
        reasons.append(
            f"label noise? ({int(facts.label_issues[k])} of {int(facts.n[k])} samples look mislabelled)"
        )
    if facts.spread[k] > wide_spread:
        reasons.append("spread: its features vary more than those of three quarters of the classes")
    return reasons

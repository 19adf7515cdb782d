"""One line a class: the likeliest reason why it is hard, from the numbers in its row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from classmargin.evaluation.inputs import FloatArray

# An interval wider than this says little about the class itself.
WIDE_INTERVAL = 0.25
# Share of a class's errors that must go to one class before we call the pair confused.
CONFUSION_SHARE_OF_ERRORS = 0.4
# … and how many samples that must be at least: two mistakes are no pattern.
CONFUSED_SAMPLES = 3
# Labels are named as a reason when confident learning doubts this share of a class, and twice the usual share: a weak
# model doubts many good labels everywhere, so only what stands out counts.
LABEL_ISSUE_SHARE = 0.05
LABEL_ISSUE_TIMES_MEDIAN = 2.0
# A class is wide when its spread is above this quantile of all classes.
WIDE_SPREAD_QUANTILE = 0.75


@dataclass(frozen=True)
class ClassFacts:
    """What the verdicts are made from; every array is ``[K]``, NaN (or "") where unknown."""

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
    """Return one line a class, reasons divided by "; ".

    Classes of the hard third get a reason: "confused with …", "spread", or "errors go to many classes". "label noise?" and
    "few samples" may stand beside any class; a class about which there is nothing to say gets "".
    """
    known = facts.spread[~np.isnan(facts.spread)]
    wide = float(np.quantile(known, WIDE_SPREAD_QUANTILE)) if len(known) >= 4 else float("inf")
    doubted = facts.label_issues / np.maximum(facts.n, 1)
    present = doubted[~np.isnan(doubted)]
    usual = float(np.median(present)) if len(present) else float("nan")
    limit = max(LABEL_ISSUE_SHARE, LABEL_ISSUE_TIMES_MEDIAN * usual)
    suspicious = (doubted >= limit) & (facts.confidently_wrong >= LABEL_ISSUE_SHARE)
    return [_verdict(facts, k, wide, bool(suspicious[k])) for k in range(len(facts.tier))]


def _verdict(facts: ClassFacts, k: int, wide_spread: float, suspicious: bool) -> str:
    if facts.n[k] == 0:
        return "absent: no samples"
    hard = facts.tier[k] == "hard" and facts.accuracy[k] < 1
    reasons = _why_hard(facts, k, wide_spread) if hard else []
    if suspicious:
        reasons.append(
            f"label noise? ({int(facts.label_issues[k])} of {int(facts.n[k])} samples look mislabelled)"
        )
    if hard and not reasons:
        reasons.append("errors go to many classes")
    width = facts.high[k] - facts.low[k]
    if width > WIDE_INTERVAL:
        reasons.append(f"few samples (n = {int(facts.n[k])}, interval {100 * width:.0f} points wide)")
    return "; ".join(reasons)


def _why_hard(facts: ClassFacts, k: int, wide_spread: float) -> list[str]:
    reasons = []
    dominant = facts.confusion_share[k] >= CONFUSION_SHARE_OF_ERRORS * (1 - facts.accuracy[k])
    if dominant and round(facts.confusion_share[k] * facts.n[k]) >= CONFUSED_SAMPLES:
        share = 100 * facts.confusion_share[k]
        reasons.append(f"confused with {facts.confused_with[k]} ({share:.0f} % of its samples)")
    if facts.spread[k] > wide_spread:
        reasons.append("spread: its features vary more than those of three quarters of the classes")
    return reasons

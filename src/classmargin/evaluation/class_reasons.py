"""Why a class fails, by stated rules, and what to do next about it: one reason and one step per class, true of its row.

The rules look at one class at a time: are its labels doubted, is it wrong on its own training samples too, does one other class
take its errors and can the two be told apart at all, do its features vary much, are there enough samples to tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from classmargin.evaluation.input_checks import AnyArray, FloatArray, IntArray
from classmargin.evaluation.intervals import normal_quantile

# An interval wider than this says little about the class itself.
WIDE_INTERVAL = 0.25
# Share of a class's errors that must go to one class before we call the pair confused.
CONFUSION_SHARE_OF_ERRORS = 0.4
# … and how many samples that must be at least: two mistakes are no pattern.
CONFUSED_SAMPLES = 3
# Classes named where no single one takes the errors, and the share of the errors above which they are "mostly" these.
NAMED_CONFUSIONS = 3
MOST_ERRORS = 2 / 3
# Labels are named as a reason when confident learning doubts this share of a class, and more of its errors than errors usually are
# doubted: a hard class with right labels has many errors, and a part of them is confident.
LABEL_ISSUE_SHARE = 0.05
LABEL_ISSUE_LEVEL = 0.02
# A class is wide when its spread is above this quantile of all classes.
WIDE_SPREAD_QUANTILE = 0.75
# Two classes overlap when a classifier of these two alone, cross-validated on their features, is right less often than this.
OVERLAPPING = 0.65
# A class is not fitted when it has at least this share of its test errors on its training samples as well.
UNFITTED_SHARE_OF_ERRORS = 0.5
# A change of this size should be visible in the next test set.
VISIBLE_CHANGE = 0.03

# The order in which they lead, where several hold; "few samples" comes first or last.
REASONS = (
    "label noise",
    "not fitted",
    "overlap",
    "confusion",
    "spread",
    "not generalised",
    "scattered",
)


class Step(NamedTuple):
    """What to do about a reason: a short title and a paragraph, which ``docs/which_classes_fail.md`` repeats under ``anchor``."""

    anchor: str
    title: str
    text: str


STEPS = {
    "few samples": Step(
        "collect-test-samples",
        "Collect test samples first",
        "The interval of this class is so wide that no change to training can be judged by it. Collect test samples until a change "
        "of 3 points can be seen; the number in the step is what that takes (80 % power, 5 % error).",
    ),
    "label noise": Step(
        "relabel",
        "Check the doubted labels",
        "Look at the listed samples, least believed label first, and correct what is wrong, in the test set and in the same way in "
        "the training set. Wrong labels make a class look worse than it is and cannot be trained away.",
    ),
    "not fitted": Step(
        "fit-longer",
        "Train longer or use a larger model",
        "The class is wrong on its own training samples too. More data of the same kind will not help before it is fitted: train "
        "longer, with less regularisation, with a larger network, or with a loss that gives the class more weight.",
    ),
    "overlap": Step(
        "merge-or-separate",
        "Merge the two classes, or give the model more to tell them apart",
        "A classifier of these two classes alone, cross-validated on the features, is hardly better than a coin. If a person "
        "cannot tell the samples apart either, merge the classes (`audit.merge`); otherwise the features lack what "
        "tells them apart: larger images, another backbone, fine-tuning of more layers.",
    ),
    "confusion": Step(
        "separate-pair",
        "Collect or augment samples that tell the two apart",
        "Most errors go to one class. Look at the confused samples of both; collect and augment what tells them apart, and check "
        "that the definition of the two is the same for everybody who labels.",
    ),
    "spread": Step(
        "vary-training",
        "Collect varied samples, or try another method",
        "Samples of this class differ more from one another than those of most classes. Collect the variants that fail, augment "
        "towards them, or try a larger margin for the class (MR², one of the remedies of `classmargin improve`).",
    ),
    "not generalised": Step(
        "collect-or-augment",
        "Collect or augment training samples",
        "The class is right on its training samples and wrong here: it is memorised. More samples, stronger augmentation and more "
        "regularisation help; so does a check that training and test samples come from the same source.",
    ),
    "scattered": Step(
        "improve",
        "Try remedies",
        "No single cause stands out. `classmargin improve` tries remedies, from class offsets to other losses, on validation samples "
        "and says which one lifts the weak classes without hurting the rest. Tune weight decay, length of training and augmentation first.",
    ),
}


@dataclass(frozen=True)
class ClassFacts:
    """What the verdicts are made from; every array is ``[K]``, NaN (or "") where unknown.

    Attributes:
        n: Samples.
        accuracy: Share that is right.
        low: Lower end of its interval.
        high: Upper end of its interval.
        lags: Whether the class lags behind.
        explained: Which classes are to be explained: those that lag, and those of the hard third with errors.
        spread: Mean squared distance of the features from their mean.
        label_issues: Samples whose label is doubted.
        confidently_wrong: Share of samples that are wrong with a high probability.
        confused_with: The classes that it is most often taken for, most frequent first, at most three.
        confused_samples: How many samples that is, ``[K, 3]``.
        train_accuracy: Accuracy on the class's training samples.
        separability: Balanced accuracy of a classifier of this class and the first of ``confused_with`` alone.
    """

    n: FloatArray
    accuracy: FloatArray
    low: FloatArray
    high: FloatArray
    lags: AnyArray
    explained: AnyArray
    spread: FloatArray
    label_issues: FloatArray
    confidently_wrong: FloatArray
    confused_with: list[list[str]]
    confused_samples: IntArray
    train_accuracy: FloatArray
    separability: FloatArray


class Verdict(NamedTuple):
    """What is said about one class: the leading reason (a key of ``STEPS`` or ""), all reasons in words, the next step."""

    reason: str
    words: str
    next_step: str


def verdicts(facts: ClassFacts) -> list[Verdict]:
    """Return one verdict per class; reasons are divided by "; ".

    Classes to be explained get a reason; doubted labels and few samples may apply to any class. A class without a remark gets
    empty texts.
    """
    known = facts.spread[~np.isnan(facts.spread)]
    wide = float(np.quantile(known, WIDE_SPREAD_QUANTILE)) if len(known) >= 4 else float("inf")
    suspicious = _labels_stand_out(facts)
    return [_verdict(facts, k, wide, bool(suspicious[k])) for k in range(len(facts.n))]


def _labels_stand_out(facts: ClassFacts) -> AnyArray:
    """Return which classes have more doubted labels than their own accuracy explains ``[K]``.

    Of the errors of a class with right labels, about as many are doubted as of those of the other classes (their median share);
    the binomial tail says whether this class has more.
    """
    from scipy.special import bdtrc

    errors = np.rint(np.nan_to_num((1 - facts.accuracy) * facts.n)).astype(np.int64)
    doubted = np.minimum(np.nan_to_num(facts.label_issues).astype(np.int64), errors)
    usual = (doubted + 0.5) / (errors + 2)  # a class without errors tells nothing and counts as a quarter
    present = np.flatnonzero(facts.n > 0)
    order = np.sort(usual[present])
    tail = np.ones(len(facts.n))
    for k in present[doubted[present] > 0]:
        others = np.delete(order, np.searchsorted(order, usual[k]))
        expected = float(np.median(others)) if len(others) else 0.5
        tail[k] = bdtrc(doubted[k] - 1, errors[k], expected)
    enough = facts.label_issues >= LABEL_ISSUE_SHARE * facts.n
    return (tail <= LABEL_ISSUE_LEVEL) & enough & (facts.confidently_wrong >= LABEL_ISSUE_SHARE)


def _verdict(facts: ClassFacts, k: int, wide_spread: float, suspicious: bool) -> Verdict:
    if facts.n[k] == 0:
        return Verdict("", "absent: no samples", "")
    reasons: dict[str, str] = {}
    if suspicious:
        reasons["label noise"] = (
            f"label noise? ({int(facts.label_issues[k])} of {int(facts.n[k])} samples look mislabelled)"
        )
    if facts.explained[k]:
        reasons |= _why_hard(facts, k, wide_spread)
    width = facts.high[k] - facts.low[k]
    if width > WIDE_INTERVAL:
        reasons["few samples"] = (
            f"too few test samples to tell (n = {int(facts.n[k])}, interval {100 * width:.0f} points wide)"
        )
    if not reasons:
        return Verdict("", "", "")
    # That a class lags is certain however few samples it has; for the others the number of samples comes first.
    order = [*REASONS, "few samples"] if facts.lags[k] else ["few samples", *REASONS]
    leading = next(key for key in order if key in reasons)
    step = _step(leading, facts, k) if facts.explained[k] or leading == "label noise" else ""
    return Verdict(leading, "; ".join(reasons.values()), step)


def _why_hard(facts: ClassFacts, k: int, wide_spread: float) -> dict[str, str]:
    reasons: dict[str, str] = {}
    trained = facts.train_accuracy[k]
    if not math.isnan(trained) and 1 - trained >= UNFITTED_SHARE_OF_ERRORS * (1 - facts.accuracy[k]):
        reasons["not fitted"] = f"not fitted ({100 * trained:.0f} % right on its training samples)"
    count = int(facts.confused_samples[k, 0])
    errors = round((1 - facts.accuracy[k]) * facts.n[k])
    if count >= CONFUSED_SAMPLES and count >= CONFUSION_SHARE_OF_ERRORS * errors:
        share, other = 100 * count / facts.n[k], facts.confused_with[k][0]
        if facts.separability[k] < OVERLAPPING:
            reasons["overlap"] = (
                f"overlaps with {other} ({share:.0f} % of its samples go there; the two alone are told apart "
                f"{100 * facts.separability[k]:.0f} % of the time)"
            )
        else:
            reasons["confusion"] = f"confused with {other} ({share:.0f} % of its samples)"
    if facts.spread[k] > wide_spread:
        reasons["spread"] = "spread: its features vary more than usual"
    if not math.isnan(trained) and "not fitted" not in reasons:
        reasons["not generalised"] = (
            f"does not generalise ({100 * trained:.0f} % right on its training samples)"
        )
    if not reasons.keys() & {"overlap", "confusion"}:
        reasons["scattered"] = _scattered(facts, k)
    return reasons


def _scattered(facts: ClassFacts, k: int) -> str:
    """Say where the errors go: to a few classes by name, or truly to many."""
    errors = round((1 - facts.accuracy[k]) * facts.n[k])
    names = facts.confused_with[k]
    count = int(facts.confused_samples[k].sum())
    if names and count >= MOST_ERRORS * errors:
        listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        return f"confused with {listed} ({count} of {errors} errors)"
    return f"errors go to many classes ({count} of {errors} to the {len(names)} most frequent)"


def _step(reason: str, facts: ClassFacts, k: int) -> str:
    other = facts.confused_with[k][0] if facts.confused_with[k] else ""
    needed = samples_to_see(facts.accuracy[k])
    seen = f"(3 points show with about {needed:,} test samples)"
    return {
        "label noise": f"check the labels of {_samples(facts.label_issues[k])}",
        "few samples": f"collect test samples: about {needed:,} show a change of 3 points",
        "not fitted": "train longer or use a larger model",
        "overlap": f"merge with {other}, or give the model more to tell them apart",
        "confusion": f"collect or augment samples that tell it from {other} {seen}",
        "spread": f"collect varied samples {seen}, or try classmargin improve",
        "not generalised": f"collect or augment training samples {seen}",
        "scattered": "try classmargin improve",
    }[reason]


def _samples(count: float) -> str:
    return "the one doubted sample" if count == 1 else f"the {count:.0f} doubted samples"


def samples_to_see(accuracy: float, change: float = VISIBLE_CHANGE) -> int:
    """Return roughly how many test samples of a class show a change of its accuracy (80 % power, two-sided 5 %).

    Example:
        >>> samples_to_see(0.6)
        2100
    """
    share = min(max(float(accuracy), 0.02), 0.98)
    quantiles = normal_quantile(0.95) + normal_quantile(0.6)  # two-sided 0.6 leaves 0.2 above
    needed = quantiles**2 * share * (1 - share) / change**2
    return int(round(needed, 1 - math.floor(math.log10(needed))))  # two digits: it is a rough number

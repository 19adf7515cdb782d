"""Why a class fails, by stated rules, what to do next about it, and what changes if two classes are merged."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from classmargin._checks import check_int
from classmargin.evaluation.class_metrics import TIERS, normal_quantile, share, tier_codes
from classmargin.evaluation.input_checks import AnyArray, FloatArray, IntArray, class_number

if TYPE_CHECKING:
    import pandas as pd

    from classmargin.evaluation.audit_result import Audit

WIDE_INTERVAL = 0.25  # a wider one says little about the class itself
# Share of a class's errors that must go to one class before we call the pair confused, and how many samples that must be at least.
CONFUSION_SHARE_OF_ERRORS = 0.4
CONFUSED_SAMPLES = 3
# Classes named where no single one takes the errors, and the share of the errors above which they are "mostly" these.
NAMED_CONFUSIONS = 3
MOST_ERRORS = 2 / 3
# Labels are named as a reason when confident learning doubts this share of a class, and more of its errors than errors usually are
# doubted: a hard class with right labels has many errors, and a part of them is confident.
LABEL_ISSUE_SHARE = 0.05
LABEL_ISSUE_LEVEL = 0.02
WIDE_SPREAD_QUANTILE = 0.75  # a class is wide when its spread is above this quantile of all classes
# Two classes overlap when a classifier of these two alone, cross-validated on their features, is right less often than this.
OVERLAPPING = 0.65
# A class is not fitted when it has at least this share of its test errors on its training samples as well.
UNFITTED_SHARE_OF_ERRORS = 0.5
VISIBLE_CHANGE = 0.03  # what should be visible in the next test set

# Samples of each of two classes: a pair takes some 20 ms, and more samples move the accuracy by a point or two.
MOST_SAMPLES = 150
FEWEST_SAMPLES = 8
# Ridge penalties tried, in units of the mean squared distance from the mean; leave-one-out error decides.
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
DRAWS = 500


class Step(NamedTuple):
    """What to do about a reason: a title and a paragraph, which ``docs/which_classes_fail.md`` repeats under ``anchor``."""

    anchor: str
    title: str
    text: str
    advice: str  # what is said of one class; for the fields see _verdict


# In the order in which the reasons lead, where several hold; "few samples" comes first or last.
STEPS = {
    "few samples": Step(
        "collect-test-samples",
        "Collect test samples first",
        "The interval of this class is so wide that no change to training can be judged by it. Collect test samples until a change "
        "of 3 points can be seen; the number in the step is what that takes (80 % power, 5 % error).",
        "collect test samples: about {needed:,} show a change of 3 points",
    ),
    "label noise": Step(
        "relabel",
        "Check the doubted labels",
        "Look at the listed samples, least believed label first, and correct what is wrong, in the test set and in the same way in "
        "the training set. Wrong labels make a class look worse than it is and cannot be trained away.",
        "check the labels of the {doubted}",
    ),
    "not fitted": Step(
        "fit-longer",
        "Train longer or use a larger model",
        "The class is wrong on its own training samples too. More data of the same kind will not help before it is fitted: train "
        "longer, with less regularisation, with a larger network, or with a loss that gives the class more weight.",
        "train longer or use a larger model",
    ),
    "overlap": Step(
        "merge-or-separate",
        "Merge the two classes, or give the model more to tell them apart",
        "A classifier of these two classes alone, cross-validated on the features, is hardly better than a coin. If a person "
        "cannot tell the samples apart either, merge the classes (`audit.merge`); otherwise the features lack what "
        "tells them apart: larger images, another backbone, fine-tuning of more layers.",
        "merge with {other}, or give the model more to tell them apart",
    ),
    "confusion": Step(
        "separate-pair",
        "Collect or augment samples that tell the two apart",
        "Most errors go to one class. Look at the confused samples of both; collect and augment what tells them apart, and check "
        "that the definition of the two is the same for everybody who labels.",
        "collect or augment samples that tell it from {other} {seen}",
    ),
    "spread": Step(
        "vary-training",
        "Collect varied samples, or try another method",
        "Samples of this class differ more from one another than those of most classes. Collect the variants that fail, augment "
        "towards them, or try a larger margin for the class (MR², one of the remedies of `classmargin improve`).",
        "collect varied samples {seen}, or try classmargin improve",
    ),
    "not generalised": Step(
        "collect-or-augment",
        "Collect or augment training samples",
        "The class is right on its training samples and wrong here: it is memorised. More samples, stronger augmentation and more "
        "regularisation help; so does a check that training and test samples come from the same source.",
        "collect or augment training samples {seen}",
    ),
    "scattered": Step(
        "improve",
        "Try remedies",
        "No single cause stands out. `classmargin improve` tries remedies, from class offsets to other losses, on validation samples "
        "and says which one lifts the weak classes without hurting the rest. Tune weight decay, length of training and augmentation first.",
        "try classmargin improve",
    ),
}


class Verdict(NamedTuple):
    """What is said about one class: the leading reason (a key of ``STEPS`` or ""), all reasons in words, the next step."""

    reason: str
    words: str
    next_step: str


def verdicts(classes: pd.DataFrame, confused_with: list[list[str]], confused_samples: IntArray) -> list[Verdict]:
    """Return one verdict per class of the class table; a class without a remark gets empty texts.

    The table says which are to be ``explained``; then come the classes that each is most often taken for, and how many samples that is.
    """
    spread = classes["spread"].dropna()
    wide = float(np.quantile(spread, WIDE_SPREAD_QUANTILE)) if len(spread) >= 4 else float("inf")
    errors = ((1 - classes["accuracy"]) * classes["n"]).round()
    known = classes.assign(wide=classes["spread"] > wide, suspicious=_labels_stand_out(classes), errors=errors)
    facts = zip(known.to_dict("records"), confused_with, confused_samples.tolist(), strict=True)
    return [_verdict(*each) for each in facts]


def _labels_stand_out(classes: pd.DataFrame) -> AnyArray:
    """Return which classes have more doubted labels among their errors than the median of the others (binomial tail) ``[K]``."""
    from scipy.special import bdtrc

    n, accuracy, issues = (classes[name].to_numpy() for name in ("n", "accuracy", "label_issues"))
    errors = np.rint(np.nan_to_num((1 - accuracy) * n)).astype(np.int64)
    doubted = np.minimum(np.nan_to_num(issues).astype(np.int64), errors)
    usual = (doubted + 0.5) / (errors + 2)  # a class without errors tells nothing and counts as a quarter
    present = np.flatnonzero(n > 0)
    order = np.sort(usual[present])
    tail = np.ones(len(n))
    for k in present[doubted[present] > 0]:
        others = np.delete(order, np.searchsorted(order, usual[k]))
        expected = float(np.median(others)) if len(others) else 0.5
        tail[k] = bdtrc(doubted[k] - 1, errors[k], expected)
    enough = (issues >= LABEL_ISSUE_SHARE * n) & (classes["confidently_wrong"] >= LABEL_ISSUE_SHARE)
    return np.asarray((tail <= LABEL_ISSUE_LEVEL) & enough)


def _verdict(row: dict[Hashable, Any], names: list[str], counts: list[int]) -> Verdict:
    n = int(row["n"])
    if not n:
        return Verdict("", "absent: no samples", "")
    reasons: dict[str, str] = {}
    if row["suspicious"]:
        reasons["label noise"] = f"label noise? ({int(row['label_issues'])} of {n} samples look mislabelled)"
    if row["explained"]:
        reasons |= _why_hard(row, names, counts)
    width = row["high"] - row["low"]
    if width > WIDE_INTERVAL:
        reasons["few samples"] = f"too few test samples to tell (n = {n}, interval {100 * width:.0f} points wide)"
    if not reasons:
        return Verdict("", "", "")
    # That a class lags is certain however few samples it has; for the others the number of samples comes first.
    few, *others = STEPS
    leading = next(key for key in ([*others, few] if row["lags"] else STEPS) if key in reasons)
    needed, issues = samples_to_see(row["accuracy"]), row["label_issues"]
    step = STEPS[leading].advice.format(
        needed=needed,
        seen=f"(3 points show with about {needed:,} test samples)",
        doubted="one doubted sample" if issues == 1 else f"{issues:.0f} doubted samples",
        other=names[0] if names else "",
    )
    told = row["explained"] or leading == "label noise"
    return Verdict(leading, "; ".join(reasons.values()), step if told else "")


def _why_hard(row: dict[Hashable, Any], names: list[str], counts: list[int]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    errors, trained = int(row["errors"]), row["train_accuracy"]
    on_training = f"({100 * trained:.0f} % right on its training samples)"
    if 1 - trained >= UNFITTED_SHARE_OF_ERRORS * (1 - row["accuracy"]):
        reasons["not fitted"] = f"not fitted {on_training}"
    one_pair = counts[0] >= CONFUSED_SAMPLES and counts[0] >= CONFUSION_SHARE_OF_ERRORS * errors
    part = f"{100 * counts[0] / row['n']:.0f} % of its samples"
    if one_pair and row["separability"] < OVERLAPPING:
        apart = f"the two alone are told apart {100 * row['separability']:.0f} % of the time"
        reasons["overlap"] = f"overlaps with {names[0]} ({part} go there; {apart})"
    elif one_pair:
        reasons["confusion"] = f"confused with {names[0]} ({part})"
    if row["wide"]:
        reasons["spread"] = "spread: its features vary more than usual"
    if trained == trained and "not fitted" not in reasons:
        reasons["not generalised"] = f"does not generalise {on_training}"
    if not one_pair:
        # The errors go to a few classes, which are named, or truly to many.
        count = sum(counts)
        if names and count >= MOST_ERRORS * errors:
            listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
            reasons["scattered"] = f"confused with {listed} ({count} of {errors} errors)"
        else:
            reasons["scattered"] = f"errors go to many classes ({count} of {errors} to the {len(names)} most frequent)"
    return reasons


def samples_to_see(accuracy: float, change: float = VISIBLE_CHANGE) -> int:
    """Return roughly how many test samples of a class show a change of its accuracy (80 % power, two-sided 5 %)."""
    right = min(max(float(accuracy), 0.02), 0.98)
    quantiles = normal_quantile(0.95) + normal_quantile(0.6)  # two-sided 0.6 leaves 0.2 above
    needed = quantiles**2 * right * (1 - right) / change**2
    return int(round(needed, 1 - math.floor(math.log10(needed))))  # two digits: it is a rough number


def pair_separability(
    features: AnyArray, labels: IntArray, wanted: AnyArray, partner: IntArray, *, most: int = MOST_SAMPLES
) -> FloatArray:
    """Return the balanced leave-one-out accuracy of a ridge classifier of each wanted class and its partner ``[K]``, NaN elsewhere."""
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
    scale = max(float(np.trace(gram) - gram.mean() * len(gram)) / len(gram), 1e-12)  # mean square about the mean
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
        hard: Change of the hard third with its interval, NaN where there are too few classes for thirds.
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
    """Simulate one class in place of two, see :meth:`Audit.merge`: the samples are drawn again, the hard thirds kept as they are found."""
    a, b = (class_number(audit.class_names, name, which) for name, which in ((first, "first"), (second, "second")))
    if a == b:
        raise ValueError(f"second must be another class than first, got {first!r} twice")
    rng = np.random.default_rng(check_int("seed", seed, minimum=0))
    n, right = audit.confusion.sum(axis=1), np.diagonal(audit.confusion)
    swapped = np.zeros_like(n)
    swapped[a], swapped[b] = audit.confusion[a, b], audit.confusion[b, a]
    if not n[a] or not n[b]:
        raise ValueError(f"both classes must have samples, got none of {second if n[a] else first!r}")
    found = _changes(right[None], swapped[None], n, (a, b), audit)
    drawn_right = rng.binomial(n, right / np.maximum(n, 1), size=(DRAWS, len(n)))
    chance = swapped / np.maximum(n - right, 1)
    drawn_swapped = rng.binomial(n - drawn_right, chance, size=drawn_right.shape)
    drawn = _changes(drawn_right, drawn_swapped, n, (a, b), audit)
    tail = (1 - audit.confidence) / 2
    ranges = (np.quantile(values, [tail, 1 - tail]).tolist() for values in drawn)
    overall, hard = ((float(value[0]), low, high) for value, (low, high) in zip(found, ranges, strict=True))
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
    before, after = (counts / np.maximum(total, 1) for counts, total in ((right, n), (merged_right, merged_n)))
    # Which classes are hard is found on the samples as they are, not anew in each draw.
    own = np.diagonal(audit.confusion)
    merged_own = np.delete(own, b)
    merged_own[place] += own[b] + audit.confusion[a, b] + audit.confusion[b, a]
    accuracies = (share(counts, total) for counts, total in ((own, n), (merged_own, merged_n)))
    hard = [tier_codes(accuracy) == TIERS.index("hard") for accuracy in accuracies]
    if not all(mask.any() for mask in hard):
        return overall, np.full(len(overall), np.nan)
    return overall, after[:, hard[1]].mean(axis=1) - before[:, hard[0]].mean(axis=1)

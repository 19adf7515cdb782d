"""A release gate, what it can see, and plans before a test set is collected: how many samples and seeds it takes to see a drop."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._checks import check_int, check_number
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.class_metrics import normal_quantile
from classmargin.evaluation.input_checks import IntArray, check_fraction, shared_names
from classmargin.evaluation.json_values import fields_to_plain
from classmargin.evaluation.paired_tests import (
    chance_of_few_gains,
    class_differences,
    holm,
    likeliest_gain,
    margin_p_values,
    paired_correctness,
)

if TYPE_CHECKING:
    import pandas as pd

POWER_DROPS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
MUST_SEE_BEYOND = 0.1  # the drop that must be seen, beyond the tolerated one, unless it is given
MOST_NAMED = 10  # classes in one note
PASS, FAIL, CANNOT_TELL = "PASS", "FAIL", "CANNOT TELL"
POWER = 0.8
# Up to this many samples the region in which the gate fails is exact; above it is that of the normal distribution.
_EXACT_SAMPLES = 150
_MOST_SAMPLES = 10_000_000
_CHECKED_SAMPLES = 20_000


@dataclass(frozen=True)
class GateResult:
    """Decision of the gate.

    Attributes:
        verdict: "PASS", "FAIL", or "CANNOT TELL" where no drop was found but the samples are too few to see one.
        reasons: Why it failed, or why it cannot be told, one sentence per reason; empty when passed.
        power: What the gate could have seen, one sentence.
        power_table: ``drop``, ``n``, ``probability``.
        by_class: ``class_name``, ``n``, ``baseline``, ``candidate``, ``difference``, ``p_value`` (one-sided, of a true drop
            of at most ``max_drop``), ``q_value`` (the same, adjusted for all tests by Holm), ``q_value_minimum`` (below ``min_worst``,
            adjusted; NaN without ``min_worst``), ``p_value_no_drop`` (of a true drop of at least ``no_drop_beyond``; NaN without
            it), ``failed``, ``reason``.
        overall: The same for the overall accuracy.
        max_drop: Largest drop that is tolerated.
        min_worst: Accuracy below which a class fails where the data support it, or ``None``.
        must_see: Drop in a class of median size that must be caught with probability 0.8.
        no_drop_beyond: Drop that every class must be shown not to have (non-inferiority), or ``None``.
        alpha: Error rate after multiplicity control.
        notes: Sentences a reader must know, among them which classes are below ``min_worst`` without support.
    """

    verdict: str
    reasons: tuple[str, ...]
    power: str
    power_table: pd.DataFrame
    by_class: pd.DataFrame
    overall: Mapping[str, Any]
    max_drop: float
    min_worst: float | None
    must_see: float
    no_drop_beyond: float | None
    alpha: float
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the candidate may pass."""
        return self.verdict == PASS

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values that ``json.dumps`` takes (no NaN)."""
        return {"passed": self.passed, **fields_to_plain(self)}


def gate(
    candidate: Audit,
    baseline: Audit | None = None,
    *,
    max_drop: float = 0.02,
    min_worst: float | None = None,
    must_see: float | None = None,
    no_drop_beyond: float | None = None,
    allow_blind: bool = False,
    alpha: float = 0.05,
) -> GateResult:
    """Decide whether a candidate may replace a baseline.

    *FAIL* if, for the overall accuracy or for a class, the data show that the true drop is larger than ``max_drop`` (paired test against
    that limit), or that a class is below ``min_worst`` (exact binomial test). All tests together are adjusted by Holm: a candidate
    without such a drop or class fails with probability of at most ``alpha``. *CANNOT TELL* if nothing failed but a drop of ``must_see``
    in a class of median size would be caught with a probability below 0.8. *PASS* otherwise.

    Args:
        candidate: Audit of the new model.
        baseline: Audit of the model in use, on the same samples; without one only ``min_worst`` decides.
        max_drop: Tolerated drop of an accuracy, in [0, 1].
        min_worst: Accuracy below which a class fails where the data support it, or ``None``.
        must_see: Drop that the gate must be able to see, above ``max_drop``; ``max_drop`` plus 10 points by default.
        no_drop_beyond: Non-inferiority: pass only if every class is shown (at level ``alpha``) not to have dropped by more than this.
        allow_blind: Pass without being able to see ``must_see``.
        alpha: Chance of failing without cause.

    Raises:
        ValueError: Different samples, or numbers out of range.

    Example:
        >>> from classmargin.evaluation import audit
        >>> labels = [0, 1] * 100
        >>> old = audit(labels, predictions=labels, num_classes=2, bootstrap=0)
        >>> new = audit(labels, predictions=[0, 1] * 80 + [0, 0] * 20, num_classes=2, bootstrap=0)
        >>> gate(new, old).verdict, gate(old, new).verdict
        ('FAIL', 'PASS')
    """
    check_number("max_drop", max_drop, minimum=0.0, maximum=1.0)
    check_fraction("alpha", alpha)
    if min_worst is not None:
        check_number("min_worst", min_worst, minimum=0.0, maximum=1.0)
    if no_drop_beyond is not None:
        check_fraction("no_drop_beyond", no_drop_beyond)
    seen = min(1.0, max_drop + MUST_SEE_BEYOND) if must_see is None else check_fraction("must_see", must_see)
    if must_see is not None and must_see <= max_drop:
        raise ValueError(f"must_see must be above max_drop, got {must_see:g} and {max_drop:g}")
    alone = baseline is None
    if alone and (min_worst is None or no_drop_beyond is not None):
        raise ValueError("give a baseline, or min_worst alone, got neither")
    baseline = candidate if baseline is None else baseline
    for name, value in (("candidate", candidate), ("baseline", baseline)):
        if not isinstance(value, Audit):
            raise TypeError(f"{name} must be one Audit, got {type(value).__name__}")
    import pandas as pd
    from scipy.special import bdtr

    labels, correct = paired_correctness([baseline, candidate])
    names = shared_names([candidate.class_names, baseline.class_names])
    found = class_differences(labels, correct, (1, 1), len(names))
    rows = pd.concat([_over_all_classes(found), found], ignore_index=True)  # tested as the classes are
    drop, below = margin_p_values(rows["gained"], rows["lost"], rows["n"], max_drop), np.full(len(rows), np.nan)
    if alone:  # nothing is said about a drop
        rows = rows.assign(baseline=np.nan, difference=np.nan)
        drop[:] = np.nan
    if min_worst is not None:
        n = found["n"].to_numpy()
        right = np.rint(found["candidate"].fillna(0.0).to_numpy() * n)
        below[1:] = np.where(n > 0, bdtr(right, n, min_worst), np.nan)
    p_values = np.stack([drop, below])
    count = int((~np.isnan(p_values)).sum())
    q_values, q_minimum = holm(p_values)
    rows = rows[["n", "baseline", "candidate", "difference"]]
    rows = rows.assign(p_value=drop, q_value=q_values, q_value_minimum=q_minimum)
    titles = ["overall accuracy", *(f"class {name}" for name in names)]
    records = zip(titles, rows.to_dict("records"), strict=True)
    why = [_why_failed(title, row, max_drop, min_worst or 0.0, alpha) for title, row in records]
    rows = rows.assign(failed=[reason != "" for reason in why], reason=why)
    overall = {str(key): value for key, value in rows.to_dict("records")[0].items() if key != "q_value_minimum"}
    by_class = rows[1:].reset_index(drop=True)
    by_class.insert(0, "class_name", names)
    shown: Any = np.nan
    if no_drop_beyond is not None:
        shown = margin_p_values(found["lost"], found["gained"], found["n"], -no_drop_beyond)
    by_class.insert(8, "p_value_no_drop", shown)
    reasons = [overall["reason"]] if overall["failed"] else []
    reasons += by_class[by_class["failed"]].sort_values("difference", kind="stable")["reason"].tolist()
    verdict = FAIL if reasons else PASS
    power, table, probability = _power(found, min_worst if alone else None, max_drop, seen, alpha / max(count, 1))
    if verdict == PASS and no_drop_beyond is not None:
        # Each class is tested at alpha: all must succeed.
        unsure = by_class[by_class["p_value_no_drop"] > alpha].sort_values("p_value_no_drop", ascending=False)
        if len(unsure):
            words = f"is not excluded for {len(unsure)} of {int((found['n'] > 0).sum())} classes"
            listed = _listed(unsure["class_name"].tolist())
            reasons.append(f"a drop of more than {100 * no_drop_beyond:g} points {words}: {listed}")
    elif verdict == PASS and probability < POWER and not allow_blind:
        what = "an accuracy below the minimum by" if alone else "a drop of"
        reasons.append(
            f"{what} {100 * seen:g} points in a class of median size would be caught with probability {probability:.2f} only; "
            "collect more samples, or allow a blind gate"
        )
    if verdict == PASS and reasons:
        verdict = CANNOT_TELL
    what, good = "overall and classes", "whose true drops are all within the limit"
    if alone:
        what, good = "classes against the minimum", "with no class truly below the minimum"
    elif min_worst is not None:
        what, good = f"{what}, drop and minimum", f"{good}, with no class truly below the minimum,"
    notes = _below_without_support(by_class, min_worst, alpha)
    notes.append(f"{count} tests ({what}), adjusted by Holm: models {good} fail with probability of at most {alpha:g}.")
    return GateResult(
        verdict=verdict,
        reasons=tuple(reasons),
        power=power,
        power_table=table,
        by_class=by_class,
        overall=overall,
        max_drop=max_drop,
        min_worst=min_worst,
        must_see=seen,
        no_drop_beyond=no_drop_beyond,
        alpha=alpha,
        notes=tuple(notes),
    )


def _over_all_classes(found: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    sums = found[["n", "gained", "lost"]].sum()
    means = {side: np.nansum(found[side] * found["n"]) / sums["n"] for side in ("baseline", "candidate")}
    return pd.DataFrame([{**sums, **means, "difference": means["candidate"] - means["baseline"]}])


def _why_failed(what: str, row: Mapping[Hashable, Any], max_drop: float, min_worst: float, alpha: float) -> str:
    said = []
    if row["q_value"] <= alpha:
        said.append(
            f"{what} fell from {100 * row['baseline']:.1f} % to {100 * row['candidate']:.1f} %, beyond the tolerated "
            f"{100 * max_drop:g} points (adjusted p {_shown(row['q_value'])})"
        )
    if row["candidate"] < min_worst and row["q_value_minimum"] <= alpha:
        said.append(
            f"{what} has {100 * row['candidate']:.1f} %, below the minimum of {100 * min_worst:g} % "
            f"(adjusted p {_shown(row['q_value_minimum'])})"
        )
    return "; ".join(said)


def _shown(p_value: float) -> str:
    return "< 0.001" if p_value < 0.001 else f"= {p_value:.3f}"


def _below_without_support(by_class: pd.DataFrame, min_worst: float | None, alpha: float) -> list[str]:
    """Name the classes that pass below the minimum, because a pass does not prove the accuracy."""
    low = by_class[(by_class["candidate"] < (min_worst or 0.0)) & (by_class["q_value_minimum"] > alpha)]
    low = low.sort_values("candidate", kind="stable")
    named = [
        f"{row['class_name']} {100 * row['candidate']:.1f} % (n = {row['n']}, adjusted p {_shown(row['q_value_minimum'])})"
        for row in low.to_dict("records")
    ]
    words = f"Below the minimum of {100 * (min_worst or 0.0):g} % but not failed for it"
    why = "because so few right samples also happen to a class at the minimum"
    return [f"{words}, {why}: {_listed(named)}."] if named else []


def _listed(names: list[str]) -> str:
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def churn_of(found: pd.DataFrame) -> float:
    """Return the share of samples that change sides between equally good models, without bias.

    Of all that change sides, the balance is a drop, not churn, but for what chance makes of it: its square is the number of changes.
    """
    gained, lost = float(found["gained"].sum()), float(found["lost"].sum())
    changed, balance = gained + lost, lost - gained
    return (changed - math.sqrt(max(balance**2 - changed, 0.0))) / float(found["n"].sum())


def _power(
    found: pd.DataFrame, minimum: float | None, max_drop: float, must_see: float, level: float
) -> tuple[str, pd.DataFrame, float]:
    """Return what the gate could have seen (a drop, or classes below a ``minimum``) in words and as a table, and how surely."""
    import pandas as pd

    n = max(int(found["n"][found["n"] > 0].median()), 1)
    drops = sorted({*POWER_DROPS, must_see})
    if minimum is None:
        options = {"churn": churn_of(found), "max_drop": max_drop, "level": level}
        chances = [catch_probability(drop, n, **options) for drop in drops]
        smallest = smallest_caught_drop(n, **options)
        what = f"a {100 * must_see:g}-point drop in one class of {n} samples"
        reach = f"; the smallest drop caught with probability {POWER:g} is {100 * smallest:g} points"
        if smallest != smallest:
            reach = f"; no drop is caught with probability {POWER:g}"
    else:
        from scipy.stats import binom

        most = int(binom.ppf(level, n, minimum))
        most -= binom.cdf(most, n, minimum) > level  # the largest number of right samples that fails
        chances = [float(binom.cdf(most, n, max(minimum - drop, 0.0))) for drop in drops]
        what, reach = f"a class of {n} samples {100 * must_see:g} points below the minimum", ""
    probability = chances[drops.index(must_see)]
    text = f"{what} would be caught with probability {probability:.2f}{reach}"
    return text, pd.DataFrame({"drop": drops, "n": n, "probability": chances}), probability


def catch_probability(drop: float, n: int, *, churn: float, max_drop: float, level: float) -> float:
    """Return the probability that a test at ``level`` catches a drop; ``churn / 2`` of all are gained, ``churn / 2 + drop`` lost."""
    gain = min(churn / 2, max(1 - drop, 0.0) / 2)
    most = np.array(_largest_gain_still_caught(n, max_drop, level))
    return chance_of_few_gains(most, gain, min(gain + drop, 1 - gain))


def smallest_caught_drop(n: int, *, churn: float, max_drop: float, level: float) -> float:
    """Return the smallest drop (in steps of half a point) that is caught with probability ``POWER``, NaN if none is."""
    steps = range(1, 201)
    options = {"churn": churn, "max_drop": max_drop, "level": level}
    # The probability grows with the drop, so halving finds the first step that reaches it.
    first = bisect_left(steps, POWER, key=lambda step: catch_probability(step / 200, n, **options))
    return steps[first] / 200 if first < len(steps) else float("nan")


@lru_cache(maxsize=64)
def _largest_gain_still_caught(n: int, max_drop: float, level: float) -> tuple[int, ...]:
    """For each number of lost samples, return how many gained samples still let the class fail (-1: none)."""
    lost = np.arange(n + 1)
    z = -NormalDist().inv_cdf(level)

    def fails(gained: IntArray) -> IntArray:
        if n <= _EXACT_SAMPLES or max_drop == 0:
            return np.asarray(margin_p_values(gained, lost, np.full(n + 1, n), max_drop) <= level)
        gain = likeliest_gain(gained, lost, n, max_drop)
        deviation = np.sqrt(np.maximum(n * (2 * gain + max_drop * (1 - max_drop)), 1e-12))
        return np.asarray(lost - gained - n * max_drop >= z * deviation)

    # Every gained sample weakens the evidence, so the largest number is found by halving.
    low, high = np.full(n + 1, -1), np.minimum(lost, n - lost)
    while (low < high).any():
        middle = (low + high + 1) // 2
        failed = fails(np.maximum(middle, 0))
        low, high = np.where(failed, middle, low), np.where(failed, high, middle - 1)
    return tuple(low.tolist())


def samples_for_drop(see: float, *, churn: float, max_drop: float, level: float, power: float = POWER) -> int:
    """Return the samples per class from which a gate catches a true drop of ``see`` with the given probability."""
    extra = see - max_drop
    alone = math.sqrt(churn + see - max_drop**2)  # of one sample, as the test sees it: so many change sides
    there = math.sqrt(churn + see - see**2)
    quantiles = -NormalDist().inv_cdf(level) * alone + NormalDist().inv_cdf(power) * there
    n = min(_MOST_SAMPLES, max(1, math.ceil((quantiles / extra) ** 2)))
    # By the normal distribution so far; the exact test needs a little more.
    options = {"churn": churn, "max_drop": max_drop, "level": level}
    while n < _CHECKED_SAMPLES and catch_probability(see, n, **options) < power:
        n += max(1, n // 40)
    return n


def seeds_for_difference(see: float, run_deviation: float, *, alpha: float = 0.05, power: float = POWER) -> int:
    """Return the runs of each of two methods after which a t-test sees a difference of their means."""
    from scipy.special import nctdtr, stdtrit

    for runs in range(2, 100_000):
        freedom = 2 * runs - 2
        shift = see / run_deviation * math.sqrt(runs / 2)
        if 1 - nctdtr(freedom, shift, stdtrit(freedom, 1 - alpha / 2)) >= power:
            return runs
    return 100_000


@dataclass(frozen=True)
class Plan:
    """What it takes to see a difference."""

    interval_samples: int  # samples per class for an interval of a class accuracy of plus or minus see
    gate_samples: int  # samples per class for a gate that catches a true drop of see with probability power
    seeds: int  # runs of each method for a comparison that sees a difference of see in one headline number
    notes: tuple[str, ...]  # what was assumed


def plan(
    num_classes: int,
    *,
    accuracy: float = 0.8,
    see: float = 0.03,
    max_drop: float = 0.0,
    churn: float | None = None,
    run_deviation: float = 0.01,
    alpha: float = 0.05,
    power: float = POWER,
) -> Plan:
    """Return the samples per class and the seeds that are needed to see ``see``."""
    check_int("num_classes", num_classes, minimum=1)
    for name, value in (("accuracy", accuracy), ("see", see), ("alpha", alpha), ("power", power)):
        check_fraction(name, value)
    check_number("max_drop", max_drop, minimum=0.0, maximum=1.0)
    check_number("run_deviation", run_deviation, above=0.0)
    if max_drop >= see:
        raise ValueError(f"max_drop must be below see, got {max_drop:g} and {see:g}")
    moved = (1 - accuracy) / 2 if churn is None else check_number("churn", churn, minimum=0.0, maximum=1.0)
    level = alpha / (num_classes + 1)
    return Plan(
        interval_samples=math.ceil(accuracy * (1 - accuracy) * (normal_quantile(0.95) / see) ** 2),
        gate_samples=samples_for_drop(see, churn=moved, max_drop=max_drop, level=level, power=power),
        seeds=seeds_for_difference(see, run_deviation, alpha=alpha, power=power),
        notes=(
            f"Gate: {num_classes + 1} tests, {100 * alpha:g} % error rate in all; {100 * moved:g} % of samples change sides by chance.",
            f"Seeds: the number varies by {100 * run_deviation:g} points (standard deviation) from run to run; measure it on the baseline.",
            f"Probability of seeing it: {power:g}.",
        ),
    )

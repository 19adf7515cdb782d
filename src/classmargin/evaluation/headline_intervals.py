"""Headline numbers of one model, and their differences between two, with intervals and the notes that a reader needs.

A third of ranked classes is a biased statistic, whose bias a percentile interval counts twice. Here the spread of the resampled values
around *their own mean* is laid around the observed value: the interval covers what the same procedure gives on average over new test sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from classmargin._checks import MOST_RESAMPLES, check_choice, check_int, check_number
from classmargin.evaluation.class_metrics import (
    RANKINGS,
    REMAINDER_RULE,
    TIERS,
    normal_quantile,
    tier_codes,
    wilson_interval,
)
from classmargin.evaluation.corrected import TrueAccuracies, true_accuracies
from classmargin.evaluation.headlines import (
    HEADLINES,
    MIN_CROSSFIT_SAMPLES,
    OutcomeTable,
    TierRule,
    observed_headlines,
    outcome_table,
    resampled_headlines,
)
from classmargin.evaluation.input_checks import AnyArray, FloatArray, IntArray, check_fraction, shared_names, to_array

if TYPE_CHECKING:
    import pandas as pd

    from classmargin.evaluation.paired_tests import ModelPair

Interval = tuple[float, float]
Intervals = dict[str, Interval]
# With fewer wrong (or right) samples than this in a group, resampling knows too little about the tail.
FEW = 10
_NO_WIDTH = 1e-9  # limits that differ by rounding alone
# Copies of a test set vary less in their lowest class accuracy than test sets do: without this factor nominal 95 % covers
# 92.7 to 95.7 % in the simulations of tests/evaluation/test_estimates.py, with it 94 to 97 %.
WORST_FACTOR = 1.07


@dataclass
class AuditSettings:
    """Choices of an audit, checked."""

    num_classes: int
    class_names: tuple[str, ...] | None = None
    ranking: str = "corrected"
    reference: Any = (
        None  # audit of the same class_names, or class accuracies [K], that rank the classes; then the latter
    )
    confidence: float = 0.95
    bootstrap: int = 2000  # 0 leaves intervals of the headline numbers out (NaN)
    seed: int = 0
    mean_margin: float = 1.0  # of the margins γ shown in the class table
    costs: Any = None  # cost of taking a class (row) for another (column) [K, K]

    def __post_init__(self) -> None:
        check_choice("ranking", self.ranking, RANKINGS)
        check_fraction("confidence", self.confidence)
        check_int("bootstrap", self.bootstrap, minimum=0, maximum=MOST_RESAMPLES)
        check_int("seed", self.seed, minimum=0)
        check_number("mean_margin", self.mean_margin, above=0.0)
        count, reference = self.num_classes, self.reference
        if (self.ranking == "reference") != (reference is not None):
            raise ValueError(
                'ranking="reference" and reference (an audit or one accuracy per class) go together, '
                f"got ranking={self.ranking!r} {'without' if reference is None else 'with'} reference"
            )
        if reference is not None:
            if hasattr(reference, "by_class"):
                if self.class_names is not None and len(reference.class_names) == count:
                    shared_names([self.class_names, reference.class_names])
                reference = reference.by_class["accuracy"]
            self.reference = reference = to_array("reference", reference).astype(np.float64)
            if reference.shape != (count,):
                raise ValueError(f"reference must hold one accuracy per class ({count}), got shape {reference.shape}")
            if ((reference < 0) | (reference > 1)).any():
                raise ValueError("reference must hold accuracies in [0, 1] (NaN for unknown classes)")
        if self.costs is not None:
            self.costs = costs = to_array("costs", self.costs).astype(np.float64)
            if costs.shape != (count, count) or not np.isfinite(costs).all():
                wanted = f"one row per true and one column per predicted class ({count} x {count})"
                raise ValueError(f"costs must be finite, {wanted}, got shape {costs.shape}")


def centred_interval(
    value: float, draws: FloatArray, confidence: float, *, proportion: bool, widen: float = 1.0
) -> Interval:
    """Return the spread of ``draws`` around their mean, laid around ``value``."""
    if np.isnan(value):
        return float("nan"), float("nan")
    tail = (1 - confidence) / 2
    if proportion:
        angles = np.arcsin(np.sqrt(np.clip(draws, 0, 1)))
        low, high = np.quantile(angles - angles.mean(), [tail, 1 - tail]) * widen
        middle = np.arcsin(np.sqrt(value))
        ends = np.sin(np.clip([middle - high, middle - low], 0, np.pi / 2)) ** 2
        return min(float(ends[0]), value), max(float(ends[1]), value)
    low, high = np.quantile(draws - draws.mean(), [tail, 1 - tail]) * widen
    return min(float(value - high), value), max(float(value - low), value)


def with_few_events(interval: Interval, right: float, n: float, confidence: float) -> Interval:
    """Return the interval, joined with Wilson's where a group has very few wrong or right samples, which leaves nothing to resample."""
    if n == 0 or (min(right, n - right) > FEW and interval[1] - interval[0] > _NO_WIDTH):
        return interval
    low, high = wilson_interval(np.array(right), np.array(n), confidence)
    return min(interval[0], float(low)), max(interval[1], float(high))


def class_mean_counts(events: FloatArray, n: AnyArray) -> tuple[FloatArray, float]:
    """Return events and samples of a single group that is as informative as the mean of class shares (variance: mean of 1 / n)."""
    if not len(n):
        return np.zeros(np.shape(events)[:-1]), 0.0
    number = float(len(n) ** 2 / (1.0 / n).sum())
    # Rounded, so that equal sizes give whole numbers.
    return np.round(number * (events / n).mean(axis=-1), 6), round(number, 6)


def with_few_changes(interval: Interval, gained: float, lost: float, n: float, confidence: float) -> Interval:
    """Return the interval of a paired difference, joined with Newcombe's where hardly any sample changed sides, or hardly any did not."""
    changed = gained + lost
    if n == 0 or (min(changed, n - changed) > FEW and interval[1] - interval[0] > _NO_WIDTH):
        return interval
    low, high = wilson_interval(np.array([gained, lost]), np.array([n, n]), confidence)
    return with_few_in_parts(interval, (gained / n, low[0], high[0]), (lost / n, low[1], high[1]))


def with_few_in_parts(
    interval: Interval, first: tuple[float, float, float], second: tuple[float, float, float]
) -> Interval:
    """Return the interval of a difference, joined with what the limits of its two parts make of it (Newcombe 1998)."""
    below = float(np.hypot(first[0] - first[1], second[2] - second[0]))
    above = float(np.hypot(first[2] - first[0], second[0] - second[1]))
    value = first[0] - second[0]
    return min(interval[0], value - below), max(interval[1], value + above)


def small_sample_factor(n: AnyArray) -> float:
    """Return how much a resampled deviation is too short: drawing n of n has (n - 1) / n of the variance."""
    n = np.asarray(n, dtype=np.float64)
    n = n[n > 1]
    return float(np.sqrt(np.mean(n / (n - 1)))) if len(n) else 1.0


class HeadlineEstimates(NamedTuple):
    """Headline numbers of one model."""

    values: Mapping[str, float]  # each of overall, easy, medium, hard, worst, gap
    intervals: Mapping[str, tuple[float, float]]  # their intervals
    codes: IntArray  # tier of each class [K] as shown in the class table
    notes: tuple[str, ...]  # sentences about ranking, remainder, absent classes and what the intervals cover
    true: TrueAccuracies  # estimates of the true class accuracies


def estimate_headlines(table: OutcomeTable, settings: AuditSettings) -> HeadlineEstimates:
    """Return headline numbers and intervals of a table of one run."""
    right = np.rint(np.einsum("kc,kcm->k", table.counts, table.patterns)).astype(np.int64)
    n, confidence = table.n, settings.confidence
    corrected = settings.ranking == "corrected"
    with_intervals = settings.bootstrap > 0
    true = true_accuracies(right, n, confidence=confidence, seed=settings.seed, intervals=corrected and with_intervals)
    intervals: Intervals = dict.fromkeys(HEADLINES, (float("nan"), float("nan")))
    if corrected:
        total = np.array(n.sum())
        values = {"overall": float(right.sum() / total), **{name: true.values[name] for name in HEADLINES[1:]}}
        codes = tier_codes(true.estimate)
        if with_intervals:
            low, high = wilson_interval(np.array(right.sum()), total, confidence)
            intervals = {"overall": (float(low), float(high))}
            intervals |= {name: true.intervals[name] for name in HEADLINES[1:]}
    else:
        accuracy = table.class_accuracy()[:, 0]
        ranked_by = accuracy
        if settings.reference is not None:
            unknown = np.flatnonzero(np.isnan(settings.reference) & ~np.isnan(accuracy))
            if len(unknown):
                raise ValueError(f"reference must rank every class with samples, got NaN for class {int(unknown[0])}")
            ranked_by = np.where(np.isnan(accuracy), np.nan, settings.reference)
        codes = tier_codes(ranked_by)
        rule = TierRule(settings.ranking, codes if settings.ranking == "reference" else None)
        rng = np.random.default_rng(settings.seed)
        observed = observed_headlines(table, (1,), rule, rng)[0]
        values = dict(zip(HEADLINES, observed.tolist(), strict=True))
        if with_intervals:
            draws = resampled_headlines(table, (1,), rule, settings.bootstrap, rng, resample_runs=False)[:, 0]
            measured = codes
            if rule.ranking == "crossfit":  # leaves out classes that it cannot halve
                measured = tier_codes(np.where(n >= MIN_CROSSFIT_SAMPLES, accuracy, np.nan))
            intervals = _intervals(n, right, measured, observed, draws, confidence)
    notes = [
        f"Thirds: {_RULE_TEXT[settings.ranking]} Remainder: {REMAINDER_RULE}.",
        *notes_on_classes(n, settings.ranking),
    ]
    notes.append((_CORRECTED_TEXT if corrected else _INTERVAL_TEXT).format(level=100 * confidence))
    return HeadlineEstimates(values, intervals, codes, tuple(notes), true)


def _intervals(
    n: IntArray, right: IntArray, codes: IntArray, observed: FloatArray, draws: FloatArray, confidence: float
) -> Intervals:
    widen = small_sample_factor(n)
    resampled = {}
    for name, value, values in zip(HEADLINES, observed, draws.T, strict=True):
        factor = widen * WORST_FACTOR if name == "worst" else widen
        resampled[name] = centred_interval(float(value), values, confidence, proportion=name != "gap", widen=factor)
    # Classes behind each proportion; the worst class only where resampling cannot move it (all wrong or all right).
    present = np.flatnonzero(n > 0)
    groups = {"overall": present, **{name: np.flatnonzero(codes == code) for code, name in enumerate(TIERS)}}
    rates = right[present] / n[present]
    if rates.min() in (0.0, 1.0):
        groups["worst"] = present[[np.argmin(rates)]]
    intervals = dict(resampled)
    for name, inside in groups.items():
        hits: FloatArray = right[inside].astype(np.float64)
        events, number = hits.sum(), float(n[inside].sum())
        if name != "overall":  # where every sample counts the same, not every class
            events, number = class_mean_counts(hits, n[inside])
        intervals[name] = with_few_events(intervals[name], float(events), number, confidence)
    return intervals | _gap_of_thirds(resampled, intervals, observed)


def _gap_of_thirds(resampled: Intervals, guarded: Intervals, values: FloatArray) -> Intervals:
    """Return the interval of the gap if that of one of its thirds was widened, else nothing."""
    if all(guarded[name] == resampled[name] for name in ("easy", "hard")) or np.isnan(values[-1]):
        return {}
    thirds = ((float(values[j]), *guarded[HEADLINES[j]]) for j in (1, 3))
    return {"gap": with_few_in_parts(resampled["gap"], *thirds)}


def notes_on_classes(n: IntArray, ranking: str) -> list[str]:
    """Return what must be known about classes with few samples or none."""
    notes = []
    absent, few = int((n == 0).sum()), int(((n > 0) & (n < MIN_CROSSFIT_SAMPLES)).sum()) * (ranking == "crossfit")
    if absent:
        notes.append(f"{absent} of {len(n)} classes have no samples; they are left out of all means.")
    if few:
        notes.append(f"{few} classes with fewer than {MIN_CROSSFIT_SAMPLES} samples are left out of the thirds.")
    if len(n) - absent - few < len(TIERS):
        notes.append("Thirds need at least three classes with samples; those without a class are not given.")
    return notes


_RULE_TEXT = {
    "corrected": (
        "estimates of the true class accuracies (ranking='corrected'). Thirds ranked by observed accuracies (ranking='own', as in the "
        "paper) lie further apart, because noise helps to rank."
    ),
    "own": (
        "classes are ranked by this model's accuracies on the same samples (ranking='own'); noise helps to rank, so thirds lie too far "
        "apart."
    ),
    "reference": "classes are ranked by the accuracies given as reference (ranking='reference').",
    "crossfit": (
        "classes are ranked on one half of the samples of each class and measured on the other, both ways, averaged over ten splits "
        "(ranking='crossfit'); half of the samples rank with more noise, so thirds lie too close together. The tiers in the class table "
        "are those of all samples."
    ),
}
_CORRECTED_TEXT = (
    "Intervals ({level:g} %) are about true accuracies: those of thirds, worst class and gap hold what these classes would show on endless "
    "test sets; those of single classes borrow strength from the other classes. The worst class is the lowest true accuracy, whichever "
    "class has it."
)
_INTERVAL_TEXT = (
    "Intervals ({level:g} %): Wilson for single classes; for the other numbers a stratified bootstrap centred on the observed "
    "value, which covers what the same procedure gives on average over fresh test sets of this size."
)


def headline_differences(
    pair: ModelPair, *, ranking: str, confidence: float, bootstrap: int, seed: int, candidates: int = 1
) -> pd.DataFrame:
    """Return ``Comparison.summary``; intervals hold for all of several ``candidates`` at once."""
    import pandas as pd

    runs = pair.runs
    table = outcome_table(pair.labels, pair.correct, len(pair.class_names))
    rule = TierRule(ranking)
    rng = np.random.default_rng(seed)
    observed = observed_headlines(table, runs, rule, rng)
    several = max(runs) > 1
    draws = resampled_headlines(table, runs, rule, bootstrap, rng, resample_runs=several)
    deltas = draws[:, 1] - draws[:, 0]
    simultaneous = normal_quantile(1 - (1 - confidence) / candidates) / normal_quantile(confidence)
    widen = np.full(len(HEADLINES), small_sample_factor(table.n) * simultaneous)
    if several:
        samples = resampled_headlines(table, runs, rule, bootstrap, rng, resample_runs=False)
        only = resampled_headlines(table, runs, rule, bootstrap, rng, resample_runs=True, resample_samples=False)
        of_samples, of_runs = ((part[:, 1] - part[:, 0]).var(axis=0) for part in (samples, only))
        lent = max(runs) if min(runs) == 1 else 0
        widen *= _two_level_factor(deltas.var(axis=0), of_samples, of_runs, lent, sum(runs) - 2, confidence)
    difference = observed[1] - observed[0]
    intervals = {
        name: centred_interval(float(difference[j]), deltas[:, j], confidence, proportion=False, widen=float(widen[j]))
        for j, name in enumerate(HEADLINES)
    }
    intervals = _guard_few_changes(intervals, table, runs, difference, ranking, confidence)
    frame = pd.DataFrame({"metric": HEADLINES, "baseline": observed[0], "candidate": observed[1]})
    low, high = zip(*(intervals[name] for name in HEADLINES), strict=True)
    return frame.assign(difference=difference, low=low, high=high)


def _two_level_factor(
    both: FloatArray, of_samples: FloatArray, of_runs: FloatArray, lent: int, run_freedom: int, confidence: float
) -> FloatArray:
    """Return the factor on the deviations of copies in which runs and samples were both resampled.

    Let e be the variance of the mean of what is peculiar to a run on a sample. Resampling samples alone gives s + e, runs alone r + e, and
    both together r + s + 3e, while the truth is r + s + e = 2 (of_samples + of_runs) - both. A model with one run borrows r from the other.
    Few runs make r uncertain: Student's t replaces the normal quantile, with Satterthwaite's degrees of freedom.
    """
    from scipy.special import stdtrit

    total = np.maximum(2 * (of_samples + of_runs) - both, np.maximum(of_samples, of_runs)) + lent * of_runs
    of_runs = (1 + lent) * of_runs
    freedom = run_freedom * np.divide(total, of_runs, out=np.full(total.shape, 1e3), where=of_runs > 0) ** 2
    student = stdtrit(np.minimum(freedom, 1e6), 0.5 + confidence / 2) / normal_quantile(confidence)
    return np.asarray(student * np.sqrt(np.divide(total, both, out=np.ones_like(total), where=both > 0)))


def _guard_few_changes(
    intervals: Intervals,
    table: OutcomeTable,
    runs: tuple[int, int],
    difference: FloatArray,
    ranking: str,
    confidence: float,
) -> Intervals:
    """Keep intervals honest where hardly any sample changed sides, so that there is little to resample."""
    first, second = table.patterns[..., : runs[0]].mean(axis=-1), table.patterns[..., runs[0] :].mean(axis=-1)
    gained = (table.counts * second * (1 - first)).sum(axis=1)
    lost = (table.counts * first * (1 - second)).sum(axis=1)
    accuracy = table.class_accuracy()
    pooled = (accuracy[:, : runs[0]].mean(axis=1) + accuracy[:, runs[0] :].mean(axis=1)) / 2
    halved = table.n >= MIN_CROSSFIT_SAMPLES
    codes = tier_codes(np.where(halved, pooled, np.nan) if ranking == "crossfit" else pooled)
    groups = {"overall": table.n > 0, **{name: codes == code for code, name in enumerate(TIERS)}}
    groups["worst"] = np.arange(len(codes)) == np.nanargmin(pooled)
    guarded = dict(intervals)
    for name, inside in groups.items():
        changed, n = np.stack([gained, lost])[:, inside], table.n[inside]
        counts, number = (changed.sum(axis=1), n.sum()) if name == "overall" else class_mean_counts(changed, n)
        if not np.isnan(intervals[name][0]):
            guarded[name] = with_few_changes(intervals[name], counts[0], counts[1], number, confidence)
    guarded |= _gap_of_thirds(intervals, guarded, difference)
    # The largest difference there can be is 1 of two accuracies, 2 of two gaps.
    most = {name: 2.0 if name == "gap" else 1.0 for name in guarded}
    return {name: (float(max(low, -most[name])), float(min(high, most[name]))) for name, (low, high) in guarded.items()}
